"""The handle of one Delta table: its name, path, schema and rows. Verbs are in `lake_table.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from mirrorlake.delta.snapshot import Snapshot, open_snapshot
from mirrorlake.names import TableName
from mirrorlake.spark.sql import delta_name
from mirrorlake.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Table:
    """A Delta table by its place in the lake: the handle that all verbs take.

    Args:
        spark: the session to read with, or what gives it; asked for only when rows are.
        storage: the lake's files.
        name: which table.
        snapshot: what all that is done with this handle goes by; by default the newest each time.

    Raises:
        TableNotFoundError: there is none in that place.
    """

    def __init__(
        self,
        spark: SparkSession | Callable[[], SparkSession],
        storage: Storage,
        name: TableName,
        snapshot: Snapshot | None = None,
    ) -> None:
        self._spark = spark
        self.storage = storage
        self.name = name
        self.path = storage.path(name.table_path)
        self._pinned = snapshot
        self.snapshot()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.name)!r})"

    @property
    def spark(self) -> SparkSession:
        """The session, started now if there is none."""
        if callable(self._spark):
            self._spark = self._spark()
        return self._spark

    @property
    def sql_name(self) -> str:
        """The table's name in SQL, by path: no catalog is involved."""
        return delta_name(self.path)

    def snapshot(self) -> Snapshot:
        """The newest version's number, schema and properties, read from the log without Spark.

        Raises:
            TableNotFoundError: the table is not there, or no longer.
        """
        return self._pinned or open_snapshot(self.storage, self.name)

    def for_one_operation(self) -> Table:
        """The same table with one snapshot, read now, and a session of its own."""
        from mirrorlake.spark.session import new_session

        return Table(lambda: new_session(self.spark), self.storage, self.name, self.snapshot())

    def rows(self, version: int | None = None) -> DataFrame:
        """The rows of a version, by default the newest, in no particular order."""
        then = "" if version is None else f" VERSION AS OF {version}"
        return self.spark.sql(f"SELECT * FROM {self.sql_name}{then}")
