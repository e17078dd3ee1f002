"""A table's partitioning with all its verbs; the modules beside it do the work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from mirrorlake.errors import UsageError
from mirrorlake.layout.partitioning import store
from mirrorlake.layout.partitioning.advice import Advice
from mirrorlake.layout.partitioning.policy import Policy
from mirrorlake.layout.partitioning.receipts import MERGE, PARTITION, Receipt, read_receipts
from mirrorlake.layout.partitioning.retention import Dropped
from mirrorlake.layout.partitioning.spread import Spread
from mirrorlake.layout.partitioning.statistics import TableStatistics
from mirrorlake.layout.partitioning.steps import StepListener
from mirrorlake.mirror.options import noop
from mirrorlake.table import Table
from mirrorlake.text_table import TextTable


class TablePolicy:
    """The partitioning policy of one table, and what is done by it.

    Args:
        table: which table.
    """

    def __init__(self, table: Table) -> None:
        self.table = table

    def __repr__(self) -> str:
        policy = self.policy
        keys = "no partitioning policy" if policy is None else f"by {', '.join(policy.columns)}"
        return f"{self.table.name}: {keys}"

    @property
    def policy(self) -> Policy | None:
        """The policy that holds; None without one."""
        setting = store.read_setting(self.table.storage, self.table.name)
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
        """Gives the table a policy; see `store.set_policy`.

        Args:
            document: the original's JSON, as a mapping or as text.
            hot: a timespan; older files are left as they are.
            guard: make the table `CLUSTER BY` the keys, so that a plain OPTIMIZE by others leaves
                partitioned files alone. It raises the table's writer protocol.
            bucket_column: a column to be added, in which operations store the bucket for engines
                that know no tags; see `bucket_column`.
            dry_run: only say which policy would be set.
        """
        from mirrorlake.layout.partitioning.bucket_column import (
            add_bucket_column,
            check_bucket_column,
        )
        from mirrorlake.layout.partitioning.guard import guard_table
        from mirrorlake.layout.partitioning.policy import parse_policy

        if bucket_column is not None:
            policy = parse_policy(store.read_document(document))
            key = check_bucket_column(self.table, policy, bucket_column)
        setting = store.set_policy(
            self.table.storage,
            self.table.name,
            document,
            hot=hot,
            bucket_column=bucket_column,
            dry_run=dry_run,
        )
        assert setting.policy is not None
        if dry_run:
            return setting.policy
        if bucket_column is not None:
            add_bucket_column(self.table, key, bucket_column)
        if guard:
            guard_table(self.table, setting.policy)
        return setting.policy

    def alter(self, changes: Any, *, hot: str | None = None, dry_run: bool = False) -> Policy:
        """Changes some of the policy's properties; see `store.alter_policy`."""
        setting = store.alter_policy(
            self.table.storage, self.table.name, changes, hot=hot, dry_run=dry_run
        )
        assert setting.policy is not None
        return setting.policy

    def delete(self, *, dry_run: bool = False) -> None:
        """Takes the policy away; the files stay as they are."""
        store.delete_policy(self.table.storage, self.table.name, dry_run=dry_run)

    def show(self, policy: Policy | None = None) -> TextTable:
        """The policy's row, as the original shows it.

        Args:
            policy: one to show instead of the one that is set, such as a dry run's.
        """
        if policy is not None:
            return store.policy_row(self.table.name, policy)
        return store.show_policy(self.table.storage, self.table.name)

    def history(self) -> TextTable:
        """All policies that the table has had."""
        return store.read_history(self.table.storage, self.table.name)

    def receipts(self) -> tuple[Receipt, ...]:
        """The operations of the last 30 days, the oldest first."""
        return read_receipts(self.table.storage, self.table.name)

    def operate(self, *, merge: bool = False, on_step: StepListener = noop) -> Receipt | None:
        """Runs one operation; see `operation.run_operation`.

        Args:
            merge: put small files of one partition together, instead of partitioning the tail.
            on_step: hears of every step.
        """
        from mirrorlake.layout.partitioning.operation import run_operation

        kind = MERGE if merge else PARTITION
        return run_operation(
            self.table.spark, self.table.storage, self.table.name, kind=kind, on_step=on_step
        )

    def run(self, *, on_step: StepListener = noop) -> tuple[Receipt, ...]:
        """Partitions all of the tail, operation by operation, and merges what is small then."""
        found: list[Receipt] = []
        for merge in (False, True):
            while (receipt := self.operate(merge=merge, on_step=on_step)) is not None:
                found.append(receipt)
        return tuple(found)

    def statistics(self) -> TableStatistics:
        """How many rows are partitioned, and how many are not yet."""
        from mirrorlake.layout.partitioning.statistics import count_files, newest_files

        table = self.table
        files = newest_files(table.spark, table.storage, table.name)
        return count_files(files, table.name, store.read_setting(table.storage, table.name))

    def advise(self, columns: Sequence[str] = (), *, least_bytes: int | None = None) -> Advice:
        """Whether the table should have a policy, and which; see `advice`.

        Args:
            columns: the columns in question; by default all of text or moments.
            least_bytes: what a partition must hold at least; 1 GiB by default.
        """
        from mirrorlake.layout.partitioning.advice import LEAST_BYTES, MEDIUM, advise
        from mirrorlake.layout.partitioning.review import misfit, review
        from mirrorlake.layout.partitioning.survey import survey_table

        least = least_bytes or LEAST_BYTES
        survey = survey_table(self.table, columns, many=MEDIUM)
        advice = advise(survey, least_bytes=least)
        try:
            policy = self.policy
        except UsageError as error:
            return replace(advice, findings=(misfit(survey, error), *advice.findings))
        if policy is None:
            return advice
        waiting = self.statistics().pending_rows
        more = review(policy, survey, pending_rows=waiting, least_bytes=least)
        return replace(advice, findings=(*advice.findings, *more))

    def spread(self) -> Spread:
        """How the files and the buckets of the policy meet; see `spread`."""
        from mirrorlake.layout.partitioning.spread import spread_of

        policy = self.policy
        if policy is None:
            raise UsageError(
                f"{self.table.name} has no partitioning policy.", hint="set one first."
            )
        return spread_of(self.table, policy)

    def drop_older_than(self, keep: str, *, dry_run: bool = True) -> Dropped:
        """Drops files by their creation time; a dry run by default, see `retention`."""
        from mirrorlake.layout.partitioning.retention import drop_old_files

        return drop_old_files(self.table, keep, dry_run=dry_run)
