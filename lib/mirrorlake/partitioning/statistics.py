"""Count a table's partitioned and pending files, and find the files that a predicate reads.

The first columns of the statistics and all columns of the diagnostics have Kusto's names.

A scan reads the files of the buckets that a predicate needs, and all files that are not
partitioned. It uses the tags for this, because statistics can't exclude a bucket. Delta also skips
files by their statistics, for bins and all other columns. To choose buckets, the scan must know for
which key values the predicate can be true. Therefore it uses only comparisons of the column itself
with text literals, joined by AND and OR. With a number, Spark would compare numbers: '05' then
equals 5, although their hashes differ.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import unquote

import sqlglot
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from sqlglot import exp
from sqlglot.errors import SqlglotError

from mirrorlake.delta.files import live_files, read_actions, tag, total
from mirrorlake.delta.log_files import find_segment
from mirrorlake.delta.table import TableHandle
from mirrorlake.errors import UsageError
from mirrorlake.names import quote
from mirrorlake.partitioning.groups import (
    BUCKET,
    OUTLIER,
    VALUE,
    bucket_of,
    bucket_sql,
    is_partitioned,
    is_pending,
    row_count,
)
from mirrorlake.partitioning.policy import BY_PARTITION, HashKey, Policy, Setting
from mirrorlake.partitioning.store import fitting_setting
from mirrorlake.results import Result, TextTable, counted
from mirrorlake.spark.jvm import (
    Add,
    DeltaTransaction,
    has_gateway,
    keep_together,
    transaction,
)
from mirrorlake.spark.older import spread
from mirrorlake.spark.sql import query_errors

LOW_PERCENTAGE = 90.0
_MOST_FILES = 1_000
_TASK = "__mirrorlake_task"
Values = frozenset[str | None]


@dataclass(frozen=True)
class TableStatistics(Result):
    """The numbers of partitioned and pending rows and files of one table.

    Attributes:
        table: the table's name.
        policy: the table's policy as JSON; None without a policy.
        rows, files, size: the numbers of rows, files and bytes of the whole table.
        partitioned_rows, partitioned_files: the part that is partitioned by the current policy.
        outlier_rows: the partitioned rows in files of outliers.
        pending_rows, pending_files: the part that operations still have to partition.
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
        """The share of partitioned rows in percent; 100 for an empty table."""
        return 100 * self.partitioned_rows / self.rows if self.rows else 100.0

    @property
    def unpartitioned_rows(self) -> int:
        """The number of rows in files that are not partitioned: new, cold or too old."""
        return self.rows - self.partitioned_rows

    def __repr__(self) -> str:
        return (
            f"{self.table}: {self.partitioned_rows:,} of {counted(self.rows, 'row')} partitioned"
            f" ({self.percentage:.1f} %), {self.pending_rows:,} pending"
        )

    def shown(self) -> TextTable:
        """Return one row, with the columns of `partition stats`."""
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
    """The state of the background process, in Kusto's terms.

    Attributes:
        tables: the statistics of the tables with a policy.
        capacity: the number of operations that may run concurrently.
        operations_in_progress: the number of running operations.
    """

    tables: tuple[TableStatistics, ...]
    capacity: int
    operations_in_progress: int

    @property
    def least(self) -> TableStatistics | None:
        """The table with the lowest percentage; None if no table has a policy."""
        return min(self.tables, key=lambda table: table.percentage, default=None)

    @property
    def is_behind(self) -> bool:
        """Whether less than 90 % of a table is partitioned; then review the capacity."""
        return self.least is not None and self.least.percentage < LOW_PERCENTAGE

    def shown(self) -> TextTable:
        """Return one row."""
        least, at_work = self.least, self.operations_in_progress
        row = {
            "DataPartitioningLoadFactor": round(100 * at_work / self.capacity, 1),
            "DataPartitioningOperationsInProgress": at_work,
            "MinPartitioningPercentageInSingleTable": least and round(least.percentage, 2),
            "TableWithMinPartitioningPercentage": least and least.table,
        }
        return TextTable(tuple(row), (tuple(row.values()),))

    def __repr__(self) -> str:
        at_work = f"{counted(self.operations_in_progress, 'operation')} running"
        if self.least is None or not self.is_behind:
            return at_work
        return f"{at_work}, {self.least.table} is at {self.least.percentage:.1f} %"


