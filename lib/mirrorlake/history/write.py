"""Create, write and restore tables: the operations behind `Lake.write` and `Table.restore`.

These functions refuse to write or delete rows in a table that the mirror fills, because the mirror
would not know about the change. Before a table is restored, the effect and its consequences are
reported.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import ArrayType, AtomicType, DataType, MapType, StructType

from mirrorlake.delta.actions import removed_since
from mirrorlake.delta.snapshot import FEED, ROW_TRACKING, Snapshot, read_snapshot
from mirrorlake.delta.table import OWN_TABLE, TableHandle, column_types, create_delta
from mirrorlake.errors import FeedError, InvalidNameError, UsageError
from mirrorlake.history.diff import RESERVED, changed_columns, is_recreated
from mirrorlake.history.versions import check_version
from mirrorlake.landing.types import widened
from mirrorlake.mirror.options import (
    KEYS_PROPERTY,
    VIEW_PROPERTY,
    is_mirrored,
    new_table_properties,
)
from mirrorlake.mirror.trash import make_room
from mirrorlake.names import SCHEMA_SUFFIX, TABLES, ZONE, TableName, quote
from mirrorlake.results import Result, TextTable, counted
from mirrorlake.spark.older import from_arrow
from mirrorlake.spark.sql import delta_name, query_errors
from mirrorlake.storage.files import Listing, Storage

MODES = ("append", "overwrite")
Writer = Callable[[SparkSession, Storage, TableName, DataFrame, str], object]


def reserved_columns(names: Iterable[str]) -> list[str]:
    """Return the columns whose names are reserved for the change feed."""
    return [name for name in names if name.lower() in RESERVED]


def check_reserved(table: str, columns: Iterable[str]) -> None:
    """Refuse columns whose names are reserved for the change feed.

    Raises:
        FeedError: a column has such a name.
    """
    if reserved := reserved_columns(columns):
        raise FeedError(
            f"The table {table} has columns with names that are reserved for the change feed:"
            f" {', '.join(reserved)}.",
            hint="rename them, or call table.changes.enable(rename_reserved=True).",
            column=reserved[0],
        )


def create_table(
    spark: SparkSession,
    path: str,
    columns: Mapping[str, str],
    *,
    keys: Sequence[str] = (),
    feed: bool | None = True,
    row_tracking: bool | None = None,
    properties: Mapping[str, str] | None = None,
) -> None:
    """Create an empty table, unless it exists.

    Args:
        spark: the session.
        path: the full path of the table's folder.
        columns: the Spark type of each column, by name.
        keys: the columns that identify a row.
        feed: whether the table has a change data feed from version 0 on; None: the session's
            default.
        row_tracking: whether rows have ids from version 0 on; None: the session's default.
        properties: further table properties.

    Raises:
        FeedError: a column has a name that is reserved for the change feed.
        UsageError: a key is not one of the columns.
    """
    if feed:
        check_reserved(delta_name(path), columns)
    if missing := [key for key in keys if key not in columns]:
        raise UsageError(
            f"The key column {missing[0]!r} is not among the columns.", column=missing[0]
        )
    wanted = dict(properties or {})
    if feed is not None:
        wanted[FEED] = str(feed).lower()
    if row_tracking is not None:
        wanted[ROW_TRACKING] = str(row_tracking).lower()
    if keys:
        wanted[KEYS_PROPERTY] = json.dumps(list(keys), ensure_ascii=False)
    create_delta(spark, path, columns, wanted)


def extend_table(spark: SparkSession, path: str, known: StructType, wanted: StructType) -> None:
    """Add the columns that a table lacks, and widen types, so that the table can store other rows.

    Types are widened as the mirror does, also within structs, arrays and maps. If Delta can't widen
    a type, it is not changed, and Spark decides whether it can cast the values.

    Args:
        spark: the session.
        path: the full path of the table's folder.
        known: the table's columns.
        wanted: the columns of the rows.
    """
    alter = f"ALTER TABLE {delta_name(path)}"
    kinds = column_types(wanted)
    if missing := [name for name in kinds if name not in known.names]:
        added = ", ".join(f"{quote(name)} {kinds[name]}" for name in missing)
        spark.sql(f"{alter} ADD COLUMNS ({added})")
    if wider := list(_wider_types(known, wanted)):
        spark.sql(f"{alter} SET TBLPROPERTIES ('delta.enableTypeWidening' = 'true')")
        for place, kind in wider:
            spark.sql(f"{alter} ALTER COLUMN {place} TYPE {kind}")


def _wider_types(known: DataType, wanted: DataType, place: str = "") -> Iterator[tuple[str, str]]:
    """Yield the place and the new type of each value that needs a wider type."""
    if isinstance(known, StructType) and isinstance(wanted, StructType):
        kinds = {field.name: field.dataType for field in wanted}
        for field in known:
            if field.name in kinds:
                inner = f"{place}.{quote(field.name)}".removeprefix(".")
                yield from _wider_types(field.dataType, kinds[field.name], inner)
    elif isinstance(known, ArrayType) and isinstance(wanted, ArrayType):
        yield from _wider_types(known.elementType, wanted.elementType, f"{place}.element")
    elif isinstance(known, MapType) and isinstance(wanted, MapType):
        yield from _wider_types(known.valueType, wanted.valueType, f"{place}.value")
    elif isinstance(known, AtomicType) and isinstance(wanted, AtomicType):
        old = str(known.jsonValue())
        kind = widened(old, str(wanted.jsonValue()))
        if kind not in (None, old):
            yield place, str(kind)


def write_table(
    spark: SparkSession,
    storage: Storage,
    table: TableName,
    rows: Any,
    *,
    write: Writer,
    mode: str = "append",
    partition_by: Sequence[str] = (),
    properties: Mapping[str, str] | None = None,
) -> None:
    """Append rows to a table that the mirror does not fill, or replace all its rows.

    `write` is a function that writes the rows into the existing table. The other arguments and the
    errors are those of `Lake.write`.
    """
    if mode not in MODES:
        raise UsageError(f"There is no mode {mode!r}.", hint=f"choose one of {', '.join(MODES)}.")
    snapshot = claim_name(storage, table)
    frame = _as_frame(spark, rows)
    path = storage.path(table.table_path)
    with query_errors():
        if snapshot is None:
            wanted = OWN_TABLE | new_table_properties(storage) | dict(properties or {})
            create_delta(spark, path, column_types(frame.schema), wanted, partition_by=partition_by)
        write(spark, storage, table, frame, mode)


def write_delta(
    spark: SparkSession, storage: Storage, table: TableName, rows: DataFrame, mode: str
) -> None:
    """Write rows with Delta's own writer; columns that the table lacks are added to it."""
    path = storage.path(table.table_path)
    writer = rows.write.format("delta").mode(mode)
    if mode == "append":
        writer = writer.option("mergeSchema", "true")
    elif sorted(rows.dtypes) != sorted(spark.sql(f"SELECT * FROM {delta_name(path)}").dtypes):
        writer = writer.option("overwriteSchema", "true")
    writer.save(path)


