"""A lake as those see it who publish to it and ask it: publishers, names, SQL, the linter."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING

from mirrorlake.delta.snapshot import delta_tables
from mirrorlake.landing.publisher import Partner, Publisher
from mirrorlake.mirror.api import MirroredLake
from mirrorlake.names import ZONE, TableName, as_table
from mirrorlake.notices import noop
from mirrorlake.query.catalog import Catalog, Registration, register_tables, unregister_tables

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from mirrorlake.lint.rules import LintReport
    from mirrorlake.lint.zone import FileListener
    from mirrorlake.views.api import Views


class QueriedLake(MirroredLake):
    """What `Lake` offers to those who publish and query; pages and widgets need no more."""

    @property
    def landing_zone(self) -> str:
        """Where applications publish: a full path or URI."""
        return self.storage.path(ZONE)

    @property
    def published_footer(self) -> dict[str, str]:
        """What the footers of all files carry that are published through this lake."""
        return {}

    def publisher(
        self,
        table: str | TableName,
        *,
        keys: list[str] | tuple[str, ...] = (),
        partner: Partner | None = None,
        footer: Mapping[str, str] | None = None,
        dry_run: bool = False,
        types: Mapping[str, str] | pa.Schema | None = None,
        widen: bool = False,
    ) -> Publisher:
        """The publisher of one table; needs no Spark.

        Args:
            table: its name.
            keys: the columns that tell rows apart; none for a table that only takes inserts.
                They are declared with the first accepted batch.
            partner: who publishes; written down once in the landing zone.
            footer: what the footers of the published files carry besides.
            dry_run: only check every batch; neither keys nor files are written.
            types: the types of columns, as `{"price": "decimal(18,2)"}` or as an Arrow schema;
                other columns take the table's type, or the one of the rows.
            widen: publish values that a column can't hold in a wider type, for a mirror with
                `widen`.

        Raises:
            MetadataError: the table has other keys.
            UsageError: a declared type that no column can have.

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
            footer=footer,
            dry_run=dry_run,
            types=types,
            widen=widen,
        )

    def lint(
        self, table: str | TableName | None = None, *, on_file: FileListener = noop
    ) -> LintReport:
        """Checks the landing zone against the format's rules; reads only, needs no Spark.

        Args:
            table: only this one; by default the whole zone.
            on_file: called for each file with the table, the files done and their number.

        Returns:
            The findings, with file, row, column and fix.

        Example:
            >>> lake.lint().findings  # doctest: +SKIP
            ()
        """
        from mirrorlake.lint.zone import lint_zone

        return lint_zone(self.storage, None if table is None else as_table(table), on_file=on_file)

    def tables(self) -> list[TableName]:
        """The Delta tables of the lake, ordered by name."""
        return delta_tables(self.storage)

    def find(self, name: TableName) -> TableName | None:
        """The lake's own spelling of a table's name: exact, else the only one but for case."""
        return Catalog(self.storage).find(name)

    @property
    def views(self) -> Views:
        """Tables that follow a query by what changes in its sources; see `Views`."""
        from mirrorlake.views.api import Views

        return Views(self.storage, lambda: self.spark)

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
        from mirrorlake.query.sql import query_lake

        return query_lake(
            self.spark, self.storage, query, frame=frame, as_of=as_of, read_only=read_only
        )

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
        return unregister_tables(self.spark, self.storage, dry_run=dry_run)
