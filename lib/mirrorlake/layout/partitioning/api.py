"""The partitioning of a lake's tables: `lake.partitioning`."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import SparkSession

from mirrorlake.delta.snapshot import tables_with_policies
from mirrorlake.layout.partitioning.operation import StepListener
from mirrorlake.layout.partitioning.process import (
    FILE_LIMIT,
    PartitionReport,
    Process,
    diagnose_lake,
)
from mirrorlake.layout.partitioning.statistics import Diagnostics
from mirrorlake.mirror.options import noop
from mirrorlake.names import TableName, as_table
from mirrorlake.storage import Storage


class LakePartitioning:
    """The background process over all tables with a policy.

    Args:
        storage: the lake's files.
        spark: called when a session is needed.
    """

    def __init__(self, storage: Storage, spark: Callable[[], SparkSession]) -> None:
        self._storage = storage
        self._spark = spark

    def process(
        self,
        table: str | TableName | None = None,
        *,
        file_limit: int = FILE_LIMIT,
        on_step: StepListener = noop,
    ) -> Process:
        """The process itself, to run it once or to watch.

        Args:
            table: only this one; by default all with a policy.
            file_limit: over so many files in all these tables the process slows down to one
                operation at a time.
            on_step: called after every step of an operation, with the table and the step.

        Example:
            >>> lake.partitioning.process().watch(stop)  # doctest: +SKIP
        """

        def tables() -> list[TableName]:
            return tables_with_policies(self._storage) if table is None else [as_table(table)]

        return Process(self._storage, self._spark, tables, file_limit=file_limit, on_step=on_step)

    def run(
        self, table: str | TableName | None = None, *, file_limit: int = FILE_LIMIT
    ) -> PartitionReport:
        """Partitions what is new in all tables with a policy, or in one of them.

        Args:
            table: only this one; by default all with a policy.
            file_limit: as for `process`.

        Example:
            >>> lake.partitioning.run("planes").failed  # doctest: +SKIP
            ()
        """
        return self.process(table, file_limit=file_limit).run()

    def diagnostics(self) -> Diagnostics:
        """The state of the partitioning of all tables, in Kusto's words.

        Example:
            >>> lake.partitioning.diagnostics().is_behind  # doctest: +SKIP
            False
        """
        return diagnose_lake(self._spark(), self._storage, tables_with_policies(self._storage))
