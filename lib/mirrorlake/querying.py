"""A lake as those see it who ask it: SQL, checks, names in the catalogue, pages to look at."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING

from mirrorlake.mirror.api import MirroredLake

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from mirrorlake.expectations import Expectations
    from mirrorlake.explore.explorer import Explorer
    from mirrorlake.explore.monitor import Monitor
    from mirrorlake.explore.publish_form import PublishForm
    from mirrorlake.registration import Registration


class QueriedLake(MirroredLake):
    """What `Lake` offers to those who query it, and to those who look at it."""

    def sql(
        self,
        query: str,
        *,
        frame: str | None = None,
        as_of: int | str | datetime | None = None,
        read_only: bool = False,
    ) -> DataFrame:
        """Runs a query over the lake's tables.

        Args:
            query: tables go by `name`, `schema.name`, `name@v2`, or `name@20240428091500000`; their
                changes by `table_changes('name', start[, end])`, with versions or moments.
            frame: a model whose frame is read, instead of the newest versions.
            as_of: a version, or a moment (UTC where it has no zone), at which every table is read
                for which the query names none; a table that did not change since is read as it is.
            read_only: refuse what is no query.

        Raises:
            QueryError: Spark refused it, or it is no query.
            VersionError: a version or moment can't be read; with the range that can.
            FrameError: the frame does not hold, or lacks a table.
            FeedError: `table_changes` asks for what the feed doesn't hold.

        Example:
            >>> lake.sql("SELECT count(*) FROM sales@v2").show()  # doctest: +SKIP
        """
        from mirrorlake.lake_sql import query_lake

        return query_lake(
            self.spark, self.storage, query, frame=frame, as_of=as_of, read_only=read_only
        )

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
        from mirrorlake.expectations import check_expectations

        return check_expectations(self.sql, queries, limit=limit)

    def register(
        self,
        catalog: str = "spark_catalog",
        database: str = "default",
        *,
        dry_run: bool = False,
    ) -> Registration:
        """Makes the tables known by name in the session's catalogue, Hive's or any that Spark has.

        The catalogue gets names and places: `spark.table("sales.orders")` reads the lake's files.
        Cycles of the mirror in such a session add new tables and forget dropped ones; after other
        changes call it again.

        Args:
            catalog: which of the session's catalogues.
            database: where tables without a schema are; a schema is a database of its name.
            dry_run: only say it.

        Returns:
            An entry for each name; one that is something else's is refused, and left as it is.

        Raises:
            UsageError: the lake is registered in another place.

        Example:
            >>> lake.register(database="sales")  # doctest: +SKIP
            spark_catalog: 3 added, 0 kept, 0 removed, 0 refused
        """
        from mirrorlake.registration import register_tables

        return register_tables(
            self.spark, self.storage, catalog=catalog, database=database, dry_run=dry_run
        )

    def unregister(self, *, dry_run: bool = False) -> Registration:
        """Takes the names that `register` made out of the catalogue; tables and databases stay.

        Args:
            dry_run: only say it.

        Raises:
            UsageError: the lake is not registered.

        Example:
            >>> lake.unregister()  # doctest: +SKIP
            spark_catalog: 0 added, 0 kept, 3 removed, 0 refused
        """
        from mirrorlake.registration import unregister_tables

        return unregister_tables(self.spark, self.storage, dry_run=dry_run)

    def explore(self) -> Explorer:
        """The lake to look at and click through, in Lab; Spark starts when rows are asked for.

        Returns:
            What Lab shows as tabs: Zone, Tables, Versions, Rows, Feed, Files, Views, Runs;
            `to_html` makes a file of what can be shown without Spark.

        Example:
            >>> lake.explore().open("Versions")  # doctest: +SKIP
        """
        from mirrorlake.explore.explorer import Explorer
        from mirrorlake.lake import Lake

        assert isinstance(self, Lake)
        return Explorer(self)

    def monitor(self, *, every: float = 10) -> Monitor:
        """How the tables that publishers feed are, on a page that refreshes itself; no Spark.

        Args:
            every: seconds between two looks in Lab.

        Returns:
            What Lab shows as a live page; `to_html` makes a file of it, `close` ends the looking.

        Raises:
            UsageError: the seconds are less than 1.

        Example:
            >>> lake.monitor().to_html("monitor.html")  # doctest: +SKIP
        """
        from mirrorlake.explore.monitor import Monitor
        from mirrorlake.lake import Lake

        assert isinstance(self, Lake)
        return Monitor(self, every=every)

    def publish_form(self, table: str = "") -> PublishForm:
        """A form in Lab: choose a file, look at its rows, choose keys and marker, check, publish.

        Args:
            table: the table to begin with; it need not be there yet.

        Returns:
            The form. A file that is not sound is refused with row, column and fix, and nothing is
            published; what is published is the same as by the command `publish`.

        Example:
            >>> lake.publish_form("stock")  # doctest: +SKIP
        """
        from mirrorlake.explore.publish_form import PublishForm
        from mirrorlake.lake import Lake

        assert isinstance(self, Lake)
        return PublishForm(self, table)
