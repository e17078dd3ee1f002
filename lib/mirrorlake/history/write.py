"""Changing tables by hand: rows of one's own, written and deleted; any table, restored.

Rows are written and deleted only where no publisher feeds the table, beside what is mirrored. Of a
table that goes back to an earlier version it is said what that would do, and what it means.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from mirrorlake.delta.actions import removed_since
from mirrorlake.delta.snapshot import FEED, ROW_TRACKING, Snapshot, read_snapshot
from mirrorlake.delta.table import OWN_TABLE, TableHandle, column_types, create_delta
from mirrorlake.errors import FeedError, InvalidNameError, UsageError
from mirrorlake.history.diff import RESERVED, changed_columns, is_made_anew
from mirrorlake.history.versions import check_version
from mirrorlake.mirror.options import INCARNATION_PROPERTY, KEYS_PROPERTY, VIEW_PROPERTY
from mirrorlake.names import SCHEMA_SUFFIX, TABLES, ZONE, TableName
from mirrorlake.results import Result, TextTable
from mirrorlake.spark.older import from_arrow
from mirrorlake.spark.sql import delta_name, query_errors
from mirrorlake.storage.files import Listing, Storage

MODES = ("append", "overwrite")
Writer = Callable[[SparkSession, Storage, TableName, DataFrame, str], object]


def reserved_columns(names: Iterable[str]) -> list[str]:
    """The columns that are named like one of the feed's own."""
    return [name for name in names if name.lower() in RESERVED]


def check_reserved(table: str, columns: Iterable[str]) -> None:
    """Refuse columns that are named like those of a change feed.

    Raises:
        FeedError: a column has such a name.
    """
    if reserved := reserved_columns(columns):
        raise FeedError(
            f"The table {table} has columns named like the feed's own: {', '.join(reserved)}.",
            hint="rename them first, or let enable_feed(rename_reserved=True) do it.",
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
    """Makes an empty table; nothing happens if there is one.

    Args:
        spark: the session.
        path: the table's folder, in full.
        columns: Spark's type by name.
        keys: the columns that tell rows apart.
        feed: whether changes are recorded from version 0 on; None leaves it to the session.
        row_tracking: whether rows have ids from version 0 on; None leaves it to the session.
        properties: further table properties.

    Raises:
        FeedError: a column is named like one of the feed's own.
        UsageError: a key is no column.
    """
    if feed:
        check_reserved(delta_name(path), columns)
    if missing := [key for key in keys if key not in columns]:
        raise UsageError(f"The key {missing[0]} is no column.", column=missing[0])
    wanted = dict(properties or {})
    if feed is not None:
        wanted[FEED] = str(feed).lower()
    if row_tracking is not None:
        wanted[ROW_TRACKING] = str(row_tracking).lower()
    if keys:
        wanted[KEYS_PROPERTY] = json.dumps(list(keys), ensure_ascii=False)
    create_delta(spark, path, columns, wanted)


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
    snapshot = check_own(storage, table)
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


def check_own(storage: Storage, table: TableName) -> Snapshot | None:
    """Refuses tables that a mirror fills, and names that would put a table inside another.

    Returns:
        The table's newest version; None if there is no table yet.

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
def delete_rows(table: TableHandle, where: str, *, apply: bool) -> Deletion:
    """Deletes the rows of a predicate; arguments and errors are those of `Table.delete`."""
    check_own(table.storage, table.name)
    rows = table.rows().where(where).count()
    if apply:
        (done,) = table.spark.sql(f"DELETE FROM {table.sql_name} WHERE {where}").collect()
        rows = done[0]
    return Deletion(table.name, rows, table.snapshot().version, apply)


@dataclass(frozen=True)
class Restore(Result):
    """What restoring does, or has done.

    Attributes:
        version: the version that comes back.
        newest: the version that was the newest before.
        returned_files: data files that are in the table again.
        dropped_files: data files that no longer are; None before it is done.
        columns: names of columns that come, with `+`, or go, with `-`.
        warnings: what to know before doing it.
        applied: whether it is done.
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
        """The same facts, one a row."""
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
    """Makes a table what it was; arguments and errors are those of `Table.restore`."""
    check_version(table.storage, table.name, version)
    path, now = table.name.table_path, table.snapshot()
    then = read_snapshot(table.storage, path, version)
    warnings = []
    if INCARNATION_PROPERTY in now.properties:
        warnings.append(
            "A mirror feeds this table. It goes on after the last file it has applied: what was"
            f" published since version {version} is not applied again. Publish those changes"
            " anew, or reseed the table."
        )
        if is_made_anew(then, now):
            warnings.append(
                f"Version {version} is from before the table's folder was made anew: its columns"
                " and keys need not be those of today."
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
    statement = f"RESTORE TABLE {table.sql_name} TO VERSION AS OF {int(version)}"
    (done,) = table.spark.sql(statement).collect()
    return replace(
        plan,
        returned_files=int(done.num_restored_files),
        dropped_files=int(done.num_removed_files),
        applied=True,
    )
