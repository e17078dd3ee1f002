"""A lake: `Files/` and `Tables/` under one root, and the way to everything in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from mirrorlake.mirror.options import MirrorOptions, StepListener, make_options
from mirrorlake.mirror.status import Report
from mirrorlake.names import TableName, as_table
from mirrorlake.notices import noop
from mirrorlake.query.queried_lake import QueriedLake

if TYPE_CHECKING:
    from mirrorlake.feed.archive import ArchiveReport
    from mirrorlake.feed.cursor import FeedBatch
    from mirrorlake.history.frames import Frames
    from mirrorlake.history.maintenance import Maintenance, MaintenancePolicy
    from mirrorlake.monitoring import Expectations
    from mirrorlake.partitioning.process import LakePartitioning
    from mirrorlake.table import LakeTable


class Lake(QueriedLake):
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

    def mirror(
        self,
        table: str | TableName | None = None,
        *,
        options: MirrorOptions | None = None,
        vorder: bool = False,
        on_step: StepListener = noop,
        **settings: Any,
    ) -> Report:
        """Runs one cycle of the mirror: what is published becomes rows, one commit a table.

        Args:
            table: only this one; by default all of the landing zone.
            options: bounds of the cycle.
            vorder: order the rows within the files that are not ordered yet, in a second commit
                that changes no data.
            on_step: called after every step of every table, with the table and the step.
            **settings: fields of `MirrorOptions`, such as `on_error="skip-row"`, instead of
                `options` or on top of them.

        Returns:
            One entry for each table. A table that failed has its error there; the others went on.

        Raises:
            UsageError: there is no such setting.

        Example:
            >>> lake.mirror(on_error="skip-file", batch_files=100)  # doctest: +SKIP
        """
        from mirrorlake.mirror.engine import Engine

        engine = Engine(self.storage, lambda: self.spark, make_options(options, settings), on_step)
        report = engine.run_cycle(None if table is None else as_table(table))
        fed = report.fed
        for name in self.tables() if vorder else ():
            if name in fed:
                self.table(name).optimize.vorder()
        return report

    def table(self, name: str | TableName) -> LakeTable:
        """One Delta table; Spark starts when rows are asked for.

        Raises:
            TableNotFoundError: there is none of that name.
        """
        from mirrorlake.table import LakeTable

        return LakeTable(lambda: self.spark, self.storage, as_table(name))

    def write(
        self,
        table: str | TableName,
        rows: Any,
        *,
        mode: str = "append",
        vorder: bool = False,
        sort_by: Sequence[str] = (),
        partition_by: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
    ) -> LakeTable:
        """Writes a table that no publisher feeds; it is made if there is none.

        Args:
            table: its name.
            rows: a Spark or pandas DataFrame, Arrow data, or a list of dicts.
            mode: `append`, or `overwrite`, which also takes the new rows' columns.
            vorder: write the files in V-Order, in the same commit.
            sort_by: with `vorder`, columns that every file is sorted by first.
            partition_by: columns whose values become folders; only for a new table.
            properties: Delta's properties of a new table, on top of change feed and row tracking.

        Returns:
            The table.

        Raises:
            UsageError: a publisher feeds the table, or there is no such mode or column.
            InvalidNameError: the name is a schema's.
            QueryError: Delta refused the rows.
            ConflictError: with `vorder`, another writer was quicker; nothing was committed.

        Example:
            >>> lake.write("notes", [{"id": 1, "text": "fog"}]).version()  # doctest: +SKIP
            1
        """
        from mirrorlake.history.write import write_table
        from mirrorlake.layout.api import write_ordered

        name = as_table(table)
        name = self.find(name) or name
        write_table(
            self.spark,
            self.storage,
            name,
            rows,
            mode=mode,
            write=partial(write_ordered, sort_by=sort_by) if vorder else None,
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
        """Makes an empty table that no publisher feeds.

        Args:
            name: its name; nothing happens if there is a table of that name.
            columns: names and types, in Spark's words.
            keys: the columns that tell rows apart.
            feed: whether the change feed is on; None leaves it to the session.
            row_tracking: whether rows have ids; None leaves it to the session.

        Raises:
            UsageError: a key is not among the columns.
            FeedError: a column has a name that the feed needs for itself.

        Example:
            >>> lake.create_table("notes", {"id": "bigint", "text": "string"})  # doctest: +SKIP
        """
        from mirrorlake.feed.schema import create_table

        table = as_table(name)
        path = self.storage.path(table.table_path)
        create_table(self.spark, path, columns, keys=keys, feed=feed, row_tracking=row_tracking)
        return self.table(table)

    def enable_feed_for_new_tables(self) -> None:
        """Makes the session switch the change feed on for every table that it creates."""
        from mirrorlake.feed.schema import DEFAULT_CONF

        self.spark.conf.set(DEFAULT_CONF, "true")

    def archive(
        self,
        table: str | TableName,
        into: str | TableName,
        *,
        start: int | None = None,
        dry_run: bool = False,
    ) -> ArchiveReport:
        """Appends what is new in a table's feed to its permanent history.

        Killed at any moment, it is made good by the next call.

        Args:
            table: whose feed.
            into: the archive; it is made by the first call.
            start: the first version of a new archive. By default 0 if the feed holds everything
                from there, else the newest version's rows as inserts, and then what changes.
            dry_run: only say which versions are new.

        Raises:
            FeedError: the feed no longer holds what follows, or the archive is another table's.

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
        """Brings a slowly changing dimension up to date with a table's feed.

        Killed at any moment, it is made good by the next call.

        Args:
            table: whose feed.
            into: the dimension; it is made by the first call.
            stored_as: 1 keeps the latest row for each key, 2 all of them with their periods.
            keys: the key columns; by default the table's own.
            dry_run: only say which versions are new.

        Returns:
            The versions that were new.

        Raises:
            UsageError: there are no keys.
            FeedError: the feed no longer holds what follows.

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
        """The versions that models are read at; see `Frames`."""
        from mirrorlake.history.frames import Frames

        return Frames(self.storage, lambda: self.spark)

    def maintain(
        self, policy: MaintenancePolicy, *, on_table: Callable[[str], None] = noop
    ) -> Maintenance:
        """Runs a policy over the lake's tables, one after the other; one that fails stops no other.

        Args:
            policy: what to do; nothing is changed unless it says `apply`.
            on_table: called with each table's name before it is worked on.

        Raises:
            UsageError: the policy names a table that is not there.

        Example:
            >>> lake.maintain(MaintenancePolicy(vacuum=False))  # doctest: +SKIP
            would maintain 3 tables, 0 failed
        """
        from mirrorlake.history.maintenance import maintain

        return maintain(lambda: self.spark, self.storage, self.tables(), policy, on_table=on_table)

    @property
    def partitioning(self) -> LakePartitioning:
        """The partitioning of all tables with a policy; see `LakePartitioning`."""
        from mirrorlake.partitioning.process import LakePartitioning

        return LakePartitioning(self.storage, lambda: self.spark)

    def check_expectations(self, queries: Mapping[str, str], *, limit: int = 5) -> Expectations:
        """Runs queries that must return no row, each over the tables as they are now.

        Args:
            queries: SQL by what is expected, such as `{"every order has an item": "SELECT …"}`.
            limit: how many rows of each are kept to look at.

        Returns:
            One entry for each; a query that fails is not met, and the others go on.

        Raises:
            UsageError: they are no mapping of names to queries.

        Example:
            >>> lake.check_expectations({"no order twice": "SELECT …"}).broken  # doctest: +SKIP
            ()
        """
        from mirrorlake.monitoring import check_expectations

        return check_expectations(self, queries, limit=limit)
