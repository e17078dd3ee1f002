"""Delimited text as typed columns: what the mirror, and the check before it, read a text file as.

Arrow parses. What it does not know, an escape that concerns quotes alone, and a lone carriage
return that ends no row, is replaced before it by characters that no text has, and put back after.
Memory stays at one block. A value that does not fit its declared type is named by row and column.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from mirrorlake.errors import DataFileError, first_line, in_file
from mirrorlake.landing.casts import UNFIT
from mirrorlake.landing.metadata import MARKER, MARKER_HINT, TableMetadata
from mirrorlake.landing.rows import Rejects
from mirrorlake.landing.text_format import (
    Pieces,
    TextFormat,
    arrow_type,
    converter,
    open_decompressed,
)

_BLOCK = 8 << 20  # bytes; no row may be longer
_PIECE = 1 << 20
# Noncharacters: Unicode reserves them for a program's own use, so that no text has them.
_QUOTE, _RETURN = "\ufdd0", "\ufdd1"
_END = "\ufdd2"  # a last row of our own: where it is missing, a quote was never closed
_CUT = "\ufdd3"  # where bytes are not of the encoding; the rows before it tell its place
_MARKS = {"utf-16": (b"\xff\xfe", b"\xfe\xff"), "utf-32": (b"\xff\xfe\0\0", b"\0\0\xfe\xff")}


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
    text, rejects = metadata.text, rejects or Rejects()
    with in_file(name):
        written = _parse(open_file(), _Bytes(text, name), [], rejects).schema.names
        data = _Bytes(text, name)
        reader = _parse(open_file(), data, written, rejects)
    types = {column.lower(): arrow_type(kind) for column, kind in metadata.columns.items()}
    types[MARKER.lower()] = pa.int32()
    columns = [_plain(found, text) for found in written]
    schema = pa.schema([(column, types.get(column.lower(), pa.string())) for column in columns])

    def batches() -> Iterator[pa.RecordBatch]:
        with in_file(name):
            yield from _typed(reader, schema, data, rejects)

    return pa.RecordBatchReader.from_batches(schema, batches())


def _parse(
    source: IO[bytes], data: _Bytes, columns: list[str], rejects: Rejects
) -> pacsv.CSVStreamingReader:
    """Opens the file; without `columns` to learn its columns only, else to read all as text."""

    def ragged(row: pacsv.InvalidRow) -> str:
        if not columns:
            return "skip"  # only the header is wanted
        if not rejects.most:
            return "error"
        reason = f"Expected {row.expected_columns} columns, got {row.actual_columns}."
        rejects.add(row.number - 1, None, reason, "", row.text)  # Arrow counts the header
        rejects.ragged.append(row.number - 1)
        return "skip"

    text = data.text
    alone = len(columns) == 1  # an empty line is a NULL then
    end = text.separator.join([_END, *[""] * (len(columns) - 1)]) if columns else ""
    try:
        return pacsv.open_csv(
            Pieces(data.pieces(source, end)),
            read_options=pacsv.ReadOptions(use_threads=False, block_size=_BLOCK),
            parse_options=pacsv.ParseOptions(
                delimiter=text.separator,
                quote_char=text.quote or False,
                double_quote=True,
                newlines_in_values=bool(text.quote),
                ignore_empty_lines=not alone,
                invalid_row_handler=ragged,
            ),
            convert_options=pacsv.ConvertOptions(
                column_types=dict.fromkeys(columns, pa.string()),
                null_values=[text.null],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
    except (pa.ArrowException, OSError) as error:
        raise data.broken(error) from error


def _typed(
    reader: pacsv.CSVStreamingReader, schema: pa.Schema, data: _Bytes, rejects: Rejects
) -> Iterator[pa.RecordBatch]:
    before, ended = 0, False
    while True:
        try:
            batch = reader.read_next_batch()
        except StopIteration:
            break
        except (pa.ArrowException, OSError) as error:
            raise data.broken(error) from error
        if batch.num_rows and batch.column(0)[-1].as_py() == _END:
            batch, ended = batch.slice(0, batch.num_rows - 1), True
        texts = [_put_back(column, data.text) for column in batch.columns]
        bad: set[int] = set()
        arrays = []
        for field, values in zip(schema, texts, strict=True):
            convert = converter(field.type, data.text.null)
            unfit = _unfit(values, convert)
            # The parser leaves out ragged rows a block ahead: those up to here are known.
            places = original_rows((before + n + 1 for n in unfit), rejects.ragged)
            rows = dict(zip(unfit, places, strict=True))
            for index in unfit:
                if _CUT in values[index].as_py():
                    raise data.unfinished(rows[index])
                if index not in bad:
                    reason = f"{values[index].as_py()!r} is not of type {field.type}."
                    is_marker = field.name.lower() == MARKER.lower()
                    hint = MARKER_HINT if is_marker else "correct the value, or its DataType."
                    row = {n: t[index].as_py() for n, t in zip(schema.names, texts, strict=True)}
                    rejects.add(rows[index], field.name, reason, hint, row)
            bad.update(unfit)
            if unfit:
                mask = pa.array([index in unfit for index in range(len(values))])
                values = pc.if_else(mask, pa.scalar(None, values.type), values)
            arrays.append(convert(values))
        before += batch.num_rows
        typed = pa.RecordBatch.from_arrays(arrays, schema=schema)
        if bad:
            typed = typed.filter(pa.array([n not in bad for n in range(typed.num_rows)]))
        yield typed
    if not ended:
        raise data.unfinished(before)


def original_rows(rows: Iterable[int], left_out: Iterable[int]) -> list[int]:
    """The places of rows, from 1 and rising, among all rows, of which some were left out."""
    gaps = sorted(left_out)
    found, more = [], 0
    for row in rows:
        while more < len(gaps) and gaps[more] <= row + more:
            more += 1
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


def _put_back(texts: pa.Array, text: TextFormat) -> pa.Array:
    for stand_in, char in ((_QUOTE, text.quote), (_RETURN, "\r")):
        if pc.any(pc.match_substring(texts, stand_in)).as_py():
            texts = pc.replace_substring(texts, stand_in, char)
    return texts


def _plain(found: str, text: TextFormat) -> str:
    """What Arrow made of a text of ours, as it is in the file."""
    return found.replace(_QUOTE, text.quote).replace(_RETURN, "\r").replace(_CUT, "")


class _Bytes:
    """A file's text in UTF-8 with stand-ins for what Arrow would read otherwise; and its errors.

    Args:
        text: how it is written.
        name: what to call the file in errors.
    """

    def __init__(self, text: TextFormat, name: str) -> None:
        self.text = text
        self.name = name
        self._undecoded = ""  # why the text ends before the file does

    def pieces(self, source: IO[bytes], end: str) -> Iterator[bytes]:
        """The text, then a row of our own."""
        text = self.text
        escaped = None
        if text.quote and text.escape and text.escape != text.quote:
            escaped = re.compile(f"({re.escape(text.escape)}+){re.escape(text.quote)}")
        data = open_decompressed(source, self.name)
        raw = data.read(_PIECE)
        decoder = codecs.getincrementaldecoder(_with_order(text.encoding, raw))()
        held, finished = "", False
        while True:
            piece = held + self._decode(decoder, raw)
            last = not raw or bool(self._undecoded)
            held = ""
            if not last:  # a run of escapes, or a carriage return, may go on in the next piece
                kept = len(piece.rstrip("\r" + text.escape))
                piece, held = piece[:kept], piece[kept:]
            if escaped is not None:
                piece = escaped.sub(lambda found: _unescape(found, text), piece)
            if text.row_separator != "\r":
                piece = re.sub("\r(?!\n)", _RETURN, piece)
            if piece:
                finished = piece.endswith(("\r", "\n"))
                yield piece.encode()
            if last:
                break
            raw = data.read(_PIECE)
        if not self._undecoded:
            # Arrow sees no header in a file of one unfinished line.
            yield ("" if finished else "\n").encode() + end.encode()

    def _decode(self, decoder: codecs.IncrementalDecoder, raw: bytes) -> str:
        try:
            return decoder.decode(raw, final=not raw)
        except UnicodeError as error:
            if not isinstance(error, UnicodeDecodeError):  # of a codec that tells no more
                self._undecoded = str(error)
                return _CUT
            self._undecoded = error.reason
            return error.object[: error.start].decode(error.encoding, "ignore") + _CUT

    def broken(self, error: Exception) -> DataFileError:
        """What to say of an error of the parser."""
        first = _plain(first_line(error), self.text)
        found = re.search(r"Row #(\d+)", first)
        row = int(found[1]) - 1 if found else 0  # Arrow counts the header
        if self._undecoded:
            return self.unfinished(row)
        return DataFileError(
            f"Not readable as delimited text: {first.rstrip('.')}.",
            row=row or None,
            hint="compare it with FileFormatTypeProperties, and upload it again under its name.",
        )

    def unfinished(self, row: int) -> DataFileError:
        """What to say of a text that ends within a row."""
        if self._undecoded:
            return DataFileError(
                f"Not a text in {self.text.encoding.removesuffix('-sig')}: {self._undecoded}.",
                row=row or None,
                hint="set Encoding in FileFormatTypeProperties to what the file is written in.",
            )
        return DataFileError(
            f"A value begins with {self.text.quote} and has no end.",
            row=row or None,
            hint="close the quote, or set QuoteCharacter and EscapeCharacter as the file has them.",
        )


def _with_order(encoding: str, start: bytes) -> str:
    """The encoding; without a byte order mark the little end comes first, as on Windows."""
    marks = _MARKS.get(encoding)
    return encoding if marks is None or start.startswith(marks) else f"{encoding}-le"


def _unescape(found: re.Match[str], text: TextFormat) -> str:
    """A run of escapes before a quote: each two are one, and an odd one takes the quote along."""
    half, odd = divmod(len(found[1]), 2)
    return text.escape * half + (_QUOTE if odd else text.quote)