def newest_files(table: TableHandle) -> DataFrame:
    """Return the files of the newest version, from Delta or (under Spark Connect) from the log."""
    if has_gateway(table.spark):
        with transaction(table.spark, table.path) as txn:
            return txn.files()
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


def count_files(table: TableHandle, setting: Setting | None) -> TableStatistics:
    """Count the newest version's files and rows.

    Args:
        table: the table.
        setting: the table's policy; None without a policy.
    """
    files = newest_files(table)  # starts the session, which creating columns requires
    done, pending, policy = F.lit(False), F.lit(False), None
    if setting is not None:
        policy = setting.policy.to_json()
        done, pending = is_partitioned(setting.fingerprint), is_pending(setting)
    rows = row_count()
    outlier = done & tag(OUTLIER).isNotNull()
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
    totals = [total(what).alias(name) for name, what in sums.items()]
    (line,) = files.agg(*totals).collect()
    return TableStatistics(str(table.name), policy, **line.asDict())


@dataclass(frozen=True)
class Spread:
    """The rows of a table by file and bucket.

    Attributes:
        counts: one entry per file: its number of rows by bucket. The entries are ordered by these
            numbers.
    """

    counts: tuple[tuple[int, ...], ...]

    @property
    def homogeneous(self) -> int:
        """The number of files that contain one bucket only."""
        return sum(sum(count > 0 for count in line) == 1 for line in self.counts)

    def __repr__(self) -> str:
        return f"{self.homogeneous} of {counted(len(self.counts), 'file')} hold one bucket only"


def spread_of(table: TableHandle, policy: Policy) -> Spread:
    """Count the rows of each bucket in each file, for the first 1,000 files.

    Raises:
        UsageError: the policy has no hash key.
    """
    if policy.hash is None:
        raise UsageError("The policy has no hash partition key.")
    rows = table.rows()
    bucket = F.expr(bucket_sql(policy.hash.column, policy.hash))
    keyed = rows.select(F.col("_metadata.file_path").alias("file"), bucket.alias("bucket"))
    wide = keyed.groupBy("file").pivot("bucket", list(range(policy.hash.max_partition_count)))
    found = wide.count().na.fill(0).orderBy("file").limit(_MOST_FILES).drop("file").collect()
    return Spread(tuple(sorted((tuple(map(int, line)) for line in found), reverse=True)))


def file_name(path: str) -> str:
    """Return a file's own name, without the folders of Delta's partitions."""
    return unquote(path).rpartition("/")[2]


@dataclass(frozen=True)
class ScannedFile:
    """One file that a scan reads.

    Attributes:
        path: its path, as in the log.
        size: its bytes.
        bucket: the bucket of the file's rows; None for a file that is not partitioned, and for
            distant rows.
        is_partitioned: whether it contains one partition of the table's policy.
    """

    path: str
    size: int
    bucket: int | None
    is_partitioned: bool


@dataclass(frozen=True)
class Scan(Result):
    """The files that a predicate reads, and the rows that match.

    Attributes:
        table: the table's name.
        read: the files that are read.
        files, size: the number of all files, and their bytes.
        rows: the rows that match the predicate.
    """

    table: str
    read: tuple[ScannedFile, ...]
    files: int
    size: int
    rows: DataFrame

    @property
    def unpartitioned(self) -> int:
        """The number of read files that are not partitioned."""
        return sum(not file.is_partitioned for file in self.read)

    @property
    def bytes_read(self) -> int:
        """The bytes of the files that are read."""
        return sum(file.size for file in self.read)

    def shown(self) -> TextTable:
        """Return one row per fact."""
        facts = (
            ("files read", len(self.read)),
            ("of them, unpartitioned", self.unpartitioned),
            ("files in the table", self.files),
            ("bytes read", self.bytes_read),
            ("bytes in the table", self.size),
        )
        return TextTable(("scan", str(self.table)), facts)

    def __repr__(self) -> str:
        return (
            f"{self.table}: {len(self.read)} of {counted(self.files, 'file')} read,"
            f" {self.unpartitioned} of them unpartitioned;"
            f" {self.bytes_read:,} of {self.size:,} bytes"
        )


