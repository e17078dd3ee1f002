"""Read what applications publish as a stream of Arrow batches.

Dicts, pandas and Arrow data, Parquet and CSV files, record batch readers and iterators all become
one `pyarrow.RecordBatchReader`. Only one batch is in memory, unless the caller holds more.

A CSV file is read twice: first to determine the type of each column from all its values, then to
convert them. The type of an existing column or a declared type applies; other columns get the
narrowest type that keeps each value as it is written.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from functools import partial
from glob import has_magic
from itertools import chain, islice
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pyarrow.types as pt
from numpy import datetime64, ndarray

from mirrorlake.errors import DataFileError, SchemaError, UsageError, first_line
from mirrorlake.landing.casts import cast_unchanged, convert_rows, first_unfit, fits_all, with_room
from mirrorlake.landing.text import END, UNFIT, ZONED, ChunkReader, converter
from mirrorlake.landing.types import (
    WIDEN_HINT,
    arrow_of,
    column_type,
    roomy_decimal,
    type_name,
    values_hint,
    widened,
)

_BLOCK = 8 << 20  # the block size in bytes; no row may be longer
_NULLS = pacsv.ConvertOptions().null_values  # the words that Arrow and pandas read as NULL
_INFERRED = (
    pa.int64(),
    pa.bool_(),
    pa.date32(),
    pa.timestamp("us"),
    pa.timestamp("us", "UTC"),
    pa.float64(),
    pa.string(),
    pa.binary(),
)
# Not numbers: a leading zero or plus would be lost, and hexadecimal digits misread.
_NO_NUMBER = r"^(\+|[+-]?0[0-9xX])"
_EXACT_DIGITS = 15  # doubles represent all numbers with so many digits exactly
_FINEST = pa.decimal256(76, 38)
_FILES_HINT = "pass one file. For a folder or pattern, use lake.publish(table, source) in Python."
_ONE_TYPE = "use one type for all values of the column, None for missing values"


def open_csv(
    path: str,
    name: str,
    known: Mapping[str, str],
    declared: Mapping[str, str],
    *,
    widen: bool,
    rename: Callable[[Sequence[str]], list[str]] = list,
) -> pa.RecordBatchReader:
    """Open a CSV file, after a first pass that determines the types of its columns.

    Args:
        path: the path of the file; `.gz` is decompressed.
        name: the file's name in errors.
        known: the table's columns by lower-case name, with their types as Delta names them.
        declared: the types that the caller declares, in the same form; they take precedence.
        widen: whether values that do not fit an existing type may get a wider one.
        rename: returns the names that the columns of the file have in the table.

    Raises:
        DataFileError: the file is not CSV, or values do not fit an existing or declared type. The
            error names the first such row of each column, counted from 1 without the header.
        pa.ArrowException: the parser fails; also while reading.
    """
    names = pacsv.open_csv(path, read_options=_READ, parse_options=_PARSE).schema.names
    columns = []
    for column_name, renamed in zip(names, rename(names), strict=True):
        lower = renamed.lower()
        types = known.get(lower), declared.get(lower)
        columns.append(_Column(column_name, *types, widen=widen))
    _look(path, name, columns)
    misfits = [column for column in columns if column.found is None]
    if misfits:
        hint = values_hint(column.governing or "" for column in misfits)
        if all(column.wider is not None for column in misfits):
            hint = f"{hint.rstrip('.')}, or {WIDEN_HINT}"
        raise _refused(misfits, name, hint=hint)
    schema = pa.schema([(column.name, column.found) for column in columns])

    def typed() -> Iterator[pa.RecordBatch]:
        for batch in _blocks(path, names):
            arrays = [_convert_texts(v, f.type) for v, f in zip(batch.columns, schema, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    return pa.RecordBatchReader.from_batches(schema, typed())


def _look(path: str, name: str, columns: list[_Column]) -> None:
    before, is_closed = 0, False
    names = [column.name for column in columns]
    for batch in _blocks(ChunkReader(_with_end(path, len(columns))), names):
        if batch.num_rows and batch.column(0)[-1].as_py() == END.encode():
            batch, is_closed = batch.slice(0, batch.num_rows - 1), True
        for column, values in zip(columns, batch.columns, strict=True):
            column.look(values, before)
        before += batch.num_rows
    if not is_closed:  # Arrow would return the rest of the file as one value
        raise DataFileError(
            "A quote is not closed before the end of the file.",
            file=name,
            row=before,
            hint="close the quote, and write a quote within a quoted value twice.",
        )


def _with_end(path: str, width: int) -> Iterator[bytes]:
    """Yield the content of a file, decompressed, and a last row that a quote could swallow."""
    with pa.input_stream(path) as file:
        while piece := file.read(_BLOCK):
            yield piece
    yield f"\n{','.join([END, *[''] * (width - 1)])}\n".encode()


# With one thread only, Arrow names the row of a parse error.
_READ = pacsv.ReadOptions(use_threads=False, block_size=_BLOCK)
_PARSE = pacsv.ParseOptions(newlines_in_values=True)


def _blocks(source: str | ChunkReader, names: list[str]) -> Iterator[pa.RecordBatch]:
    """Yield the file's values as they are written, as bytes."""
    options = pacsv.ConvertOptions(column_types=dict.fromkeys(names, pa.binary()))
    yield from pacsv.open_csv(
        source, read_options=_READ, parse_options=_PARSE, convert_options=options
    )


