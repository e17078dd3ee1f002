"""What is published: rows cast to microseconds and the table's own types, and written as Parquet.

A cast is refused where a value would be lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pt

from mirrorlake.errors import SchemaError
from mirrorlake.landing.metadata import MARKER, Marker
from mirrorlake.landing.types import column_type, fits
from mirrorlake.storage.files import Storage

# What Arrow raises for values it can't hold: too large, no UTF-8, of another type.
UNFIT = (pa.ArrowException, TypeError, ValueError, OverflowError)
_LOOKED_AT = 10_000  # rows, of the first batch
_FEW = 0.5  # distinct values a row: with more, a dictionary costs time and saves nothing
_ARROW = {
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "string": pa.string(),
    "binary": pa.binary(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}


def target_schema(found: pa.Schema, known: dict[str, str]) -> pa.Schema:
    """The schema to publish: microseconds, and the table's own types where a cast is safe.

    Args:
        found: the rows' schema.
        known: the table's columns, lower case, with their types as Delta names them.

    Raises:
        SchemaError: a column occurs twice, doesn't fit the table's type, or has no counterpart.
    """
    seen: set[str] = set()
    for name in found.names:
        if name.lower() in seen:
            raise SchemaError(
                f"Column {name!r} occurs twice (names differ at most by case).", column=name
            )
        seen.add(name.lower())
    return pa.schema([_target(column, known.get(column.name.lower())) for column in found])


def _target(column: pa.Field, known: str | None) -> pa.Field:
    arrow = column.type
    while pt.is_dictionary(arrow) or pt.is_run_end_encoded(arrow):
        arrow = arrow.value_type
    if isinstance(arrow, pa.JsonType):
        arrow = arrow.storage_type
    if column.name.lower() == MARKER.lower() and pt.is_integer(arrow):
        # Fabric's own samples write it so; pandas would make it a long.
        return pa.field(column.name, pa.int32())
    if pt.is_timestamp(arrow):
        arrow = pa.timestamp("us", arrow.tz)
    if pt.is_duration(arrow):
        arrow = pa.duration("us")  # the table has a plain number: always of the same unit
    try:
        becomes = column_type(arrow).table
    except SchemaError as error:
        raise SchemaError(error.message, column=column.name, hint=error.hint) from error
    if known is not None and (becomes == "void" or not fits(becomes, known)):
        wanted = arrow_of(known)
        if becomes != "void" and not _castable(arrow, wanted):
            raise SchemaError(
                f"Column {column.name!r} is {becomes}, but the table has {known}.",
                column=column.name,
                hint="convert the values; a new type needs a new folder for the table.",
            )
        arrow = wanted
    return pa.field(column.name, arrow)


def arrow_of(table_type: str) -> pa.DataType:
    """The Arrow type for a column type of the table."""
    if table_type.startswith("decimal("):
        precision, scale = table_type[8:-1].split(",")
        return pa.decimal128(int(precision), int(scale))
    return _ARROW[table_type]


def _castable(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether values may be cast one by one, each checked; text never turns into numbers."""

    def number(t: pa.DataType) -> bool:
        return bool(pt.is_integer(t) or pt.is_floating(t) or pt.is_decimal(t))

    def time(t: pa.DataType) -> bool:
        return bool(pt.is_date(t) or pt.is_timestamp(t))

    if pt.is_timestamp(found) and pt.is_timestamp(wanted):
        return bool((found.tz is None) == (wanted.tz is None))
    return (number(found) and number(wanted)) or (time(found) and pt.is_timestamp(wanted))


def first_unfit(values: Sequence[Any], convert: Callable[[Any], object]) -> int:
    """The position of the first value that does not convert, found by halving."""
    good, bad = 0, len(values)  # the first `good` values convert, the first `bad` ones don't
    while bad - good > 1:
        middle = (good + bad) // 2
        try:
            convert(values[:middle])
            good = middle
        except UNFIT:
            bad = middle
    return bad - 1


def convert_rows(
    values: Sequence[Any],
    convert: Callable[[Any], pa.Array],
    *,
    says: str,
    before: int,
    column: str,
) -> pa.Array:
    """One column's values, converted.

    Args:
        values: the values of some rows.
        convert: what turns them, or any beginning of them, into an array.
        says: what to say of the first value that doesn't convert.
        before: how many rows came before these.
        column: the column's name.

    Raises:
        SchemaError: a value doesn't convert; names its row, counted from 1.
    """
    try:
        return convert(values)
    except UNFIT as error:
        row = before + first_unfit(values, convert) + 1
        raise SchemaError(f"{says}: {error}.", row=row, column=column) from error


