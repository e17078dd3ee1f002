"""Readers of a lake's tables for tests."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from mirrorlake import Lake, Table
from mirrorlake.delta import actions
from mirrorlake.landing import types


def describe_history(table: Table) -> DataFrame:
    """Return the versions as Delta itself lists them, newest first."""
    return table.spark.sql(f"DESCRIBE HISTORY {table.sql_name}")


def bag(lake: Lake, table: str, columns: list[str]) -> Counter[tuple[Any, ...]]:
    """Return the table's rows without their order, read from its files.

    A query of Spark would take many times longer. The values are those of Spark's rows. Partition
    columns are not read.
    """
    handle = lake.table(table)
    snapshot, where = handle.snapshot(), handle.name.table_path
    places = actions.Places(lake.storage, where)
    found: Counter[tuple[Any, ...]] = Counter()
    for add in actions.live_files(lake.storage, where, snapshot.version):
        storage, path = places.place(unquote(add["path"]))
        file = pq.read_table(pa.BufferReader(storage.read(path)))
        rows = _columns(file, snapshot, columns)
        rows = actions.without_deleted(rows, places.place, add.get("deletionVector"))
        found.update(
            zip(*(map(_value, column.to_pylist()) for column in rows.columns), strict=True)
        )
    return found


def bag_by_spark(lake: Lake, table: str, columns: list[str]) -> Counter[tuple[Any, ...]]:
    """Return the same rows, read by Spark."""
    rows = lake.table(table).read().select(*[f"`{c}`" for c in columns]).collect()
    return Counter(tuple(row) for row in rows)


def _columns(file: pa.Table, snapshot: Any, columns: list[str]) -> pa.Table:
    """Return a file's columns by the table's names and types; NULL for missing ones."""
    known = {field["name"].lower(): field for field in snapshot.fields}
    found = []
    for name in columns:
        field = known[name.lower()]
        metadata = field.get("metadata") or {}
        inside = metadata.get("delta.columnMapping.physicalName", field["name"])
        kind = types.arrow_of(field["type"]) if isinstance(field["type"], str) else None
        if inside in file.column_names:
            found.append(file[inside] if kind is None else file[inside].cast(kind))
        else:
            found.append(pa.nulls(file.num_rows, kind))
    return pa.Table.from_arrays(found, names=[str(number) for number in range(len(columns))])


def _value(value: Any) -> Any:
    """Return a value as Spark does: timestamps are local and without a zone."""
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone().replace(tzinfo=None)
    return value
