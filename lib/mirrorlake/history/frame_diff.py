"""What the next frame would load anew: the files of a frame against the table as it is now.

A model that is framed again keeps the columns' segments of row groups that are still there, and
loads the others. A file whose deletion vector changed keeps its segments.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from mirrorlake.delta.commits import CommitLog
from mirrorlake.delta.files import changed_files, files_of, matching_files, total
from mirrorlake.delta.snapshot import read_snapshot
from mirrorlake.delta.table import TableHandle
from mirrorlake.history.frame_records import Frame, FramedTable, measure_files, read_lists
from mirrorlake.results import Count, Result, TextTable, size_text
from mirrorlake.spark.sql import query_errors
from mirrorlake.storage.files import Storage

_MANY = 1_000  # commits; beyond these the newest checkpoint is the shorter way


@dataclass(frozen=True)
class FrameDiff(Result):
    """One table of a frame, and how far the lake has moved on from it.

    Attributes:
        framed, newest: version numbers; `newest` is None if the table is gone.
        files_added, files_removed, files_preserved: data files, by their names.
        row_groups_added, row_groups_removed, row_groups_preserved: likewise; added ones are None
            where the files are not written yet.
        rows_added: rows of the added files.
        rows_removed: rows of the removed files, and rows that deletion vectors took since.
        bytes_added, bytes_removed: sizes of these files.
        vectors_changed: preserved files with another deletion vector than when framed.
        recreated: whether this is another table of the same name.
        forecast: the predicate of a DELETE that is assumed, or None.
    """

    table: str
    framed: int
    newest: int | None
    files_added: int = 0
    files_removed: int = 0
    files_preserved: int = 0
    row_groups_added: int | None = 0
    row_groups_removed: int = 0
    row_groups_preserved: int = 0
    rows_added: int = 0
    rows_removed: int = 0
    bytes_added: int = 0
    bytes_removed: int = 0
    vectors_changed: int = 0
    recreated: bool = False
    forecast: str | None = None

    @property
    def preserved(self) -> float:
        """The share of the framed row groups that the next frame need not load, 0 to 1."""
        framed = self.row_groups_removed + self.row_groups_preserved
        return self.row_groups_preserved / framed if framed else 1.0

    def shown(self) -> TextTable:
        """What was added, removed and preserved, by what is counted."""
        rows: tuple[tuple[Any, ...], ...] = (
            ("files", self.files_added, self.files_removed, self.files_preserved),
            (
                "row groups",
                "not known" if self.row_groups_added is None else self.row_groups_added,
                self.row_groups_removed,
                self.row_groups_preserved,
            ),
            ("rows", Count(self.rows_added), Count(self.rows_removed), ""),
            ("size", size_text(self.bytes_added), size_text(self.bytes_removed), ""),
            ("deletion vectors changed", "", "", self.vectors_changed),
        )
        return TextTable((str(self), "added", "removed", "preserved"), rows)

    def __str__(self) -> str:
        if self.newest is None:
            return f"{self.table}: framed at {self.framed}, and gone since"
        moved = f"{self.table}: framed at {self.framed}, now {self.newest}"
        return f"{moved}, made anew" if self.recreated else moved

    def __repr__(self) -> str:
        return f"{self}; {self.preserved:.0%} of the row groups preserved"


@query_errors()
def compare_table(
    spark: Callable[[], SparkSession],
    storage: Storage,
    frame: Frame,
    framed: FramedTable,
    *,
    delete: str | None = None,
) -> FrameDiff:
    """Compares one framed table with what it is now, or would be after a DELETE.

    Args:
        spark: called if anything has changed.
        storage: the lake's files.
        frame: the frame.
        framed: the table in it.
        delete: a predicate; only what it would do is worked out, nothing is deleted.

    Raises:
        QueryError: Spark refused the predicate.
    """
    snapshot = read_snapshot(storage, framed.name.table_path)
    unchanged = FrameDiff(
        framed.table,
        framed.version,
        None if snapshot is None else snapshot.version,
        files_preserved=framed.files,
        row_groups_preserved=framed.row_groups,
    )
    if snapshot is None:
        return unchanged
    recreated = snapshot.metadata["id"] != framed.table_id
    if delete is None and not recreated and snapshot.version == framed.version:
        return unchanged
    table = TableHandle(spark, storage, framed.name, snapshot)
    before = read_lists(table.spark, storage, [frame], framed.name)
    if delete is None and not recreated and _holds_since(table, framed.version):
        before, now = _touched(table, framed.version, before)
    else:
        now = files_of(table, snapshot.version)
    if delete is not None:
        now = _after_delete(table, now, delete)
    added = _added(table, before, now, written=delete is None)
    figures = added.crossJoin(_removed(before, now)).collect()[0].asDict()
    return replace(
        unchanged,
        recreated=recreated,
        forecast=delete,
        files_preserved=framed.files - figures["files_removed"],
        row_groups_preserved=framed.row_groups - figures["row_groups_removed"],
        **figures,
    )


def _holds_since(table: TableHandle, framed: int) -> bool:
    """Whether the log still has every commit since the frame, and these are the shorter way."""
    # Commits are cut off at the front: with the first all of them are there.
    log = CommitLog(table.storage, table.name.table_path)
    return 0 < table.snapshot().version - framed <= _MANY and log.has(framed + 1)


def _touched(table: TableHandle, framed: int, before: DataFrame) -> tuple[DataFrame, DataFrame]:
    """The files that commits since the frame name: as they were framed, and as they are now."""
    changed = changed_files(table, framed + 1, table.snapshot().version)
    named = F.broadcast(changed.select("path").distinct())
    return before.join(named, "path", "left_semi"), changed.where("live").drop("live", "removed")


def _added(table: TableHandle, before: DataFrame, now: DataFrame, *, written: bool) -> DataFrame:
    added = now.join(before.select("path"), "path", "left_anti")
    if written:
        added = measure_files(table.storage, added)
    groups = total("row_groups") if written else F.lit(None).cast("bigint")
    return added.agg(
        F.count("*").alias("files_added"),
        groups.alias("row_groups_added"),
        total("rows").alias("rows_added"),
        total("size").alias("bytes_added"),
    )


def _removed(before: DataFrame, now: DataFrame) -> DataFrame:
    today = now.select(
        "path",
        F.col("vector").alias("vector_now"),
        F.col("masked").alias("masked_now"),
        F.lit(1).alias("there"),
    )
    both = before.join(today, "path", "left")
    gone = F.col("there").isNull()
    moved = ~gone & ~F.col("vector").eqNullSafe(F.col("vector_now"))

    # Not every file has statistics, but each deletion vector says how many rows it takes.
    taken = total(F.when(moved, F.col("masked_now") - F.col("masked")))
    return both.agg(
        F.count_if(gone).alias("files_removed"),
        total(F.when(gone, F.col("row_groups"))).alias("row_groups_removed"),
        (total(F.when(gone, F.col("rows"))) + taken).alias("rows_removed"),
        total(F.when(gone, F.col("size"))).alias("bytes_removed"),
        F.count_if(moved).alias("vectors_changed"),
    )


def _after_delete(table: TableHandle, now: DataFrame, predicate: str) -> DataFrame:
    """The files as a DELETE would leave them: gone, rewritten under other names, or masked."""
    hits = matching_files(table, predicate)
    both = now.join(hits, "path", "left").withColumn("hits", F.coalesce("hits", F.lit(0)))
    left = both.where("rows IS NULL OR hits < rows")
    touched = F.col("hits") > 0
    if table.snapshot().properties.get("delta.enableDeletionVectors", "false") == "true":
        changed = left.withColumn("vector", F.when(touched, "new").otherwise(F.col("vector")))
    else:
        renamed = F.when(touched, F.concat("path", F.lit(" rewritten"))).otherwise(F.col("path"))
        changed = left.withColumn("path", renamed)
    fewer = {"rows": F.col("rows") - F.col("hits"), "masked": F.col("masked") + F.col("hits")}
    return changed.withColumns(fewer).drop("hits")
