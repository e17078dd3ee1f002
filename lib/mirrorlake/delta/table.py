"""One Delta table: its handle (name, path, snapshot, rows), and how its version 0 is made.

Verbs are in `lake_table.py`.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mirrorlake.delta.log_files import has_log
from mirrorlake.delta.snapshot import FEED, ROW_TRACKING, Snapshot, open_snapshot
from mirrorlake.errors import SetupError
from mirrorlake.names import TableName
from mirrorlake.spark.jvm import remove_empty_folders
from mirrorlake.spark.sql import delta_name, literal, quote
from mirrorlake.storage.files import Storage
from mirrorlake.storage.paths import URI

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
_TXN = "spark.databricks.delta.write.txn"
_TRIES, _PAUSE = 6, 0.1
_ODD = " ,;{}()\n\t="
OWN_TABLE = {FEED: "true", ROW_TRACKING: "true"}
"""What tables of one's own have from version 0 on: change feed and row tracking."""


class TableHandle:
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

    def for_one_operation(self) -> TableHandle:
        """The same table with one snapshot, read now, and a session of its own."""
        from mirrorlake.spark.session import new_session

        return TableHandle(
            lambda: new_session(self.spark), self.storage, self.name, self.snapshot()
        )

    def rows(self, version: int | None = None) -> DataFrame:
        """The rows of a version, by default the newest, in no particular order."""
        then = "" if version is None else f" VERSION AS OF {version}"
        return self.spark.sql(f"SELECT * FROM {self.sql_name}{then}")


def create_delta(
    spark: SparkSession,
    path: str,
    columns: Mapping[str, str],
    properties: Mapping[str, str],
    *,
    partition_by: Sequence[str] = (),
) -> None:
    """Creates a table, also where a process was killed while it wrote version 0.

    Columns are mapped where a name needs it. Nothing happens if there is a table.

    Args:
        spark: the session.
        path: the table's folder, in full.
        columns: Spark's type by name, as DDL.
        properties: the table's.
        partition_by: the columns that it is partitioned by.
    """
    ddl = ", ".join(f"{quote(name)} {kind}" for name, kind in columns.items())
    wanted = mapping_property(columns) | dict(properties)
    listed = ", ".join(f"{literal(name)} = {literal(value)}" for name, value in wanted.items())
    parts = ", ".join(map(quote, partition_by))
    statement = (
        f"CREATE TABLE IF NOT EXISTS {delta_name(path)} ({ddl})"
        f" USING delta{f' PARTITIONED BY ({parts})' if parts else ''}"
        f"{f' TBLPROPERTIES ({listed})' if listed else ''}"
    )
    if URI.match(path):
        _create_on_store(spark, path, statement)
    else:
        remove_empty_log(path)
        spark.sql(statement)


def _create_on_store(spark: SparkSession, path: str, statement: str) -> None:
    """Several drivers may do so at once: one of them has made the table, and the others find it.

    Until its version 0 is there they find a folder, which Spark refuses or takes for a table; it
    may also be what a killed driver left.
    """
    parent, _, name = path.rpartition("/")
    storage, log, was_there = Storage(parent), f"{path}/_delta_log", False
    for attempt in range(_TRIES):
        error: Exception | None = None
        try:
            spark.sql(statement)
        except Exception as refused:
            error = refused
        is_there = has_log(storage, name)
        if is_there and error is None:
            return
        if error is not None and (was_there or attempt == _TRIES - 1):
            raise error
        if not is_there:
            remove_empty_folders(spark, log)
            time.sleep(_PAUSE * 2**attempt)
        was_there = is_there
    raise SetupError(
        f"Spark made no table at {path}, and says that it did.",
        hint=f"remove the empty folder {log}.",
    )


def column_types(schema: StructType) -> dict[str, str]:
    """Columns as `create_delta` takes them; names inside structs are quoted, NULL is allowed."""
    return {field.name: _ddl(field.dataType) for field in schema.fields}


def _ddl(kind: Any) -> str:
    match kind.typeName():
        case "struct":
            inner = (f"{quote(field.name)}: {_ddl(field.dataType)}" for field in kind.fields)
            return f"struct<{', '.join(inner)}>"
        case "array":
            return f"array<{_ddl(kind.elementType)}>"
        case "map":
            return f"map<{_ddl(kind.keyType)}, {_ddl(kind.valueType)}>"
        case _:
            return str(kind.simpleString())


def mapping_property(columns: Iterable[str]) -> dict[str, str]:
    """Column mapping, only where a name has a character that Parquet's writers refuse."""
    odd = any(char in _ODD for name in columns for char in name)
    return {"delta.columnMapping.mode": "name"} if odd else {}


@contextmanager
def committing(
    session: SparkSession, note: str, app_id: str = "", number: int = 0
) -> Iterator[None]:
    """What the session's commits carry while the block runs.

    Args:
        session: with a transaction's number set it skips every further write.
        note: the userMetadata.
        app_id: the transaction's application; a commit that is there already is skipped.
        number: the transaction's number.
    """
    settings = {USER_METADATA: note}
    if app_id:
        settings |= {f"{_TXN}AppId": app_id, f"{_TXN}Version": str(number)}
    for name, value in settings.items():
        session.conf.set(name, value)
    try:
        yield
    finally:
        for name in settings:
            session.conf.unset(name)


def remove_empty_log(path: str) -> None:
    """Makes way for version 0 where a process was killed while it wrote it.

    Spark takes the empty log that is left for a table: CREATE TABLE refuses, or does nothing. A log
    with anything but hidden files in it is left alone.

    Args:
        path: the table's folder on a local disk.
    """
    log = Path(path) / "_delta_log"
    if not any(file.is_file() and not file.name.startswith(".") for file in log.rglob("*")):
        shutil.rmtree(log, ignore_errors=True)
