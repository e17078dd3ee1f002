"""What applications hand over to be published, as a stream of Arrow batches.

Dicts, pandas and Arrow data, Parquet and CSV files, record-batch readers and iterators all become
one `pyarrow.RecordBatchReader`; nothing larger than a batch is held unless the caller holds it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from mirrorlake.errors import DataFileError, SchemaError, UsageError, first_line
from mirrorlake.landing.casts import arrow_of
from mirrorlake.landing.dicts import BATCH_ROWS, read_dicts


def open_source(rows: Any, known: dict[str, str] | None = None) -> pa.RecordBatchReader | None:
    """One reader over whatever holds rows; None if there is not one row to learn a schema from.

    Args:
        rows: an iterable of dicts, record batches or tables; a pandas or other data frame; an
            Arrow table, batch or reader; or the path of a `.parquet` or `.csv` file.
        known: the table's columns, lower case, with their types; text files are read as these.

    Raises:
        UsageError: none of these.
        DataFileError: the file can't be read.
        SchemaError: values of a column that don't agree on a type.
    """
    if isinstance(rows, (str, os.PathLike)):
        return _open_file(os.fspath(rows), known or {})
    if isinstance(rows, pa.RecordBatchReader):
        return rows
    if isinstance(rows, dict):
        return read_dicts(iter([rows]))
    pandas = sys.modules.get("pandas")  # whoever holds a data frame has imported it
    if pandas is not None and isinstance(rows, pandas.DataFrame):
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
        return read_dicts(rest, len(rows) if isinstance(rows, list) else BATCH_ROWS)
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
    return table.to_reader(BATCH_ROWS)


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
                f"The batch after {before} rows has not the columns and types of the first one.",
                row=before + 1,
                column=differing[0] if differing else None,
                hint="give all batches the same schema, or publish them one by one.",
            )
        before += element.num_rows
        yield from element.to_batches() if isinstance(element, pa.Table) else [element]


def _open_file(path: str, known: dict[str, str]) -> pa.RecordBatchReader:
    name = os.path.basename(path)
    try:
        if path.lower().endswith((".csv", ".csv.gz")):
            types = {
                name: arrow_of(known[name.lower()])
                for name in (pacsv.open_csv(path).schema.names if known else ())
                if name.lower() in known
            }
            csv = pacsv.open_csv(path, convert_options=pacsv.ConvertOptions(column_types=types))
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
    return DataFileError(
        f"Not a readable Parquet or CSV file: {first}.", file=name, hint="check the file."
    )
