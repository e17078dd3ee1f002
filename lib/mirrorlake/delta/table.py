"""Handle of one Delta table (name, path, snapshot, rows), and creation of its version 0."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mirrorlake.delta.log_files import has_log
from mirrorlake.delta.snapshot import FEED, ROW_TRACKING, Snapshot, open_snapshot
from mirrorlake.errors import SetupError
from mirrorlake.names import TableName, quote, safe_column
from mirrorlake.spark.jvm import remove_empty_folders
from mirrorlake.spark.sql import delta_name, literal, setting
from mirrorlake.storage.files import Storage
from mirrorlake.storage.paths import URI

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
_TXN = "spark.databricks.delta.write.txn"
_TRIES, _PAUSE = 6, 0.1
ROW_LIMIT = "parquet.block.row.count.limit"
"""The setting of Parquet for the most rows of a row group."""
OWN_TABLE = {FEED: "true", ROW_TRACKING: "true"}
"""Properties of tables that no publisher feeds: change data feed and row tracking."""


class TableHandle:
    """A Delta table of a lake: the handle that all functions on a table take.

    Args:
        spark: the session, or a function that returns it, called only when rows are read.
        storage: the lake's files.
        name: the table's name.
        snapshot: the snapshot on which all operations with this handle are based; by default the
            newest each time.

    Raises:
        TableNotFoundError: the table does not exist.
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
        """The session; started on first use."""
        if callable(self._spark):
            self._spark = self._spark()
        return self._spark

    @property
    def sql_name(self) -> str:
        """The table's name in SQL, by path; no catalog is needed."""
        return delta_name(self.path)

    def snapshot(self) -> Snapshot:
        """Return the newest version's state, read from the log without Spark.

        Raises:
            TableNotFoundError: the table does not exist, or no longer.
        """
        return self._pinned or open_snapshot(self.storage, self.name)

    def for_one_operation(self) -> TableHandle:
        """Return a handle with the current snapshot and a session of its own."""
        from mirrorlake.spark.session import new_session

        return TableHandle(
            lambda: new_session(self.spark), self.storage, self.name, self.snapshot()
        )

    def rows(self, version: int | None = None) -> DataFrame:
        """Return the rows of a version, by default the newest, in no particular order."""
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
    """Create a table unless it exists, even after a process was killed while it wrote version 0.

    Column mapping is enabled if a name requires it.

    Args:
        spark: the session.
        path: the table's folder, in full.
        columns: Spark's types as DDL, by column name.
        properties: the table's properties.
        partition_by: the partition columns.
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
    """Create a table on an object store, also if several drivers do so at the same time.

    One driver creates the table, and the others find it. Until its version 0 exists they find a
    folder, which Spark refuses or takes for a table. The folder may also have been left by a driver
    that was killed.
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
        f"Spark reported success but created no table at {path}.",
        hint=f"remove the empty folder {log}.",
    )


def column_types(schema: StructType) -> dict[str, str]:
    """Return a schema's types as `create_delta` takes them.

    Names inside structs are quoted, and NULL is allowed.
    """
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
    """Return the property for column mapping if a name contains a character Parquet refuses."""
    unsafe = any(safe_column(name) != name for name in columns)
    return {"delta.columnMapping.mode": "name"} if unsafe else {}


@contextmanager
def committing(
    session: SparkSession, note: str, app_id: str = "", number: int = 0
) -> Iterator[None]:
    """Add a note, and optionally a transaction id, to the session's commits within the block.

    Args:
        session: the session; with a transaction id it skips every further write.
        note: the userMetadata.
        app_id: the transaction's application; a commit with the same id is skipped if it exists.
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


def row_groups(session: SparkSession, rows: int) -> AbstractContextManager[None]:
    """Limit the row groups of the files that a session writes within the block.

    Args:
        session: the session.
        rows: the most rows of a row group; 0 for the writer's default.
    """
    # Delta ignores Parquet options, but the writer reads the session's settings.
    return setting(session, ROW_LIMIT, str(rows)) if rows > 0 else nullcontext()


def remove_empty_log(path: str) -> None:
    """Remove the log of a table whose version 0 was not completed.

    Spark treats an empty log as a table: CREATE TABLE refuses, or does nothing. A log that contains
    anything but hidden files is kept.

    Args:
        path: the table's folder on a local disk.
    """
    log = Path(path) / "_delta_log"
    if not any(file.is_file() and not file.name.startswith(".") for file in log.rglob("*")):
        shutil.rmtree(log, ignore_errors=True)
