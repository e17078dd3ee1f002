"""Delimited text as typed columns: what the mirror, and the check before it, read a text file as.

Arrow parses. What it does not know, an escape that concerns quotes alone, and a lone carriage
return that ends no row, is replaced before it by characters that no text has, and put back after.
Memory stays at one block. A value that does not fit its declared type is named by row and column.
"""

from __future__ import annotations

import base64
import codecs
import re
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.types as pt

from mirrorlake.errors import DataFileError
from mirrorlake.landing.casts import UNFIT
from mirrorlake.landing.compression import Pieces, open_decompressed
from mirrorlake.landing.markers import MARKER, MARKER_HINT
from mirrorlake.landing.metadata import TableMetadata
from mirrorlake.landing.rows import Rejects
from mirrorlake.landing.text_format import TextFormat, arrow_type

_BLOCK = 8 << 20  # bytes; no row may be longer
_PIECE = 1 << 20
# Noncharacters: Unicode reserves them for a program's own use, so that no text has them.
_QUOTE, _RETURN = "\ufdd0", "\ufdd1"
_ZONED = r"\d\d:\d\d[0-9:.]*(Z|[+-]\d\d(:?\d\d)?)$"


def read_text(
    open_file: Callable[[], IO[bytes]],
    metadata: TableMetadata,
    *,
    name: str,
    rejects: Rejects | None = None,
) -> pa.RecordBatchReader:
    """The file's rows in the types that the table's metadata declares; other columns are text.

    Args:
        open_file: opens the file, which is done twice; gzip, zstd and snappy are recognised.
        metadata: what the table's folder declares.
        name: what to call the file in errors.
        rejects: collects bad rows, which are left out; without it the first one is an error.

    Raises:
        DataFileError: while reading, too: a row with too few or too many columns, a value that is
            not of its type, bytes that are not of the encoding; with the row, counted from 1
            without the header.
    """
    columns = _parse(open_file(), metadata.text, name, {}).schema.names
    texts = dict.fromkeys(columns, pa.string())
    reader = _parse(open_file(), metadata.text, name, texts, rejects)
    declared = {column.lower(): kind for column, kind in metadata.columns.items()}
    fields = []
    for column in columns:
        if column.lower() == MARKER.lower():
            kind = pa.int32()
        elif column.lower() in declared:
            kind = arrow_type(declared[column.lower()])
        else:
            kind = pa.string()
        fields.append(pa.field(column, kind))
    schema = pa.schema(fields)
    return pa.RecordBatchReader.from_batches(
        schema, _typed(reader, schema, metadata, name, rejects)
    )