def _convert_texts(values: pa.Array, wanted: pa.DataType) -> pa.Array:
    if pt.is_binary(wanted):
        return values
    if pt.is_null(wanted):
        return pa.nulls(len(values))
    return converter(wanted, *_NULLS)(values.cast(pa.string()))


class _Column:
    """One column's type, determined from the values so far.

    Args:
        name: the name as written.
        known: the type of the table's column; None for a new column.
        declared: the type that the caller declares. It takes precedence and is never widened.
        widen: whether values that do not fit the table's type may get a wider one.

    Attributes:
        governing: the declared type, or else the table's; None for a new column.
        misfit: the first row that does not fit the governing type, and its value; row 0 if none.
    """

    def __init__(self, name: str, known: str | None, declared: str | None, *, widen: bool) -> None:
        self.name = name
        self.governing = known if declared is None else declared
        self.misfit = (0, "")
        self._is_declared = declared is not None
        self._widen = widen and not self._is_declared
        self._kinds = list(_INFERRED)
        self._empty = self._exact = self._plain = True
        self._whole = self._scale = 0

    def look(self, values: pa.Array, before: int) -> None:
        """Examine the values of consecutive rows, with `before` rows ahead of them."""
        if self.governing is not None and not self.misfit[0]:
            convert = partial(_convert_texts, wanted=arrow_of(self.governing))
            try:
                convert(values)
            except UNFIT:
                index = first_unfit(values, convert)
                text = values[index].as_py().decode(errors="backslashreplace")
                self.misfit = (before + index + 1, text)
        # Earlier values fit the governing type, and therefore each wider type.
        if self.governing is None or self._widen or self.misfit[0]:
            self._infer(values)

    def _infer(self, values: pa.Array) -> None:
        try:
            texts = pc.utf8_trim_whitespace(values.cast(pa.string()))
        except pa.ArrowInvalid:  # not UTF-8
            self._empty, self._kinds = False, [pa.binary()]
            return
        texts = texts.filter(pc.invert(pc.is_in(texts, value_set=pa.array(_NULLS))))
        if not len(texts):
            return
        self._empty = False
        self._kinds = [kind for kind in self._kinds if _all_are(texts, kind)]
        if pa.float64() not in self._kinds:
            return
        digits = pc.utf8_ltrim(texts, "-")
        point = pc.find_substring(digits, ".")
        length = pc.utf8_length(digits)
        has_point = pc.greater_equal(point, 0)
        whole = pc.if_else(has_point, point, length)
        scale = pc.if_else(has_point, pc.subtract(pc.subtract(length, point), 1), 0)
        self._whole = max(self._whole, pc.max(whole).as_py())
        self._scale = max(self._scale, pc.max(scale).as_py())
        plain = pc.match_substring_regex(digits, r"^[0-9.]*$")
        self._plain &= pc.all(plain).as_py()
        long = texts.filter(pc.and_(plain, pc.greater(length, _EXACT_DIGITS)))
        self._exact = self._exact and _as_doubles(long)

    @property
    def found(self) -> pa.DataType | None:
        """The type of the column; None if its values do not fit the governing type."""
        if self.governing is None:
            return self._inferred()
        if not self.misfit[0]:
            return arrow_of(self.governing)
        return self.wider if self._widen else None

    @property
    def wider(self) -> pa.DataType | None:
        """The type that the table's column can be widened to for its values, or None.

        It is determined from the values from the block of the first misfit on.
        """
        if self.governing is None or self._is_declared:
            return None
        for kind in (self._inferred(), self._decimal()):
            if kind is not None:
                wider = widened(self.governing, column_type(kind).table)
                if wider not in (None, self.governing):
                    return kind
        return None

    def _inferred(self) -> pa.DataType:
        if self._empty:
            return pa.null()
        kind = self._kinds[0]
        if kind == pa.float64() and not self._exact:
            return self._decimal() or pa.string()
        return kind

    def _decimal(self) -> pa.DataType | None:
        """Return the decimal for the column's numbers, with room for others, or None."""
        if pa.float64() not in self._kinds or not self._plain:
            return None
        kind = roomy_decimal(self._whole, self._scale)
        return None if kind is None else arrow_of(kind)


