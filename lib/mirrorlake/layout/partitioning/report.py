"""A table's partitioning to be looked at: advice, a policy tried on paper, what a filter reads.

Nothing is written. What a policy that is not set yet would do is worked out from its document.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from mirrorlake.delta.table import Table
from mirrorlake.errors import MirrorlakeError
from mirrorlake.layout.partitioning.advice import Advice
from mirrorlake.layout.partitioning.operation import PlannedOperation
from mirrorlake.layout.partitioning.policy import Policy
from mirrorlake.layout.partitioning.scan import Scan, scan_table
from mirrorlake.layout.partitioning.statistics import Spread, TableStatistics, spread_of
from mirrorlake.results import Result, TextTable, size_text
from mirrorlake.spark.sql import literal, quote

if TYPE_CHECKING:
    from mirrorlake.layout.partitioning.table_policy import TablePolicy

_SIMPLE = ("string", "int", "bigint", "smallint", "tinyint", "date", "boolean")
_MOST_OPERATIONS = 20


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

    def __repr__(self) -> str:
        return f"{self.stats}; {len(self.planned)} operations to do"


def report_partitioning(
    partitioning: TablePolicy, document: str = "", *, where: str = "", columns: Sequence[str] = ()
) -> PartitionReport:
    """Looks at a table's partitioning; see `TablePolicy.report` for arguments and errors."""
    table, notes = partitioning.table, list[str]()
    policy: Policy | None
    if document.strip():
        policy = partitioning.set(document, dry_run=True)
    else:
        try:
            policy = partitioning.policy
        except MirrorlakeError as error:
            policy = None
            notes.append(error.message)
    advice, stats = partitioning.advise(columns), partitioning.stats()
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
    planned = () if document.strip() else partitioning.run(dry_run=True)
    return PartitionReport(
        str(table.name),
        policy,
        bool(document.strip()),
        advice,
        stats,
        spread,
        planned,
        wanted,
        scan,
        tuple(notes),
    )


def _some_filter(table: Table, policy: Policy | None) -> str:
    """An equality on the policy's key, or a partition column; empty if there is none."""
    rows: DataFrame = table.rows()
    kinds = dict(rows.dtypes)
    hash_key = policy.hash.column if policy and policy.hash else None
    names = [*([hash_key] if hash_key else []), *table.snapshot().partition_columns]
    for name in names:
        if kinds.get(name) in _SIMPLE:
            column = F.col(quote(name))
            some = rows.where(column.isNotNull()).agg(F.min(column.cast("string"))).first()
            if some is not None and some[0] is not None:
                value = literal(some[0])
                if kinds[name] != "string":
                    value = f"CAST({value} AS {kinds[name]})"
                return f"{quote(name)} = {value}"
    return ""
