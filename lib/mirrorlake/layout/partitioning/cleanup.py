"""What the process leaves behind: files that operations replaced, and what a crash cut off.

What a killed operation had written is deleted by the next one, which its receipt tells. Replaced
files stay for as long as the table keeps removed files, for readers of older versions; then they go
by the same vacuum as ever, which also keeps what frames and feeds need.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from pyspark.sql import SparkSession

from mirrorlake.delta_log import Snapshot, read_snapshot
from mirrorlake.history.vacuum import vacuum_table
from mirrorlake.history.versions import FILE_RETENTION, retention
from mirrorlake.layout.partitioning.receipts import Receipt, read_receipts
from mirrorlake.layout.partitioning.timespan import to_micros
from mirrorlake.names import TableName
from mirrorlake.storage import Storage
from mirrorlake.table import Table


def clean_up(spark: SparkSession, storage: Storage, name: TableName) -> int | None:
    """Vacuums a table if files that operations replaced are out of its retention.

    Returns:
        When it is to be done next, microseconds since 1970; None for never.
    """
    snapshot = read_snapshot(storage, name.table_path)
    if snapshot is None:
        return None
    kept, now = _kept(storage, name), datetime.now(timezone.utc)
    due = [receipt for receipt in kept if _due(receipt, snapshot) < now]
    if due:
        vacuum_table(Table(spark, storage, name), apply=True)
        storage.write_json(_place(name), {"at": max(receipt.at for receipt in due)})
    moments = (to_micros(_due(receipt, snapshot)) for receipt in kept if receipt not in due)
    return min(moments, default=None)


def _kept(storage: Storage, name: TableName) -> list[Receipt]:
    """The operations whose replaced files no vacuum has been after yet."""
    last = (storage.read_json(_place(name)) or {}).get("at", "")
    receipts = read_receipts(storage, name)
    return [one for one in receipts if (one.version or -1) >= 0 and one.at > last]


def _due(receipt: Receipt, snapshot: Snapshot) -> datetime:
    began = datetime.fromisoformat(receipt.at)
    return began + retention(snapshot, FILE_RETENTION) + timedelta(minutes=1)


def _place(name: TableName) -> str:
    return f"{name.partitioning_path}/cleaned.json"
