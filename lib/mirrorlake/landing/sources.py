"""What applications hand over to be published, as a stream of Arrow batches.

Dicts, pandas and Arrow data, Parquet and CSV files, record-batch readers and iterators all become
one `pyarrow.RecordBatchReader`; nothing larger than a batch is held unless the caller holds it.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from functools import partial
from itertools import chain, islice
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt
from numpy import datetime64

from mirrorlake.errors import DataFileError, SchemaError, UsageError, first_line
from mirrorlake.landing.casts import convert_rows, fits_all, keep_or_refuse, with_room
from mirrorlake.landing.csv_file import open_csv
from mirrorlake.landing.types import arrow_of

BATCH_ROWS = 50_000


def read_dicts(
    rows: Iterator[dict[str, Any]],
    first_chunk: int = BATCH_ROWS,
    governing: Mapping[str, str] | None = None,
) -> pa.RecordBatchReader:
    """Return a reader over dicts that looks at `first_chunk` of them to find the schema.

    Args:
        rows: the dicts.
        first_chunk: how many of them are looked at.
        governing: types of columns, lower case, which hold as far as the first rows fit them.

    Raises:
        SchemaError: values of one column that don't agree on a type; also while reading.
        UsageError: an element that is not a dict; also while reading.
    """
    head = list(islice(rows, first_chunk))
    _check_dicts(head, 0)
    names = list(dict.fromkeys(name for row in head for name in row))
    if not names:
        raise SchemaError("The rows have no columns.", hint="each row is a dict with its columns.")
    for name in names:
        if not isinstance(name, str):
            raise SchemaError(f"The column name {name!r} is not a text.", column=repr(name))
    governing = governing or {}
    schema = pa.schema([(name, _infer(head, name, governing.get(name.lower()))) for name in names])

    def batches() -> Iterator[pa.RecordBatch]:
        before, chunk = 0, head
        while chunk:
            yield _dict_batch(chunk, schema, before)
            before += len(chunk)
            chunk = list(islice(rows, BATCH_ROWS))
            _check_dicts(chunk, before)

    return pa.RecordBatchReader.from_batches(schema, batches())


def _check_dicts(rows: list[Any], before: int) -> None:
    for index, row in enumerate(rows):
        if not isinstance(row, dict):
            raise UsageError(
                f"There is a {type(row).__name__} among the dicts.", row=before + index + 1
            )


def _infer(rows: list[dict[str, Any]], name: str, governing: str | None) -> pa.DataType:
    values = [row.get(name) for row in rows]
    says = f"The values of {name!r} don't agree on a type"
    hint = "give all values of the column one type."
    array = convert_rows(values, _infer_array, says=says, before=0, column=name, hint=hint)
    if governing is not None and fits_all(array, arrow_of(governing)):
        return arrow_of(governing)
    return with_room(array.type)


def _dict_batch(chunk: list[dict[str, Any]], schema: pa.Schema, before: int) -> pa.RecordBatch:
    known = set(schema.names)
    for index, row in enumerate(chunk):
        if extra := row.keys() - known:
            raise SchemaError(
                f"Column {min(map(str, extra))!r} appears for the first time after {before} rows.",
                row=before + index + 1,
                column=min(map(str, extra)),
                hint="give every column in the first rows, or hand over Arrow batches.",
            )
    arrays = []
    for column in schema:
        values = [row.get(column.name) for row in chunk]
        arrays.append(
            convert_rows(
                values,
                partial(_convert, wanted=column.type),
                says=f"The value of {column.name!r} is not of type {column.type}",
                before=before,
                column=column.name,
            )
        )
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _convert(values: list[Any], wanted: pa.DataType) -> pa.Array:
    # `pa.array(values, wanted)` would cut 1.5 to 1, drop a struct's new fields, and take numbers
    # for timestamps; so each chunk's own type is found first.
    return keep_or_refuse(_infer_array(values), wanted)


def _infer_array(values: list[Any]) -> pa.Array:
    array = pa.array(values)
    # Where it finds the type itself, Arrow still mixes what only looks alike.
    seen = {type(value) for value in values} - {type(None)}
    if pt.is_date(array.type) and any(issubclass(kind, datetime) for kind in seen):
        raise pa.ArrowInvalid("dates and timestamps are mixed")
    if pt.is_timestamp(array.type):
        if not all(issubclass(kind, (datetime, datetime64)) for kind in seen):
            raise pa.ArrowInvalid("timestamps and other values are mixed")
        if len({v.tzinfo is None for v in values if isinstance(v, datetime)}) > 1:
            raise pa.ArrowInvalid("timestamps with and without a time zone are mixed")
    if pt.is_binary(array.type) and any(issubclass(kind, str) for kind in seen):
        raise pa.ArrowInvalid("texts and bytes are mixed")
    return array


def open_source(
    rows: Any,
    known: Mapping[str, str] | None = None,
    declared: Mapping[str, str] | None = None,
    *,
    widen: bool = False,
) -> pa.RecordBatchReader | None:
    """One reader over whatever holds rows; None if there is not one row to learn a schema from.

    Args:
        rows: an iterable of dicts, record batches or tables; a pandas or other data frame; an
            Arrow table, batch or reader; or the path of a `.parquet` or `.csv` file.
        known: the table's columns, lower case, with their types; they govern how dicts and text
            files are read.
        declared: the types that the caller declares, in the same way; they go first.
        widen: whether values that a type of the table can't hold may take a wider one.

    Raises:
        UsageError: none of these.
        DataFileError: the file can't be read.
        SchemaError: values of a column that don't agree on a type.
    """
    if isinstance(rows, (str, os.PathLike)):
        return _open_file(os.fspath(rows), known or {}, declared or {}, widen=widen)
    if isinstance(rows, pa.RecordBatchReader):
        return rows
    governing = {**(known or {}), **(declared or {})}
    if isinstance(rows, dict):
        return read_dicts(iter([rows]), governing=governing)
    # Pandas is imported by all who hold a data frame; another thread may only just be doing so.
    frame = getattr(sys.modules.get("pandas"), "DataFrame", None)
    if frame is not None and isinstance(rows, frame):
        return _from_pandas(rows)
    if isinstance(rows, pa.RecordBatch):
        return pa.Table.from_batches([rows]).to_reader(BATCH_ROWS)
    if isinstance(rows, pa.Table):
        return rows.to_reader(BATCH_ROWS)
    if hasattr(rows, "__arrow_c_stream__") or hasattr(rows, "__arrow_c_array__"):
        return _from_capsule(rows)
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
        return read_dicts(rest, len(rows) if isinstance(rows, list) else BATCH_ROWS, governing)
    if isinstance(first, (pa.RecordBatch, pa.Table)):
        return pa.RecordBatchReader.from_batches(first.schema, _alike(rest, first.schema))
    raise UsageError(
        f"Can't publish an iterable of {type(first).__name__}.",
        hint="its elements must be dicts or Arrow record batches.",
    )


def _from_pandas(frame: Any) -> pa.RecordBatchReader:
    try:
        table = pa.Table.from_pandas(frame, preserve_index=False)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise SchemaError(
            f"The data frame can't become Arrow columns: {' '.join(map(str, error.args))}.",
            hint="give each column a name of its own and values of one type.",
        ) from error
    # Decimals have no dtype of their own: Arrow takes as many digits as these values have.
    kinds = zip(table.schema, frame.dtypes, strict=True)
    schema = pa.schema(
        [f.with_type(with_room(f.type)) if str(dtype) == "object" else f for f, dtype in kinds],
        table.schema.metadata,
    )
    return (table if schema == table.schema else table.cast(schema)).to_reader(BATCH_ROWS)


def _from_capsule(rows: Any) -> pa.RecordBatchReader:
    try:
        if hasattr(rows, "__arrow_c_stream__"):
            return pa.RecordBatchReader.from_stream(rows)
        batch = pa.record_batch(rows)
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise UsageError(
            f"Can't publish a {type(rows).__name__}: {error}.", hint="it needs named columns."
        ) from error
    return pa.RecordBatchReader.from_batches(batch.schema, [batch])


def _alike(elements: Iterable[Any], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The batches of an iterable; of one schema, so that nothing is dropped or converted."""
    first = [(field.name, field.type) for field in schema]
    before = 0
    for element in elements:
        if not isinstance(element, (pa.RecordBatch, pa.Table)):
            raise UsageError(f"There is a {type(element).__name__} among the record batches.")
        here = [(field.name, field.type) for field in element.schema]
        if here != first:
            differing = sorted(name for name, _ in set(here) ^ set(first))
            raise SchemaError(
                f"The batch after {before} rows has other columns or types than the first one.",
                row=before + 1,
                column=differing[0] if differing else None,
                hint="give all batches the same schema, or publish them one by one.",
            )
        before += element.num_rows
        yield from element.to_batches() if isinstance(element, pa.Table) else [element]


