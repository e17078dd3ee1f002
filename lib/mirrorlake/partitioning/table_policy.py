"""Manage one table's partitioning policy: `Table.partitioning`, and the report on it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, overload

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from mirrorlake.delta.table import TableHandle
from mirrorlake.errors import UsageError
from mirrorlake.history.write import check_own
from mirrorlake.mirror.options import partitioning_policies
from mirrorlake.names import quote, split_names
from mirrorlake.notices import noop
from mirrorlake.partitioning.advice import LEAST_BYTES, Advice, advise_table
from mirrorlake.partitioning.groups import created, row_count
from mirrorlake.partitioning.operation import (
    MERGE,
    PARTITION,
    Dropped,
    PlannedOperation,
    Receipt,
    StepListener,
    plan_operations,
    read_receipts,
    run_operation,
)
from mirrorlake.partitioning.policy import (
    Policy,
    Setting,
    merge_policy,
    now_micros,
    parse_policy,
    parse_timespan,
)
from mirrorlake.partitioning.statistics import (
    Scan,
    Spread,
    TableStatistics,
    count_files,
    read_by_mode,
    scan_table,
    spread_of,
)
from mirrorlake.partitioning.store import (
    add_bucket_column,
    check_bucket_column,
    check_guard,
    guard_table,
    parse_hot,
    read_setting,
    remove_setting,
    stored_policy,
    write_setting,
)
from mirrorlake.results import Result, TextTable, counted, optional_figure, size_text
from mirrorlake.spark.jvm import transaction
from mirrorlake.spark.sql import literal

if TYPE_CHECKING:
    from mirrorlake.show.chart import Chart


_COLUMNS = ("PolicyName", "EntityName", "Policy", "ChildEntities", "EntityType")
_SIMPLE = ("string", "int", "bigint", "smallint", "tinyint", "date", "boolean")
_MOST_OPERATIONS = 20


class TablePolicy:
    """The partitioning policy of one table, as `lake.table(name).partitioning`.

    `set`, `alter_merge`, `delete` and `run` change no row, so they run at once. With
    `dry_run=True`, they only check their arguments and return what they would do. `drop_older_than`
    deletes rows, so by default it only returns what it would do. With `apply=True`, it deletes
    them.

    Args:
        table: the table.

    Example:
        Partition a table by its tenants, from now on::

            key = {"ColumnName": "tenant", "Kind": "Hash"}
            partitioning = lake.table("orders").partitioning
            partitioning.set({"PartitionKeys": [key]})
            partitioning.run()
            partitioning.stats().percentage
    """

    def __init__(self, table: TableHandle) -> None:
        self.table = table

    def __repr__(self) -> str:
        policy = self.policy
        keys = "no partitioning policy" if policy is None else f"by {', '.join(policy.columns)}"
        return f"{self.table.name}: {keys}"

    @property
    def policy(self) -> Policy | None:
        """The table's policy; None without one.

        Raises:
            UsageError: the table has changed so that the policy no longer fits.
        """
        setting = self._setting()
        return None if setting is None else setting.policy

    def set(
        self,
        document: Any,
        *,
        hot: str | None = None,
        guard: bool = False,
        bucket_column: str | None = None,
        dry_run: bool = False,
    ) -> Policy:
        """Set the table's policy, which replaces the previous one. `run` then rewrites the files.

        Args:
            document: Kusto's JSON, as a mapping or as text. Without `EffectiveDateTime`, only files
                that are added from now on are partitioned.
            hot: a timespan such as `31d`. Files that are older are not rewritten. By default, there
                is no limit.
            guard: declare the keys as the table's clustering columns (`CLUSTER BY`). A plain
                OPTIMIZE by another writer then skips partitioned files. This raises the table's
                writer protocol.
            bucket_column: the name of a column to add. Operations store the bucket in it, for
                engines that do not read tags.
            dry_run: only check the arguments, and write nothing.

        Returns:
            The policy with all default values. `document()` returns its JSON.

        Raises:
            UsageError: the document is not a policy, the policy does not fit the table's columns,
                or the table can't have the guard or the bucket column.
            QueryError: Delta refused the guard or the column.

        Example:
            Partition existing files too, and store the bucket in a column::

                document = {"PartitionKeys": [key], "EffectiveDateTime": "2024-01-01"}
                table.partitioning.set(document, bucket_column="bucket", dry_run=True)
        """
        table, policy, key = self.table, parse_policy(document), None
        if bucket_column is not None:
            key = check_bucket_column(table, policy, bucket_column)
        if guard:
            check_guard(table)
        wanted = Setting(policy, parse_hot(hot), bucket_column)
        kept = write_setting(table.storage, table.name, wanted, "set", dry_run=dry_run)
        if not dry_run and key is not None and bucket_column is not None:
            add_bucket_column(table, key, bucket_column)
        if not dry_run and guard:
            guard_table(table, kept.policy)
        return kept.policy

    def alter_merge(self, changes: Any, *, hot: str | None = None, dry_run: bool = False) -> Policy:
        """Change some of the policy's properties, as Kusto's `.alter-merge` does.

        Args:
            changes: the properties to change, as a mapping or as JSON text. The other properties
                stay.
            hot: the new timespan for `hot`; by default, the previous one stays.
            dry_run: only check the change, and write nothing.

        Returns:
            The changed policy.

        Raises:
            UsageError: the table has no policy, or the result does not fit the table.

        Example:
            Partition one more day of history::

                table.partitioning.alter_merge({"EffectiveDateTime": "2024-03-01"})
        """
        setting = self._setting(fitted=False)
        if setting is None:
            raise self._no_policy()
        policy = merge_policy(setting.policy, changes)
        span = setting.hot if hot is None else parse_hot(hot)
        # If buckets change, the column's values are wrong, so it is no longer filled.
        same = policy.hash is not None and policy.hash.buckets_like(setting.policy.hash)
        wanted = Setting(policy, span, setting.bucket_column if same else None)
        storage, name = self.table.storage, self.table.name
        return write_setting(storage, name, wanted, "altered", dry_run=dry_run).policy

    def delete(self, *, dry_run: bool = False) -> Policy:
        """Delete the policy. No file is rewritten, and `history` still returns the policy.

        Args:
            dry_run: only return the policy.

        Returns:
            The policy that the table had.

        Raises:
            UsageError: the table has no policy.

        Example:
            Set it again later::

                policy = table.partitioning.delete()
                table.partitioning.set(policy.document())
        """
        setting = self._setting(fitted=False)
        if setting is None:
            raise UsageError(f"{self.table.name} has no partitioning policy.")
        if not dry_run:
            remove_setting(self.table.storage, self.table.name)
        return setting.policy

    def show(self, policy: Policy | None = None) -> TextTable:
        """Return the policy as one row, as Kusto shows it. Without a policy, `Policy` is NULL.

        Args:
            policy: show this policy instead of the table's, for example the result of a dry run.

        Example:
            Get the JSON alone::

                table.partitioning.show().document()["rows"][0]["Policy"]
        """
        if policy is None and (setting := self._setting(fitted=False)) is not None:
            policy = setting.policy
        text = None if policy is None else policy.to_json()
        row = ("DataPartitioning", str(self.table.name), text, None, "Table")
        return TextTable(_COLUMNS, (row,))

    def history(self) -> TextTable:
        """Return all policies that the table has had, each with its reason, the oldest first."""
        rows = []
        for one in partitioning_policies(self.table.storage, self.table.name).all():
            stored = stored_policy(one)
            policy = stored and json.dumps(stored, ensure_ascii=False)
            rows.append((one["at"], one["reason"], policy, one["hot"]))
        return TextTable(("At", "Reason", "Policy", "Hot"), tuple(rows))

    def receipts(self) -> tuple[Receipt, ...]:
        """Return the receipts of the last 30 days' operations; the oldest comes first."""
        return read_receipts(self.table.storage, self.table.name)

    def operate(self, *, merge: bool = False, on_step: StepListener = noop) -> Receipt | None:
        """Run one operation, within the policy's limits on rows and bytes.

        Args:
            merge: instead of partitioning files, merge small files of one partition.
            on_step: a function that is called after each step, with the table and the step.

        Returns:
            The receipt of the commit; None without a policy or without files to process.

        Raises:
            BusyError: another process is partitioning this table.
            ConflictError: in each attempt, another writer committed first.
            RewriteError: the new files do not contain the same rows as the old ones, so nothing was
                committed.
            UsageError: the policy no longer fits the table, or the session has no JVM gateway.

        Example:
            >>> lake.table("orders").partitioning.operate(merge=True)  # doctest: +SKIP
        """
        return run_operation(self.table, kind=MERGE if merge else PARTITION, on_step=on_step)

    @overload
    def run(self, *, dry_run: Literal[True]) -> tuple[PlannedOperation, ...]: ...

    @overload
    def run(self, *, dry_run: Literal[False] = False) -> tuple[Receipt, ...]: ...

    def run(self, *, dry_run: bool = False) -> tuple[Receipt, ...] | tuple[PlannedOperation, ...]:
        """Partition all pending files, operation by operation. Then merge small files.

        Args:
            dry_run: only return the operations that the current files need. The result does not
                contain merges of files that these operations would write.

        Returns:
            A receipt for each operation. For a dry run, the planned operations.

        Raises:
            BusyError: another process is partitioning this table.
            ConflictError: in each attempt, another writer committed first.
            RewriteError: the new files do not contain the same rows as the old ones, so nothing was
                committed.
            UsageError: the policy no longer fits the table, or the session has no JVM gateway.

        Example:
            Count the bytes to rewrite::

                sum(planned.size for planned in table.partitioning.run(dry_run=True))
        """
        if dry_run:
            return plan_operations(self.table)
        found: list[Receipt] = []
        for merge in (False, True):
            while (receipt := self.operate(merge=merge)) is not None:
                found.append(receipt)
        return tuple(found)

    def apply(self, document: Any = "") -> tuple[Receipt, ...]:
        """Set a policy, if one is given, and run its operations; see `set` and `run`.

        Args:
            document: the policy, as for `set`; empty: the table's policy stays.

        Returns:
            A receipt for each operation; empty without a policy.
        """
        if _is_given(document):
            self.set(document)
        return self.run()

    def stats(self) -> TableStatistics:
        """Return how many rows and files are partitioned, and how many are pending.

        Raises:
            UsageError: the table has changed so that the policy no longer fits.

        Example:
            Check whether the process keeps up::

                table.partitioning.stats().percentage > 90
        """
        return count_files(self.table, self._setting())

    def read(self, where: str | None = None, *, columns: str | Sequence[str] = ()) -> DataFrame:
        """Return the rows of `Table.read`, distributed as `PartitionAssignmentMode` requires.

        With `ByPartition`, one task reads all files of a partition. Spark then aggregates by the
        hash key, and joins on it, without a shuffle of partitioned files. A join shuffles the other
        side, unless it is such a read with an equal hash function. With `Uniform`, or without a
        hash key, Spark distributes the files by their sizes.

        Args:
            where: as for `Table.read`.
            columns: the columns to read. By default all are read with `ByPartition`, also those
                that a query does not use.

        Raises:
            QueryError: Spark refuses the predicate or the columns.

        Example:
            Count by the key without a shuffle::

                table.partitioning.read(columns=["tenant"]).groupBy("tenant").count()
        """
        return read_by_mode(self.table, where, split_names(columns))

    def advise(
        self, columns: str | Sequence[str] = (), *, least_bytes: int = LEAST_BYTES
    ) -> Advice:
        """Recommend a policy for the table, or none. If the table has a policy, also review it.

        Args:
            columns: the candidate columns; by default all text and timestamp columns.
            least_bytes: the minimum size of a partition in compressed bytes; 1 GiB by default.

        Returns:
            The recommended policy (None: the table should have none), with the reasons.

        Raises:
            UsageError: a column is missing, or is neither text nor a timestamp.

        Example:
            Follow the advice::

                advice = table.partitioning.advise(["tenant"])
                if advice.policy is not None:
                    table.partitioning.set(advice.policy.document())
        """
        return advise_table(self.table, split_names(columns), least_bytes=least_bytes)

    def spread(self, document: Any = None) -> Spread:
        """Count the rows of each bucket in each file, for the first 1,000 files.

        Args:
            document: a policy as for `set`. It is used for this call only. By default, the table's
                policy.

        Raises:
            UsageError: the table has no policy, or the policy has no hash key.
        """
        policy = self.policy if document is None else parse_policy(document)
        if policy is None:
            raise self._no_policy()
        return spread_of(self.table, policy)

    def report(
        self, document: Any = "", *, where: str = "", columns: str | Sequence[str] = ()
    ) -> PartitionReport:
        """Report on the table's partitioning. Write nothing.

        Args:
            document: a policy to evaluate, as for `set`. It is not set. Empty: the table's policy.
            where: a filter. The report counts the files that a query with this filter reads. By
                default, an equality on the policy's key.
            columns: as for `advise`.

        Raises:
            UsageError: the document is not a policy, or the policy does not fit the table's
                columns.
            QueryError: Spark can't parse the filter.
        """
        return report_partitioning(self.table, document, where=where, columns=split_names(columns))

    def drop_older_than(self, keep: str, *, apply: bool = False) -> Dropped:
        """Drop the files whose newest row is older than `keep`; a dry run unless `apply`.

        The age of a row is the time since it arrived. With `OverrideCreationTime`, it is the time
        since the row's timestamp.

        Args:
            keep: a timespan, such as `365d`.
            apply: drop the files. By default, they are only counted.

        Returns:
            The number of files, rows and bytes that were dropped, or would be.

        Raises:
            UsageError: publishers fill the table, it is a view, `keep` is not a timespan, or the
                session has no JVM gateway.
            ConflictError: another writer changed the same files, so nothing was dropped.

        Example:
            Keep a year::

                table.partitioning.drop_older_than("365d", apply=True)
        """
        oldest = now_micros() - parse_timespan(keep)
        check_own(self.table.storage, self.table.name)
        note = json.dumps({"mirrorlake": "retention"})
        with transaction(self.table.spark, self.table.path, note=note) as txn:
            old = txn.files().where(created() < F.lit(oldest))
            found = old.select("path", "size", row_count().alias("rows")).collect()
            version = None
            if found and apply:
                gone = txn.take([line["path"] for line in found])
                version = txn.commit_rows([], gone, mode="Overwrite")
        rows, size = (sum(line[what] for line in found) for what in ("rows", "size"))
        return Dropped(str(self.table.name), len(found), rows, size, version)

    def _setting(self, *, fitted: bool = True) -> Setting | None:
        return read_setting(self.table.storage, self.table.name, fitted=fitted)

    def _no_policy(self) -> UsageError:
        return UsageError(f"{self.table.name} has no partitioning policy.", hint="set one first.")