def check_own(storage: Storage, table: TableName) -> Snapshot | None:
    """Refuse a table that the mirror fills, and a name that would put one table inside another.

    Returns:
        The table's newest version, or None if the table does not exist.

    Raises:
        UsageError: the mirror fills the table, or the table is a view.
        InvalidNameError: the table has the name of a schema, or its schema has the name of a table.
    """
    snapshot = read_snapshot(storage, table.table_path)
    mirrored = snapshot is not None and is_mirrored(snapshot.properties)
    if mirrored or storage.list(table.folder) != Listing((), ()):
        raise UsageError(
            f"A publisher feeds {table}, so its rows can't be written or deleted directly.",
            hint="publish the changes instead, or write to another table.",
        )
    if snapshot is not None and VIEW_PROPERTY in snapshot.properties:
        raise UsageError(
            f"{table} is a view, so its rows come from its query.", hint="refresh the view."
        )
    outer = f"{TABLES}/{table.schema}" if table.schema else None
    inside = outer is not None and read_snapshot(storage, outer) is not None
    around = outer is None and snapshot is None and _is_schema(storage, table.name)
    if inside or around:
        what = table.schema if inside else table.name
        raise InvalidNameError(
            f"{what} can't be both a table and a schema.", hint="rename one of the two."
        )
    return snapshot


