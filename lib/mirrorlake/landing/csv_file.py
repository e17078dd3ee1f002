"""CSV files of applications as typed columns.

Each file is read twice: first to find every column's type from all of its values, then to convert
them. Memory stays at one block. An existing or a declared type governs; other columns get the
narrowest type that keeps every value as it is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.types as pt

from mirrorlake.errors import DataFileError
from mirrorlake.landing.casts import UNFIT, first_unfit
from mirrorlake.landing.text_format import ZONED, converter
from mirrorlake.landing.types import WIDEN_HINT, arrow_of, column_type, roomy_decimal, widened

_BLOCK = 8 << 20  # bytes; no row may be longer
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
# A number would lose a leading zero or plus, and read hexadecimal digits as a whole number.
_NO_NUMBER = r"^(\+|[+-]?0[0-9xX])"
_EXACT_DIGITS = 15  # a double gives back every number of so many digits
_FINEST = pa.decimal256(76, 38)


def open_csv(
    path: str, name: str, known: Mapping[str, str], declared: Mapping[str, str], *, widen: bool
) -> pa.RecordBatchReader:
    """Open a CSV file, after a first pass that finds its columns' types.

    Args:
        path: the file; `.gz` is decompressed.
        name: what to call the file in errors.
        known: the table's columns, lower case, with their types as Delta names them.
        declared: the types that the caller declares, in the same way; they go first.
        widen: whether values that an existing type can't hold may take a wider one.

    Raises:
        DataFileError: not a CSV file, or values that a governing type can't hold; names the first
            row of every such column, counted from 1 without the header.
        pa.ArrowException: as `DataFileError`, of the parser, while reading, too.
    """
    names = pacsv.open_csv(path, read_options=_READ, parse_options=_PARSE).schema.names
    columns = _look(path, names, known, declared, widen=widen)
    misfits = [column for column in columns if column.found is None]
    if misfits:
        wider = _look(path, names, known, declared, widen=True)
        helps = all(column.found is not None for column in wider)
        hint = WIDEN_HINT if helps else "correct the values; existing and declared types govern."
        raise _refused(misfits, name, hint)
    schema = pa.schema([(column.name, column.found) for column in columns])

    def typed() -> Iterator[pa.RecordBatch]:
        for batch in _blocks(path, names):
            arrays = [_convert(v, f.type) for v, f in zip(batch.columns, schema, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    return pa.RecordBatchReader.from_batches(schema, typed())


def _look(
    path: str,
    names: list[str],
    known: Mapping[str, str],
    declared: Mapping[str, str],
    *,
    widen: bool,
) -> list[_Column]:
    columns = []
    for name in names:
        lower = name.lower()
        governing = declared.get(lower, known.get(lower))
        columns.append(_Column(name, governing, widen=widen and lower not in declared))
    before = 0
    for batch in _blocks(path, names):
        for column, values in zip(columns, batch.columns, strict=True):
            column.look(values, before)
        before += batch.num_rows
    return columns


# One thread: Arrow only then names the row of a parse error.
_READ = pacsv.ReadOptions(use_threads=False, block_size=_BLOCK)
_PARSE = pacsv.ParseOptions(newlines_in_values=True)


def _blocks(path: str, names: list[str]) -> Iterator[pa.RecordBatch]:
    """Yield the file's values as they are written, in bytes."""
    options = pacsv.ConvertOptions(column_types=dict.fromkeys(names, pa.binary()))
    yield from pacsv.open_csv(
        path, read_options=_READ, parse_options=_PARSE, convert_options=options
    )


def _convert(values: pa.Array, wanted: pa.DataType) -> pa.Array:
    if pt.is_binary(wanted):
        return values
    if pt.is_null(wanted):
        return pa.nulls(len(values))
    return converter(wanted, *_NULLS)(values.cast(pa.string()))


class _Column:
    """One column's type, from the values seen so far.

    Args:
        name: its name as written.
        governing: the table's or the declared type; None for a new column.
        widen: whether a wider type is looked for, too.

    Attributes:
        misfit: the first row that the governing type can't hold, and its value; row 0 if none.
    """

    def __init__(self, name: str, governing: str | None, *, widen: bool) -> None:
        self.name = name
        self.governing = governing
        self.misfit = (0, "")
        self._widen = widen
        self._kinds = list(_INFERRED)
        self._empty = self._exact = self._plain = True
        self._whole = self._scale = 0

    def look(self, values: pa.Array, before: int) -> None:
        """Look at some values, of which the first follows `before` rows."""
        if self.governing is not None and not self.misfit[0]:
            convert = partial(_convert, wanted=arrow_of(self.governing))
            try:
                convert(values)
            except UNFIT:
                index = first_unfit(values, convert)
                text = values[index].as_py().decode(errors="backslashreplace")
                self.misfit = (before + index + 1, text)
        if self.governing is None or self._widen:
            self._infer(values)

    def _infer(self, values: pa.Array) -> None:
        try:
            texts = pc.utf8_trim_whitespace(values.cast(pa.string()))
        except pa.ArrowInvalid:  # no UTF-8
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
        """The column's type; None if the governing one can't hold its values."""
        if self.governing is None:
            return self._inferred()
        if not self.misfit[0]:
            return arrow_of(self.governing)
        for kind in (self._inferred(), self._decimal()) if self._widen else ():
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
        """Return the decimal that holds the column's numbers, with room for others."""
        if pa.float64() not in self._kinds or not self._plain:
            return None
        kind = roomy_decimal(self._whole, self._scale)
        return None if kind is None else arrow_of(kind)


def _all_are(texts: pa.Array, kind: pa.DataType) -> bool:
    """Return whether all texts are values of a type, written as one writes them."""
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
    """Return whether doubles give back these plain numbers."""
    doubles = texts.cast(pa.float64()).cast(pa.string())
    try:
        return bool(texts.cast(_FINEST).equals(doubles.cast(_FINEST)))
    except pa.ArrowInvalid:  # more digits than any decimal has
        return False


def _refused(misfits: list[_Column], name: str, hint: str) -> DataFileError:
    found = [
        f"{column.misfit[1]!r} in row {column.misfit[0]} of column {column.name!r} "
        f"is not of type {column.governing}"
        for column in misfits
    ]
    count = "" if len(found) == 1 else f"{len(found)} columns have values of another type: "
    row, column = min((column.misfit[0], column.name) for column in misfits)
    return DataFileError(
        f"{count}{'; '.join(found)}.", file=name, row=row, column=column, hint=hint
    )