@dataclass(frozen=True)
class PartitionReport(Result):
    """How a table is partitioned, and how it could be.

    Attributes:
        table: the table's name.
        policy: the policy of the report: the given one, otherwise the table's; None without a
            policy.
        proposed: whether `policy` was given and is not the table's.
        advice: the recommended policy, with reasons.
        stats: how many rows and files are partitioned, and how many are pending.
        spread: for each file, its rows by bucket; None without a hash key.
        planned: the pending operations of the table's policy.
        where: the filter of the scan; empty without one.
        scan: the files that the filter reads; None without a filter.
        notes: which parts are missing from the report, and why.
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
        """Return the figures, then the notes."""
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
        """Return the first 20 pending operations, one per row."""
        rows = tuple((one.kind, one.files, one.rows, size_text(one.size)) for one in self.planned)
        more = len(rows) > _MOST_OPERATIONS
        return TextTable(("operation", "files", "rows", "size"), rows[:_MOST_OPERATIONS], more)

    def reads(self) -> TextTable:
        """Return the number of files and bytes that the filter reads."""
        if self.scan is None:
            return TextTable(("filter", "none"), ())
        rows = (
            ("files read", f"{len(self.scan.read):,} of {self.scan.files:,}"),
            ("of them unpartitioned", f"{self.scan.unpartitioned:,}"),
            ("read", f"{size_text(self.scan.bytes_read)} of {size_text(self.scan.size)}"),
        )
        return TextTable(("filter", self.where), rows)

    @optional_figure
    def plot(self, after: PartitionReport | None = None) -> Chart | None:
        """Draw the rows by file and bucket.

        Args:
            after: a later report, drawn next to this one.

        Returns:
            A chart; None if the report has no buckets to show.
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
        return f"{self.stats}; {counted(len(self.planned), 'operation')} to do"