def scan_table(table: TableHandle, where: str | None = None) -> Scan:
    """Find the files that a predicate needs, and read only these.

    Args:
        table: the table.
        where: a predicate in SQL; by default all rows.

    Raises:
        QueryError: Spark can't parse the predicate.
    """
    if not has_gateway(table.spark):
        return _without_tags(table, where)
    with transaction(table.spark, table.path) as txn:
        count, size = txn.files().agg(F.count("*"), total("size")).collect()[0]
        read = _files_for(table, txn, where, fitting_setting(table.storage, table.name))
        rows = txn.rows(txn.take([file.path for file in read]))
        if where is not None:
            rows = rows.where(where)
    return Scan(str(table.name), read, count, size, rows)


@query_errors()
def read_by_mode(
    table: TableHandle, where: str | None = None, columns: Sequence[str] = ()
) -> DataFrame:
    """Read a table as its policy's `PartitionAssignmentMode` distributes it.

    Args:
        table: the table.
        where: a predicate in SQL; by default all rows.
        columns: the columns to read; by default all.

    Raises:
        QueryError: Spark refuses the predicate or the columns.
    """
    has_tags = has_gateway(table.spark)
    setting = fitting_setting(table.storage, table.name) if has_tags else None
    key = None if setting is None else setting.policy.hash
    if setting is not None and key is not None and key.mode == BY_PARTITION:
        rows = _read_together(table, where, columns, setting, key)
    else:
        rows = table.rows() if where is None else scan_table(table, where).rows
    return rows.select(*map(quote, columns)) if columns else rows


def _read_together(
    table: TableHandle, where: str | None, columns: Sequence[str], setting: Setting, key: HashKey
) -> DataFrame:
    """Read all files of a partition in one task; only rows of unpartitioned files are shuffled."""
    spark = table.spark
    tasks = min(key.max_partition_count, spark.sparkContext.defaultParallelism)
    wanted = list(map(quote, columns)) or ["*"]
    if columns and key.column.lower() not in map(str.lower, columns):
        wanted.append(quote(key.column))
    task = f"{bucket_sql(key.column, key)} % {tasks}"
    # With adaptive execution, Spark would shuffle now and not when the rows are needed.
    with transaction(spark, table.path, confs={"spark.sql.adaptive.enabled": "false"}) as txn:
        files = _files_for(table, txn, where, setting)
        adds = {add["path"]: add for add in txn.take([file.path for file in files])}

        by_task: list[list[Add]] = [[] for _ in range(tasks)]
        mixed: list[Add] = []
        for file in files:
            (mixed if file.bucket is None else by_task[file.bucket % tasks]).append(adds[file.path])

        def rows(some: list[Add]) -> DataFrame:
            found = txn.rows(some)
            return (found if where is None else found.where(where)).select(*wanted)

        rest = None
        if mixed:
            numbered = rows(mixed).withColumn(_TASK, F.expr(task))
            rest = spread(numbered, tasks, _TASK).drop(_TASK)
        return keep_together(list(map(rows, by_task)), rest, spark, key.column, task)


