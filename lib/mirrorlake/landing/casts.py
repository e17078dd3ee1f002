"""Cast batches to the table's types, refuse values that would be lost, and write Parquet.

A cast is refused if a value would be lost. Timestamps have microseconds.
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
from mirrorlake.landing.check import UNCHANGED_TYPE, is_unchanged
from mirrorlake.landing.metadata import MARKER, UNCHANGED, Marker
from mirrorlake.landing.text import UNFIT, converter
from mirrorlake.landing.types import (
    arrow_of,
    column_type,
    fits,
    misfit_hint,
    roomy_decimal,
    type_name,
    widened,
)
from mirrorlake.storage.files import Storage

_SAMPLE_ROWS = 10_000  # the number of rows of the first batch that are counted
_MOST_DISTINCT = (
    0.5  # distinct values per row; with more, a dictionary costs time and saves nothing
)


def wanted_schema(found: pa.Schema, declared: Mapping[str, str] | None = None) -> pa.Schema:
    """Return the schema of rows by themselves: with declared types and in microseconds.

    Args:
        found: the schema of the rows.
        declared: the types that the caller declares, by lower-case column name, as Delta names
            them.

    Raises:
        SchemaError: a column occurs twice, can't be converted to its declared type, or has a type
            without a counterpart in the table.
    """
    seen: set[str] = set()
    for name in found.names:
        if name.lower() in seen:
            raise SchemaError(
                f"Column {name!r} occurs twice (names differ at most by case).",
                column=name,
                hint="rename or remove one of the columns.",
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
        # Fabric's samples use this type; pandas would write a long.
        return pa.field(column.name, pa.int32())
    if column.name.lower() == UNCHANGED:
        if is_unchanged(column) or (column.name == UNCHANGED and pt.is_null(arrow)):
            return pa.field(UNCHANGED, UNCHANGED_TYPE)
        raise SchemaError(
            f"Column {column.name!r} is {arrow}; only {UNCHANGED!r} of lists of strings is valid.",
            column=column.name,
            hint="list the columns that each update leaves unchanged, or rename the column.",
        )
    if pt.is_timestamp(arrow):
        arrow = pa.timestamp("us", arrow.tz)
    if pt.is_duration(arrow):
        arrow = pa.duration("us")  # the table stores a plain number, so the unit must be fixed
    try:
        becomes = column_type(arrow).table
    except SchemaError as error:
        raise SchemaError(error.message, column=column.name, hint=error.hint) from error
    if declared is not None and declared != becomes:
        wanted = arrow_of(declared)
        as_utc = (becomes, declared) == ("timestamp_ntz", "timestamp")
        if not (
            as_utc or becomes == "void" or _castable(arrow, wanted) or _through_text(arrow, wanted)
        ):
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
    """Return the schema to publish: the table's type for each column that does not fit it.

    Args:
        wanted: the schema of the rows, see `wanted_schema`.
        known: the table's columns by lower-case name, with their types as Delta names them.
        declared: the lower-case names of the columns with declared types.
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
            hint=misfit_hint(column.name, becomes, known),
        )
    return pa.field(column.name, wanted)


def _castable(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether values may be cast, each of them checked; text never becomes a number."""

    def number(t: pa.DataType) -> bool:
        return bool(pt.is_integer(t) or pt.is_floating(t) or pt.is_decimal(t))

    def time(t: pa.DataType) -> bool:
        return bool(pt.is_date(t) or pt.is_timestamp(t))

    if pt.is_timestamp(found) and pt.is_timestamp(wanted):
        return bool((found.tz is None) == (wanted.tz is None))
    if pt.is_timestamp(found) and pt.is_date(wanted):
        return found.tz is None  # the day of an instant depends on the zone
    return (number(found) and number(wanted)) or (time(found) and pt.is_timestamp(wanted))


def _through_text(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether a declared type may convert text to values, or values to text."""
    kinds = (found, wanted)
    plain = not any(pt.is_nested(kind) or pt.is_binary(kind) for kind in kinds)
    return plain and _is_text(found) != _is_text(wanted)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pt.is_string(kind) or pt.is_large_string(kind) or pt.is_string_view(kind))


def first_unfit(values: Sequence[Any], convert: Callable[[Any], object]) -> int:
    """Return the position of the first value that can't be converted, found by bisection."""
    good, bad = 0, len(values)  # a prefix of `good` values converts, one of `bad` values does not
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
    message: str,
    before: int,
    column: str,
    hint: str = "",
) -> pa.Array:
    """Return one column's values, converted.

    Args:
        values: the values of consecutive rows.
        convert: converts the values, or any prefix of them, to an array.
        message: the error message for the first value that can't be converted.
        before: the number of rows before these.
        column: the column's name.
        hint: the hint for such a value.

    Raises:
        SchemaError: a value can't be converted; the error names its row, counted from 1.
    """
    try:
        return convert(values)
    except UNFIT as error:
        row = before + first_unfit(values, convert) + 1
        raise SchemaError(f"{message}: {error}.", row=row, column=column, hint=hint) from error


