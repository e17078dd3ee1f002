"""The class `Lake`: publish to a lake, mirror it, query it and maintain it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from threading import Event
from typing import TYPE_CHECKING, Any, Literal

from mirrorlake.delta.commits import find_newest
from mirrorlake.delta.snapshot import delta_tables
from mirrorlake.errors import TableNotFoundError, UsageError
from mirrorlake.landing.publisher import Partner, Publisher
from mirrorlake.landing.zone import published_tables
from mirrorlake.mirror.ledger import rebuild_states
from mirrorlake.mirror.operations import Operations
from mirrorlake.mirror.options import (
    MirrorOptions,
    StepListener,
    make_options,
    new_table_properties,
    read_defaults,
)
from mirrorlake.mirror.state import load_states
from mirrorlake.mirror.status import MirrorReport, preview_cycle
from mirrorlake.names import TABLES, ZONE, TableName, as_table
from mirrorlake.notices import noop
from mirrorlake.query.catalog import (
    Catalog,
    Registration,
    no_table,
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


_PATIENCE = 10.0  # seconds until `watch` mirrors other tables while one is still being applied


class Lake:
    """A lake: tables in `Tables/`, published files and kept documents in `Files/`.

    Args:
        root: a path, or a URI of an object store. It need not exist yet.
        spark: the session to use. By default the active session, or a new one that starts when an
            operation first needs it. Publishing never needs one. The lake turns off Delta's
            retention check in it, so that old versions can be read as long as their files exist.

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

    @classmethod
    def open(cls, root: str, *, new: bool = False, spark: SparkSession | None = None) -> Lake:
        """Open a lake that exists, as the notebooks do with their parameter `root`.

        Args:
            root: a path or URI; a relative path starts from `MIRRORLAKE_HOME`, or from the project.
            new: also accept a root without a lake.
            spark: as for `Lake`.

        Raises:
            UsageError: there is no lake at the root.

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
            if any(lake.storage.list(folder).folders for folder in (ZONE, TABLES)):
                return lake
        raise UsageError(
            f"{path} is not a lake: it has neither {ZONE} nor {TABLES}.",
            hint="check the root; `./mirrorlake sample lakes/sample` makes a sample lake.",
        )

    def __repr__(self) -> str:
        return f"Lake({self.storage.root!r})"

    @property
    def spark(self) -> SparkSession:
        """The Spark session, which starts on first use.

        Raises:
            SetupError: with the given session, commits to this lake's store could be lost.
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
        """Return the names of the Delta tables, in order.

        Args:
            names: names separated by commas, in any case; by default all tables.

        Raises:
            TableNotFoundError: one of them does not exist; the hint has the nearest names.

        Example:
            >>> lake.tables("stock, sales.orders")  # doctest: +SKIP
        """
        if not names.strip():
            return delta_tables(self.storage)
        return [self._resolve(name.strip()) for name in names.split(",") if name.strip()]

    def find(self, name: TableName) -> TableName | None:
        """Return a table's name as the lake spells it, or None.

        Another case is accepted if only one table's name differs from `name` by case.
        """
        return Catalog(self.storage).find(name)

    def table(self, name: str | TableName) -> Table:
        """Return one Delta table; Spark starts when its rows are read.

        Args:
            name: `table` or `schema.table`; as for `find`, the case may differ.

        Raises:
            TableNotFoundError: there is no such table; the hint has the nearest names.
            InvalidNameError: no table can have this name.

        Example:
            >>> lake.table("sales").version  # doctest: +SKIP
            7
        """
        from mirrorlake.table import Table

        wanted = name.strip() if isinstance(name, str) else name
        try:
            return Table(lambda: self.spark, self.storage, as_table(wanted))
        except TableNotFoundError:
            return Table(lambda: self.spark, self.storage, self._resolve(wanted))

    def inspect(self, name: str | TableName) -> Inspection:
        """Return the facts, files and versions of a table that its log records; needs no Spark.

        Args:
            name: `table` or `schema.table`.

        Raises:
            TableNotFoundError: the table does not exist.

        Example:
            >>> lake.inspect("sales").files[0].rows  # doctest: +SKIP
            328521
        """
        from mirrorlake.inspection import Inspection

        return Inspection(self.storage, as_table(name))

    def versions(self, tables: Iterable[TableName]) -> dict[TableName, int | None]:
        """Return the newest version of each table, or None if it does not exist; needs no Spark.

        The cost per table is a few requests, however long its log is.

        Args:
            tables: the tables' names.

        Example:
            >>> lake.versions(lake.tables())  # doctest: +SKIP
            {TableName(schema=None, name='sales'): 7}
        """
        return {name: find_newest(self.storage, name.table_path) for name in tables}

    def _resolve(self, wanted: str | TableName) -> TableName:
        if (found := self.find(as_table(wanted))) is not None:
            return found
        raise no_table(wanted, self.tables())

    # Publish and check

    @property
    def landing_zone(self) -> str:
        """The folder that applications publish to, as a full path or URI."""
        return self.storage.path(ZONE)

    @property
    def published_footer(self) -> dict[str, str]:
        """Metadata that this lake adds to the footers of the files that it publishes."""
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
            keys: the key columns, as a list or as one text such as `"id, day"`; none for a table
                that only takes inserts. The first accepted batch declares them.
            partner: the publishing application; written once to the landing zone.
            footer: further metadata for the footers of the published files.
            dry_run: only check every batch; write neither keys nor files.
            types: the columns' types, as `{"price": "decimal(18,2)"}` or as an Arrow schema. Other
                columns take the table's type, or else the type of the rows.
            widen: publish values that do not fit a column in a wider type, for a mirror that runs
                with `widen`.
            safe_names: rename new columns such as `unit price` to `unit_price`; by default, as
                `operations.defaults` sets it for the lake.

        Raises:
            MetadataError: the table has other keys.
            UsageError: a declared type is not supported.

        Example:
            >>> import tempfile
            >>> from mirrorlake import Lake
            >>> Lake(tempfile.mkdtemp()).publisher("stock", keys=["id"]).upsert([{"id": 1}]).rows
            1
        """
        return Publisher(
            self.storage,
            as_table(table),
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
    ) -> PublishedFiles:
        r"""Publish files in the order of their names, or rows; files published before are skipped.

        A file is recognized by its name and content, as long as the landing zone keeps the applied
        files. An interrupted call can therefore be repeated.

        Args:
            table: its name; the table need not exist.
            source: a Parquet or CSV file, a folder of them, or a glob such as `exports/*.csv`; or
                a list of files. A relative path starts from `MIRRORLAKE_HOME`, or from the project.
                Other values are rows, see `Publisher.write`; they are published each time.
            keys: the key columns, as a list or as one text such as `"id, day"`.
            marker: the change of every row, see `Publisher.publish`.
            dry_run: only check the files.

        Raises:
            UsageError: there are no such files.
            MirrorlakeError: a file is not valid; the files before it are published.

        Example:
            >>> import tempfile
            >>> from pathlib import Path
            >>> folder = Path(tempfile.mkdtemp())
            >>> _ = (folder / "a.csv").write_text("id,n\n1,5\n")
            >>> Lake(folder / "lake").publish("stock", str(folder), keys="id")
            stock: 1 row of 1 file published
        """
        from mirrorlake.landing.publisher import PublishedFiles, given_files, publish_files

        files = given_files(source)
        with storage_errors(self.storage.root):
            publisher = self.publisher(table, keys=keys, dry_run=dry_run)
            if files is not None:
                return publish_files(publisher, files, marker, dry_run=dry_run)
            batch = publisher.publish(source, marker)
            return PublishedFiles(batch.table, ("the batch",), (batch,), dry_run)

    def lint(
        self, table: str | TableName | None = None, *, on_file: FileListener = noop
    ) -> LintReport:
        """Check the landing zone against the format's rules; reads only, needs no Spark.

        Args:
            table: check only this table; by default the whole landing zone.
            on_file: called for each file with the table, the number of checked files and the total.

        Returns:
            The findings, with file, row, column and fix.

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
        """Run one mirror cycle: apply the published files, one commit per table.

        Args:
            table: mirror only this table; by default the whole landing zone.
            options: the cycle's bounds, error handling and retention.
            vorder: rewrite files that are not in V-Order, in a second commit that changes no data.
            dry_run: only check the files and report what would be applied; needs no Spark.
            on_step: called after every step of every table, with the table and the step.
            **settings: fields of `MirrorOptions`, such as `on_error="skip-row"`, instead of
                `options` or on top of them.

        Returns:
            One entry per table. The entry of a failed table has its error; the cycle applies the
            other tables. The report is empty if nothing was published.

        Raises:
            UsageError: a setting does not exist, or its value is not allowed.
            TableNotFoundError: the table does not exist.

        Example:
            >>> lake.mirror(on_error="skip-file", batch_files=100)  # doctest: +SKIP
            3 files with 1,024 rows applied
        """
        chosen, only = make_options(options, settings), _name(table)
        with storage_errors(self.storage.root):
            if only is None and self._was_never_fed():
                note = "Nothing was ever published into this lake."
                return MirrorReport(dry_run=dry_run, note=note)
            try:
                if dry_run:
                    return preview_cycle(self.storage, only, chosen)
                from mirrorlake.mirror.engine import Engine

                report = Engine(self.storage, lambda: self.spark, chosen, on_step).run_cycle(only)
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

        A table that takes long does not delay the others: the mirror applies their new files
        meanwhile. New and deleted folders are found by the next cycle.

        Args:
            stop: an event, for example set by a signal handler. Running commits finish.
            table: mirror only this table; by default all.
            interval: seconds between two cycles; longer while nothing happens.
            options: as for `mirror`.
            on_step: as for `mirror`.
            on_report: called with the report of each cycle.
            **settings: as for `mirror`.

        Returns:
            The report of the last cycle.

        Raises:
            UsageError: there is no such setting.

        Example:
            >>> lake.watch(stop, interval=30)  # doctest: +SKIP
        """
        from mirrorlake.mirror.engine import Engine, watch

        patience = max(interval, _PATIENCE)
        chosen = make_options(options, settings)
        engine = Engine(
            self.storage, lambda: self.spark, chosen, on_step, stop, others_after=patience
        )
        return watch(engine, stop, only=_name(table), interval=interval, on_report=on_report)

    def waiting(self, table: str | TableName) -> MirrorReport:
        """Return the files of a table that wait for the mirror; needs no Spark.

        Args:
            table: its name; a table that was never published has no files.

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

        It is read from folder listings, state documents and the tables' logs. Spark starts only for
        expectations.

        Args:
            max_lag: the maximum lag in seconds of a published file, or of a change of a view's
                source; a longer lag is a problem. By default there is no limit.
            max_backlog: the maximum number of waiting files per table; more are a problem. By
                default there is no limit.
            expectations: as for `check_expectations`; one that is not met is a problem.
            rebuild: rebuild the state documents from the tables' logs.

        Returns:
            The status. `problems` also has tables and sources that an error stopped; `check()`
            raises an error if there is a problem; `plot()` draws lag or backlog.

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
        """Compare tables with the manifests that their publishers wrote.

        Args:
            table: compare only this table; by default all.

        Returns:
            Row counts and checksums by ranges of keys, and the ranges that differ.

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
        """Find all data of a key; with `apply` remove it and search again.

        Args:
            table: the table's name.
            keys: the value of each key column, by column.
            apply: remove the data; by default it is only reported.

        Returns:
            The places with the key's data: table, history, feed, quarantine, log, published files.

        Raises:
            UsageError: the columns are not the table's keys.

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

        CREATE TABLE without another format or a location makes a Delta table in the lake. DROP
        TABLE drops a table that no publisher feeds; `operations.undrop` restores it. VACUUM runs
        as `Table.vacuum(apply=True)`, with DRY RUN as its preview, and returns what it deleted.

        Args:
            query: names of tables are `name`, `schema.name`, `name@v2`, or
                `name@20240428091500000`; their changes are
                `table_changes('name', start[, end])`, with versions or timestamps.
            frame: a model whose frame is read, instead of the newest versions.
            as_of: a version, or a timestamp (UTC if it has no zone), for every table that the query
                names without one. A table that did not change since then is read at its newest
                version.
            read_only: refuse statements that are not queries.

        Raises:
            QueryError: Spark refused the query, or it is not a query.
            VersionError: a version or timestamp can't be read; with the range that can.
            FrameError: the frame has expired, or lacks a table.
            FeedError: the feed does not hold what `table_changes` asks for.
            UsageError: the name of a new table is taken, or a publisher feeds the table to drop.
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
        """Incremental views: tables that follow a query; see `Views`."""
        from mirrorlake.views.api import Views

        return Views(self.storage, lambda: self.spark)

    def check_expectations(self, queries: Mapping[str, str], *, limit: int = 5) -> Expectations:
        """Run queries that must return no row, each over the newest versions.

        Args:
            queries: SQL by expectation, such as `{"every order has an item": "SELECT …"}`.
            limit: the most rows to keep of each query.

        Returns:
            One entry per query. A query that fails is not met; the others run.

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
        """Register the tables by name in a catalog of the session, such as Hive's.

        The catalog stores names and locations: `spark.table("sales.orders")` reads the lake's
        files. Mirror cycles in such a session add new tables and remove dropped ones; after other
        changes call it again.

        The session then creates Delta tables by default. In its own database `default`, they are
        created in the lake; in other databases, use `sql`.

        Args:
            catalog: which of the session's catalogs.
            database: the database of tables without a schema; a schema is a database of its name.
            dry_run: only report it.

        Returns:
            An entry per name. A name that belongs to something else is refused and not changed.

        Raises:
            UsageError: the lake is registered in another place.

        Example:
            >>> lake.register(database="sales")  # doctest: +SKIP
            spark_catalog: 3 added, 0 kept, 0 removed, 0 refused
        """
        return register_tables(
            self.spark, self.storage, catalog=catalog, database=database, dry_run=dry_run
        )

    def unregister(self, *, dry_run: bool = False) -> Registration:
        """Remove the names that `register` added from the catalog, but no tables or databases.

        The database `default` creates tables in Spark's warehouse again.

        Args:
            dry_run: only report it.

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
        sort_by: Sequence[str] = (),
        row_group_rows: int = 0,
        partition_by: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
    ) -> Table:
        """Write rows to a table that no publisher feeds; create the table if it does not exist.

        Args:
            table: its name.
            rows: a Spark or pandas DataFrame, Arrow data, or a list of dicts.
            mode: `append`, or `overwrite`, which also takes the new rows' columns.
            vorder: write the files in V-Order, in the same commit. By default if the table asks for
                it (see `operations.defaults`) and the rows have its columns.
            sort_by: with `vorder`, columns that every file is sorted by first.
            row_group_rows: the most rows of a row group; 0 for the writer's default.
            partition_by: columns whose values become folders; only for a new table.
            properties: Delta properties of a new table, besides change feed and row tracking.

        Returns:
            The table.

        Raises:
            UsageError: a publisher feeds the table, or there is no such mode or column.
            InvalidNameError: the name is a schema's.
            QueryError: Delta refused the rows.
            ConflictError: with `vorder`, another writer committed first; nothing was committed.

        Example:
            >>> lake.write("notes", [{"id": 1, "text": "fog"}]).version  # doctest: +SKIP
            1
        """
        from mirrorlake.history.write import write_table
        from mirrorlake.layout.api import write_rows

        name = as_table(table)
        name = self.find(name) or name
        write_table(
            self.spark,
            self.storage,
            name,
            rows,
            mode=mode,
            write=partial(
                write_rows, vorder=vorder, sort_by=sort_by, row_group_rows=row_group_rows
            ),
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
    ) -> Table:
        """Create an empty table that no publisher feeds; do nothing if the table exists.

        Args:
            name: its name.
            columns: names and Spark types.
            keys: the key columns.
            feed: whether the change feed is on; None leaves it to the session.
            row_tracking: whether rows have ids; None leaves it to the session.

        Raises:
            UsageError: a key is not among the columns.
            FeedError: a column has a name that the feed reserves.

        Example:
            >>> lake.create_table("notes", {"id": "bigint", "text": "string"})  # doctest: +SKIP
        """
        from mirrorlake.history.write import create_table

        table = as_table(name)
        path = self.storage.path(table.table_path)
        create_table(
            self.spark,
            path,
            columns,
            keys=keys,
            feed=feed,
            row_tracking=row_tracking,
            properties=new_table_properties(self.storage),
        )
        return self.table(table)

    def enable_feed_for_new_tables(self) -> None:
        """Let the session enable the change feed for every table that it creates."""
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
        """Append the new changes of a table's change feed to its permanent history.

        Safe to interrupt: the next call completes the work.

        Args:
            table: the table with the change feed.
            into: the archive; the first call creates it.
            start: the first version of a new archive. By default 0 if the feed holds all changes
                since then; else the archive starts with the newest version's rows as inserts.
            dry_run: only report which versions are new.

        Raises:
            FeedError: the feed no longer holds the next changes, or the archive is of another
                table.

        Example:
            >>> lake.archive("sales", "sales_history")  # doctest: +SKIP
            sales → sales_history: 3 new versions, archived up to 7
        """
        from mirrorlake.feed.archive import Archive

        archive = Archive(self.table(table), as_table(into))
        return archive.plan(start=start) if dry_run else archive.run(start=start)

    def update_dimension(
        self,
        table: str | TableName,
        into: str | TableName,
        *,
        stored_as: Literal[1, 2] = 1,
        keys: Sequence[str] | None = None,
        dry_run: bool = False,
    ) -> FeedBatch:
        """Bring a slowly changing dimension up to date with a table's change feed.

        Safe to interrupt: the next call completes the work.

        Args:
            table: the table with the change feed.
            into: the dimension; the first call creates it.
            stored_as: 1 keeps the latest row of each key, 2 all rows with their periods.
            keys: the key columns; by default those of the table.
            dry_run: only report which versions are new.

        Returns:
            The new versions.

        Raises:
            UsageError: there are no keys.
            FeedError: the feed no longer holds the next changes.

        Example:
            >>> lake.update_dimension("planes", "dim_planes", stored_as=2)  # doctest: +SKIP
            versions 0 to 4
        """
        from mirrorlake.feed.dimension import follow_feed

        return follow_feed(
            self.table(table), as_table(into), keys=keys, stored_as=stored_as, dry_run=dry_run
        )

    @property
    def frames(self) -> Frames:
        """Frames: the pinned versions of tables that a model reads; see `Frames`."""
        from mirrorlake.history.frames import Frames

        return Frames(self.storage, lambda: self.spark)

    def maintain(
        self, policy: MaintenancePolicy, *, on_table: Callable[[str], None] = noop
    ) -> Maintenance:
        """Run a policy over the lake's tables; a failed table does not stop the others.

        Args:
            policy: what to do; nothing is changed unless its `apply` is set.
            on_table: called with each table's name before work on it starts.

        Raises:
            TableNotFoundError: the policy names a table that does not exist.

        Example:
            >>> lake.maintain(MaintenancePolicy(vacuum=False))  # doctest: +SKIP
            would maintain 3 tables, 0 failed
        """
        from mirrorlake.layout.maintenance import maintain

        tables = self.tables(policy.tables)
        return maintain(lambda: self.spark, self.storage, tables, policy, on_table=on_table)

    def analyze(self, tables: str = "", *, sku: str = "F2") -> FilesOverview:
        """Return the state of the tables' files; tables that need maintenance come first.

        Args:
            tables: names separated by commas; empty for all tables.
            sku: the capacity whose guardrails apply, F2 to F2048.

        Raises:
            TableNotFoundError: there is no such table; the hint has the nearest names.
            UsageError: there is no such SKU.

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


def _name(table: str | TableName | None) -> TableName | None:
    return None if table is None else as_table(table)
