"""Delimited text as typed columns: what the mirror, and the check before it, read a text file as.

Arrow parses. What it does not know, an escape that concerns quotes alone, and a lone carriage
return that ends no row, is replaced before it by characters that no text has, and put back after.
Memory stays at one block. A value that does not fit its declared type is named by row and column.
"""

from __future__ import annotations

import base64
import codecs
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import IO, Any, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.types as pt

from mirrorlake.errors import DataFileError, first_line, in_file
from mirrorlake.landing.metadata import (
    MARKER,
    MARKER_HINT,
    TableMetadata,
    TextFormat,
    arrow_type,
)

# What Arrow raises for values it can't hold: too large, no UTF-8, of another type.
UNFIT = (pa.ArrowException, TypeError, ValueError, OverflowError)


@dataclass(frozen=True)
class Reject:
    """One row that can't be applied.

    Attributes:
        row: its position in the file, counted from 1.
        column: the column at fault, if it is one.
        content: the row as JSON, as far as it can be read.
    """

    row: int
    column: str | None
    reason: str
    content: str


@dataclass
class Rejects:
    """A file's bad rows: collected, up to a number that means that the file itself is bad.

    Attributes:
        most: that number; with 0 the first bad row is an error.
        ragged: the rows that a parser of text left out, since they have not all columns.
    """

    most: int = 0
    found: list[Reject] = field(default_factory=list)
    ragged: list[int] = field(default_factory=list)

    def add(self, row: int, column: str | None, reason: str, hint: str, content: Any) -> None:
        """Takes one row.

        Raises:
            DataFileError: none is to be left out, or there are too many.
        """
        if not self.most:
            raise DataFileError(reason, row=row, column=column, hint=hint)
        if len(self.found) == self.most:
            raise DataFileError(
                f"More than {self.most} rows can't be applied; the first is this: {reason}",
                row=self.found[0].row,
                column=self.found[0].column,
                hint="upload a sound file under the same name.",
            )
        text = json.dumps(content, default=str, ensure_ascii=False)
        self.found.append(Reject(row, column, reason, text))


COMPRESSED = ("gz", "gzip", "zst", "zstd", "snappy")
_GZIP, _ZSTD, _SNAPPY = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\xff\x06\x00\x00sNaPpY"


ZONED = r"\d\d:\d\d[0-9:.]*(Z|[+-]\d\d(:?\d\d)?)$"


def converter(kind: pa.DataType, *nulls: str) -> Callable[[Any], pa.Array]:
    """Return what converts texts to a type, or raises one of `UNFIT`.

    Args:
        kind: the type.
        nulls: the texts that mean NULL, besides the empty one.
    """
    if pt.is_string(kind):
        return lambda texts: texts

    def convert(texts: pa.Array) -> pa.Array:
        texts = pc.utf8_trim_whitespace(texts)
        # Nothing, quoted or not, is no number and no date.
        empty = pc.is_in(texts, value_set=pa.array(["", *nulls]))
        texts = pc.if_else(empty, pa.scalar(None, pa.string()), texts)
        if pt.is_timestamp(kind):
            return _timestamps(texts, zoned=kind.tz is not None).cast(kind)
        if pt.is_time(kind):  # Arrow casts no text to a time
            texts = pc.replace_substring_regex(texts, r"(\.\d{6})\d+$", r"\1")
            day = pc.binary_join_element_wise("1970-01-01", texts, "T")
            return day.cast(pa.timestamp("us")).cast(kind)
        if pt.is_binary(kind):
            return pa.array([None if t is None else _bytes(t) for t in texts.to_pylist()], kind)
        if pt.is_integer(kind):
            texts = pc.replace_substring_regex(texts, r"^\+(\d)", r"\1")
        values = texts.cast(kind)
        if pt.is_floating(kind):
            # Infinity has to be written out; a number too large must not become it.
            written = pc.match_substring_regex(texts, "^[+-]?inf", ignore_case=True)
            if pc.any(pc.and_not(pc.is_inf(values), written)).as_py():
                raise pa.ArrowInvalid("the number is too large")
        return values

    return convert