def _parse(
    source: IO[bytes],
    text: TextFormat,
    name: str,
    types: dict[str, pa.DataType],
    rejects: Rejects | None = None,
) -> pacsv.CSVStreamingReader:
    def skip(row: pacsv.InvalidRow) -> str:
        if not types:
            return "skip"  # only the header is wanted
        if rejects is None:
            return "error"
        reason = f"Expected {row.expected_columns} columns, got {row.actual_columns}."
        rejects.add(row.number - 1, None, reason, row.text)  # Arrow counts the header
        rejects.ragged.append(row.number - 1)
        return "skip"

    alone = len(types) == 1  # an empty line is a NULL then
    try:
        return pacsv.open_csv(
            Pieces(_pieces(source, text, name)),
            read_options=pacsv.ReadOptions(use_threads=False, block_size=_BLOCK),
            parse_options=pacsv.ParseOptions(
                delimiter=text.separator,
                quote_char=text.quote or False,
                double_quote=True,
                newlines_in_values=bool(text.quote),
                ignore_empty_lines=not alone,
                invalid_row_handler=skip,
            ),
            convert_options=pacsv.ConvertOptions(
                column_types=types,
                null_values=[text.null],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
    except (pa.ArrowException, OSError) as error:
        raise _broken(name, error) from error


def _typed(
    reader: pacsv.CSVStreamingReader,
    schema: pa.Schema,
    metadata: TableMetadata,
    name: str,
    rejects: Rejects | None,
) -> Iterator[pa.RecordBatch]:
    before = 0
    while True:
        try:
            batch = reader.read_next_batch()
        except StopIteration:
            return
        except (pa.ArrowException, OSError) as error:
            raise _broken(name, error) from error
        texts = [_put_back(column, metadata.text) for column in batch.columns]
        # The parser skips ragged rows a block ahead: those up to here are known.
        numbers = _file_rows(before, batch.num_rows, rejects)
        before += batch.num_rows
        bad: dict[int, None] = {}
        arrays = []
        for field, values in zip(schema, texts, strict=True):
            convert = _converter(field.type, metadata.text.null)
            try:
                arrays.append(convert(values))
                continue
            except UNFIT as error:
                unfit = _unfit(values, convert)
                if rejects is None:
                    raise DataFileError(
                        f"{values[unfit[0]].as_py()!r} is not of type {field.type}.",
                        file=name,
                        row=numbers[unfit[0]],
                        column=field.name,
                        hint=MARKER_HINT
                        if field.name.lower() == MARKER.lower()
                        else "correct the value, or its DataType.",
                    ) from error
            for index in unfit:
                if index not in bad:
                    row = {n: t[index].as_py() for n, t in zip(schema.names, texts, strict=True)}
                    reason = f"{values[index].as_py()!r} is not of type {field.type}."
                    rejects.add(numbers[index], field.name, reason, row)
            bad |= dict.fromkeys(unfit)
            mask = pa.array([index in bad for index in range(len(values))])
            arrays.append(convert(pc.if_else(mask, pa.scalar(None, values.type), values)))
        typed = pa.RecordBatch.from_arrays(arrays, schema=schema)
        kept = pa.array([index not in bad for index in range(typed.num_rows)])
        yield typed.filter(kept) if bad else typed


def _file_rows(before: int, count: int, rejects: Rejects | None) -> range | list[int]:
    """The rows' places in the file, from 1, given that the parser left ragged ones out."""
    if rejects is None or not rejects.ragged:
        return range(before + 1, before + count + 1)
    return original_rows(range(before + 1, before + count + 1), rejects.ragged)


def original_rows(rows: Iterable[int], left_out: Iterable[int]) -> list[int]:
    """The places of rows, from 1 and rising, among all rows, of which some were left out."""
    gaps = iter(sorted(left_out))
    gap = next(gaps, None)
    found, more = [], 0
    for row in rows:
        while gap is not None and gap <= row + more:
            more += 1
            gap = next(gaps, None)
        found.append(row + more)
    return found


def _unfit(values: pa.Array, convert: Callable[[Any], pa.Array], at: int = 0) -> list[int]:
    """The positions of all values that a conversion refuses, found by halving."""
    try:
        convert(values)
        return []
    except UNFIT:
        if len(values) == 1:
            return [at]
    half = len(values) // 2
    return _unfit(values[:half], convert, at) + _unfit(values[half:], convert, at + half)


def _broken(name: str, error: Exception) -> DataFileError:
    first = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
    found = re.search(r"Row #(\d+)", first)
    row = int(found[1]) if found else 0
    return DataFileError(
        f"Not readable as delimited text: {first}.",
        file=name,
        row=row - 1 if row > 1 else None,  # Arrow counts the header
        hint="compare it with FileFormatTypeProperties, and upload it again under its name.",
    )


def _converter(kind: pa.DataType, null: str) -> Callable[[Any], pa.Array]:
    """From texts to a type; raises one of `UNFIT`."""
    if pt.is_string(kind):
        return lambda texts: texts

    def convert(texts: pa.Array) -> pa.Array:
        texts = pc.utf8_trim_whitespace(texts)
        # Nothing, quoted or not, is no number and no date.
        empty = pc.or_(pc.equal(texts, ""), pc.equal(texts, null))
        texts = pc.if_else(empty, pa.scalar(None, pa.string()), texts)
        if pt.is_timestamp(kind):
            return _moments(texts).cast(kind)
        if pt.is_binary(kind):
            return pa.array([None if t is None else _bytes(t) for t in texts.to_pylist()], kind)
        if pt.is_integer(kind):
            texts = pc.replace_substring_regex(texts, r"^\+(\d)", r"\1")
        return texts.cast(kind)

    return convert


def _moments(texts: pa.Array) -> pa.Array:
    """ISO texts with a zone each: without one they are UTC; digits below a microsecond are cut."""
    texts = pc.replace_substring_regex(texts, r"(\.\d{6})\d+", r"\1")
    day = pc.match_substring_regex(texts, r"^\d{4}-\d\d-\d\d$")
    texts = pc.if_else(day, pc.binary_join_element_wise(texts, "00:00:00", "T"), texts)
    zoned = pc.match_substring_regex(texts, _ZONED)
    return pc.if_else(zoned, texts, pc.binary_join_element_wise(texts, "Z", ""))


def _bytes(text: str) -> bytes:
    if text[:2].lower() == "0x":
        return bytes.fromhex(text[2:])
    return base64.b64decode(text, validate=True)


def _put_back(texts: pa.Array, text: TextFormat) -> pa.Array:
    for stand_in, char in ((_QUOTE, text.quote), (_RETURN, "\r")):
        if pc.any(pc.match_substring(texts, stand_in)).as_py():
            texts = pc.replace_substring(texts, stand_in, char)
    return texts


def _pieces(source: IO[bytes], text: TextFormat, name: str) -> Iterator[bytes]:
    """The text in UTF-8, with stand-ins for what Arrow would read otherwise."""
    decoder = codecs.getincrementaldecoder(text.encoding)()
    escaped = None
    if text.quote and text.escape and text.escape != text.quote:
        escaped = re.compile(f"({re.escape(text.escape)}+){re.escape(text.quote)}")
    held, lines = "", 0
    data = open_decompressed(source, name)
    while True:
        raw = data.read(_PIECE)
        try:
            piece = held + decoder.decode(raw, final=not raw)
        except UnicodeDecodeError as error:
            raise DataFileError(
                f"Not a text in {text.encoding.removesuffix('-sig')}: {error.reason}.",
                file=name,
                row=max(1, lines + error.object[: error.start].count(b"\n")),
                hint="set Encoding in FileFormatTypeProperties to what the file is written in.",
            ) from error
        held = ""
        if raw:  # a run of escapes, or a carriage return, may go on in the next piece
            kept = len(piece.rstrip("\r" + text.escape))
            piece, held = piece[:kept], piece[kept:]
        lines += piece.count("\n")
        if escaped is not None:
            piece = escaped.sub(lambda found: _unescape(found, text), piece)
        if text.row_separator != "\r":
            piece = re.sub("\r(?!\n)", _RETURN, piece)
        if not raw and not piece.endswith(("\r", "\n")):
            piece += "\n"  # Arrow sees no header in a file of one unfinished line
        if piece:
            yield piece.encode()
        if not raw:
            return


def _unescape(found: re.Match[str], text: TextFormat) -> str:
    """A run of escapes before a quote: each two are one, and an odd one takes the quote along."""
    half, odd = divmod(len(found[1]), 2)
    return text.escape * half + (_QUOTE if odd else text.quote)