def _files_for(
    table: TableHandle, txn: DeltaTransaction, where: str | None, setting: Setting | None
) -> tuple[ScannedFile, ...]:
    """Return the files that a predicate needs under a policy."""
    key = None if setting is None else setting.policy.hash
    done = F.lit(False) if setting is None else is_partitioned(setting.fingerprint)
    values = key_values(where, key.column) if where and key else None
    # Tags of another policy do not describe this policy's buckets.
    bucket, value = (F.when(done, tag(name)) for name in (BUCKET, VALUE))
    listed = txn.files().select(
        "path",
        "size",
        bucket.cast("int").alias("bucket"),
        done.alias("is_partitioned"),
        value.alias("value"),
    )
    if values is not None and key is not None:
        listed = listed.where(_may_match(values, key))
    wanted = None if where is None else _by_statistics(table, where, txn.version)
    return tuple(
        ScannedFile(*line)
        for line in listed.drop("value").orderBy("path").collect()
        if wanted is None or file_name(line["path"]) in wanted
    )


def _may_match(values: Values, key: HashKey) -> Column:
    """Return whether a file, by its `bucket` and `value`, may contain one of the values."""
    buckets = [bucket_of(value, key) for value in values]
    texts = [json.dumps(value) for value in values]
    in_bucket = F.col("bucket").isNull() | F.col("bucket").isin(buckets)
    is_value = F.col("value").isNull() | F.col("value").isin(texts)
    return in_bucket & is_value


@query_errors()
def _by_statistics(table: TableHandle, where: str, version: int) -> set[str]:
    """Return the names of the files that Delta itself would read."""
    return set(map(file_name, table.rows(version).where(where).inputFiles()))


def _without_tags(table: TableHandle, where: str | None) -> Scan:
    """Scan under Spark Connect. It can't read files by name, so only statistics exclude files."""
    rows = table.rows()
    every = rows.inputFiles()
    chosen = rows if where is None else rows.where(where)
    read = tuple(ScannedFile(path, 0, None, is_partitioned=False) for path in chosen.inputFiles())
    return Scan(str(table.name), read, len(every), 0, chosen)


def key_values(where: str, column: str) -> Values | None:
    """Return the values that a column can have in the rows that match a predicate.

    Args:
        where: the predicate as Spark's SQL.
        column: the column's name.

    Returns:
        The values; the value None stands for NULL. None instead of a set: any value is possible.

    Example:
        >>> sorted(key_values("n > 1 AND k IN ('a', 'b')", "k"))
        ['a', 'b']
        >>> key_values("k = 'a' OR n = 1", "k") is None
        True
    """
    if "\\" in where or '"' in where:  # their meaning depends on the session's settings
        return None
    try:
        tree = sqlglot.parse_one(where, read="spark")
    except SqlglotError:
        return None
    return _values(tree, column.lower())


def _values(node: exp.Expr, column: str) -> Values | None:
    if isinstance(node, exp.Paren):
        return _values(node.this, column)
    if isinstance(node, (exp.And, exp.Or)):
        left, right = _values(node.left, column), _values(node.right, column)
        if isinstance(node, exp.Or):
            return None if left is None or right is None else left | right
        return right if left is None else left if right is None else left & right
    if isinstance(node, (exp.EQ, exp.NullSafeEQ)):
        for one, other in ((node.left, node.right), (node.right, node.left)):
            if _is_column(one, column):
                return _literals([other])
    if isinstance(node, exp.In) and _is_column(node.this, column) and not node.args.get("query"):
        return _literals(node.expressions)
    if isinstance(node, exp.Is) and _is_column(node.this, column):
        return frozenset([None]) if isinstance(node.expression, exp.Null) else None
    return None


def _is_column(node: exp.Expr, column: str) -> bool:
    return isinstance(node, exp.Column) and not node.table and node.name.lower() == column


def _literals(nodes: list[exp.Expr]) -> Values | None:
    if nodes and all(isinstance(node, exp.Literal) and node.is_string for node in nodes):
        values = frozenset(node.this for node in nodes)
        # Half of a surrogate pair has no UTF-8 bytes, and so no hash.
        return None if any("\ud800" <= char <= "\udfff" for v in values for char in v) else values
    return None
