"""A table's partitioning policy with all its verbs; the modules beside it do the work."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal, overload

from pyspark.sql import functions as F

from mirrorlake.delta.snapshot import all_policies
from mirrorlake.delta.table import TableHandle
from mirrorlake.errors import UsageError
from mirrorlake.notices import noop
from mirrorlake.partitioning import store, tags
from mirrorlake.partitioning.advice import LEAST_BYTES, Advice, advise_table
from mirrorlake.partitioning.operation import (
    PlannedOperation,
    StepListener,
    plan_operations,
    run_operation,
)
from mirrorlake.partitioning.policy import (
    Policy,
    merge_policy,
    now_micros,
    parse_policy,
    parse_timespan,
)
from mirrorlake.partitioning.receipts import (
    MERGE,
    PARTITION,
    Dropped,
    Receipt,
    read_receipts,
)
from mirrorlake.partitioning.scan import PartitionReport, report_partitioning
from mirrorlake.partitioning.statistics import (
    Spread,
    TableStatistics,
    count_files,
    spread_of,
)
from mirrorlake.partitioning.store import Setting
from mirrorlake.results import TextTable
from mirrorlake.spark.gateway import transaction

_COLUMNS = ("PolicyName", "EntityName", "Policy", "ChildEntities", "EntityType")


class TablePolicy:
    """The partitioning policy of one table, as `lake.table(name).partitioning`.

    `set`, `alter_merge`, `delete` and `run` change no row, so they act; with `dry_run=True` they
    only check, and return what they would do. `drop_older_than` deletes rows, so it only says what
    it would drop unless `apply=True`.

    Args:
        table: which table.

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
        """The policy that holds; None without one.

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
        """Gives the table a policy, in place of the one it had; files are rewritten by `run`.

        Args:
            document: Kusto's JSON, as a mapping or as text. Without `EffectiveDateTime` only files
                created from now on are partitioned.
            hot: a timespan such as `31d`; files created longer ago are left as they are. By default
                all files are hot.
            guard: make the table `CLUSTER BY` the keys, so that a plain OPTIMIZE by others leaves
                partitioned files alone. It raises the table's writer protocol.
            bucket_column: a column to be added, in which operations store the bucket for engines
                that read no tags.
            dry_run: check all of it, and write nothing.

        Returns:
            The policy, with its defaults filled in; `document()` is its JSON.

        Raises:
            UsageError: the document is not a policy, the table's columns don't fit, or the table
                can't have the guard or the column.
            QueryError: Delta refused the guard or the column.

        Example:
            History too, and the bucket in a column::

                document = {"PartitionKeys": [key], "EffectiveDateTime": "2024-01-01"}
                table.partitioning.set(document, bucket_column="bucket", dry_run=True)
        """
        table, policy, key = self.table, parse_policy(document), None
        if bucket_column is not None:
            key = store.check_bucket_column(table, policy, bucket_column)
        if guard:
            store.check_guard(table)
        wanted = Setting(policy, store.parse_hot(hot), bucket_column)
        kept = store.write_setting(table.storage, table.name, wanted, "set", dry_run=dry_run)
        if not dry_run and key is not None and bucket_column is not None:
            store.add_bucket_column(table, key, bucket_column)
        if not dry_run and guard:
            store.guard_table(table, kept.policy)
        return kept.policy

    def alter_merge(self, changes: Any, *, hot: str | None = None, dry_run: bool = False) -> Policy:
        """Changes some of the policy's properties, as Kusto's `.alter-merge` does.

        Args:
            changes: the properties to change, as a mapping or as JSON text; the others stay.
            hot: a timespan instead of the one set before.
            dry_run: check the change, and write nothing.

        Returns:
            The whole policy as it is then.

        Raises:
            UsageError: there is no policy, or what results is not one that fits the table.

        Example:
            Take another day of history along::

                table.partitioning.alter_merge({"EffectiveDateTime": "2024-03-01"})
        """
        setting = self._setting(fitted=False)
        if setting is None:
            raise self._no_policy()
        policy = merge_policy(setting.policy, changes)
        span = setting.hot if hot is None else store.parse_hot(hot)
        # With other buckets the column would be wrong, and is no longer filled.
        same = policy.hash is not None and policy.hash.buckets_like(setting.policy.hash)
        wanted = Setting(policy, span, setting.bucket_column if same else None)
        storage, name = self.table.storage, self.table.name
        return store.write_setting(storage, name, wanted, "altered", dry_run=dry_run).policy

    def delete(self, *, dry_run: bool = False) -> Policy:
        """Takes the policy away; the files stay as they are, and the history keeps it.

        Args:
            dry_run: only return the policy.

        Returns:
            The policy that the table had.

        Raises:
            UsageError: there is none.

        Example:
            Set it again later::

                policy = table.partitioning.delete()
                table.partitioning.set(policy.document())
        """
        setting = self._setting(fitted=False)
        if setting is None:
            raise UsageError(f"{self.table.name} has no partitioning policy.")
        if not dry_run:
            store.remove_setting(self.table.storage, self.table.name)
        return setting.policy

    def show(self, policy: Policy | None = None) -> TextTable:
        """The policy's row, as Kusto shows it; `Policy` is NULL where there is none.

        Args:
            policy: one to show instead of the one that is set, such as a dry run's.

        Example:
            The JSON alone::

                table.partitioning.show().document()["rows"][0]["Policy"]
        """
        if policy is None and (setting := self._setting(fitted=False)) is not None:
            policy = setting.policy
        text = None if policy is None else policy.to_json()
        row = ("DataPartitioning", str(self.table.name), text, None, "Table")
        return TextTable(_COLUMNS, (row,))

    def history(self) -> TextTable:
        """All policies that the table has had, the oldest first, with what set each."""
        rows = []
        for one in all_policies(self.table.storage, self.table.name):
            policy = one["policy"] and json.dumps(one["policy"], ensure_ascii=False)
            rows.append((one["at"], one["reason"], policy, one["hot"]))
        return TextTable(("At", "Reason", "Policy", "Hot"), tuple(rows))

    def receipts(self) -> tuple[Receipt, ...]:
        """The operations of the last 30 days, the oldest first."""
        return read_receipts(self.table.storage, self.table.name)

    def operate(self, *, merge: bool = False, on_step: StepListener = noop) -> Receipt | None:
        """Runs one operation, within the policy's bounds on rows and bytes.

        Args:
            merge: put small files of one partition together, instead of partitioning files.
            on_step: called after every step.

        Returns:
            What was committed; None if there is nothing to do, or no policy.

        Raises:
            BusyError: another process partitions this table.
            ConflictError: other writers were quicker each time.
            RewriteError: the new files are not what they should be; nothing was committed.
            UsageError: the policy no longer fits the table, or there is no JVM to commit through.
        """
        return run_operation(self.table, kind=MERGE if merge else PARTITION, on_step=on_step)

    @overload
    def run(self, *, dry_run: Literal[True]) -> tuple[PlannedOperation, ...]: ...

    @overload
    def run(self, *, dry_run: Literal[False] = False) -> tuple[Receipt, ...]: ...

    def run(self, *, dry_run: bool = False) -> tuple[Receipt, ...] | tuple[PlannedOperation, ...]:
        """Partitions all files that are pending, operation by operation, then merges small ones.

        Args:
            dry_run: only say which operations the files of now make; a dry run sees no merges of
                files that do not exist yet.

        Returns:
            A receipt for each operation; of a dry run the planned operations.

        Raises:
            BusyError: another process partitions this table.
            ConflictError: other writers were quicker each time.
            RewriteError: the new files are not what they should be; nothing was committed.
            UsageError: the policy no longer fits the table, or there is no JVM to commit through.

        Example:
            How much there is to do::

                sum(planned.size for planned in table.partitioning.run(dry_run=True))
        """
        if dry_run:
            return plan_operations(self.table)
        found: list[Receipt] = []
        for merge in (False, True):
            while (receipt := self.operate(merge=merge)) is not None:
                found.append(receipt)
        return tuple(found)

    def apply(self, document: str = "") -> tuple[Receipt, ...]:
        """Sets a policy, if one is given, and runs; see `set` and `run`.

        Args:
            document: the policy; by default the table's own stays.

        Returns:
            A receipt for each operation; none without a policy.
        """
        if document.strip():
            self.set(document)
        return self.run()

    def stats(self) -> TableStatistics:
        """How many rows and files are partitioned, and how many wait for an operation.

        Raises:
            UsageError: the table has changed so that the policy no longer fits.

        Example:
            Whether the process keeps up::

                table.partitioning.stats().percentage > 90
        """
        return count_files(self.table, self._setting())

    def advise(self, columns: Sequence[str] = (), *, least_bytes: int = LEAST_BYTES) -> Advice:
        """Whether the table should have a policy, and which; and what speaks against its own.

        Args:
            columns: the columns in question; by default all text and timestamp columns.
            least_bytes: what a partition must hold at least, compressed; 1 GiB by default.

        Raises:
            UsageError: a column is not there, or is neither text nor a timestamp.

        Example:
            Follow the advice::

                advice = table.partitioning.advise(["tenant"])
                if advice.policy is not None:
                    table.partitioning.set(advice.policy.document())
        """
        return advise_table(self.table, columns, least_bytes=least_bytes)

    def spread(self, document: Any = None) -> Spread:
        """Return how many rows of each bucket each of the first 1,000 files has.

        Args:
            document: a policy as for `set`, to try without setting it; by default the table's own.

        Raises:
            UsageError: the table has no policy, or the policy has no hash key.
        """
        policy = self.policy if document is None else parse_policy(document)
        if policy is None:
            raise self._no_policy()
        return spread_of(self.table, policy)

    def report(
        self, document: str = "", *, where: str = "", columns: Sequence[str] = ()
    ) -> PartitionReport:
        """The table's partitioning to be looked at; nothing is written.

        Args:
            document: a policy to try on paper; by default the table's own.
            where: a filter whose files to count; by default one on the policy's key.
            columns: as for `advise`.

        Raises:
            UsageError: the document is not a policy, or the table's columns don't fit.
            QueryError: Spark can't read the filter.
        """
        return report_partitioning(self.table, document, where=where, columns=columns)

    def drop_older_than(self, keep: str, *, apply: bool = False) -> Dropped:
        """Drops the files of which even the youngest rows were created longer ago than a timespan.

        A file's creation time is when its rows arrived, or, under `OverrideCreationTime`, what
        their own timestamps say.

        Args:
            keep: a timespan, such as `365d`.
            apply: drop them; by default it only says what would go.

        Raises:
            UsageError: it is not a timespan, or there is no JVM to commit through.
            ConflictError: another writer touched the same files; nothing was dropped.

        Example:
            Keep a year::

                table.partitioning.drop_older_than("365d", apply=True)
        """
        oldest = now_micros() - parse_timespan(keep)
        note = json.dumps({"mirrorlake": "retention"})
        with transaction(self.table.spark, self.table.path, note=note) as txn:
            old = txn.files().where(tags.created() < F.lit(oldest))
            found = old.select("path", "size", tags.row_count().alias("rows")).collect()
            version = None
            if found and apply:
                gone = txn.take([line["path"] for line in found])
                version = txn.commit_rows([], gone, mode="Overwrite")
        rows, size = (sum(line[what] for line in found) for what in ("rows", "size"))
        return Dropped(str(self.table.name), len(found), rows, size, version)

    def _setting(self, *, fitted: bool = True) -> Setting | None:
        return store.read_setting(self.table.storage, self.table.name, fitted=fitted)

    def _no_policy(self) -> UsageError:
        return UsageError(f"{self.table.name} has no partitioning policy.", hint="set one first.")