def claim_name(storage: Storage, table: TableName) -> Snapshot | None:
    """Check a name as `check_own` does, and make room for a table that does not exist.

    Returns:
        The table's newest version, or None if the table does not exist.

    Raises:
        UsageError: as for `check_own`.
        InvalidNameError: as for `check_own`.
    """
    snapshot = check_own(storage, table)
    if snapshot is None:
        make_room(storage, table)
    return snapshot


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
    """The result of a deletion, or of its dry run.

    Attributes:
        table: the table's name.
        rows: the number of rows.
        version: the table's newest version after the deletion.
        applied: whether the rows were deleted.
    """

    table: TableName
    rows: int
    version: int
    applied: bool

    def __repr__(self) -> str:
        verb = "deleted" if self.applied else "would delete"
        return f"{self.table}: {verb} {counted(self.rows, 'row')}"


@query_errors()
def delete_rows(table: TableHandle, where: str, *, apply: bool) -> Deletion:
    """Delete the rows that match a predicate; see `Table.delete`."""
    check_own(table.storage, table.name)
    rows = table.rows().where(where).count()
    if apply:
        (done,) = table.spark.sql(f"DELETE FROM {table.sql_name} WHERE {where}").collect()
        rows = done[0]
    return Deletion(table.name, rows, table.snapshot().version, apply)


@dataclass(frozen=True)
class Restore(Result):
    """The effect of restoring a version.

    Attributes:
        table: the table's name.
        version: the version that is restored.
        newest: the newest version before the restore.
        returned_files: the number of data files that only the restored version contains.
        dropped_files: the number of data files that only the newest version contained; None for a
            dry run.
        columns: names of columns that are added (with `+`) or removed (with `-`).
        warnings: consequences to consider before restoring.
        applied: whether the version was restored.
    """

    table: TableName
    version: int
    newest: int
    returned_files: int
    dropped_files: int | None
    columns: tuple[str, ...]
    warnings: tuple[str, ...]
    applied: bool

    def shown(self) -> TextTable:
        """Return the attributes, one per row."""
        rows: list[tuple[str, Any]] = [
            ("table", str(self.table)),
            ("from version", self.newest),
            ("back to version", self.version),
            ("files that return", self.returned_files),
        ]
        if self.dropped_files is not None:
            rows.append(("files that go", self.dropped_files))
        if self.columns:
            rows.append(("columns", " ".join(self.columns)))
        rows += [("warning", warning) for warning in self.warnings]
        rows.append(("done", "yes" if self.applied else "no: a dry run"))
        return TextTable(("what", "value"), tuple((what, str(value)) for what, value in rows))

    def __repr__(self) -> str:
        verb = "restored" if self.applied else "would restore"
        return f"{verb} {self.table} from version {self.newest} to {self.version}"


@query_errors()
def restore_table(table: TableHandle, version: int, *, apply: bool) -> Restore:
    """Restore an older version by a new commit; see `Table.restore`."""
    check_version(table.storage, table.name, version)
    path, now = table.name.table_path, table.snapshot()
    then = read_snapshot(table.storage, path, version)
    warnings = []
    if is_mirrored(now.properties):
        warnings.append(
            "A mirror feeds this table. It continues after the last file that it has applied, so"
            f" files that it has applied since version {version} are not applied again. Published"
            " files that it has not applied yet are still applied by the next cycle. To keep some"
            " of the changes, publish their files again with replay; ledger lists the version of"
            " each file."
        )
        if is_recreated(then, now):
            warnings.append(
                f"Version {version} is from before the table's folder was recreated, so its columns"
                " and keys may differ from the present ones."
            )
    plan = Restore(
        table=table.name,
        version=version,
        newest=now.version,
        returned_files=len(removed_since(table.storage, path, version, now.version)),
        dropped_files=None,
        columns=tuple(changed_columns(now, then)),
        warnings=tuple(warnings),
        applied=False,
    )
    if not apply:
        return plan
    if version == now.version:  # Delta does nothing, and returns no row
        return replace(plan, dropped_files=0, applied=True)
    statement = f"RESTORE TABLE {table.sql_name} TO VERSION AS OF {int(version)}"
    (done,) = table.spark.sql(statement).collect()
    return replace(
        plan,
        returned_files=int(done.num_restored_files),
        dropped_files=int(done.num_removed_files),
        applied=True,
    )
