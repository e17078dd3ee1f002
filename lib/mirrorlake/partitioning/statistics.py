"""What a table's files and rows say: how far its partitioning is, and what an adviser has to know.

The statistics' first columns, and those of the diagnostics, are Kusto's. A survey tells a table's
size, its texts' values, its timestamps' order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from mirrorlake.delta.files import live_files, read_actions, tag, total
from mirrorlake.delta.log_files import find_segment
from mirrorlake.delta.table import TableHandle
from mirrorlake.errors import UsageError
from mirrorlake.mirror.properties import VIEW_PROPERTY
from mirrorlake.partitioning import tags
from mirrorlake.partitioning.groups import bucket_sql, micros
from mirrorlake.partitioning.policy import DAY, Policy
from mirrorlake.partitioning.store import Setting, why_not_hashed
from mirrorlake.results import Result, TextTable
from mirrorlake.spark.jvm import has_gateway, transaction
from mirrorlake.spark.sql import quote

LOW_PERCENTAGE = 90.0
MEDIUM = 10_000
"""From how many values on a text column is worth a hash, and looked at closely."""
_MOST_FILES = 1_000
_HIDDEN = "__mirrorlake_"  # of views' tables
GENERIC = ("n/a", "na", "null", "none", "unknown", "undefined", "-", "?", "0")
_SAMPLE = 20
_EDGES = (0.01, 0.99)
_FENCE = 3
_KINDS = ("string", "timestamp", "timestamp_ntz")


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


def newest_files(table: TableHandle) -> DataFrame:
    """The newest version's files: Delta's own listing, or the log itself under Spark Connect."""
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
    """Adds up the newest version's files.

    Args:
        table: which table.
        setting: its policy; None without one.
    """
    files = newest_files(table)  # first, for a column needs a session
    done, pending, policy = F.lit(False), F.lit(False), None
    if setting is not None:
        policy = setting.policy.to_json()
        done, pending = tags.is_partitioned(setting.fingerprint), tags.is_pending(setting)
    rows = tags.row_count()
    outlier = done & tag(tags.OUTLIER).isNotNull()
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


def spread_of(table: TableHandle, policy: Policy) -> Spread:
    """Counts the rows of each bucket in each file, of the first 1,000 files.

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


@dataclass(frozen=True)
class TextFacts:
    """One text column.

    Attributes:
        column: its name.
        distinct: how many values, about.
        nulls, empty, generic: rows with NULL, '', or a word such as 'N/A'.
        top_value, top_rows: the most frequent value; only looked for where there are many values.
        read_now: the part of the files that an equality reads as the table is.
    """

    column: str
    distinct: int
    nulls: int = 0
    empty: int = 0
    generic: int = 0
    top_value: str | None = None
    top_rows: int = 0
    read_now: float = 1.0


@dataclass(frozen=True)
class TimeFacts:
    """One column of timestamps; durations in microseconds.

    Attributes:
        column: its name.
        span: from the first to the last of the middle 98 % of rows.
        nulls: rows without a timestamp.
        far: rows more than three spans from the middle 98 %.
        read_now: the part of the files that a day of this column touches as the table is.
    """

    column: str
    span: int
    nulls: int = 0
    far: int = 0
    read_now: float = 1.0


@dataclass(frozen=True)
class Survey:
    """A table as the adviser sees it.

    Attributes:
        table: its name.
        rows, size: all there are; bytes as stored.
        texts, times: the columns that could be keys.
        is_view: whether it is a view's table.
    """

    table: str
    rows: int
    size: int
    texts: tuple[TextFacts, ...] = ()
    times: tuple[TimeFacts, ...] = ()
    is_view: bool = False


