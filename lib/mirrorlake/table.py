"""One Delta table of a lake: its name, path, schema and rows. Its verbs are in `lake_table.py`."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from mirrorlake.delta.snapshot import Snapshot, read_snapshot
from mirrorlake.errors import TableNotFoundError
from mirrorlake.names import TableName
from mirrorlake.spark.sql import delta_name
from mirrorlake.storage import Storage


class Table:
    """A Delta table by its place in the lake.

    Args:
        spark: the session to read with.
        storage: the lake's files.
        name: which table.

    Raises:
        TableNotFoundError: there is none in that place.
    """

    def __init__(self, spark: SparkSession, storage: Storage, name: TableName) -> None:
        snapshot = read_snapshot(storage, name.table_path)
        if snapshot is None:
            raise TableNotFoundError(
                f"There is no table {name} in the lake.",
                hint="run `mirror` after publishing, or look at `status` for its error.",
            )
        self.spark = spark
        self.storage = storage
        self.name = name
        self.path = storage.path(name.table_path)

    def __repr__(self) -> str:
        return f"Table({str(self.name)!r})"

    @property
    def sql_name(self) -> str:
        """The table's name in SQL, by path: no catalog is involved."""
        return delta_name(self.path)

    def snapshot(self) -> Snapshot:
        """The newest version's number, schema and properties, read from the log without Spark."""
        snapshot = read_snapshot(self.storage, self.name.table_path)
        if snapshot is None:
            raise TableNotFoundError(f"The table {self.name} is gone.")
        return snapshot

    def read(self) -> DataFrame:
        """The table's rows, in no particular order."""
        return self.spark.sql(f"SELECT * FROM {self.sql_name}")