def _all_are(texts: pa.Array, kind: pa.DataType) -> bool:
    """Return whether all strings are values of a type in its usual notation."""
    if pt.is_string(kind) or pt.is_binary(kind):
        return True
    number = pt.is_integer(kind) or pt.is_floating(kind)
    if number and pc.any(pc.match_substring_regex(texts, _NO_NUMBER)).as_py():
        return False
    zoned = pt.is_timestamp(kind) and kind.tz is not None
    if zoned and not pc.all(pc.match_substring_regex(texts, ZONED)).as_py():
        return False
    try:
        converter(kind)(texts)
    except UNFIT:
        return False
    return True


def _as_doubles(texts: pa.Array) -> bool:
    """Return whether doubles represent these plain numbers exactly."""
    doubles = texts.cast(pa.float64()).cast(pa.string())
    try:
        return bool(texts.cast(_FINEST).equals(doubles.cast(_FINEST)))
    except pa.ArrowInvalid:  # more digits than a decimal can have
        return False


def _refused(misfits: list[_Column], name: str, hint: str) -> DataFileError:
    found = [
        f"{column.misfit[1]!r} in row {column.misfit[0]} of column {column.name!r} "
        f"is not of type {column.governing}"
        for column in misfits
    ]
    count = "" if len(found) == 1 else f"{len(found)} columns have values of other types: "
    row, column = min((column.misfit[0], column.name) for column in misfits)
    return DataFileError(
        f"{count}{'; '.join(found)}.", file=name, row=row, column=column, hint=hint
    )


BATCH_ROWS = 50_000
CSV_HINT = "export the file again with commas between the values, in UTF-8."


def read_dicts(
    rows: Iterator[dict[str, Any]],
    first_chunk: int = BATCH_ROWS,
    governing: Mapping[str, str] | None = None,
    rename: Callable[[Sequence[str]], list[str]] = list,
) -> pa.RecordBatchReader:
    """Return a reader over dicts whose schema is determined from the first ones.

    Args:
        rows: the dicts.
        first_chunk: the number of dicts that determine the schema.
        governing: the types of columns by lower-case name; they apply if the first rows fit them.
        rename: returns the names that the columns of the dicts have in the table.

    Raises:
        SchemaError: values of one column have different types; also while reading.
        UsageError: an element is not a dict; also while reading.
    """
    head = list(islice(rows, first_chunk))
    _check_dicts(head, 0)
    names = list(dict.fromkeys(name for row in head for name in row))
    if not names:
        raise SchemaError("The rows have no columns.", hint="pass dicts from column to value.")
    for name in names:
        if not isinstance(name, str):
            raise SchemaError(f"The column name {name!r} is not a string.", column=repr(name))
    pairs = zip(names, rename(names), strict=True)
    wanted = {name: (governing or {}).get(renamed.lower()) for name, renamed in pairs}
    schema = pa.schema([(name, _infer(head, name, kind)) for name, kind in wanted.items()])

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
                f"A row has the type {type(row).__name__}, not a dict.", row=before + index + 1
            )


