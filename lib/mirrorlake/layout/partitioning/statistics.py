"""How far the partitioning of tables is: rows partitioned, the tail, and what is still to be done.

The first columns, and those of the diagnostics, are the original's.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from mirrorlake.delta.files import live_files, read_actions
from mirrorlake.delta.log_files import find_segment
from mirrorlake.layout.partitioning import tags
from mirrorlake.layout.partitioning.capacity import Capacity
from mirrorlake.layout.partitioning.store import Setting, now_micros
from mirrorlake.names import TableName
from mirrorlake.spark.gateway import has_gateway, transaction
from mirrorlake.storage import Storage
from mirrorlake.text_table import TextTable, html_table

LOW_PERCENTAGE = 90.0


@dataclass(frozen=True)
class TableStatistics:
    """One table's state.

    Attributes:
        table: its name.
        policy: as JSON; None without one.
        rows, files, size: all there are.
        partitioned_rows, partitioned_files: those of files that the present policy has made.
        outlier_rows: of them, those in files of their own.
        pending_rows, pending_files: the part of the tail that an operation would take.
    """

    table: str
    policy: str | None
    rows: int
    files: int
    size: int
    partitioned_rows: int
    partitioned_files: int
    outlier_rows: int
    pending_rows: int
    pending_files: int

    @property
    def percentage(self) -> float:
        """Partitioned rows in percent; 100 of an empty table."""
        return 100 * self.partitioned_rows / self.rows if self.rows else 100.0

    @property
    def tail_rows(self) -> int:
        """Rows of files that are not partitioned: new, cold, or older than the policy."""
        return self.rows - self.partitioned_rows

    def __repr__(self) -> str:
        return (
            f"{self.table}: {self.partitioned_rows:,} of {self.rows:,} rows partitioned"
            f" ({self.percentage:.1f} %), {self.pending_rows:,} to be"
        )

    def _repr_html_(self) -> str:
        return html_table(show_statistics([self]))


@dataclass(frozen=True)
class Diagnostics:
    """The process's state, in the original's words.

    Attributes:
        load_factor: operations at work, in percent of the capacity.
        operations_in_progress: how many are at work.
        least_percentage: of the table that is farthest behind; None without a policy anywhere.
        least_table: that table.
    """

    load_factor: float
    operations_in_progress: int
    least_percentage: float | None
    least_table: str | None

    @property
    def is_behind(self) -> bool:
        """Whether a table is so far behind that the capacity should be looked at."""
        return self.least_percentage is not None and self.least_percentage < LOW_PERCENTAGE

    def shown(self) -> TextTable:
        """One row."""
        columns = (
            "DataPartitioningLoadFactor",
            "DataPartitioningOperationsInProgress",
            "MinPartitioningPercentageInSingleTable",
            "TableWithMinPartitioningPercentage",
        )
        least = None if self.least_percentage is None else round(self.least_percentage, 2)
        row = (self.load_factor, self.operations_in_progress, least, self.least_table)
        return TextTable(columns, (row,))

    def __repr__(self) -> str:
        behind = f", {self.least_table} is at {self.least_percentage:.1f} %" * self.is_behind
        return f"{self.operations_in_progress} operations at work{behind}"

    def _repr_html_(self) -> str:
        return html_table(self.shown())


def diagnose(lines: Sequence[TableStatistics], capacity: Capacity, in_progress: int) -> Diagnostics:
    """The process's state.

    Args:
        lines: of the tables with a policy.
        capacity: the process's.
        in_progress: operations at work.
    """
    least = min(lines, key=lambda line: line.percentage, default=None)
    return Diagnostics(
        round(100 * in_progress / capacity.current, 1),
        in_progress,
        None if least is None else least.percentage,
        None if least is None else least.table,
    )


def newest_files(spark: SparkSession, storage: Storage, name: TableName) -> DataFrame:
    """The newest version's files: Delta's own listing, or the log itself under Spark Connect."""
    if has_gateway(spark):
        with transaction(spark, storage.path(name.table_path)) as txn:
            return txn.files()
    return logged_files(spark, storage, name)


def logged_files(spark: SparkSession, storage: Storage, name: TableName) -> DataFrame:
    """The newest version's files from the log itself, in the shape of a transaction's."""
    segment = find_segment(storage, name.table_path)
    files = live_files(read_actions(spark, storage, segment))
    return files.select(
        "path",
        "size",
        F.from_json("tags", "map<string, string>").alias("tags"),
        F.col("modified").alias("modificationTime"),
        F.to_json(F.struct(F.col("rows").alias("numRecords"))).alias("stats"),
        F.struct(F.col("deleted").alias("cardinality")).alias("deletionVector"),
    )


def count_files(files: DataFrame, name: TableName, setting: Setting | None) -> TableStatistics:
    """Adds up a version's files.

    Args:
        files: as `newest_files` gives them.
        name: the table.
        setting: its policy; None without one.
    """
    policy = None if setting is None else setting.policy
    if setting is None or policy is None:
        done = pending = F.lit(False)
    else:
        done, pending = (
            tags.is_partitioned(setting.fingerprint),
            tags.is_pending(setting, now_micros()),
        )
    rows, zero = tags.row_count(), F.lit(0).cast("bigint")
    outlier = done & tags.tag(tags.OUTLIER).isNotNull()
    sums = {
        "rows": rows,
        "files": F.lit(1),
        "size": F.col("size"),
        "partitioned_rows": F.when(done, rows),
        "partitioned_files": F.when(done, 1),
        "outlier_rows": F.when(outlier, rows),
        "pending_rows": F.when(pending, rows),
        "pending_files": F.when(pending, 1),
    }
    totals = [F.coalesce(F.sum(what), zero).alias(name) for name, what in sums.items()]
    (line,) = files.agg(*totals).collect()
    text = None if policy is None else json.dumps(policy.document(), ensure_ascii=False)
    return TableStatistics(str(name), text, **line.asDict())


def show_statistics(lines: Sequence[TableStatistics]) -> TextTable:
    """One row a table."""
    columns = (
        "TableName",
        "PartitioningPolicy",
        "TotalRowCount",
        "PartitionedRowCount",
        "PartitionedRowPercentage",
        "TailRowCount",
        "PendingRowCount",
        "OutlierRowCount",
        "FileCount",
    )
    rows = tuple(
        (
            line.table,
            line.policy,
            line.rows,
            line.partitioned_rows,
            round(line.percentage, 2),
            line.tail_rows,
            line.pending_rows,
            line.outlier_rows,
            line.files,
        )
        for line in lines
    )
    return TextTable(columns, rows)
