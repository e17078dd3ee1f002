"""What the process leaves behind: files that operations replaced, and what a crash cut off.

What a killed operation had written is deleted by the next one, which its receipt tells. Replaced
files stay for as long as the table keeps removed files, for readers of older versions; then they go
by the same vacuum as ever, which also keeps what frames and feeds need.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from mirrorlake.delta_log import read_snapshot
from mirrorlake.history.vacuum import Vacuum, vacuum_table
from mirrorlake.history.versions import FILE_RETENTION, retention
from mirrorlake.layout.partitioning.receipts import read_receipts
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
    now = datetime.now(timezone.utc)
    place = f"{name.partitioning_path}/cleaned.json"
    last = (storage.read_json(place) or {}).get("at", "")
    keep = retention(snapshot, FILE_RETENTION)
    due = [
        receipt
        for receipt in read_receipts(storage, name)
        if (receipt.version or -1) >= 0
        and receipt.at > last
        and datetime.fromisoformat(receipt.at) + keep + timedelta(minutes=1) < now
    ]
    if not due:
        return None
    done = vacuum_table(spark, storage, name, dry_run=False)
    storage.write_json(place, {"at": max(receipt.at for receipt in due)})
    return done
