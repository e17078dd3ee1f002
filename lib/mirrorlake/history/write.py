"""Writing tables that no publisher feeds: results of one's own, beside what is mirrored."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from mirrorlake.delta.snapshot import read_snapshot
from mirrorlake.delta.table import OWN_TABLE, Table, column_types, create_delta
from mirrorlake.errors import InvalidNameError, UsageError
from mirrorlake.mirror.properties import INCARNATION_PROPERTY, VIEW_PROPERTY
from mirrorlake.names import SCHEMA_SUFFIX, TABLES, ZONE, TableName
from mirrorlake.spark.older import from_arrow
from mirrorlake.spark.sql import delta_name, query_errors
from mirrorlake.storage import Listing, Storage

MODES = ("append", "overwrite")
Writer = Callable[[SparkSession, Storage, TableName, DataFrame, str], object]


def write_table(
    spark: SparkSession,
    storage: Storage,
    table: TableName,
    rows: Any,
    *,
    mode: str = "append",
    write: Writer | None = None,
    partition_by: Sequence[str] = (),
    properties: Mapping[str, str] | None = None,
) -> None:
    """Adds rows to a table of one's own, or puts them in place of what it holds.

    `write` puts the rows into the table once it is there; by default Delta's own writer does. The
    other arguments and the errors are those of `Lake.write`.
    """
    if mode not in MODES:
        raise UsageError(f"There is no mode {mode!r}.", hint=f"choose one of {MODES}.")
    snapshot = read_snapshot(storage, table.table_path)
    check_own(storage, table)
    frame = _as_frame(spark, rows)
    path = storage.path(table.table_path)
    with query_errors():
        if snapshot is None:
            wanted = OWN_TABLE | dict(properties or {})
            create_delta(spark, path, column_types(frame.schema), wanted, partition_by=partition_by)
        (write or _save)(spark, storage, table, frame, mode)


def _save(
    spark: SparkSession, storage: Storage, table: TableName, rows: DataFrame, mode: str
) -> None:
    path = storage.path(table.table_path)
    writer = rows.write.format("delta").mode(mode)
    if mode == "append":
        writer = writer.option("mergeSchema", "true")
    elif sorted(rows.dtypes) != sorted(spark.sql(f"SELECT * FROM {delta_name(path)}").dtypes):
        writer = writer.option("overwriteSchema", "true")
    writer.save(path)


def check_own(storage: Storage, table: TableName) -> None:
    """Refuses tables that a mirror fills, and names that would put a table inside another.

    Raises:
        UsageError: a publisher feeds it, or it is a view's.
        InvalidNameError: it is named like a schema, or its schema like a table.
    """
    snapshot = read_snapshot(storage, table.table_path)
    mirrored = snapshot is not None and INCARNATION_PROPERTY in snapshot.properties
    if mirrored or storage.list(table.folder) != Listing((), ()):
        raise UsageError(
            f"A publisher feeds {table}: the mirror would not know of these rows.",
            hint="publish them, or write to a table of another name.",
        )
    if snapshot is not None and VIEW_PROPERTY in snapshot.properties:
        raise UsageError(f"{table} is a view: its rows are its query's.", hint="refresh it.")
    outer = f"{TABLES}/{table.schema}" if table.schema else None
    inside = outer is not None and read_snapshot(storage, outer) is not None
    around = outer is None and snapshot is None and _is_schema(storage, table.name)
    if inside or around:
        what = table.schema if inside else table.name
        raise InvalidNameError(
            f"{what} can't be a table and a schema at once.", hint="rename one of the two."
        )


def _is_schema(storage: Storage, name: str) -> bool:
    tables = set(storage.list(f"{TABLES}/{name}").folders) - {"_delta_log"}
    return bool(tables or storage.list(f"{ZONE}/{name}{SCHEMA_SUFFIX}").folders)


def _as_frame(spark: SparkSession, rows: Any) -> DataFrame:
    import pyarrow as pa

    if hasattr(rows, "sparkSession"):
        frame: DataFrame = rows
        return frame
    if isinstance(rows, list):
        rows = pa.Table.from_pylist(rows)
    elif isinstance(rows, pa.RecordBatch):
        rows = pa.Table.from_batches([rows])
    return from_arrow(spark, rows)


@dataclass(frozen=True)
class Deletion:
    """What a deletion took, or would take.

    Attributes:
        rows: how many rows.
        version: the table's newest version afterwards.
        applied: whether it is done.
    """

    table: TableName
    rows: int
    version: int
    applied: bool

    def __repr__(self) -> str:
        return f"{self.table}: {'deleted' if self.applied else 'would delete'} {self.rows} rows"


@query_errors()
def delete_rows(table: Table, where: str, *, apply: bool) -> Deletion:
    """Deletes the rows of a predicate; arguments and errors are those of `LakeTable.delete`."""
    check_own(table.storage, table.name)
    rows = table.rows().where(where).count()
    if apply:
        (done,) = table.spark.sql(f"DELETE FROM {table.sql_name} WHERE {where}").collect()
        rows = done[0]
    return Deletion(table.name, rows, table.snapshot().version, apply)