def keep_or_refuse(values: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Values in another type of their kind, none of them changed; raises one of `UNFIT`."""
    found = values.type
    if found == wanted:
        return values
    if not (pt.is_null(found) or _castable(found, wanted)):
        fields = [pa.schema([("value", kind)]) for kind in (wanted, found)]
        if pa.unify_schemas(fields, promote_options="permissive").field(0).type != wanted:
            raise pa.ArrowInvalid(f"it is {found}")
    return _cast(values, wanted)


def cast_batch(batch: pa.RecordBatch, schema: pa.Schema, before: int) -> pa.RecordBatch:
    """One batch in the target schema, each value kept or the cast refused.

    Raises:
        SchemaError: a value that the target type can't hold.
    """
    arrays = []
    for column in schema:
        values = batch.column(column.name)
        if values.type != column.type:
            values = convert_rows(
                values,
                partial(_cast, wanted=column.type),
                says=f"The value of {column.name!r} does not fit {column.type}",
                before=before,
                column=column.name,
            )
        arrays.append(values)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _cast(values: pa.Array, wanted: pa.DataType) -> pa.Array:
    found = values.type
    if pt.is_dictionary(found) or pt.is_run_end_encoded(found):
        encoded = pt.is_run_end_encoded(found)
        values = pc.run_end_decode(values) if encoded else values.dictionary_decode()
        return values if values.type == wanted else _cast(values, wanted)
    if isinstance(found, pa.JsonType):
        return values.storage.cast(wanted)
    if getattr(found, "unit", None) == "ns" and getattr(wanted, "unit", None) == "us":
        return _cut_nanoseconds(values).cast(wanted)
    if pt.is_integer(found) and pt.is_decimal(wanted):
        # Arrow goes by the type's largest number instead of the values.
        values = values.cast(pa.decimal128(20, 0))
    cast = values.cast(wanted)
    if pt.is_floating(found) and pt.is_floating(wanted):
        # A double is rounded to the nearest float; but one too large must not become infinite.
        if pc.any(pc.and_(pc.is_finite(values), pc.is_inf(cast))).as_py():
            raise pa.ArrowInvalid("the number is too large")
    elif (
        (pt.is_floating(found) and pt.is_decimal(wanted))
        or (pt.is_decimal(found) and pt.is_floating(wanted))
    ) and not cast.cast(found).equals(values):
        raise pa.ArrowInvalid("the number would lose digits")  # Arrow rounds these silently
    return cast


def _cut_nanoseconds(values: pa.Array) -> pa.Array:
    """Microseconds since 1970; what is below one is cut off, before 1970 as the mirror does it."""
    nanos = values.cast(pa.int64())
    micros = pc.divide(nanos, 1000)  # towards zero
    above = pc.greater(pc.multiply(micros, 1000), nanos)
    return pc.if_else(above, pc.subtract(micros, 1), micros)


def stage(
    storage: Storage,
    reader: pa.RecordBatchReader,
    path: str,
    schema: pa.Schema,
    carried: Mapping[bytes, bytes],
    marker: Marker | None,
) -> None:
    """Writes rows with the format's types.

    Args:
        storage: where.
        reader: the rows.
        path: the file.
        schema: its columns.
        carried: what its footer carries.
        marker: what all rows are; None if they say it themselves.

    Raises:
        SchemaError: a value that its column's type can't hold, with its row.
    """
    whole = schema
    if marker is not None:
        # The format's newer documents want the marker last.
        whole = schema.append(pa.field(MARKER, pa.int32()))
    whole = whole.with_metadata(carried)

    before = 0

    def ready(batch: pa.RecordBatch) -> pa.RecordBatch:
        nonlocal before
        rows = cast_batch(batch, schema, before)
        before += rows.num_rows
        if marker is None:
            return rows
        column = pa.repeat(pa.scalar(int(marker), pa.int32()), rows.num_rows)
        return pa.RecordBatch.from_arrays([*rows.columns, column], schema=whole)

    batches = map(ready, reader)
    first = next(batches, None)
    options = {"compression": "zstd", "use_dictionary": _repeating(first)}
    with storage.open_writer(path) as sink, pq.ParquetWriter(sink, whole, **options) as writer:
        for rows in chain([] if first is None else [first], batches):
            writer.write_batch(rows)


def _repeating(first: pa.RecordBatch | None) -> list[str] | bool:
    """The columns that gain from a dictionary; True where that can't be told."""
    if first is None or first.num_rows < _LOOKED_AT:
        return True
    if any(pa.types.is_nested(column.type) for column in first.schema):
        return True  # what counts in them are leaves
    rows = first.slice(0, _LOOKED_AT)
    return [
        name
        for name, values in zip(rows.schema.names, rows.columns, strict=True)
        if pc.count_distinct(values).as_py() < _FEW * _LOOKED_AT
    ]