def survey_table(table: TableHandle, columns: Sequence[str] = ()) -> Survey:
    """Looks at a table: two aggregates over the columns in question, and one more for good keys.

    Args:
        table: which table.
        columns: only these; by default all text and timestamp columns.

    Raises:
        UsageError: a column is not there, or is neither text nor a timestamp.
    """
    counted = count_files(table, None)
    snapshot = table.snapshot()
    kinds = {
        field["name"]: field["type"]
        for field in snapshot.fields
        if field["type"] in _KINDS and why_not_hashed(field) is None
    }
    wanted = [*columns] or [name for name in kinds if not name.startswith(_HIDDEN)]
    for name in wanted:
        if name not in kinds:
            raise UsageError(f"{name!r} is no column of text or timestamps of {table.name}.")
    looked = wanted if counted.rows else []
    texts = [name for name in looked if kinds[name] == "string"]
    times = {name: kinds[name] == "timestamp" for name in looked if kinds[name] != "string"}
    rows = table.rows()
    return Survey(
        str(table.name),
        counted.rows,
        counted.size,
        tuple(_texts(rows, texts, counted.files)),
        tuple(_times(rows, times, counted.files)),
        VIEW_PROPERTY in snapshot.properties,
    )


def _texts(rows: DataFrame, names: list[str], files: int) -> list[TextFacts]:
    if not names:
        return []

    def counts(name: str) -> Column:
        column = F.col(quote(name))
        return F.struct(
            F.approx_count_distinct(column, 0.02).alias("distinct"),
            F.count_if(column.isNull()).alias("nulls"),
            F.count_if(column == "").alias("empty"),
            F.count_if(F.lower(F.trim(column)).isin(*GENERIC)).alias("generic"),
        )

    (line,) = rows.agg(*map(counts, names)).collect()
    found = []
    for name, counted in zip(names, line, strict=True):
        facts = TextFacts(name, *counted)
        if facts.distinct >= MEDIUM:
            best = rows.groupBy(F.col(quote(name)).alias("v")).count().orderBy(F.desc("count"), "v")
            ((value, count),) = best.take(1)
            read = _read_by_value(rows, name, files)
            facts = replace(facts, top_value=value, top_rows=count, read_now=read)
        found.append(facts)
    return found


def _read_by_value(rows: DataFrame, name: str, files: int) -> float:
    """The part of the files whose least and greatest text enclose a value, for some values."""
    column = F.col(quote(name))
    sample = rows.select(column.alias("v")).where("v IS NOT NULL")
    picked = sample.orderBy(F.xxhash64("v")).limit(_SAMPLE)
    ends = rows.groupBy("_metadata.file_path").agg(
        F.min(column).alias("a"), F.max(column).alias("b")
    )
    hits = ends.crossJoin(F.broadcast(picked)).where("v BETWEEN a AND b").count()
    return min(1.0, hits / _SAMPLE / max(1, files))


def _times(rows: DataFrame, names: dict[str, bool], files: int) -> list[TimeFacts]:
    found = []
    for name, with_zone in names.items():
        at = micros(name, with_zone=with_zone)
        edges = F.percentile_approx(at, list(_EDGES)).alias("edges")
        (line,) = rows.agg(edges, F.count_if(at.isNull()).alias("nulls")).collect()
        if line["edges"] is None:
            found.append(TimeFacts(name, 0, line["nulls"]))
            continue
        low, high = line["edges"]
        reach = _FENCE * max(high - low, DAY)
        far = F.count_if((at < low - reach) | (at > high + reach)).alias("far")
        inner = F.greatest(F.least(at, F.lit(high)), F.lit(low))
        ends = rows.groupBy("_metadata.file_path").agg(
            F.min(inner).alias("a"), F.max(inner).alias("b"), far
        )
        # A day that falls anywhere in the span meets a file of length b - a with this chance.
        chance = F.least(F.lit(1.0), (F.col("b") - F.col("a") + DAY) / (high - low + DAY))
        (sums,) = ends.agg(F.sum(chance).alias("hit"), F.sum("far").alias("far")).collect()
        read = min(1.0, (sums["hit"] or 0) / max(1, files))
        found.append(TimeFacts(name, high - low, line["nulls"], sums["far"] or 0, read))
    return found