def _infer(rows: list[dict[str, Any]], name: str, governing: str | None) -> pa.DataType:
    hint = (
        f"{_ONE_TYPE}, and a declared decimal, such as decimal(38,0), for whole numbers of more"
        " than 64 bits."
    )
    wanted = None if governing is None else arrow_of(governing)
    array = _one_type([row.get(name) for row in rows], name, hint, wanted)
    if governing is not None and fits_all(array, arrow_of(governing)):
        return arrow_of(governing)
    return with_room(array.type)


def _one_type(
    values: list[Any], name: str, hint: str, wanted: pa.DataType | None = None
) -> pa.Array:
    """Return a column's values; an error names the first row of another type, and both types."""
    message = f"The values of {name!r} can't be converted to one type"
    infer = partial(_infer_array, wanted=wanted)
    try:
        return convert_rows(values, infer, message=message, before=0, column=name, hint=hint)
    except SchemaError as error:
        *before, found = (type(value).__name__ for value in values[: error.row])
        others = dict.fromkeys(kind for kind in before if kind not in (found, "NoneType"))
        if others:
            error.message = f"{error.message.rstrip('.')} ({found} after {', '.join(others)})."
        raise


def _dict_batch(chunk: list[dict[str, Any]], schema: pa.Schema, before: int) -> pa.RecordBatch:
    known = set(schema.names)
    for index, row in enumerate(chunk):
        if extra := row.keys() - known:
            raise SchemaError(
                f"Column {min(map(str, extra))!r} is missing in the first {before:,} rows.",
                row=before + index + 1,
                column=min(map(str, extra)),
                hint="include all columns in the first rows, or pass Arrow batches.",
            )
    arrays = []
    for column in schema:
        values = [row.get(column.name) for row in chunk]
        arrays.append(
            convert_rows(
                values,
                partial(_convert_values, wanted=column.type),
                message=f"The value of {column.name!r} is not of type {type_name(column.type)}",
                before=before,
                column=column.name,
            )
        )
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _convert_values(values: list[Any], wanted: pa.DataType) -> pa.Array:
    # `pa.array(values, wanted)` would truncate 1.5 to 1, drop a struct's new fields, and convert
    # numbers to timestamps. Therefore each chunk's own type is inferred first.
    return cast_unchanged(_infer_array(values, wanted), wanted)


def _infer_array(values: list[Any], wanted: pa.DataType | None) -> pa.Array:
    try:
        array = pa.array(values)
    except OverflowError:  # Arrow's whole numbers have at most 64 bits
        if wanted is None or not pt.is_decimal(wanted):
            raise
        array = pa.array([Decimal(one) if type(one) is int else one for one in values])
    # Arrow's inference accepts some mixtures of similar types.
    seen = {type(value) for value in values} - {type(None)}
    if pt.is_date(array.type) and any(issubclass(kind, datetime) for kind in seen):
        raise pa.ArrowInvalid("dates and timestamps are mixed")
    if pt.is_timestamp(array.type):
        if not all(issubclass(kind, (datetime, datetime64)) for kind in seen):
            raise pa.ArrowInvalid("timestamps and other values are mixed")
        if len({v.tzinfo is None for v in values if isinstance(v, datetime)}) > 1:
            raise pa.ArrowInvalid("timestamps with and without a time zone are mixed")
    if pt.is_binary(array.type) and any(issubclass(kind, str) for kind in seen):
        raise pa.ArrowInvalid("strings and bytes are mixed")
    return array


