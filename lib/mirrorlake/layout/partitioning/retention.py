"""Retention by age: whole files go when even their youngest rows are older than what is kept.

A file is as old as its creation time says: when it was written, or, where the policy overrides it,
when its rows' own moments were.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from pyspark.sql import functions as F

from mirrorlake.layout.partitioning import tags
from mirrorlake.layout.partitioning.store import now_micros
from mirrorlake.layout.partitioning.timespan import parse_timespan
from mirrorlake.spark.gateway import transaction
from mirrorlake.table import Table

_NOTE = json.dumps({"mirrorlake": "retention"})


@dataclass(frozen=True)
class Dropped:
    """What was, or would be, dropped.

    Attributes:
        table: which table.
        files, rows, size: what goes.
        version: the commit; None for a dry run, or if nothing was old enough.
    """

    table: str
    files: int
    rows: int
    size: int
    version: int | None

    def __repr__(self) -> str:
        verb = "would drop" if self.version is None else "dropped"
        return f"{self.table}: {verb} {self.files} files with {self.rows:,} rows"


def drop_old_files(table: Table, keep: str, *, dry_run: bool = True) -> Dropped:
    """Drops the files whose greatest creation time is longer ago than a timespan.

    Args:
        table: which table.
        keep: a timespan, such as `365d`.
        dry_run: only say what would go.

    Raises:
        UsageError: it is no timespan, or there is no JVM to commit through.
        ConflictError: another writer touched the same files; nothing was dropped.
    """
    oldest = now_micros() - parse_timespan(keep)
    with transaction(table.spark, table.path, note=_NOTE) as txn:
        old = txn.files().where(tags.created() < F.lit(oldest))
        found = old.select("path", "size", tags.row_count().alias("rows")).collect()
        version = None
        if found and not dry_run:
            gone = txn.take([line["path"] for line in found])
            version = txn.commit_rows([], gone, mode="Overwrite")
    rows, size = (sum(line[what] for line in found) for what in ("rows", "size"))
    return Dropped(str(table.name), len(found), rows, size, version)
