"""What the process leaves behind: files that operations replaced, and what a crash cut off.

What a killed operation had written is deleted by the next one, which its receipt tells. Replaced
files stay for as long as the table keeps removed files, for readers of older versions; then they go
by the same vacuum as ever, which also keeps what frames and feeds need.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from mirrorlake.delta_log import Snapshot, read_snapshot
from mirrorlake.history.vacuum import Vacuum, vacuum_table
from mirrorlake.history.versions import FILE_RETENTION, retention
from mirrorlake.layout.partitioning.receipts import Receipt, read_receipts
from mirrorlake.layout.partitioning.timespan import to_micros
from mirrorlake.names import TableName
from mirrorlake.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def clean_up(spark: SparkSession, storage: Storage, name: TableName) -> Vacuum | None:
    """Vacuums a table if files that operations replaced are out of its retention.

    Returns:
        What was done, or None if it is too early.
    """
    snapshot = read_snapshot(storage, name.table_path)
    if snapshot is None:
        return None
    due = [one for one in _kept(storage, name) if _due(one, snapshot) < datetime.now(timezone.utc)]
    if not due:
        return None
    done = vacuum_table(spark, storage, name, dry_run=False)
    storage.write_json(_place(name), {"at": max(receipt.at for receipt in due)})
    return done


def next_clean_up(storage: Storage, name: TableName) -> int | None:
    """When replaced files are out of the table's retention next, microseconds since 1970."""
    snapshot = read_snapshot(storage, name.table_path)
    if snapshot is None:
        return None
    moments = (to_micros(_due(receipt, snapshot)) for receipt in _kept(storage, name))
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