def open_source(
    rows: Any,
    known: Mapping[str, str] | None = None,
    declared: Mapping[str, str] | None = None,
    *,
    widen: bool = False,
    keys: Collection[str] = (),
    rename: Callable[[Sequence[str]], list[str]] = list,
) -> pa.RecordBatchReader | None:
    """Return one reader over rows of any supported kind, or None if there are no rows at all.

    Args:
        rows: an iterable of dicts, record batches or tables; a pandas or other data frame; an Arrow
            table, batch or reader; or the path of a `.parquet` or `.csv` file.
        known: the table's columns by lower-case name, with their types; dicts and text files are
            read in these types.
        declared: the types that the caller declares, in the same form; they take precedence.
        widen: whether values that do not fit a type of the table may get a wider one.
        keys: the names of the key columns, which may also be the index of a pandas data frame.
        rename: returns the names that the columns of the rows have in the table.

    Raises:
        UsageError: the kind of the rows is not supported.
        DataFileError: the file can't be read.
        SchemaError: values of one column have different types.
    """
    if isinstance(rows, (str, os.PathLike)):
        return _open_file(os.fspath(rows), known or {}, declared or {}, widen=widen, rename=rename)
    if isinstance(rows, pa.RecordBatchReader):
        return rows
    governing = {**(known or {}), **(declared or {})}
    if isinstance(rows, dict):
        if rows and all(isinstance(value, (list, tuple, ndarray)) for value in rows.values()):
            raise UsageError(
                "The rows are a dict of columns.",
                hint="pass a list of dicts, one for each row, or a data frame or an Arrow table.",
            )
        return read_dicts(iter([rows]), governing=governing, rename=rename)
    # If pandas is not imported, or only being imported, the rows can't be a data frame.
    frame = getattr(sys.modules.get("pandas"), "DataFrame", None)
    if frame is not None and isinstance(rows, frame):
        if rows.shape == (0, 0):
            return None
        return _from_pandas(rows, {key.lower() for key in keys}, rename)
    if isinstance(rows, pa.RecordBatch):
        return pa.Table.from_batches([rows]).to_reader(BATCH_ROWS)
    if isinstance(rows, pa.Table):
        return rows.to_reader(BATCH_ROWS)
    if hasattr(rows, "__arrow_c_stream__") or hasattr(rows, "__arrow_c_array__"):
        return _from_capsule(rows)
    if not isinstance(rows, Iterable):
        raise UsageError(
            f"Rows of the type {type(rows).__name__} can't be published.",
            hint="pass dicts, a data frame, Arrow data, or the path of a .parquet or .csv file.",
        )
    iterator = iter(rows)
    first = next(iterator, None)
    if first is None:
        return None
    rest = chain([first], iterator)
    if isinstance(first, dict):
        # A list is in memory already, so all its rows determine the schema.
        first_chunk = len(rows) if isinstance(rows, list) else BATCH_ROWS
        return read_dicts(rest, first_chunk, governing, rename)
    if isinstance(first, (pa.RecordBatch, pa.Table)):
        return pa.RecordBatchReader.from_batches(first.schema, _alike(rest, first.schema))
    raise UsageError(
        f"An iterable of {type(first).__name__} can't be published.",
        hint="pass an iterable of dicts or of Arrow record batches.",
    )


def _from_pandas(
    frame: Any, keys: set[str], rename: Callable[[Sequence[str]], list[str]]
) -> pa.RecordBatchReader:
    wanted = keys - {name.lower() for name in rename([str(name) for name in frame.columns])}
    levels = [name for name in frame.index.names if isinstance(name, str)]
    pairs = zip(levels, rename(levels), strict=True)
    levels = [name for name, renamed in pairs if renamed.lower() in wanted]
    if levels:  # Arrow would drop them with the index
        frame = frame.reset_index(level=levels)
    try:
        table = pa.Table.from_pandas(frame, preserve_index=False)
    except UNFIT as error:
        _check_objects(frame, [True] * len(frame.columns))
        raise SchemaError(
            f"The data frame can't be converted to Arrow: {' '.join(map(str, error.args))}.",
            hint="use distinct column names, and values of one type per column.",
        ) from error
    # Arrow would change values of some mixtures, such as dates and timestamps.
    mixed = (pt.is_date, pt.is_timestamp, pt.is_binary)
    _check_objects(frame, [any(one(kind) for one in mixed) for kind in table.schema.types])
    # Decimals are objects in pandas; Arrow infers only as many digits as these values have.
    kinds = zip(table.schema, frame.dtypes, strict=True)
    schema = pa.schema(
        [f.with_type(with_room(f.type)) if str(dtype) == "object" else f for f, dtype in kinds],
        table.schema.metadata,
    )
    return (table if schema == table.schema else table.cast(schema)).to_reader(BATCH_ROWS)


