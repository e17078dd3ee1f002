"""A lake: `Files/` and `Tables/` under one root, and the way to everything in it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mirrorlake.lake_table import LakeTable
from mirrorlake.landing.published import Partner
from mirrorlake.landing.publisher import Publisher
from mirrorlake.mirror.engine import Engine, status_report
from mirrorlake.mirror.state import Report
from mirrorlake.mirror.steps import StepListener, ignore
from mirrorlake.mirror.table_cycle import MirrorOptions
from mirrorlake.names import TABLES, ZONE, TableName
from mirrorlake.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from mirrorlake.layout.write import WriteReport


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
    ) -> Publisher:
        """The publisher of one table; see `Publisher`."""
        return Publisher(self.storage, _named(table), keys=keys, partner=partner)

    def mirror(
        self,
        table: str | TableName | None = None,
        *,
        options: MirrorOptions | None = None,
        on_step: StepListener = ignore,
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
        engine = Engine(self.storage, lambda: self.spark, options, on_step)
        report = engine.run_cycle(None if table is None else _named(table))
        if vorder:
            there = set(self.tables())
            for line in report.tables:
                if (name := TableName(line.schema, line.name)) in there:
                    self.table(name).vorder(apply=True)
        return report

    def write(
        self,
        table: str | TableName,
        rows: DataFrame,
        *,
        mode: str = "append",
        sort_by: Sequence[str] = (),
    ) -> WriteReport:
        """Writes a DataFrame to a table, in V-Order; see `layout.write.write_table`."""
        from mirrorlake.layout.write import write_table

        name = _named(table)
        return write_table(self.spark, self.storage, name, rows, mode=mode, sort_by=sort_by)

    def status(self) -> Report:
        """How each table stands, from a listing and the kept state; needs no Spark."""
        return status_report(self.storage)

    def tables(self) -> list[TableName]:
        """The Delta tables of the lake, ordered by name."""
        found: list[TableName] = []
        for folder in self.storage.list(TABLES).folders:
            inner = self.storage.list(f"{TABLES}/{folder}").folders
            if "_delta_log" in inner:
                found.append(TableName(None, folder))
                continue
            for name in inner:
                log = self.storage.list(f"{TABLES}/{folder}/{name}").folders
                if "_delta_log" in log:
                    found.append(TableName(folder, name))
        return sorted(found, key=lambda table: (table.schema or "", table.name))

    def table(self, name: str | TableName) -> LakeTable:
        """One Delta table.

        Raises:
            TableNotFoundError: there is none of that name.
        """
        return LakeTable(self.spark, self.storage, _named(name))

    def find(self, name: TableName) -> TableName | None:
        """The lake's own spelling of a table's name: exact, else the only one but for case."""
        tables = self.tables()
        if name in tables:
            return name
        wanted = str(name).lower()
        alike = [table for table in tables if str(table).lower() == wanted]
        return alike[0] if len(alike) == 1 else None

    def sql(self, query: str) -> DataFrame:
        """Runs a query over the lake's tables.

        Tables go by `name`, `schema.name`, `name@v2`, or `name@20240428091500000`.

        Raises:
            QueryError: Spark refused it.
        """
        from mirrorlake.history.sql import run_query

        def path(name: TableName) -> str | None:
            found = self.find(name)
            return None if found is None else self.storage.path(found.table_path)

        return run_query(self.spark, query, path)


def _named(table: str | TableName) -> TableName:
    return table if isinstance(table, TableName) else TableName.parse(table)
