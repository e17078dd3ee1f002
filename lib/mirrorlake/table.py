"""One Delta table of a lake: name, path, schema, rows at a version or moment."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from mirrorlake.delta_log import Snapshot, read_snapshot
from mirrorlake.errors import TableNotFoundError, UsageError
from mirrorlake.names import TableName
from mirrorlake.spark.sql import delta_name, literal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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
        self._spark = spark
        self._storage = storage
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
        snapshot = read_snapshot(self._storage, self.name.table_path)
        if snapshot is None:
            raise TableNotFoundError(f"The table {self.name} is gone.")
        return snapshot

    def read(self) -> DataFrame:
        """The table's rows, in no particular order."""
        return self._spark.sql(f"SELECT * FROM {self.sql_name}")

    def as_of(
        self, *, version: int | None = None, timestamp: str | datetime | None = None
    ) -> DataFrame:
        """The rows as they were.

        Args:
            version: the table's version, from 0.
            timestamp: a moment, as text that Spark can cast, or a datetime.

        Raises:
            UsageError: neither or both are given.
        """
        if (version is None) == (timestamp is None):
            raise UsageError("Give either a version or a timestamp.")
        if version is not None:
            return self._spark.sql(f"SELECT * FROM {self.sql_name} VERSION AS OF {int(version)}")
        moment = timestamp.isoformat() if isinstance(timestamp, datetime) else str(timestamp)
        at = literal(moment)
        return self._spark.sql(f"SELECT * FROM {self.sql_name} TIMESTAMP AS OF {at}")

    def history(self) -> DataFrame:
        """One row a version, newest first, as `DESCRIBE HISTORY` has them."""
        return self._spark.sql(f"DESCRIBE HISTORY {self.sql_name}")
