"""The class `Lake`: publish to a lake, mirror it, query it and maintain it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from threading import Event
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from mirrorlake.delta.commits import find_newest
from mirrorlake.delta.snapshot import delta_tables, read_snapshot
from mirrorlake.errors import InvalidNameError, TableNotFoundError, UsageError
from mirrorlake.landing.publisher import Partner, Publisher
from mirrorlake.landing.zone import is_lake, is_other_folder, no_folder, published_tables
from mirrorlake.mirror.ledger import rebuild_states
from mirrorlake.mirror.operations import Operations
from mirrorlake.mirror.options import (
    MirrorOptions,
    Step,
    StepListener,
    make_options,
    new_table_properties,
    read_defaults,
)
from mirrorlake.mirror.state import load_states
from mirrorlake.mirror.status import MirrorReport, preview_cycle
from mirrorlake.names import METADATA, TABLES, ZONE, TableName, as_table, split_names
from mirrorlake.notices import noop
from mirrorlake.query.catalog import (
    Catalog,
    Registration,
    register_tables,
    unregister_tables,
)
from mirrorlake.storage.files import Storage, storage_errors
from mirrorlake.storage.paths import lake_path, may_be_lake

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from mirrorlake.feed.archive import ArchiveReport
    from mirrorlake.feed.cursor import FeedBatch
    from mirrorlake.history.frames import Frames
    from mirrorlake.inspection import Inspection
    from mirrorlake.landing.lint_rules import LintReport
    from mirrorlake.landing.publisher import PublishedFiles
    from mirrorlake.layout.analysis import FilesOverview
    from mirrorlake.layout.maintenance import Maintenance, MaintenancePolicy
    from mirrorlake.mirror.forget import Forgotten
    from mirrorlake.mirror.lint import FileListener
    from mirrorlake.mirror.reconcile import Reconciliation
    from mirrorlake.partitioning.process import LakePartitioning
    from mirrorlake.status import Expectations, LakeStatus
    from mirrorlake.table import Table
    from mirrorlake.views.api import Views


_Opened = TypeVar("_Opened")
_PATIENCE = 10.0  # seconds until `watch` mirrors other tables while one is still being applied
_NEVER_FED = "Nothing was ever published into this lake."


class Lake:
    """A lake: a folder or bucket with Delta tables in `Tables/` and published files in `Files/`.

    Args:
        root: a path, or a URI of an object store. The first write creates it.
        spark: the Spark session. By default, the lake uses the active session. If there is none, it
            starts one when an operation first needs Spark. Publishing never needs it. The lake
            turns off Delta's retention check in the session, so that old versions can be read as
            long as their files exist.

    Example:
        >>> import tempfile
        >>> lake = Lake(tempfile.mkdtemp())
        >>> lake.publisher("inventory", keys=["id"]).upsert([{"id": 1, "item": "bolt"}]).rows
        1
    """

    def __init__(self, root: str | os.PathLike[str], *, spark: SparkSession | None = None) -> None:
        self.storage = Storage(root)
        self._spark = spark
        self._is_checked = False
        self._publishers: dict[TableName, Publisher] = {}  # the last ones of `publish`

    @classmethod
    def open(cls, root: str, *, new: bool = False, spark: SparkSession | None = None) -> Lake:
        """Open an existing lake; the notebooks do this with their parameter `root`.

        Args:
            root: a path or URI; a relative path starts from `MIRRORLAKE_HOME`, or from the project.
            new: also accept a folder that contains no lake yet.
            spark: as for `Lake`.

        Raises:
            UsageError: `root` contains no lake.

        Example:
            >>> Lake.open("lakes/sample")  # doctest: +SKIP
            Lake('/home/me/lakes/sample')
        """
        if not isinstance(root, str) or not root.strip():
            raise UsageError("The lake's root is empty.", hint="give a lake's folder or URI.")
        path = lake_path(root)
        if new:
            with storage_errors(path):
                return Lake(path, spark=spark)
        if may_be_lake(path):  # `Lake` creates the folder
            lake = Lake(path, spark=spark)
            if is_lake(lake.storage):
                return lake
        raise UsageError(
            f"{path} is not a lake: it has neither {ZONE} nor {TABLES}.",
            hint="correct root. In a lesson, first run the lessons that create its lake."
            " Lake.open(root, new=True).publish(table, rows) creates a lake, and"
            " mirrorlake_lab.make_sample(root) a sample lake.",
        )

    def __repr__(self) -> str:
        return f"Lake({self.storage.root!r})"

    @property
    def spark(self) -> SparkSession:
        """The Spark session, which starts on first use.

        Raises:
            SetupError: the given session lacks a setting. Without it, concurrent commits to this
                object store could overwrite each other.
        """
        if not self._is_checked or self._spark is None:
            from mirrorlake.spark.clouds import check_log_store
            from mirrorlake.spark.jvm import ENFORCED
            from mirrorlake.spark.session import get_spark

            if self._spark is not None:
                check_log_store(self._spark, self.storage.root)
                self._spark.conf.set(ENFORCED, "false")
            self.storage.check_conditions()
            self._spark = self._spark or get_spark(root=self.storage.root)
            self._is_checked = True
        return self._spark

    # Tables by name

    def tables(self, names: str = "") -> list[TableName]:
        """Return the names of all Delta tables, or only of those in the list `names`.

        The returned names are spelled as in the lake.

        Args:
            names: names of tables, separated by commas; the result has the same order. Upper and
                lower case are handled as in `find`. By default, all tables, ordered by name.

        Raises:
            TableNotFoundError: one of the tables does not exist. The hint lists similar names.

        Example:
            >>> lake.tables("stock, sales.orders")  # doctest: +SKIP
        """
        if not names.strip():
            return delta_tables(self.storage)
        catalog = Catalog(self.storage)
        return [catalog.existing(name) for name in split_names(names)]

    def find(self, name: TableName) -> TableName | None:
        """Return the table's name, with upper and lower case as in the lake; None if it is missing.

        Upper and lower case of `name` do not matter, unless the lake has several names that differ
        only by case.
        """
        return Catalog(self.storage).find(name)

    def table(self, name: str | TableName) -> Table:
        """Return one Delta table. Spark starts only when you read its rows.

        Args:
            name: `table` or `schema.table`. Upper and lower case are handled as in `find`.

        Raises:
            TableNotFoundError: the table does not exist. The hint lists similar names.
            InvalidNameError: a table cannot have this name.

        Example:
            >>> lake.table("sales").version  # doctest: +SKIP
            7
        """
        from mirrorlake.table import Table

        return self._open_table(name, lambda found: Table(lambda: self.spark, self.storage, found))

    def inspect(self, name: str | TableName) -> Inspection:
        """Return properties, files and versions of a table from its log, without Spark.

        Args:
            name: `table` or `schema.table`. Upper and lower case are handled as in `find`.

        Raises:
            TableNotFoundError: the table does not exist. The hint lists similar names.

        Example:
            >>> lake.inspect("sales").files[0].rows  # doctest: +SKIP
            328521
        """
        from mirrorlake.inspection import Inspection

        return self._open_table(name, lambda found: Inspection(self.storage, found))

    def _open_table(self, name: str | TableName, make: Callable[[TableName], _Opened]) -> _Opened:
        """Open a table by its name as given, or otherwise by its name as in `find`."""
        wanted = name.strip() if isinstance(name, str) else name
        try:
            return make(as_table(wanted))
        except TableNotFoundError:
            return make(Catalog(self.storage).existing(wanted))

    def versions(self, tables: Iterable[TableName]) -> dict[TableName, int | None]:
        """Return the newest version of each table, or None if it does not exist; needs no Spark.

        For each table, this takes only a few requests to the store, even if its log is long.

        Args:
            tables: the tables' names.

        Example:
            >>> lake.versions(lake.tables())  # doctest: +SKIP
            {TableName(schema=None, name='sales'): 7}
        """
        return {name: find_newest(self.storage, name.table_path) for name in tables}

    # Publish and check

    @property
    def landing_zone(self) -> str:
        """The folder that applications publish to, as a full path or URI."""
        return self.storage.path(ZONE)

    @property
    def published_footer(self) -> dict[str, str]:
        """Metadata in the footer of each file that this lake publishes."""
        return {}

    def publisher(
        self,
        table: str | TableName,
        *,
        keys: str | Sequence[str] = (),
        partner: Partner | None = None,
        footer: Mapping[str, str] | None = None,
        dry_run: bool = False,
        types: Mapping[str, str] | pa.Schema | None = None,
        widen: bool = False,
        safe_names: bool | None = None,
    ) -> Publisher:
        """Return the publisher of one table; needs no Spark.

        Args:
            table: its name.
            keys: the key columns: a list, or one text such as `"id, day"`. The first accepted batch
                declares them. Without keys, the table accepts only inserts.
            partner: the application that publishes. Its name is written to the landing zone once.
            footer: additional metadata for the footers of the published files.
            dry_run: only check each batch, and write neither keys nor files.
            types: types of columns, such as `{"price": "decimal(18,2)"}` or an Arrow schema. A
                column that is not listed gets the type that it already has in the table. If the
                table does not have the column yet, the type comes from the rows.
            widen: if values do not fit a column's type, publish them in a wider type. The mirror
                must then also run with `widen`.
            safe_names: rename new columns such as `unit price` to `unit_price`; by default, as
                `operations.defaults` sets it for the lake.

        Raises:
            InvalidNameError: the table is new, and its name differs only by case from another one.
            MetadataError: the table already has other keys.
            UsageError: a declared type is not supported.

        Example:
            >>> import tempfile
            >>> from mirrorlake import Lake
            >>> Lake(tempfile.mkdtemp()).publisher("stock", keys=["id"]).upsert([{"id": 1}]).rows
            1
        """
        name = as_table(table)
        _check_case(self.storage, name)
        return Publisher(
            self.storage,
            name,
            keys=keys,
            partner=partner,
            footer={**self.published_footer, **(footer or {})},
            dry_run=dry_run,
            types=types,
            widen=widen,
            safe_names=read_defaults(self.storage).safe_names if safe_names is None else safe_names,
        )

    def publish(
        self,
        table: str | TableName,
        source: Any,
        *,
        keys: str | Sequence[str] = (),
        marker: str = "",
        dry_run: bool = False,
        types: Mapping[str, str] | pa.Schema | None = None,
        widen: bool = False,
    ) -> PublishedFiles:
        r"""Publish rows, or files in the order of their names; skip files published before.

        You can repeat an interrupted call: a file is skipped if its last published state had the
        same name and content. This works as long as the landing zone keeps the applied files
        (7 days). Afterwards, an old file is published again, so move published files away.

        Args:
            table: the table's name. If the table does not exist, the mirror creates it.
            source: a Parquet or CSV file, a folder of such files, a pattern such as
                `exports/*.csv`, or a list of files. A relative path starts from the current folder.
                Any other value is rows, see `Publisher.write`. They are published again with each
                call.
            keys: the key columns: a list, or one text such as `"id, day"`.
            marker: the operation of all rows, see `Publisher.publish`.
            dry_run: only check the files.
            types: types of columns, such as `{"price": "decimal(18,2)"}` or an Arrow schema; see
                `publisher`.
            widen: if values do not fit a column's type, publish them in a wider type. The mirror
                must then also run with `widen`.

        Raises:
            UsageError: `source` names no file, or a declared type is not supported.
            MirrorlakeError: a file is invalid. The files before it are published. This file and
                those after it are not.

        Example:
            >>> import tempfile
            >>> from pathlib import Path
            >>> folder = Path(tempfile.mkdtemp())
            >>> _ = (folder / "a.csv").write_text("id,n\n1,5\n")
            >>> Lake(folder / "lake").publish("stock", str(folder), keys="id")
            stock: 1 row of 1 file published
        """
        from mirrorlake.landing.publisher import (
            PublishedFiles,
            given_files,
            publish_files,
            take_over,
        )

        files = given_files(source)
        with storage_errors(self.storage.root):
            publisher = self.publisher(table, keys=keys, dry_run=dry_run, types=types, widen=widen)
            if (earlier := self._publishers.pop(publisher.table, None)) is not None:
                take_over(publisher, earlier)
            if files is not None:
                done = publish_files(publisher, files, marker, dry_run=dry_run)
            else:
                batch = publisher.publish(source, marker)
                done = PublishedFiles(batch.table, ("the batch",), (batch,), dry_run)
            if not dry_run:
                self._publishers[publisher.table] = publisher
            return done

    def lint(
        self, table: str | TableName | None = None, *, on_file: FileListener = noop
    ) -> LintReport:
        """Check the landing zone against the linter's rules, without Spark; change nothing.

        Files that the mirror has applied are not checked.

        Args:
            table: check only this table; by default the whole landing zone.
            on_file: a function that is called after each file, with the table, the number of its
                checked files and the number of its files to check.

        Returns:
            The problems that were found, each with its file, row, column and fix.

        Raises:
            TableNotFoundError: the landing zone has no folder for this table.

        Example:
            >>> lake.lint().findings  # doctest: +SKIP
            ()
        """
        from mirrorlake.mirror.lint import lint_zone

        return lint_zone(self.storage, _name(table), on_file=on_file)

    # Mirror

    def mirror(
        self,
        table: str | TableName | None = None,
        *,
        options: MirrorOptions | None = None,
        vorder: bool = False,
        dry_run: bool = False,
        on_step: StepListener = noop,
        **settings: Any,
    ) -> MirrorReport:
        """Run one cycle of the mirror: apply the published files, in one commit per table.

        Args:
            table: mirror only this table; by default the whole landing zone.
            options: limits of the cycle, what to do on errors, and retention periods.
            vorder: after the cycle, put files into V-Order if they are not in it yet. This takes
                further commits, which change no data.
            dry_run: only check the files and report what would be applied; needs no Spark.
            on_step: a function that is called after each step, with the table and the step.
            **settings: single fields of `MirrorOptions`, such as `on_error="skip-row"`. They
                replace the fields of `options`.

        Returns:
            A report with one entry per table. If a table fails, its entry contains the error, and
            the cycle continues with the other tables. The report is empty if nothing was ever
            published, or if no publisher feeds `table`.

        Raises:
            UsageError: a setting does not exist, or its value is not allowed.
            TableNotFoundError: `table` has no folder in the landing zone, and the lake has no such
                table.

        Example:
            >>> lake.mirror(on_error="skip-file", batch_files=100)  # doctest: +SKIP
            3 files with 1,024 rows applied
        """
        chosen, only = make_options(options, settings), _name(table)
        with storage_errors(self.storage.root):
            if only is not None and is_other_folder(self.storage):
                raise no_folder(self.storage, only)  # before the mirror creates its own folder
            if only is None and self._was_never_fed():
                return MirrorReport(dry_run=dry_run, note=_NEVER_FED)
            try:
                if dry_run:
                    return preview_cycle(self.storage, only, chosen)
                from mirrorlake.mirror.engine import Engine

                listener = self._keep_vorder(on_step)
                report = Engine(self.storage, lambda: self.spark, chosen, listener).run_cycle(only)
            except TableNotFoundError:
                if only is None or self.find(only) != only:
                    raise
                note = f"No publisher feeds {only}: there is nothing to mirror."
                return MirrorReport(dry_run=dry_run, note=note)
        fed = report.fed
        for name in self.tables() if vorder else ():
            if name in fed:
                self.table(name).optimize.vorder()
        return report

    def _keep_vorder(self, on_step: StepListener) -> StepListener:
        """Return a listener that also orders the files of tables that the mirror has compacted."""

        def listen(name: TableName, step: Step) -> None:
            if step is Step.COMPACTED:
                from mirrorlake.layout.api import keep_vorder

                keep_vorder(self.table(name))
            on_step(name, step)

        return listen

    def _was_never_fed(self) -> bool:
        """Check whether the lake has no folder in the landing zone, and never had one."""
        if self.storage.list(ZONE).folders or load_states(self.storage):
            return False
        return not rebuild_states(self.storage, self.tables())

    def watch(
        self,
        stop: Event,
        *,
        table: str | TableName | None = None,
        interval: float = 5,
        options: MirrorOptions | None = None,
        on_step: StepListener = noop,
        on_report: Callable[[MirrorReport], None] = noop,
        **settings: Any,
    ) -> MirrorReport:
        """Run mirror cycles until `stop` is set.

        If one table takes long, the mirror applies new files of the other tables before the cycle
        ends. Folders that are created or deleted meanwhile are found by the next cycle. In a folder
        that has other content but no lake, the mirror waits for the first publisher.

        Args:
            stop: an event that ends the mirror, for example set by a signal handler. Running
                commits finish.
            table: mirror only this table; by default all.
            interval: seconds between two cycles. While nothing is published, the pauses grow to
                one minute, unless `interval` is longer.
            options: as for `mirror`.
            on_step: as for `mirror`.
            on_report: a function that is called with the report of each cycle.
            **settings: as for `mirror`.

        Returns:
            The report of the last cycle.

        Raises:
            UsageError: a setting does not exist.
            TableNotFoundError: `table` has no folder in the landing zone.

        Example:
            >>> lake.watch(stop, interval=30)  # doctest: +SKIP
        """
        from mirrorlake.mirror.engine import Engine, watch

        patience = max(interval, _PATIENCE)
        chosen, only = make_options(options, settings), _name(table)
        listener = self._keep_vorder(on_step)
        engine = Engine(
            self.storage, lambda: self.spark, chosen, listener, stop, others_after=patience
        )
        while is_other_folder(self.storage):  # the mirror would create its own folder
            if only is not None:
                raise no_folder(self.storage, only)
            report = MirrorReport(note=_NEVER_FED)
            on_report(report)
            if stop.wait(interval):
                return report
        return watch(engine, stop, only=only, interval=interval, on_report=on_report)

    def waiting(self, table: str | TableName) -> MirrorReport:
        """Return the files of a table that the next cycle would apply; needs no Spark.

        Args:
            table: the table's name. If nothing was ever published for this table, the result is
                empty.

        Example:
            >>> lake.waiting("orders")  # doctest: +SKIP
            2 files with 8 rows would be applied (dry run)
        """
        name = as_table(table)
        if name not in published_tables(self.storage):
            return MirrorReport(dry_run=True, note=f"No file was published to {name}.")
        return preview_cycle(self.storage, name)

    @property
    def operations(self) -> Operations:
        """Operations on the mirror, such as pause, skip, replay and undrop; see `Operations`."""
        return Operations(self.storage, lambda: self.spark, self.published_footer)

    def status(
        self,
        *,
        max_lag: float | None = None,
        max_backlog: int | None = None,
        expectations: Mapping[str, str] | None = None,
        rebuild: bool = False,
    ) -> LakeStatus:
        """Return the status of the lake: tables, views, sources, quarantine and problems.

        The status is computed from listings of folders, state documents and the tables' logs. Spark
        starts only if there are `expectations`.

        Args:
            max_lag: the longest time in seconds that a published file may wait for the mirror, or
                that a change may wait until a view is refreshed. A longer time is a problem. By
                default, there is no limit.
            max_backlog: how many files of one table may wait. More files are a problem. By default,
                there is no limit.
            expectations: queries that must return no row, see `check_expectations`. If a query
                returns rows, this is a problem.
            rebuild: first create the state documents again from the tables' logs.

        Returns:
            The status. The `rows` of a table are the rows of all applied files. Each of them is one
            operation, so this is not the number of rows in the table. `problems` contains the
            problems above, the tables and sources that an error stopped, and the views of which a
            source was removed. `check()` raises an error if there is a problem. `plot()` draws the
            lag or the number of waiting files.

        Raises:
            UsageError: a limit is less than 0, or the expectations are not a mapping.

        Example:
            >>> lake.status(max_lag=3600)  # doctest: +SKIP
            3 tables, 0 problems
        """
        from mirrorlake.status import read_status

        return read_status(
            self.storage,
            partial(self.sql, read_only=True),
            max_lag=max_lag,
            max_backlog=max_backlog,
            expectations=expectations,
            rebuild=rebuild,
        )

    def reconcile(self, table: str | TableName | None = None) -> Reconciliation:
        """Compare tables with the manifests that publishers wrote with `Publisher.manifest`.

        Args:
            table: compare only this table; by default all.

        Returns:
            The number of compared rows, and the differences as `findings`, such as a range of keys
            whose rows differ. A table without a manifest is skipped and listed as
            `without_manifest`. If only one table is compared and it has no manifest, the result
            contains a finding.

        Example:
            >>> lake.reconcile("orders").findings  # doctest: +SKIP
            ()
        """
        from mirrorlake.mirror.reconcile import reconcile

        tables = self.tables() if table is None else [as_table(table)]
        return reconcile(self.spark, self.storage, tables)

    def forget(
        self, table: str | TableName, keys: Mapping[str, Any], *, apply: bool = False
    ) -> Forgotten:
        """Find all data of one key. With `apply`, remove the data and then search again.

        Args:
            table: the table's name.
            keys: the key: the name of each key column with its value.
            apply: remove the data. By default, the method only reports where it is. Only the mirror
                may write to the table during the call.

        Returns:
            Where the data of the key was found: table, old versions, change data feed, quarantine,
            log, published files.

        Raises:
            UsageError: the columns are not the table's keys, the table has no keys, or a key column
                is a partition column.
            SequenceError: a file that is not applied yet contains the key. Nothing was removed.
            TracesLeftError: the second search found data of the key, or a file can't be searched.
            BusyError: a mirror of the lake did not finish within 60 seconds.

        Example:
            >>> lake.forget("people", {"id": 7})  # doctest: +SKIP
        """
        from mirrorlake.mirror.forget import forget

        return forget(self.spark, self.storage, as_table(table), keys, apply=apply)

    # Query

    def sql(
        self,
        query: str,
        *,
        frame: str | None = None,
        as_of: int | str | datetime | None = None,
        read_only: bool = False,
    ) -> DataFrame:
        """Run a SQL statement over the lake's tables.

        CREATE TABLE makes a Delta table in the lake, unless the statement names a location or a
        format other than Delta. DROP TABLE drops a table that no publisher feeds;
        `operations.undrop` restores it. VACUUM does the same as `Table.vacuum(apply=True)` and
        returns what it deleted. VACUUM … DRY RUN deletes nothing and returns the preview.

        Args:
            query: the SQL query. A table is `name` or `schema.name`. An old version is `name@v2`,
                or `name@20240428091500000` for a timestamp. `table_changes('name', start[, end])`
                returns the changes between two versions or timestamps.
            frame: the name of a model that has a frame (made with `frames.create`). A frame records
                versions of tables; the query reads these versions instead of the newest ones. A
                statement that could change a table is refused.
            as_of: a version, or a timestamp (UTC if it has no zone). It applies to every table to
                which the query gives no version of its own. If a timestamp here or in the query is
                later than a table's last commit, the newest version is read.
            read_only: refuse a statement that is not a query.

        Raises:
            QueryError: Spark refused the query, or the statement is not a query and `read_only` is
                set.
            VersionError: a version or timestamp can't be read, for example a version above the
                newest. The error contains the range that can be read.
            FrameError: the frame has expired, or does not contain a table of the query.
            FeedError: the change data feed does not contain all changes of the range of
                `table_changes`.
            UsageError: the name of a new table is taken, a publisher feeds the table to drop, or a
                statement with `frame` is not a query.
            RetentionError: as for `Table.vacuum`.

        Example:
            >>> lake.sql("SELECT count(*) FROM sales@v2").show()  # doctest: +SKIP
        """
        from mirrorlake.sql import query_lake

        return query_lake(
            self.spark, self.storage, query, frame=frame, as_of=as_of, read_only=read_only
        )

    @property
    def views(self) -> Views:
        """Incremental views: tables with the result of a query; see `Views`."""
        from mirrorlake.views.api import Views

        return Views(self.storage, lambda: self.spark)

    def check_expectations(self, queries: Mapping[str, str], *, limit: int = 5) -> Expectations:
        """Run queries that must return no row. They read the newest versions of the tables.

        Args:
            queries: one SQL query per expectation, such as
                `{"every order has an item": "SELECT …"}`.
            limit: how many rows to keep for each query that returns rows.

        Returns:
            One entry per query. A query that Spark cannot run counts as an expectation that is not
            met. The other queries still run.

        Raises:
            UsageError: `queries` is not a mapping of texts to queries.

        Example:
            >>> lake.check_expectations({"no order twice": "SELECT …"}).broken  # doctest: +SKIP
            ()
        """
        from mirrorlake.status import check_expectations

        return check_expectations(partial(self.sql, read_only=True), queries, limit=limit)

    def register(
        self,
        catalog: str = "spark_catalog",
        database: str = "default",
        *,
        dry_run: bool = False,
    ) -> Registration:
        """Register the names of the tables in a catalog of the session, such as Hive's.

        The catalog stores each name with the location of its table, so
        `spark.table("sales.orders")` reads the lake's table.

        After that, each cycle of the mirror updates the catalog: it adds new tables and removes
        dropped ones. It does this only if the database exists in the Spark session of the mirror.
        CREATE TABLE and DROP TABLE with `sql` do the same. After other changes, such as `write` to
        a new table, call the method again.

        The session then creates Delta tables by default. The session's own CREATE TABLE creates a
        table in the lake only in one case: the lake is registered in the database `default` of
        Spark's in-memory catalog (not Hive's), and the table is new in `default`. Otherwise, use
        `lake.sql`.

        Args:
            catalog: the name of the catalog in the session.
            database: the database for tables without a schema. The tables of a schema are
                registered in a database with the schema's name.
            dry_run: only report what would be done.

        Returns:
            One entry per name. If a name already belongs to something else in the catalog, its
            entry is `refused`, and the catalog keeps the name.

        Raises:
            UsageError: the lake is already registered in another catalog or database.

        Example:
            >>> lake.register(database="sales")  # doctest: +SKIP
            spark_catalog: 3 added, 0 kept, 0 removed, 0 refused
        """
        return register_tables(
            self.spark, self.storage, catalog=catalog, database=database, dry_run=dry_run
        )

    def unregister(self, *, dry_run: bool = False) -> Registration:
        """Remove the names that `register` added from the catalog. Tables and databases stay.

        If `register` made the database `default` create tables in the lake, it creates them in
        Spark's warehouse again.

        Args:
            dry_run: only report what would be done.

        Raises:
            UsageError: the lake is not registered.

        Example:
            >>> lake.unregister()  # doctest: +SKIP
            spark_catalog: 0 added, 0 kept, 3 removed, 0 refused
        """
        return unregister_tables(self.spark, self.storage, dry_run=dry_run)

    # Tables without a publisher

    def write(
        self,
        table: str | TableName,
        rows: Any,
        *,
        mode: str = "append",
        vorder: bool | None = None,
        sort_by: str | Sequence[str] = (),
        row_group_rows: int = 0,
        partition_by: str | Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
    ) -> Table:
        """Write rows to a table; create the table if it does not exist.

        The table must not be one that publishers fill through the landing zone.

        Args:
            table: its name.
            rows: a Spark or pandas DataFrame, Arrow data, or a list of dicts.
            mode: `append`, or `overwrite` to replace all rows. With `overwrite`, the columns and
                types of the new rows replace those of the table. With `append`, columns that the
                table lacks are added. With `vorder=True`, both modes keep the table's columns and
                types.
            vorder: write the new files in V-Order, in the same commit. By default, this is done if
                the table asks for it (see `operations.defaults`) and the rows have exactly the
                table's columns and types. If they differ, the next `optimize` orders the files.
                With True, the rows may only have columns of the table. The values are cast to the
                table's types, and columns that the rows lack become NULL.
            sort_by: with `vorder`, the columns by which each file is sorted first.
            row_group_rows: the maximum number of rows of a row group; 0: the writer's default.
            partition_by: Delta partition columns, only for a new table.
            properties: properties of a new table. A new table has the change data feed and row
                tracking, unless the properties disable them.

        Returns:
            The table.

        Raises:
            UsageError: publishers fill the table through the landing zone, the table is a view, or
                the mode or a column does not exist.
            InvalidNameError: the table has the name of a schema, or its schema has the name of a
                table.
            QueryError: Delta refused the rows.
            ConflictError: with `vorder`: another writer committed first, so these rows were not
                written.

        Example:
            >>> lake.write("notes", [{"id": 1, "text": "fog"}]).version  # doctest: +SKIP
            1
        """
        from mirrorlake.history.write import write_table
        from mirrorlake.layout.api import write_rows

        name = Catalog(self.storage).existing_or_new(table)
        write_table(
            self.spark,
            self.storage,
            name,
            rows,
            mode=mode,
            write=partial(
                write_rows,
                vorder=vorder,
                sort_by=split_names(sort_by),
                row_group_rows=row_group_rows,
            ),
            partition_by=split_names(partition_by),
            properties=properties,
        )
        return self.table(name)

    def create_table(
        self,
        name: str | TableName,
        columns: Mapping[str, str],
        *,
        keys: str | Sequence[str] = (),
        feed: bool | None = True,
        row_tracking: bool | None = None,
    ) -> Table:
        """Create an empty table that is not filled by publishers; do nothing if the table exists.

        Args:
            name: its name.
            columns: the name of each column with its Spark type.
            keys: the key columns.
            feed: whether the table has a change data feed. None: the session's default.
            row_tracking: whether rows have ids. None: the session's default.

        Raises:
            UsageError: a key is not one of the columns, or publishers fill the table through the
                landing zone.
            InvalidNameError: the table has the name of a schema, or its schema has the name of a
                table.
            FeedError: the change data feed reserves the name of a column.

        Example:
            >>> lake.create_table("notes", {"id": "bigint", "text": "string"})  # doctest: +SKIP
        """
        from mirrorlake.history.write import claim_name, create_table

        table = Catalog(self.storage).existing_or_new(name)
        if read_snapshot(self.storage, table.table_path) is None:
            claim_name(self.storage, table)
        path = self.storage.path(table.table_path)
        create_table(
            self.spark,
            path,
            columns,
            keys=split_names(keys),
            feed=feed,
            row_tracking=row_tracking,
            properties=new_table_properties(self.storage),
        )
        return self.table(table)

    def enable_feed_for_new_tables(self) -> None:
        """Set the session's default: new tables have a change data feed."""
        from mirrorlake.feed.doctor import DEFAULT_CONF

        self.spark.conf.set(DEFAULT_CONF, "true")

    # Follow, pin and maintain tables

    def archive(
        self,
        table: str | TableName,
        into: str | TableName,
        *,
        start: int | None = None,
        dry_run: bool = False,
    ) -> ArchiveReport:
        """Append the new changes of a table's change data feed to an archive.

        The archive is a table that keeps the changes permanently.

        Safe to interrupt: the next call completes the work.

        Args:
            table: the table with the change feed.
            into: the archive; the first call creates it.
            start: the version of `table` at which a new archive begins. Default: 0, if the feed is
                complete from version 0. Otherwise the archive starts with the rows of the newest
                version, as inserts.
            dry_run: only report which versions are new.

        Raises:
            FeedError: the feed no longer contains the next changes, or `into` is the archive of
                another table.

        Example:
            >>> lake.archive("sales", "sales_history")  # doctest: +SKIP
            sales → sales_history: 3 new versions, archived up to 7
        """
        from mirrorlake.feed.archive import Archive

        archive = Archive(self.table(table), Catalog(self.storage).existing_or_new(into))
        return archive.plan(start=start) if dry_run else archive.run(start=start)

    def update_dimension(
        self,
        table: str | TableName,
        into: str | TableName,
        *,
        stored_as: Literal[1, 2] = 1,
        keys: str | Sequence[str] | None = None,
        dry_run: bool = False,
    ) -> FeedBatch:
        """Bring a slowly changing dimension up to date with a table's change feed.

        Safe to interrupt: the next call completes the work.

        Args:
            table: the table with the change feed.
            into: the dimension; the first call creates it.
            stored_as: 1 keeps only the latest row of each key. 2 keeps every row that a key ever
                had, with the period in which the row was valid.
            keys: the key columns; by default those of the table.
            dry_run: only report which versions are new.

        Returns:
            The new versions.

        Raises:
            UsageError: no keys are given, and the table declares none; or `into` is a table of
                another kind.
            FeedError: the change data feed is off, or no longer contains the next changes.
            QueryError: Spark refused the changes.

        Example:
            >>> lake.update_dimension("planes", "dim_planes", stored_as=2)  # doctest: +SKIP
            versions 0 to 4
        """
        from mirrorlake.feed.dimension import follow_feed

        target = Catalog(self.storage).existing_or_new(into)
        return follow_feed(
            self.table(table), target, keys=keys, stored_as=stored_as, dry_run=dry_run
        )

    @property
    def frames(self) -> Frames:
        """Frames: for each model, the versions of the tables that its readers see; see `Frames`."""
        from mirrorlake.history.frames import Frames

        return Frames(self.storage, lambda: self.spark)

    def maintain(
        self, policy: MaintenancePolicy, *, on_table: Callable[[str], None] = noop
    ) -> Maintenance:
        """Maintain the lake's tables by a policy: purge, compact and vacuum.

        If a table fails, the other tables are still maintained.

        Args:
            policy: what to do. The method changes files only if the policy's `apply` is True.
            on_table: a function that is called before each table, with its name.

        Raises:
            TableNotFoundError: the policy names a table that does not exist.
            UsageError: the policy is not a `MaintenancePolicy`.

        Example:
            >>> lake.maintain(MaintenancePolicy(vacuum=False))  # doctest: +SKIP
            would maintain 3 tables, 0 failed
        """
        from mirrorlake.layout.maintenance import MaintenancePolicy, maintain

        if not isinstance(policy, MaintenancePolicy):
            raise UsageError(
                f"{policy!r} is not a maintenance policy.",
                hint="give MaintenancePolicy(…) or MaintenancePolicy.parse({…}).",
            )
        tables = self.tables(policy.tables)
        return maintain(lambda: self.spark, self.storage, tables, policy, on_table=on_table)

    def analyze(self, tables: str = "", *, sku: str = "F2") -> FilesOverview:
        """Analyze the files of all tables; tables that need maintenance come first.

        Args:
            tables: names separated by commas; empty for all tables.
            sku: the Fabric capacity whose limits (guardrails) are compared, F2 to F2048.

        Raises:
            TableNotFoundError: one of the tables does not exist. The hint lists similar names.
            UsageError: the capacity does not exist.

        Example:
            >>> lake.analyze(sku="F64")  # doctest: +SKIP
            7 tables, 1 beyond a guardrail of F64, 0 can't be read
        """
        from mirrorlake.layout.analysis import survey_files

        return survey_files(self.table, self.tables(tables), sku)

    @property
    def partitioning(self) -> LakePartitioning:
        """The partitioning of all tables with a policy; see `LakePartitioning`."""
        from mirrorlake.partitioning.process import LakePartitioning

        return LakePartitioning(self.storage, lambda: self.spark)


def _check_case(storage: Storage, name: TableName) -> None:
    """Raise an error if a new table's name differs only by case from a folder or a table."""
    if storage.exists(f"{name.folder}/{METADATA}"):  # often cheaper than a listing
        return
    own = storage.list(name.folder)
    if own.files or own.folders:
        return
    folders = published_tables(storage)
    known = [Catalog(storage).existing_or_new(name), *folders]
    alike = [one for one in known if one != name and str(one).lower() == str(name).lower()]
    if alike and name not in folders:
        raise InvalidNameError(
            f"The table {name} does not exist, and its name differs only by case from {alike[0]}.",
            hint=f"did you mean {alike[0]}? If not, choose another name.",
        )


def _name(table: str | TableName | None) -> TableName | None:
    return None if table is None else as_table(table)
