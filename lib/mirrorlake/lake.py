"""A lake: `Files/` and `Tables/` under one root, and the way to everything in it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, Literal

from mirrorlake.delta_log import delta_tables
from mirrorlake.landing.published import Partner
from mirrorlake.landing.publisher import Publisher
from mirrorlake.mirror import operator_settings
from mirrorlake.mirror.ledger import Ledger, read_ledger
from mirrorlake.mirror.options import MirrorOptions
from mirrorlake.mirror.outcome import Outcome
from mirrorlake.mirror.preview import Preview, preview_cycle
from mirrorlake.mirror.replay import replay, reseed
from mirrorlake.mirror.state import Report
from mirrorlake.mirror.status import status_report
from mirrorlake.mirror.steps import StepListener, noop
from mirrorlake.mirror.trash import undrop
from mirrorlake.names import ZONE, TableName, as_table
from mirrorlake.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from mirrorlake.feed.archive import ArchiveReport
    from mirrorlake.feed.cursor import Batch
    from mirrorlake.history.frames import Frames
    from mirrorlake.history.maintenance import Maintenance, Policy
    from mirrorlake.lake_table import LakeTable
    from mirrorlake.layout.partitioning.process import PartitionReport, Process, ProcessOptions
    from mirrorlake.layout.partitioning.statistics import Diagnostics
    from mirrorlake.layout.partitioning.steps import StepListener as PartitionListener
    from mirrorlake.layout.write import WriteReport
    from mirrorlake.lint.findings import LintReport
    from mirrorlake.lint.table import FileListener
    from mirrorlake.mirror.forget import Forgotten
    from mirrorlake.mirror.reconcile import Reconciliation
    from mirrorlake.rows.views.api import Views


class Lake:
    """One lake.

    Args:
        root: a path, or a URI of an object store. It need not exist yet.
        spark: the session to use; by default the running one, or one that is started when the
            first thing needs it. Publishing never does.

    Example:
        >>> import tempfile
        >>> lake = Lake(tempfile.mkdtemp())
        >>> lake.publisher("inventory", keys=["id"]).upsert([{"id": 1, "item": "bolt"}]).rows
        1
    """

    def __init__(self, root: str | os.PathLike[str], *, spark: SparkSession | None = None) -> None:
        self.storage = Storage(root)
        self._spark = spark

    def __repr__(self) -> str:
        return f"Lake({self.storage.root!r})"

    @property
    def landing_zone(self) -> str:
        """Where applications publish: a full path or URI."""
        return self.storage.path(ZONE)

    @property
    def spark(self) -> SparkSession:
        """The session, started now if there is none."""
        if self._spark is None:
            from mirrorlake.spark.session import get_spark

            self._spark = get_spark()
        return self._spark

    def publisher(
        self,
        table: str | TableName,
        *,
        keys: list[str] | tuple[str, ...] = (),
        partner: Partner | None = None,
        dry_run: bool = False,
    ) -> Publisher:
        """The publisher of one table; see `Publisher`. One of a dry run only checks."""
        return Publisher(self.storage, as_table(table), keys=keys, partner=partner, dry_run=dry_run)

    def mirror(
        self,
        table: str | TableName | None = None,
        *,
        options: MirrorOptions | None = None,
        on_step: StepListener = noop,
        vorder: bool = False,
    ) -> Report:
        """Runs one cycle of the mirror.

        Args:
            table: only this one; by default all of the landing zone.
            options: bounds of the cycle.
            on_step: hears of every finished step of every table.
            vorder: order the rows within the files that are not ordered yet, in a second commit
                that changes no data.

        Returns:
            A line a table. A table that failed has its error there; the others went on.
        """
        from mirrorlake.mirror.engine import Engine

        engine = Engine(self.storage, lambda: self.spark, options, on_step)
        report = engine.run_cycle(None if table is None else as_table(table))
        if vorder:
            there = set(self.tables())
            for line in report.tables:
                if (name := TableName(line.schema, line.name)) in there:
                    self.table(name).vorder(apply=True)
        return report

    def preview(
        self, table: str | TableName | None = None, *, options: MirrorOptions | None = None
    ) -> Preview:
        """What the next cycle of the mirror would apply; writes nothing, needs no Spark."""
        return preview_cycle(self.storage, None if table is None else as_table(table), options)

    def write_in_vorder(
        self,
        table: str | TableName,
        rows: DataFrame,
        *,
        mode: str = "append",
        sort_by: Sequence[str] = (),
    ) -> WriteReport:
        """Writes a DataFrame to a table of one's own, in V-Order; see `layout.write.write_table`.

        Raises:
            UsageError: a publisher feeds it.
        """
        from mirrorlake.history.write import check_own
        from mirrorlake.layout.write import write_table

        name = as_table(table)
        name = self.find(name) or name
        check_own(self.storage, name)
        return write_table(self.spark, self.storage, name, rows, mode=mode, sort_by=sort_by)

    def watch(
        self,
        stop: Event,
        *,
        table: str | TableName | None = None,
        interval: float = 5,
        options: MirrorOptions | None = None,
        on_step: StepListener = noop,
        on_report: Callable[[Report], None] = lambda _report: None,
    ) -> Report:
        """Mirrors cycle after cycle until `stop` is set; see `mirror.watch`."""
        from mirrorlake.mirror.engine import Engine
        from mirrorlake.mirror.watch import watch

        engine = Engine(self.storage, lambda: self.spark, options, on_step, stop)
        only = None if table is None else as_table(table)
        return watch(engine, stop, only=only, interval=interval, on_report=on_report)

    def undrop(self, table: str | TableName, *, dry_run: bool = False) -> Outcome:
        """Brings back a table that was dropped with its folder in the last days; see `trash`."""
        return undrop(self.storage, as_table(table), dry_run=dry_run)

    def pause(self, table: str | TableName, *, dry_run: bool = False) -> Outcome:
        """Applies no further files of a table until it is resumed."""
        return operator_settings.pause(self.storage, as_table(table), dry_run=dry_run)

    def resume(self, table: str | TableName, *, dry_run: bool = False) -> Outcome:
        """Lets a paused table go on."""
        return operator_settings.resume(self.storage, as_table(table), dry_run=dry_run)

    def skip(self, table: str | TableName, number: int, *, apply: bool = False) -> Outcome:
        """Passes over a file that can't be applied, or that never comes; says so, or does it."""
        return operator_settings.skip(self.storage, as_table(table), number, apply=apply)

    def replay(
        self,
        table: str | TableName,
        first: int,
        last: int | None = None,
        *,
        as_is: bool = False,
        dry_run: bool = False,
    ) -> Outcome:
        """Publishes applied files once more; see `mirror.replay`."""
        return replay(self.storage, as_table(table), first, last, as_is=as_is, dry_run=dry_run)

    def reseed(
        self, table: str | TableName, files: Iterable[Path] = (), *, apply: bool = False
    ) -> Outcome:
        """Lets the next cycle build a table again; says so, or does it; see `mirror.replay`."""
        return reseed(self.storage, as_table(table), files, apply=apply)

    def ledger(self, table: str | TableName) -> Ledger:
        """Which files were applied, when, and as what; needs no Spark."""
        return read_ledger(self.storage, as_table(table))

    def reconcile(self, table: str | TableName | None = None) -> Reconciliation:
        """Compares tables with the manifests that publishers left; see `mirror.reconcile`."""
        from mirrorlake.mirror.reconcile import reconcile

        tables = self.tables() if table is None else [as_table(table)]
        return reconcile(self.spark, self.storage, tables)

    def quarantine(self, table: str | TableName | None = None) -> DataFrame:
        """The rows and files that were passed over, of one table or of all."""
        from mirrorlake.mirror.quarantine import read_quarantine

        return read_quarantine(self.spark, self.storage, None if table is None else as_table(table))

    def forget(
        self, table: str | TableName, keys: Mapping[str, Any], *, apply: bool = False
    ) -> Forgotten:
        """Finds a person's rows wherever they lie, and with `apply` removes them; see `forget`."""
        from mirrorlake.mirror.forget import forget

        return forget(self.spark, self.storage, as_table(table), keys, apply=apply)

    def status(self, *, rebuild: bool = False) -> Report:
        """How each table stands, from a listing and the kept state; needs no Spark.

        Args:
            rebuild: whether the kept state is read anew from the tables' own logs.
        """
        return status_report(self.storage, rebuild=rebuild)

    def lint(
        self,
        table: str | TableName | None = None,
        *,
        on_file: FileListener = lambda _table, _done, _total: None,
    ) -> LintReport:
        """Checks the landing zone, or one table of it; reads only, needs no Spark; see `lint`."""
        from mirrorlake.lint.zone import lint_zone

        return lint_zone(self.storage, None if table is None else as_table(table), on_file=on_file)

    def tables(self) -> list[TableName]:
        """The Delta tables of the lake, ordered by name."""
        return delta_tables(self.storage)

    def table(self, name: str | TableName) -> LakeTable:
        """One Delta table.

        Raises:
            TableNotFoundError: there is none of that name.
        """
        from mirrorlake.lake_table import LakeTable

        return LakeTable(self.spark, self.storage, as_table(name))

    def write(
        self,
        table: str | TableName,
        rows: Any,
        *,
        mode: str = "append",
        partition_by: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
    ) -> LakeTable:
        """Writes a table that no publisher feeds; see `history.write.write_table`.

        Returns:
            The table.

        Raises:
            UsageError: a publisher feeds it.
        """
        from mirrorlake.history.write import write_table

        name = as_table(table)
        name = self.find(name) or name
        write_table(
            self.spark,
            self.storage,
            name,
            rows,
            mode=mode,
            partition_by=partition_by,
            properties=properties,
        )
        return self.table(name)

    def create_table(
        self,
        name: str | TableName,
        columns: Mapping[str, str],
        *,
        keys: Sequence[str] = (),
        feed: bool | None = True,
        row_tracking: bool | None = None,
    ) -> LakeTable:
        """Makes an empty table that no publisher feeds; see `feed/enable.py`."""
        from mirrorlake.feed.enable import create_table

        table = as_table(name)
        path = self.storage.path(table.table_path)
        create_table(self.spark, path, columns, keys=keys, feed=feed, row_tracking=row_tracking)
        return self.table(table)

    def enable_feed_for_new_tables(self) -> None:
        """Makes the session switch the change feed on for every table that it creates."""
        from mirrorlake.feed.enable import enable_for_new_tables

        enable_for_new_tables(self.spark)

    def archive(
        self, table: str | TableName, into: str | TableName, *, start: int | None = None
    ) -> ArchiveReport:
        """Appends what is new in a table's feed to its permanent history; see `Archive`."""
        from mirrorlake.feed.archive import Archive

        return Archive(self.table(table), as_table(into)).run(start=start)

    def apply_feed(
        self,
        table: str | TableName,
        into: str | TableName,
        *,
        stored_as: Literal[1, 2] = 1,
        keys: Sequence[str] | None = None,
    ) -> Batch:
        """Brings a dimension up to date with a table's feed; see `feed/scd.py`.

        Args:
            table: whose feed.
            into: the dimension; it is made by the first call.
            stored_as: 1 keeps the latest row a key, 2 all of them with their periods.
            keys: the key columns; by default the table's own.

        Returns:
            The versions that were new. Killed before its end, a call is made good by the next.
        """
        from mirrorlake.feed.scd import follow_feed

        return follow_feed(self.table(table), as_table(into), keys=keys, stored_as=stored_as)

    def find(self, name: TableName) -> TableName | None:
        """The lake's own spelling of a table's name: exact, else the only one but for case."""
        tables = self.tables()
        if name in tables:
            return name
        wanted = str(name).lower()
        alike = [table for table in tables if str(table).lower() == wanted]
        return alike[0] if len(alike) == 1 else None

    @property
    def frames(self) -> Frames:
        """The versions that models are read at; see `Frames`."""
        from mirrorlake.history.frames import Frames

        return Frames(self.storage, lambda: self.spark)

    @property
    def views(self) -> Views:
        """Tables that follow a query by what changes in its sources; see `Views`."""
        from mirrorlake.rows.views.api import Views

        return Views(self.storage, lambda: self.spark, self.find)

    def maintain(
        self, policy: Policy, *, on_table: Callable[[str], None] = lambda name: None
    ) -> Maintenance:
        """Runs a policy over the lake's tables; see `history.maintenance.maintain`."""
        from mirrorlake.history.maintenance import maintain

        return maintain(lambda: self.spark, self.storage, self.tables(), policy, on_table=on_table)

    def partitioner(
        self,
        table: str | TableName | None = None,
        *,
        options: ProcessOptions | None = None,
        on_step: PartitionListener = noop,
    ) -> Process:
        """The background process of partitioning; see `layout.partitioning.process`."""
        from mirrorlake.layout.partitioning.process import Process
        from mirrorlake.policy_log import tables_with_policies

        def tables() -> list[TableName]:
            return tables_with_policies(self.storage) if table is None else [as_table(table)]

        return Process(self.storage, lambda: self.spark, tables, options, on_step)

    def partition(
        self, table: str | TableName | None = None, *, options: ProcessOptions | None = None
    ) -> PartitionReport:
        """Partitions what is new in all tables with a policy, or in one of them."""
        return self.partitioner(table, options=options).run()

    def partition_diagnostics(self) -> Diagnostics:
        """The state of the partitioning of all tables, in the original's words."""
        from mirrorlake.layout.partitioning.process import diagnose_lake
        from mirrorlake.policy_log import tables_with_policies

        return diagnose_lake(self.spark, self.storage, tables_with_policies(self.storage))

    def sql(self, query: str, *, frame: str | None = None) -> DataFrame:
        """Runs a query over the lake's tables.

        Args:
            query: tables go by `name`, `schema.name`, `name@v2`, or `name@20240428091500000`; their
                changes by `table_changes('name', start[, end])`, with versions or moments.
            frame: a model whose frame is read, instead of the newest versions.

        Raises:
            QueryError: Spark refused it.
            VersionError: a version or moment can't be read; with the range that can.
            FrameError: the frame does not hold, or lacks a table.
            FeedError: `table_changes` asks for what the feed doesn't hold.
        """
        from mirrorlake.lake_sql import query_lake

        return query_lake(self, query, frame=frame)