def _is_given(document: Any) -> bool:
    """Return whether a document is more than an empty text."""
    return bool(document.strip()) if isinstance(document, str) else document is not None


def report_partitioning(
    table: TableHandle, document: Any = "", *, where: str = "", columns: Sequence[str] = ()
) -> PartitionReport:
    """Report on a table's partitioning; see `TablePolicy.report` for arguments and errors."""
    storage, name, proposed = table.storage, table.name, _is_given(document)
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
        notes.append("The table has no policy, so there are no buckets and no operations.")
    elif policy.hash is None:
        notes.append("The policy has no hash key, so there are no buckets to show.")
    elif stats.rows == 0:
        notes.append("The table is empty.")
    else:
        spread = spread_of(table, policy)
    if policy is not None and not stats.pending_rows and stats.unpartitioned_rows:
        notes.append(
            f"{counted(stats.unpartitioned_rows, 'row')} unpartitioned and not pending: older than"
            " the policy, or cold. An earlier EffectiveDateTime includes older rows."
        )
    wanted = where.strip() or _some_filter(table, policy)
    scan = scan_table(table, wanted) if wanted else None
    if scan is None:
        notes.append("The report has no filter; set `where` to see which files it reads.")
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
    """Return a filter: an equality on the policy's key, or else on a partition column.

    Return an empty text if the table has no such column, or the column has no value.
    """
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