def _check_objects(frame: Any, chosen: list[bool]) -> None:
    """Check that the chosen columns of objects in a data frame each have values of one type."""
    for place, name in enumerate(frame.columns):
        column = frame.iloc[:, place]
        if chosen[place] and str(column.dtype) in ("object", "category"):
            pairs = zip(column, column.isna(), strict=True)
            values = [None if is_missing else value for value, is_missing in pairs]
            _one_type(values, str(name), f"{_ONE_TYPE}.")


def _from_capsule(rows: Any) -> pa.RecordBatchReader:
    try:
        if hasattr(rows, "__arrow_c_stream__"):
            return pa.RecordBatchReader.from_stream(rows)
        batch = pa.record_batch(rows)
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise UsageError(
            f"Rows of the type {type(rows).__name__} can't be published: {error}.",
            hint="pass data with named columns.",
        ) from error
    return pa.RecordBatchReader.from_batches(batch.schema, [batch])


def _alike(elements: Iterable[Any], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the batches of an iterable; refuse one whose schema differs from the first one's."""
    first = [(field.name, field.type) for field in schema]
    before = 0
    for element in elements:
        if not isinstance(element, (pa.RecordBatch, pa.Table)):
            raise UsageError(
                f"An element has the type {type(element).__name__}, not a record batch.",
                row=before + 1,
            )
        here = [(field.name, field.type) for field in element.schema]
        if here != first:
            differing = sorted(name for name, _ in set(here) ^ set(first))
            raise SchemaError(
                f"The batch after {before:,} rows has other columns or types than the first one.",
                row=before + 1,
                column=differing[0] if differing else None,
                hint="use one schema for all batches, or publish them separately.",
            )
        before += element.num_rows
        yield from element.to_batches() if isinstance(element, pa.Table) else [element]


def _open_file(
    path: str,
    known: Mapping[str, str],
    declared: Mapping[str, str],
    *,
    widen: bool,
    rename: Callable[[Sequence[str]], list[str]],
) -> pa.RecordBatchReader:
    name = os.path.basename(path)
    if os.path.isdir(path):
        raise UsageError(f"{path} is a folder, not a file.", hint=_FILES_HINT)
    try:
        if is_csv(path):
            csv = open_csv(path, name, known, declared, widen=widen, rename=rename)
            return pa.RecordBatchReader.from_batches(csv.schema, _readable(csv, name))
        if os.path.getsize(path) == 0:
            raise DataFileError("The file has zero bytes.", file=name, hint="write the file again.")
        parquet = pq.ParquetFile(path)
    except FileNotFoundError as error:
        raise UsageError(
            f"There is no file {path}.",
            hint=_FILES_HINT
            if has_magic(path)
            else "check the path. In Python, pass rows or keys as a list.",
        ) from error
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise _unreadable(name, error) from error
    batches = _readable(parquet.iter_batches(BATCH_ROWS), name)
    return pa.RecordBatchReader.from_batches(parquet.schema_arrow, batches)


def _readable(batches: Iterable[pa.RecordBatch], name: str) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a file, of which later ones may turn out to be unreadable."""
    try:
        yield from batches
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(name, error) from error


def is_csv(name: str) -> bool:
    """Return whether a file to publish is CSV, by its extension."""
    return name.lower().endswith((".csv", ".csv.gz"))


def _unreadable(name: str, error: Exception) -> DataFileError:
    first = first_line(error).rstrip(".")
    found = re.search(r"Row #(\d+)", first)
    text = is_csv(name)
    if isinstance(error, pa.ArrowInvalid) and not (text or name.lower().endswith(".parquet")):
        return DataFileError(
            "The file is neither a Parquet nor a CSV file.",
            file=name,
            hint="export it again as a .parquet, .csv or .csv.gz file.",
        )
    if text and first.startswith("straddling object"):  # Arrow's term for a row of several blocks
        first = f"a row has more than {_BLOCK >> 20} MiB, or a quote is not closed"
    return DataFileError(
        f"The file is not a readable {'CSV' if text else 'Parquet'} file: {first}.",
        file=name,
        row=int(found[1]) - 1 if found else None,  # Arrow counts the header
        hint=CSV_HINT if text else "publish a .parquet, .csv or .csv.gz file.",
    )