def cast_unchanged(values: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Return values in another type of their kind, or raise one of `UNFIT` if one would change."""
    found = values.type
    if found == wanted:
        return values
    if not (pt.is_null(found) or _castable(found, wanted)):
        fields = [pa.schema([("value", kind)]) for kind in (wanted, found)]
        if pa.unify_schemas(fields, promote_options="permissive").field(0).type != wanted:
            raise pa.ArrowInvalid(f"it is {found}")
    return _cast(values, wanted)


def fits_all(values: pa.Array, wanted: pa.DataType) -> bool:
    """Return whether a type can hold all values without changing their kind."""
    found = values.type
    if not (pt.is_null(found) or found == wanted or _castable(found, wanted)):
        return False
    try:
        _cast(values, wanted)
    except UNFIT:
        return False
    return True


def with_room(found: pa.DataType) -> pa.DataType:
    """Return a type with room for other values, for values that came without a type."""
    if pt.is_floating(found):
        return pa.float64()
    if pt.is_signed_integer(found) or (pt.is_unsigned_integer(found) and found.bit_width < 64):
        return pa.int64()
    if pt.is_decimal(found):
        kind = roomy_decimal(found.precision - found.scale, found.scale)
        return found if kind is None else arrow_of(kind)
    return found


def cast_batch(batch: pa.RecordBatch, schema: pa.Schema, before: int) -> pa.RecordBatch:
    """Return a batch in the target schema; a cast that would change a value is refused.

    Args:
        batch: the rows.
        schema: the target schema.
        before: the number of rows before these.

    Raises:
        SchemaError: a value does not fit the target type; the error names its row.
    """
    arrays = []
    for column in schema:
        values = batch.column(column.name)
        if values.type != column.type:
            values = convert_rows(
                values,
                partial(_cast, wanted=column.type),
                message=f"The value of {column.name!r} does not fit {type_name(column.type)}",
                before=before,
                column=column.name,
            )
        arrays.append(values)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _cast(values: pa.Array, wanted: pa.DataType) -> pa.Array:
    found = values.type
    if pt.is_dictionary(found) or pt.is_run_end_encoded(found):
        encoded = pt.is_run_end_encoded(found)
        values = pc.run_end_decode(values) if encoded else _decode(values)
        return values if values.type == wanted else _cast(values, wanted)
    if isinstance(found, pa.JsonType):
        return values.storage.cast(wanted)
    if _is_text(found) and _through_text(found, wanted):
        return converter(wanted)(values.cast(pa.string()))
    if getattr(found, "unit", None) == "ns" and getattr(wanted, "unit", None) == "us":
        return _truncate_nanoseconds(values).cast(wanted)
    if pt.is_integer(found) and pt.is_decimal(wanted):
        # Arrow checks the largest number of the type instead of the values.
        values = values.cast(pa.decimal128(20, 0))
    cast = values.cast(wanted)
    if pt.is_floating(found) and pt.is_floating(wanted):
        # Doubles are rounded to the nearest float, but a large one must not become infinite.
        if pc.any(pc.and_(pc.is_finite(values), pc.is_inf(cast))).as_py():
            raise pa.ArrowInvalid("the number is too large")
    elif (
        (pt.is_floating(found) and pt.is_decimal(wanted))
        or (pt.is_decimal(found) and pt.is_floating(wanted))
    ) and not cast.cast(found).equals(values):
        raise pa.ArrowInvalid("the number would lose digits")  # Arrow rounds without an error
    elif pt.is_timestamp(found) and pt.is_date(wanted) and not cast.cast(found).equals(values):
        raise pa.ArrowInvalid("the time of day would be lost")
    return cast


def _decode(values: pa.DictionaryArray) -> pa.Array:
    dictionary = values.dictionary
    if pt.is_string_view(dictionary.type):  # Arrow can't take values of this type
        dictionary = dictionary.cast(pa.string())
    return pa.DictionaryArray.from_arrays(values.indices, dictionary).dictionary_decode()


def _truncate_nanoseconds(values: pa.Array) -> pa.Array:
    """Return microseconds since 1970, rounded down also before 1970, as the mirror does."""
    nanos = values.cast(pa.int64())
    micros = pc.divide(nanos, 1000)  # rounds towards zero
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
    """Write rows to a Parquet file with the types of the format.

    Args:
        storage: where to write the file.
        reader: the rows.
        path: the path of the file.
        schema: the columns to write.
        carried: the metadata for the footer.
        marker: the row marker of all rows; None if the rows contain their own.

    Raises:
        SchemaError: a value does not fit the type of its column; the error names its row.
    """
    whole = schema
    if marker is not None:
        # Newer versions of the format require the marker to be the last column.
        whole = schema.append(pa.field(MARKER, pa.int32()))

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
    options = {"compression": "zstd", "use_dictionary": _dictionary_columns(first)}
    with storage.open_writer(path) as sink, pq.ParquetWriter(sink, whole, **options) as writer:
        writer.add_key_value_metadata(carried)  # in the schema, Arrow would store it twice
        for rows in chain([] if first is None else [first], batches):
            writer.write_batch(rows)


def _dictionary_columns(first: pa.RecordBatch | None) -> list[str] | bool:
    """Return the columns that gain from a dictionary, or True (all) if the rows don't show it."""
    if first is None or first.num_rows < _SAMPLE_ROWS:
        return True
    if any(pa.types.is_nested(column.type) for column in first.schema):
        return True  # a dictionary belongs to a leaf, not to a nested column
    rows = first.slice(0, _SAMPLE_ROWS)
    return [
        name
        for name, values in zip(rows.schema.names, rows.columns, strict=True)
        if pc.count_distinct(values).as_py() < _MOST_DISTINCT * _SAMPLE_ROWS
    ]
