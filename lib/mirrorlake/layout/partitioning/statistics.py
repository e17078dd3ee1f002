"""How far the partitioning of tables is: rows partitioned, unpartitioned, and still to be done.

The first columns, and those of the diagnostics, are Kusto's.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from mirrorlake.delta.files import live_files, read_actions
from mirrorlake.delta.log_files import find_segment
from mirrorlake.delta.table import Table
from mirrorlake.errors import UsageError
from mirrorlake.layout.partitioning import tags
from mirrorlake.layout.partitioning.groups import bucket_sql
from mirrorlake.layout.partitioning.policy import Policy
from mirrorlake.layout.partitioning.store import Setting
from mirrorlake.names import TableName
from mirrorlake.results import Result, TextTable
from mirrorlake.spark.gateway import has_gateway, transaction

LOW_PERCENTAGE = 90.0
_MOST_FILES = 1_000


@dataclass(frozen=True)
class TableStatistics(Result):
    """One table's state.

    Attributes:
        table: its name.
        policy: as JSON; None without one.
        rows, files, size: all there are.
        partitioned_rows, partitioned_files: those of files that the present policy has made.
        outlier_rows: of them, those in files of their own.
        pending_rows, pending_files: the unpartitioned ones that an operation would take.
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
    def unpartitioned_rows(self) -> int:
        """Rows of files that are not partitioned: new, cold, or older than the policy."""
        return self.rows - self.partitioned_rows

    def __repr__(self) -> str:
        return (
            f"{self.table}: {self.partitioned_rows:,} of {self.rows:,} rows partitioned"
            f" ({self.percentage:.1f} %), {self.pending_rows:,} to be"
        )

    def shown(self) -> TextTable:
        """One row; the columns are those of `partition stats`."""
        row = {
            "TableName": self.table,
            "PartitioningPolicy": self.policy,
            "TotalRowCount": self.rows,
            "PartitionedRowCount": self.partitioned_rows,
            "PartitionedRowPercentage": round(self.percentage, 2),
            "TailRowCount": self.unpartitioned_rows,
            "PendingRowCount": self.pending_rows,
            "OutlierRowCount": self.outlier_rows,
            "FileCount": self.files,
        }
        return TextTable(tuple(row), (tuple(row.values()),))


@dataclass(frozen=True)
class Diagnostics(Result):
    """The process's state, in Kusto's words.

    Attributes:
        tables: the statistics of the tables with a policy.
        capacity: operations at a time.
        operations_in_progress: how many are at work.
    """

    tables: tuple[TableStatistics, ...]
    capacity: int
    operations_in_progress: int

    @property
    def least(self) -> TableStatistics | None:
        """The table that is farthest behind; None without a policy anywhere."""
        return min(self.tables, key=lambda table: table.percentage, default=None)

    @property
    def is_behind(self) -> bool:
        """Whether a table is so far behind that the capacity should be looked at."""
        return self.least is not None and self.least.percentage < LOW_PERCENTAGE

    def shown(self) -> TextTable:
        """One row."""
        least, at_work = self.least, self.operations_in_progress
        row = {
            "DataPartitioningLoadFactor": round(100 * at_work / self.capacity, 1),
            "DataPartitioningOperationsInProgress": at_work,
            "MinPartitioningPercentageInSingleTable": least and round(least.percentage, 2),
            "TableWithMinPartitioningPercentage": least and least.table,
        }
        return TextTable(tuple(row), (tuple(row.values()),))

    def __repr__(self) -> str:
        at_work = f"{self.operations_in_progress} operations at work"
        if self.least is None or not self.is_behind:
            return at_work
        return f"{at_work}, {self.least.table} is at {self.least.percentage:.1f} %"


def newest_files(table: Table) -> DataFrame:
    """The newest version's files: Delta's own listing, or the log itself under Spark Connect."""
    if has_gateway(table.spark):
        with transaction(table.spark, table.path) as txn:
            return txn.files()
    return logged_files(table)


def logged_files(table: Table) -> DataFrame:
    """The newest version's files from the log itself, in the shape of a transaction's."""
    segment = find_segment(table.storage, table.name.table_path)
    actions = read_actions(table.spark, table.storage, segment)
    return live_files(actions).select(
        "path",
        "size",
        F.from_json("tags", "map<string, string>").alias("tags"),
        F.col("modified").alias("modificationTime"),
        F.to_json(F.struct(F.col("rows").alias("numRecords"))).alias("stats"),
        F.struct(F.col("deleted").alias("cardinality")).alias("deletionVector"),
        F.from_json("partition", "map<string, string>").alias("partitionValues"),
    )


def count_files(files: DataFrame, name: TableName, setting: Setting | None) -> TableStatistics:
    """Adds up a version's files.

    Args:
        files: as `newest_files` gives them.
        name: the table.
        setting: its policy; None without one.
    """
    done, pending, policy = F.lit(False), F.lit(False), None
    if setting is not None:
        policy = setting.policy.to_json()
        done, pending = tags.is_partitioned(setting.fingerprint), tags.is_pending(setting)
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
    return TableStatistics(str(name), policy, **line.asDict())


@dataclass(frozen=True)
class Spread:
    """Rows by file and bucket.

    Attributes:
        counts: one entry per file, in it the rows per bucket; ordered by these numbers, not by the
            files' names.
    """

    counts: tuple[tuple[int, ...], ...]

    @property
    def homogeneous(self) -> int:
        """How many files hold one bucket only."""
        return sum(sum(count > 0 for count in line) == 1 for line in self.counts)

    def __repr__(self) -> str:
        return f"{self.homogeneous} of {len(self.counts)} files hold one bucket only"


def spread_of(table: Table, policy: Policy) -> Spread:
    """Counts the rows of each bucket in each file, of the first 1,000 files.

    Raises:
        UsageError: the policy has no hash key.
    """
    if policy.hash is None:
        raise UsageError("The policy has no hash partition key.")
    rows = table.spark.sql(f"SELECT * FROM {table.sql_name}")
    bucket = F.expr(bucket_sql(policy.hash.column, policy.hash))
    keyed = rows.select(F.col("_metadata.file_path").alias("file"), bucket.alias("bucket"))
    wide = keyed.groupBy("file").pivot("bucket", list(range(policy.hash.max_partition_count)))
    found = wide.count().na.fill(0).orderBy("file").limit(_MOST_FILES).drop("file").collect()
    return Spread(tuple(sorted((tuple(map(int, line)) for line in found), reverse=True)))