def _open_file(
    path: str, known: Mapping[str, str], declared: Mapping[str, str], *, widen: bool
) -> pa.RecordBatchReader:
    name = os.path.basename(path)
    try:
        if path.lower().endswith((".csv", ".csv.gz")):
            csv = open_csv(path, name, known, declared, widen=widen)
            return pa.RecordBatchReader.from_batches(csv.schema, _readable(csv, name))
        if os.path.getsize(path) == 0:
            raise DataFileError("The file has zero bytes.", file=name)
        parquet = pq.ParquetFile(path)
    except FileNotFoundError as error:
        raise UsageError(f"There is no file {path}.") from error
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(name, error) from error
    batches = _readable(parquet.iter_batches(BATCH_ROWS), name)
    return pa.RecordBatchReader.from_batches(parquet.schema_arrow, batches)


def _readable(batches: Iterable[pa.RecordBatch], name: str) -> Iterator[pa.RecordBatch]:
    """The batches of a file, of which the later ones may still turn out to be broken."""
    try:
        yield from batches
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(name, error) from error


def _unreadable(name: str, error: Exception) -> DataFileError:
    first = first_line(error).rstrip(".")
    found = re.search(r"Row #(\d+)", first)
    return DataFileError(
        f"Not a readable Parquet or CSV file: {first}.",
        file=name,
        row=int(found[1]) - 1 if found else None,  # Arrow counts the header
        hint="check the file.",
    )
