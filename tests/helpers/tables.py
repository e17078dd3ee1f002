"""Readers of a lake's tables for tests."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from mirrorlake import Lake, Table
from mirrorlake.delta import actions
from mirrorlake.delta.snapshot import ROW_ID_COLUMN, ROW_VERSION_COLUMN, read_snapshot
from mirrorlake.landing import types

# The hidden columns of row tracking: the property that names them in the files, and the field of an
# `add` with the value for rows without one.
IDS = {
    "_row_id": (ROW_ID_COLUMN, "baseRowId"),
    "_row_commit_version": (ROW_VERSION_COLUMN, "defaultRowCommitVersion"),
}


def describe_history(table: Table) -> DataFrame:
    """Return the versions as Delta itself lists them, newest first."""
    return table.spark.sql(f"DESCRIBE HISTORY {table.sql_name}")


def bag(
    lake: Lake, table: str, columns: list[str], version: int | None = None
) -> Counter[tuple[Any, ...]]:
    """Return the rows of a version without their order, read from its files; by default the newest.

    A query of Spark would take many times longer. The values are those of Spark's rows. Partition
    columns are not read. `_row_id` and `_row_commit_version` are the columns of row tracking.
    """
    handle = lake.table(table)
    where = handle.name.table_path
    snapshot = read_snapshot(lake.storage, where, version)
    assert snapshot is not None
    places = actions.Places(lake.storage, where)
    found: Counter[tuple[Any, ...]] = Counter()
    for add in actions.live_files(lake.storage, where, snapshot.version):
        storage, path = places.place(unquote(add["path"]))
        file = pq.read_table(pa.BufferReader(storage.read(path)))
        rows = _columns(file, snapshot, columns, add)
        rows = actions.without_deleted(rows, places.place, add.get("deletionVector"))
        found.update(
            zip(*(map(_value, column.to_pylist()) for column in rows.columns), strict=True)
        )
    return found


def bag_by_spark(lake: Lake, table: str, columns: list[str]) -> Counter[tuple[Any, ...]]:
    """Return the same rows, read by Spark."""
    rows = lake.table(table).read().select(*[f"`{c}`" for c in columns]).collect()
    return Counter(tuple(row) for row in rows)


def _columns(file: pa.Table, snapshot: Any, columns: list[str], add: dict[str, Any]) -> pa.Table:
    """Return a file's columns by the table's names and types; NULL for missing ones."""
    known = {field["name"].lower(): field for field in snapshot.fields}
    found = []
    for name in columns:
        if name in IDS:
            found.append(_tracked(name, file, snapshot, add))
            continue
        field = known[name.lower()]
        metadata = field.get("metadata") or {}
        inside = metadata.get("delta.columnMapping.physicalName", field["name"])
        kind = types.arrow_of(field["type"]) if isinstance(field["type"], str) else None
        if inside in file.column_names:
            found.append(file[inside] if kind is None else file[inside].cast(kind))
        else:
            found.append(pa.nulls(file.num_rows, kind))
    return pa.Table.from_arrays(found, names=[str(number) for number in range(len(columns))])


def _tracked(name: str, file: pa.Table, snapshot: Any, add: dict[str, Any]) -> pa.Array:
    """Return a hidden column of row tracking."""
    named, first = IDS[name]
    column, start = snapshot.properties[named], add[first]
    step = 1 if name == "_row_id" else 0
    default = pa.array([start + step * place for place in range(file.num_rows)], pa.int64())
    return pc.coalesce(file[column], default) if column in file.column_names else default


def _value(value: Any) -> Any:
    """Return a value as Spark does: timestamps are local and without a zone."""
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone().replace(tzinfo=None)
    return value