def _timestamps(texts: pa.Array, *, zoned: bool) -> pa.Array:
    """ISO texts with a zone each: without one they are UTC; digits below a microsecond are cut."""
    texts = pc.replace_substring_regex(texts, r"(\.\d{6})\d+", r"\1")
    if not zoned:
        return texts
    day = pc.match_substring_regex(texts, r"^\d{4}-\d\d-\d\d$")
    texts = pc.if_else(day, pc.binary_join_element_wise(texts, "00:00:00", "T"), texts)
    zoned = pc.match_substring_regex(texts, ZONED)
    return pc.if_else(zoned, texts, pc.binary_join_element_wise(texts, "Z", ""))


def _bytes(text: str) -> bytes:
    if text[:2].lower() == "0x":
        return bytes.fromhex(text[2:])
    return base64.b64decode(text, validate=True)


def open_decompressed(source: IO[bytes], name: str) -> IO[bytes]:
    """The plain bytes of a file that may be compressed.

    Args:
        source: the file, from its beginning.
        name: its name; `.snappy` tells Hadoop's framing, which has no first bytes of its own.

    Raises:
        DataFileError: while reading, too: the compressed data are broken.
    """
    start = source.read(len(_SNAPPY))
    source.seek(0)
    for magic, codec in ((_GZIP, "gzip"), (_ZSTD, "zstd")):
        if start.startswith(magic):
            return cast("IO[bytes]", pa.CompressedInputStream(source, codec))
    if start == _SNAPPY:
        return cast("IO[bytes]", Pieces(_framed(source)))
    if name.lower().endswith(".snappy"):
        return cast("IO[bytes]", Pieces(_hadoop(source)))
    return source


def _framed(source: IO[bytes]) -> Iterator[bytes]:
    """Snappy's own framing format: chunks of a type byte, a length of three, a checksum, data."""
    while header := source.read(4):
        size = int.from_bytes(header[1:], "little")
        chunk = source.read(size)
        if len(header) < 4 or len(chunk) < size:
            raise _broken()
        if header[0] == 0:
            yield _decompress(chunk[4:])
        elif header[0] == 1:
            yield chunk[4:]
        elif header[0] < 0x80:  # reserved, and not to be passed over
            raise _broken()


def _hadoop(source: IO[bytes]) -> Iterator[bytes]:
    """Hadoop's blocks: the plain length, then pieces of a compressed length and their data."""
    while header := source.read(4):
        left = int.from_bytes(header, "big")
        while left > 0:
            size = int.from_bytes(source.read(4), "big")
            piece = source.read(size)
            if not piece or len(piece) < size:
                raise _broken()
            plain = _decompress(piece)
            left -= len(plain)
            yield plain


def _decompress(piece: bytes) -> bytes:
    size, shift = 0, 0
    for byte in piece[:5]:  # the plain length, seven bits a byte
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    try:
        return bytes(pa.decompress(piece, size, "snappy", asbytes=True))
    except (pa.ArrowException, OSError, MemoryError) as error:
        raise _broken() from error


def _broken() -> DataFileError:
    return DataFileError("The snappy data are broken.", hint="upload it again under the same name.")


class Pieces(io.RawIOBase):
    """Pieces of bytes as one file."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._rest = b""

    def readable(self) -> bool:
        """It is."""
        return True

    def read(self, size: int = -1, /) -> bytes:
        """The next bytes, as many as asked for unless the pieces end."""
        while size < 0 or len(self._rest) < size:
            piece = next(self._pieces, None)
            if piece is None:
                break
            self._rest += piece
        size = len(self._rest) if size < 0 else size
        data, self._rest = self._rest[:size], self._rest[size:]
        return data


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
        texts = [_put_back(values, data.text) for values in batch.columns]
        bad: set[int] = set()
        arrays = []
        for column, values in zip(schema, texts, strict=True):
            convert = converter(column.type, data.text.null)
            unfit = _unfit(values, convert)
            # The parser leaves out ragged rows a block ahead: those up to here are known.
            places = original_rows((before + n + 1 for n in unfit), rejects.ragged)
            rows = dict(zip(unfit, places, strict=True))
            for index in unfit:
                if _CUT in values[index].as_py():
                    raise data.unfinished(rows[index])
                if index not in bad:
                    reason = f"{values[index].as_py()!r} is not of type {column.type}."
                    is_marker = column.name.lower() == MARKER.lower()
                    hint = MARKER_HINT if is_marker else "correct the value, or its DataType."
                    row = {n: t[index].as_py() for n, t in zip(schema.names, texts, strict=True)}
                    rejects.add(rows[index], column.name, reason, hint, row)
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
