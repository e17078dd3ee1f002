"""Looking at a partitioned table: which files a predicate needs, and a report; nothing is written.

Only the buckets that a predicate needs are read, and unpartitioned files. Statistics can't prune a
hash, the tags can. What Delta itself skips by statistics stays skipped, so bins of time and every
other column count too.

Which values of the key a predicate can be true for must be certain. So only comparisons of the
plain column with plain text count, joined by AND and OR. A number would make Spark compare numbers,
so that '05' equals 5, and no hash can tell that.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import sqlglot
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from sqlglot import exp
from sqlglot.errors import SqlglotError

from mirrorlake.delta.files import tag, total
from mirrorlake.delta.table import TableHandle
from mirrorlake.partitioning import tags
from mirrorlake.partitioning.advice import Advice, advise_table
from mirrorlake.partitioning.groups import bucket_of
from mirrorlake.partitioning.operation import PlannedOperation, plan_operations
from mirrorlake.partitioning.policy import HashKey, Policy, parse_policy
from mirrorlake.partitioning.receipts import file_name
from mirrorlake.partitioning.statistics import (
    Spread,
    TableStatistics,
    count_files,
    spread_of,
)
from mirrorlake.partitioning.store import (
    Setting,
    fitting_setting,
    read_setting,
    write_setting,
)
from mirrorlake.results import Result, TextTable, size_text
from mirrorlake.spark.jvm import has_gateway, transaction
from mirrorlake.spark.sql import literal, query_errors, quote

if TYPE_CHECKING:
    from mirrorlake.show.chart import Chart

Values = frozenset[str | None]
_SIMPLE = ("string", "int", "bigint", "smallint", "tinyint", "date", "boolean")
_MOST_OPERATIONS = 20


@dataclass(frozen=True)
class ScannedFile:
    """One file that is read.

    Attributes:
        path: as the log has it.
        size: its bytes.
        bucket: of a homogeneous file; None of unpartitioned ones, and of far outliers.
        is_partitioned: whether it holds one partition of the table's policy.
    """

    path: str
    size: int
    bucket: int | None
    is_partitioned: bool


@dataclass(frozen=True)
class Scan(Result):
    """What a predicate reads of a table.

    Attributes:
        table: which table.
        read: the files that are read.
        files, size: of all there are.
        rows: the rows that the predicate holds for.
    """

    table: str
    read: tuple[ScannedFile, ...]
    files: int
    size: int
    rows: DataFrame

    @property
    def unpartitioned(self) -> int:
        """How many of the files that are read are not partitioned."""
        return sum(not file.is_partitioned for file in self.read)

    @property
    def bytes_read(self) -> int:
        """The bytes of the files that are read."""
        return sum(file.size for file in self.read)

    def shown(self) -> TextTable:
        """One row per fact."""
        facts = (
            ("files read", len(self.read)),
            ("of them, unpartitioned", self.unpartitioned),
            ("files there", self.files),
            ("bytes read", self.bytes_read),
            ("bytes there", self.size),
        )
        return TextTable(("scan", str(self.table)), facts)

    def __repr__(self) -> str:
        return (
            f"{self.table}: {len(self.read)} of {self.files} files read, {self.unpartitioned} of"
            f" them unpartitioned; {self.bytes_read:,} of {self.size:,} bytes"
        )


def scan_table(table: TableHandle, where: str | None = None) -> Scan:
    """Finds out what a predicate needs to read, and reads no more.

    Args:
        table: which table.
        where: a predicate in SQL; by default all rows.

    Raises:
        QueryError: Spark can't read the predicate.
    """
    if not has_gateway(table.spark):
        return _without_tags(table, where)
    with transaction(table.spark, table.path) as txn:
        files, version = txn.files(), txn.version
        count, size = files.agg(F.count("*"), total("size")).collect()[0]
        setting = fitting_setting(table.storage, table.name)
        key = None if setting is None else setting.policy.hash
        done = F.lit(False) if setting is None else tags.is_partitioned(setting.fingerprint)
        values = key_values(where, key.column) if where and key else None
        # Tags of another policy say nothing about this one's buckets.
        bucket, value = (F.when(done, tag(name)) for name in (tags.BUCKET, tags.VALUE))
        listed = files.select(
            "path",
            "size",
            bucket.cast("int").alias("bucket"),
            done.alias("is_partitioned"),
            value.alias("value"),
        )
        if values is not None and key is not None:
            listed = listed.where(_may_match(values, key))
        wanted = None if where is None else _by_statistics(table, where, version)
        read = tuple(
            ScannedFile(*line)
            for line in listed.drop("value").orderBy("path").collect()
            if wanted is None or file_name(line["path"]) in wanted
        )
        rows = txn.rows(txn.take([file.path for file in read]))
        if where is not None:
            rows = rows.where(where)
    return Scan(str(table.name), read, count, size, rows)


def _may_match(values: Values, key: HashKey) -> Column:
    """Whether a file may hold a row with one of the values; `bucket` and `value` are columns."""
    buckets = [bucket_of(value, key) for value in values]
    texts = [json.dumps(value) for value in values]
    in_bucket = F.col("bucket").isNull() | F.col("bucket").isin(buckets)
    is_value = F.col("value").isNull() | F.col("value").isin(texts)
    return in_bucket & is_value


@query_errors()
def _by_statistics(table: TableHandle, where: str, version: int) -> set[str]:
    """The names of the files that Delta itself would read."""
    return set(map(file_name, table.rows(version).where(where).inputFiles()))


def _without_tags(table: TableHandle, where: str | None) -> Scan:
    """Under Spark Connect nobody can name files to read: what Delta skips has to do."""
    rows = table.rows()
    every = rows.inputFiles()
    chosen = rows if where is None else rows.where(where)
    read = tuple(ScannedFile(path, 0, None, is_partitioned=False) for path in chosen.inputFiles())
    return Scan(str(table.name), read, len(every), 0, chosen)


def key_values(where: str, column: str) -> Values | None:
    """The values of a column that rows of a predicate can have.

    Args:
        where: the predicate as Spark's SQL.
        column: the column's name.

    Returns:
        None if it may be any value; NULL is None among the values.

    Example:
        >>> sorted(key_values("n > 1 AND k IN ('a', 'b')", "k"))
        ['a', 'b']
        >>> key_values("k = 'a' OR n = 1", "k") is None
        True
    """
    if "\\" in where or '"' in where:  # escapes and quotes that settings give another meaning
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
        # Half of a surrogate pair has no bytes, and so no hash.
        return None if any("\ud800" <= char <= "\udfff" for v in values for char in v) else values
    return None


@dataclass(frozen=True)
class PartitionReport(Result):
    """How a table is partitioned, and how it could be.

    Attributes:
        table: which table.
        policy: the policy that is looked at: a proposed one, else the table's; None for none.
        proposed: whether it is not the table's own.
        advice: whether the table should have a policy, and which.
        stats: rows and files, partitioned and pending.
        spread: the rows of each bucket by file; None without a hash key.
        planned: the operations to do under the table's own policy.
        where: the predicate that was tried; empty for none.
        scan: what it reads; None without one.
        notes: what is not shown, and why.
    """

    table: str
    policy: Policy | None
    proposed: bool
    advice: Advice
    stats: TableStatistics
    spread: Spread | None
    planned: tuple[PlannedOperation, ...]
    where: str
    scan: Scan | None
    notes: tuple[str, ...]

    def shown(self) -> TextTable:
        """The figures, then the notes."""
        stats = self.stats
        keys = "none" if self.policy is None else ", ".join(self.policy.columns)
        rows = [
            ("policy on", f"{keys} (proposed, not set)" if self.proposed else keys),
            ("files", f"{stats.files:,}"),
            ("rows partitioned", f"{stats.partitioned_rows:,} of {stats.rows:,}"),
            ("rows pending", f"{stats.pending_rows:,}"),
            ("operations to do", f"{len(self.planned):,}"),
        ]
        if self.spread is not None:
            rows.append(("files of one bucket", repr(self.spread)))
        rows += [("note", note) for note in self.notes]
        return TextTable(("what", "value"), tuple(rows))

    def operations(self) -> TextTable:
        """The operations to do: one row each, the first ones."""
        rows = tuple((one.kind, one.files, one.rows, size_text(one.size)) for one in self.planned)
        more = len(rows) > _MOST_OPERATIONS
        return TextTable(("operation", "files", "rows", "size"), rows[:_MOST_OPERATIONS], more)

    def reads(self) -> TextTable:
        """How many files the predicate reads."""
        if self.scan is None:
            return TextTable(("filter", "none"), ())
        rows = (
            ("files read", f"{len(self.scan.read):,} of {self.scan.files:,}"),
            ("of them not partitioned", f"{self.scan.unpartitioned:,}"),
            ("read", f"{size_text(self.scan.bytes_read)} of {size_text(self.scan.size)}"),
        )
        return TextTable(("filter", self.where), rows)

    def plot(self, after: PartitionReport | None = None) -> Chart | None:
        """Draw the rows by file and bucket.

        Args:
            after: a later report, to be drawn beside this one.

        Returns:
            None if there are no buckets to show.
        """
        from mirrorlake.show.plots import plot_spread

        reports = {"now": self} if after is None else {"now": self, "after": after}
        spreads = {
            name: report.spread.counts
            for name, report in reports.items()
            if report.spread is not None
        }
        if not spreads:
            return None
        return plot_spread(spreads, title=f"Rows of {self.table} by file and bucket")

    def __repr__(self) -> str:
        return f"{self.stats}; {len(self.planned)} operations to do"


def report_partitioning(
    table: TableHandle, document: str = "", *, where: str = "", columns: Sequence[str] = ()
) -> PartitionReport:
    """Looks at a table's partitioning; see `TablePolicy.report` for arguments and errors."""
    storage, name, proposed = table.storage, table.name, bool(document.strip())
    tried = None
    if proposed:
        tried = write_setting(storage, name, Setting(parse_policy(document)), "set", dry_run=True)
    setting = read_setting(storage, name)
    shown = tried or setting
    policy = None if shown is None else shown.policy
    advice = advise_table(table, columns)
    stats, notes = count_files(table, setting), list[str]()
    spread = None
    if policy is None:
        notes.append("There is no policy: without one there is no spread, and nothing to do.")
    elif policy.hash is None:
        notes.append("The policy has no hash key, so there are no buckets to show.")
    elif stats.rows == 0:
        notes.append("The table is empty.")
    else:
        spread = spread_of(table, policy)
    if policy is not None and not stats.pending_rows and stats.unpartitioned_rows:
        notes.append(
            f"{stats.unpartitioned_rows:,} rows stay unpartitioned: they are older than the policy,"
            " or cold. EffectiveDateTime in the policy takes older ones along."
        )
    wanted = where.strip() or _some_filter(table, policy)
    scan = scan_table(table, wanted) if wanted else None
    if scan is None:
        notes.append("No filter was tried: give one (where).")
    planned = () if proposed else plan_operations(table)
    return PartitionReport(
        str(name),
        policy,
        proposed,
        advice,
        stats,
        spread,
        planned,
        wanted,
        scan,
        tuple(notes),
    )


def _some_filter(table: TableHandle, policy: Policy | None) -> str:
    """An equality on the policy's key, or a partition column; empty if there is none."""
    rows = table.rows()
    kinds = dict(rows.dtypes)
    names = [policy.hash.column] if policy and policy.hash else []
    for name in names + table.snapshot().partition_columns:
        if kinds.get(name) in _SIMPLE:
            column = F.col(quote(name))
            some = rows.where(column.isNotNull()).agg(F.min(column.cast("string"))).first()
            if some is not None and some[0] is not None:
                value = literal(some[0])
                if kinds[name] != "string":
                    value = f"CAST({value} AS {kinds[name]})"
                return f"{quote(name)} = {value}"
    return ""
