"""What is published: rows cast to microseconds and the table's own types, and written as Parquet.

A cast is refused where a value would be lost.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pt

from mirrorlake.errors import SchemaError
from mirrorlake.landing.metadata import MARKER, Marker
from mirrorlake.landing.text import UNFIT, converter
from mirrorlake.landing.types import arrow_of, column_type, fits, roomy_decimal, way_out, widened
from mirrorlake.storage.files import Storage

_LOOKED_AT = 10_000  # rows, of the first batch
_FEW = 0.5  # distinct values a row: with more, a dictionary costs time and saves nothing


def wanted_schema(found: pa.Schema, declared: Mapping[str, str] | None = None) -> pa.Schema:
    """Return the schema that the rows ask for: declared types, and timestamps in microseconds.

    Args:
        found: the rows' schema.
        declared: the types that the caller declares by lower-case column name, as Delta names them.

    Raises:
        SchemaError: a column occurs twice, can't take its declared type, or has a type without a
            counterpart in the table.
    """
    seen: set[str] = set()
    for name in found.names:
        if name.lower() in seen:
            raise SchemaError(
                f"Column {name!r} occurs twice (names differ at most by case).", column=name
            )
        seen.add(name.lower())
    declared = declared or {}
    return pa.schema([_wanted(column, declared.get(column.name.lower())) for column in found])


def _wanted(column: pa.Field, declared: str | None) -> pa.Field:
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
    if declared is not None and declared != becomes:
        wanted = arrow_of(declared)
        if becomes != "void" and not (_castable(arrow, wanted) or _through_text(arrow, wanted)):
            raise SchemaError(
                f"Column {column.name!r} is {becomes}, but declared as {declared}.",
                column=column.name,
                hint=f"convert the values to {declared}, or declare another type.",
            )
        arrow = wanted
    return pa.field(column.name, arrow)


def target_schema(
    wanted: pa.Schema,
    known: Mapping[str, str],
    declared: Collection[str] = (),
    *,
    widen: bool = False,
) -> pa.Schema:
    """Return the schema to publish: the table's own types where the wanted ones don't fit them.

    Args:
        wanted: what the rows ask for, see `wanted_schema`.
        known: the table's columns by lower-case name, with their types as Delta names them.
        declared: the lower-case names of the columns whose types the caller declares.
        widen: keep a type that the table's column can be widened to without loss.

    Raises:
        SchemaError: values of a column can't be cast to the table's type.
    """

    def target(column: pa.Field) -> pa.Field:
        lower = column.name.lower()
        return _target(column, known.get(lower), widen=widen, declared=lower in declared)

    return pa.schema([target(column) for column in wanted])


def _target(column: pa.Field, known: str | None, *, declared: bool, widen: bool) -> pa.Field:
    becomes = column_type(column.type).table
    if known is None or (becomes != "void" and fits(becomes, known)):
        return column
    if widen and widened(known, becomes) not in (None, known):
        return column
    wanted = arrow_of(known)
    if declared or not (becomes == "void" or _castable(column.type, wanted)):
        is_ = "is declared as" if declared else "is"
        raise SchemaError(
            f"Column {column.name!r} {is_} {becomes}, but the table has {known}.",
            column=column.name,
            hint=way_out(column.name, becomes, known),
        )
    return pa.field(column.name, wanted)


def _castable(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether values may be cast one by one, each checked; text never turns into numbers."""

    def number(t: pa.DataType) -> bool:
        return bool(pt.is_integer(t) or pt.is_floating(t) or pt.is_decimal(t))

    def time(t: pa.DataType) -> bool:
        return bool(pt.is_date(t) or pt.is_timestamp(t))

    if pt.is_timestamp(found) and pt.is_timestamp(wanted):
        return bool((found.tz is None) == (wanted.tz is None))
    return (number(found) and number(wanted)) or (time(found) and pt.is_timestamp(wanted))


def _through_text(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether a declared type may turn text into values, or values into text."""
    kinds = (found, wanted)
    plain = not any(pt.is_nested(kind) or pt.is_binary(kind) for kind in kinds)
    return plain and _is_text(found) != _is_text(wanted)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pt.is_string(kind) or pt.is_large_string(kind) or pt.is_string_view(kind))


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
    hint: str = "",
) -> pa.Array:
    """One column's values, converted.

    Args:
        values: the values of some rows.
        convert: what turns them, or any beginning of them, into an array.
        says: what to say of the first value that doesn't convert.
        before: how many rows came before these.
        column: the column's name.
        hint: what to do about such a value.

    Raises:
        SchemaError: a value doesn't convert; names its row, counted from 1.
    """
    try:
        return convert(values)
    except UNFIT as error:
        row = before + first_unfit(values, convert) + 1
        raise SchemaError(f"{says}: {error}.", row=row, column=column, hint=hint) from error


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


def fits_all(values: pa.Array, wanted: pa.DataType) -> bool:
    """Return whether a type holds all values, of which none changes its kind."""
    found = values.type
    if not (pt.is_null(found) or found == wanted or _castable(found, wanted)):
        return False
    try:
        _cast(values, wanted)
    except UNFIT:
        return False
    return True


def with_room(found: pa.DataType) -> pa.DataType:
    """Return the type for values that came without one, found from these values alone."""
    if pt.is_floating(found):
        return pa.float64()
    if pt.is_signed_integer(found) or (pt.is_unsigned_integer(found) and found.bit_width < 64):
        return pa.int64()
    if pt.is_decimal(found):
        kind = roomy_decimal(found.precision - found.scale, found.scale)
        return found if kind is None else arrow_of(kind)
    return found


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
    if _is_text(found) and _through_text(found, wanted):
        return converter(wanted)(values.cast(pa.string()))
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
