"""What applications hand over to be published, as a stream of Arrow batches.

Dicts, pandas and Arrow data, Parquet and CSV files, record-batch readers and iterators all become
one `pyarrow.RecordBatchReader`; nothing larger than a batch is held unless the caller holds it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pyarrow.types as pt

from mirrorlake.errors import DataFileError, MirrorlakeError, SchemaError, UsageError
from mirrorlake.landing.types import column_type, fits

BATCH_ROWS = 50_000

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


def open_source(rows: Any) -> pa.RecordBatchReader | None:
    """One reader over whatever holds rows; None if there is not a single row to learn a schema from.

    Args:
        rows: an iterable of dicts, record batches or tables; a pandas or other data frame; an
            Arrow table, batch or reader; or the path of a `.parquet` or `.csv` file.

    Raises:
        UsageError: none of these.
        DataFileError: the file can't be read.
        SchemaError: dicts whose values don't agree on a type.
    """
    if isinstance(rows, (str, os.PathLike)):
        return _open_file(os.fspath(rows))
    if isinstance(rows, pa.RecordBatchReader):
        return rows
    if type(rows).__module__.startswith("pandas."):
        return pa.Table.from_pandas(rows, preserve_index=False).to_reader(BATCH_ROWS)
    if isinstance(rows, dict):
        return _from_dicts(iter([rows]))
    if hasattr(rows, "__arrow_c_stream__") or hasattr(rows, "__arrow_c_array__"):
        return pa.table(rows).to_reader(BATCH_ROWS)
    if not isinstance(rows, Iterable):
        raise UsageError(
            f"Can't publish a {type(rows).__name__}.",
            hint="hand over dicts, a data frame, Arrow data, or a .parquet or .csv file.",
        )
    iterator = iter(rows)
    first = next(iterator, None)
    if first is None:
        return None
    rest = chain([first], iterator)
    if isinstance(first, dict):
        # A list is in memory already: all of it takes part in finding the schema.
        return _from_dicts(rest, len(rows) if isinstance(rows, list) else BATCH_ROWS)
    if isinstance(first, (pa.RecordBatch, pa.Table)):
        batches = (b for x in rest for b in (x.to_batches() if isinstance(x, pa.Table) else [x]))
        return pa.RecordBatchReader.from_batches(first.schema, batches)
    raise UsageError(
        f"Can't publish an iterable of {type(first).__name__}.",
        hint="its elements must be dicts or Arrow record batches.",
    )


def _open_file(path: str) -> pa.RecordBatchReader:
    name = os.path.basename(path)
    try:
        if path.lower().endswith((".csv", ".csv.gz")):
            return pacsv.open_csv(path)
        if os.path.getsize(path) == 0:
            raise DataFileError("The file has zero bytes.", file=name)
        parquet = pq.ParquetFile(path)
    except FileNotFoundError as error:
        raise UsageError(f"There is no file {path}.") from error
    except (pa.ArrowException, OSError) as error:
        first = str(error).splitlines()[0]
        raise DataFileError(
            f"Not a readable Parquet or CSV file: {first}", file=name, hint="check the file."
        ) from error
    return pa.RecordBatchReader.from_batches(parquet.schema_arrow, parquet.iter_batches(BATCH_ROWS))


def _from_dicts(
    rows: Iterator[dict[str, Any]], first_chunk: int = BATCH_ROWS
) -> pa.RecordBatchReader:
    head = list(islice(rows, first_chunk))
    names = list(dict.fromkeys(name for row in head for name in row))
    if not names:
        raise SchemaError("The rows have no columns.", hint="each row is a dict with its columns.")
    schema = pa.schema([(name, _infer(head, name)) for name in names])

    def batches() -> Iterator[pa.RecordBatch]:
        before, chunk = 0, head
        while chunk:
            yield _dict_batch(chunk, schema, before)
            before += len(chunk)
            chunk = list(islice(rows, BATCH_ROWS))

    return pa.RecordBatchReader.from_batches(schema, batches())


def _infer(rows: list[dict[str, Any]], name: str) -> pa.DataType:
    try:
        return pa.array([row.get(name) for row in rows]).type
    except pa.ArrowException as error:
        raise SchemaError(
            f"The values of {name!r} don't agree on a type: {error}.", column=name
        ) from error


def _dict_batch(chunk: list[dict[str, Any]], schema: pa.Schema, before: int) -> pa.RecordBatch:
    known = set(schema.names)
    for index, row in enumerate(chunk):
        if extra := set(row) - known:
            raise SchemaError(
                f"Column {min(extra)!r} appears for the first time after {before} rows.",
                row=before + index + 1,
                column=min(extra),
                hint="give every column in the first rows, or hand over Arrow batches.",
            )
    arrays = []
    for column in schema:
        values = [row.get(column.name) for row in chunk]
        try:
            arrays.append(pa.array(values, column.type))
        except (pa.ArrowException, TypeError) as error:
            raise SchemaError(
                f"A value of {column.name!r} in rows {before + 1} to {before + len(chunk)} is not"
                f" of type {column.type}: {error}.",
                column=column.name,
            ) from error
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def target_schema(found: pa.Schema, known: dict[str, str]) -> pa.Schema:
    """The schema to publish: microseconds, and the table's own types where a cast is safe.

    Args:
        found: the rows' schema.
        known: the table's columns, lower case, with their types as Delta names them.

    Raises:
        SchemaError: a column doesn't fit the table's type, or has no counterpart at all.
    """
    return pa.schema([_target(column, known.get(column.name.lower())) for column in found])


def _target(column: pa.Field, known: str | None) -> pa.Field:
    arrow = column.type
    if pt.is_dictionary(arrow):
        arrow = arrow.value_type
    if pt.is_timestamp(arrow):
        arrow = pa.timestamp("us", arrow.tz)
    try:
        becomes = column_type(arrow).table
    except SchemaError as error:
        raise SchemaError(error.message, column=column.name, hint=error.hint) from error
    if known is not None and (becomes == "void" or not fits(becomes, known)):
        wanted = _arrow_of(known)
        if becomes != "void" and not _castable(arrow, wanted):
            raise SchemaError(
                f"Column {column.name!r} is {becomes}, but the table has {known}.",
                column=column.name,
                hint="convert the values; a new type needs the table's folder made anew.",
            )
        arrow = wanted
    return pa.field(column.name, arrow)


def _arrow_of(table_type: str) -> pa.DataType:
    if table_type.startswith("decimal("):
        precision, scale = table_type[8:-1].split(",")
        return pa.decimal128(int(precision), int(scale))
    return _ARROW[table_type]


def _castable(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether values may be cast one by one, each checked; text never turns into numbers."""

    def number(t: pa.DataType) -> bool:
        return pt.is_integer(t) or pt.is_floating(t) or pt.is_decimal(t)

    def moment(t: pa.DataType) -> bool:
        return pt.is_date(t) or pt.is_timestamp(t)

    if pt.is_timestamp(found) and pt.is_timestamp(wanted):
        return (found.tz is None) == (wanted.tz is None)
    return (number(found) and number(wanted)) or (moment(found) and pt.is_timestamp(wanted))


def cast_batch(batch: pa.RecordBatch, schema: pa.Schema, before: int) -> pa.RecordBatch:
    """One batch in the target schema, each value kept or the cast refused.

    Raises:
        SchemaError: a value that the target type can't hold.
    """
    arrays = []
    for column in schema:
        values = batch.column(column.name)
        if values.type != column.type:
            # Nanoseconds below a microsecond are cut off, as every mirror of the format does.
            safe = not (pt.is_timestamp(values.type) and pt.is_timestamp(column.type))
            try:
                values = values.cast(column.type, safe=safe)
            except (pa.ArrowException, MirrorlakeError) as error:
                raise SchemaError(
                    f"A value of {column.name!r} in rows {before + 1} to"
                    f" {before + len(values)} does not fit {column.type}: {error}.",
                    column=column.name,
                ) from error
        arrays.append(values)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
