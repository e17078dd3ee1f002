"""Read delimited text files as typed columns, for the mirror and for the check before it.

Arrow parses the text. Two properties of the format are unknown to Arrow: escape characters that
apply only to quotes, and a lone carriage return within a value. They are replaced by Unicode
noncharacters before parsing, and restored afterwards. At most one block is in memory. An error
names the row and the column of a value that does not fit its declared type.
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
from mirrorlake.landing.types import type_name

# The errors that Arrow raises for values that do not fit: too large, invalid UTF-8, other types.
UNFIT = (pa.ArrowException, TypeError, ValueError, OverflowError)


@dataclass(frozen=True)
class Reject:
    """One row that can't be applied.

    Attributes:
        row: the row's position in the file, counted from 1.
        column: the column with the error; None if the whole row is malformed.
        reason: what is wrong with the row.
        content: the row as JSON, as far as it can be read.
    """

    row: int
    column: str | None
    reason: str
    content: str


@dataclass
class Rejects:
    """The bad rows of one file, collected up to a limit above which the file itself is bad.

    Attributes:
        most: the limit; with 0 the first bad row raises an error.
        found: the bad rows.
        ragged: the rows that the parser skipped because their number of columns is wrong.
    """

    most: int = 0
    found: list[Reject] = field(default_factory=list)
    ragged: list[int] = field(default_factory=list)

    def add(self, row: int, column: str | None, reason: str, hint: str, content: Any) -> None:
        """Add one bad row.

        Raises:
            DataFileError: bad rows are not collected, or there are more than the limit.
        """
        if not self.most:
            raise DataFileError(reason, row=row, column=column, hint=hint)
        if len(self.found) == self.most:
            raise DataFileError(
                f"More than {self.most:,} rows can't be applied. The first one: {reason}",
                row=self.found[0].row,
                column=self.found[0].column,
                hint="upload a valid file under the same name.",
            )
        text = json.dumps(content, default=str, ensure_ascii=False)
        self.found.append(Reject(row, column, reason, text))


COMPRESSED = ("gz", "gzip", "zst", "zstd", "snappy")
_GZIP, _ZSTD, _SNAPPY = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\xff\x06\x00\x00sNaPpY"


ZONED = r"\d\d:\d\d[0-9:.]*(Z|[+-]\d\d(:?\d\d)?)$"


def converter(kind: pa.DataType, *nulls: str) -> Callable[[Any], pa.Array]:
    """Return a function that converts text to a type, and raises one of `UNFIT` if it can't.

    Args:
        kind: the type.
        nulls: the words that mean NULL, besides the empty string.
    """
    if pt.is_string(kind):
        return lambda texts: texts

    def convert(texts: pa.Array) -> pa.Array:
        texts = pc.utf8_trim_whitespace(texts)
        # An empty string, quoted or not, is neither a number nor a date.
        empty = pc.is_in(texts, value_set=pa.array(["", *nulls]))
        texts = pc.if_else(empty, pa.scalar(None, pa.string()), texts)
        if pt.is_timestamp(kind):
            return _timestamps(texts, zoned=kind.tz is not None).cast(kind)
        if pt.is_time(kind):  # Arrow can't cast a string to a time
            texts = pc.replace_substring_regex(texts, r"(\.\d{6})\d+$", r"\1")
            day = pc.binary_join_element_wise("1970-01-01", texts, "T")
            return day.cast(pa.timestamp("us")).cast(kind)
        if pt.is_binary(kind):
            return pa.array([None if t is None else _bytes(t) for t in texts.to_pylist()], kind)
        if pt.is_integer(kind):
            texts = pc.replace_substring_regex(texts, r"^\+(\d)", r"\1")
        values = texts.cast(kind)
        if pt.is_floating(kind):
            # Only a written infinity is infinite; a number that is too large must not become so.
            written = pc.match_substring_regex(texts, "^[+-]?inf", ignore_case=True)
            if pc.any(pc.and_not(pc.is_inf(values), written)).as_py():
                raise pa.ArrowInvalid("the number is too large")
        return values

    return convert


def _timestamps(texts: pa.Array, *, zoned: bool) -> pa.Array:
    """Return ISO 8601 text with a zone for each value: UTC if none, truncated to microseconds."""
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
    """Return a reader of a file's plain bytes; gzip, zstd and snappy are decompressed.

    Args:
        source: the file, positioned at its start.
        name: the file's name. The ending `.snappy` identifies Hadoop's framing, which has no magic
            bytes.

    Raises:
        DataFileError: the compressed data is corrupt; also while reading.
    """
    start = source.read(len(_SNAPPY))
    source.seek(0)
    for magic, codec in ((_GZIP, "gzip"), (_ZSTD, "zstd")):
        if start.startswith(magic):
            return cast("IO[bytes]", pa.CompressedInputStream(source, codec))
    if start == _SNAPPY:
        return cast("IO[bytes]", ChunkReader(_framed(source)))
    if name.lower().endswith(".snappy"):
        return cast("IO[bytes]", ChunkReader(_hadoop(source)))
    return source


def _framed(source: IO[bytes]) -> Iterator[bytes]:
    """Yield the plain bytes of snappy's framing format: type, three-byte length, checksum, data."""
    while header := source.read(4):
        size = int.from_bytes(header[1:], "little")
        chunk = source.read(size)
        if len(header) < 4 or len(chunk) < size:
            raise _broken()
        if header[0] == 0:
            yield _decompress(chunk[4:])
        elif header[0] == 1:
            yield chunk[4:]
        elif header[0] < 0x80:  # a reserved type of chunk that must not be skipped
            raise _broken()


def _hadoop(source: IO[bytes]) -> Iterator[bytes]:
    """Yield the plain bytes of Hadoop's blocks: a plain length, then chunks with their lengths."""
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
    for byte in piece[:5]:  # the plain length, seven bits per byte
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    try:
        return bytes(pa.decompress(piece, size, "snappy", asbytes=True))
    except (pa.ArrowException, OSError, MemoryError) as error:
        raise _broken() from error


def _broken() -> DataFileError:
    return DataFileError(
        "The snappy data is corrupt.", hint="upload the file again under the same name."
    )


class ChunkReader(io.RawIOBase):
    """A file-like reader over an iterator of byte strings."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._chunks = pieces
        self._rest = b""

    def readable(self) -> bool:
        """Return True: readers are readable."""
        return True

    def read(self, size: int = -1, /) -> bytes:
        """Return the next bytes: as many as requested, fewer only at the end."""
        while size < 0 or len(self._rest) < size:
            piece = next(self._chunks, None)
            if piece is None:
                break
            self._rest += piece
        size = len(self._rest) if size < 0 else size
        data, self._rest = self._rest[:size], self._rest[size:]
        return data


_BLOCK = 8 << 20  # the block size in bytes; no row may be longer
_PIECE = 1 << 20  # the bytes that are decoded at once
# Unicode reserves noncharacters for internal use, so text does not contain them.
_QUOTE, _RETURN = "\ufdd0", "\ufdd1"
END = "\ufdd2"  # the sentinel row; if it is missing, a quote was never closed
_CUT = "\ufdd3"  # replaces invalid bytes; the number of rows before it locates them
_MARKS = {"utf-16": (b"\xff\xfe", b"\xfe\xff"), "utf-32": (b"\xff\xfe\0\0", b"\0\0\xfe\xff")}


def read_text(
    open_file: Callable[[], IO[bytes]],
    metadata: TableMetadata,
    *,
    name: str,
    rejects: Rejects | None = None,
    as_written: bool = False,
) -> pa.RecordBatchReader:
    """Return the rows of a text file in their declared types; undeclared columns are strings.

    Args:
        open_file: opens the file; it is called twice. gzip, zstd and snappy are recognised.
        metadata: the declarations of the table's folder.
        name: the file's name in errors.
        rejects: collects bad rows, which are left out; without it the first bad row is an error.
        as_written: whether all values are returned as strings, also those of declared columns.

    Raises:
        DataFileError: a row has too few or too many columns, a value does not fit its type, or
            bytes are invalid in the encoding; also while reading. It names the row, counted from 1
            without the header.
    """
    text, rejects = metadata.text, rejects or Rejects()
    with in_file(name):
        written = _parse(open_file(), _Bytes(text, name), [], rejects).schema.names
        data = _Bytes(text, name)
        reader = _parse(open_file(), data, written, rejects)
    types = {column.lower(): arrow_type(kind) for column, kind in metadata.columns.items()}
    types = {} if as_written else types | {MARKER.lower(): pa.int32()}
    columns = [_plain(found, text) for found in written]
    schema = pa.schema([(column, types.get(column.lower(), pa.string())) for column in columns])

    def batches() -> Iterator[pa.RecordBatch]:
        with in_file(name):
            yield from _typed(reader, schema, data, rejects)

    return pa.RecordBatchReader.from_batches(schema, batches())


def _parse(
    source: IO[bytes], data: _Bytes, columns: list[str], rejects: Rejects
) -> pacsv.CSVStreamingReader:
    """Open the parser; without `columns` it reads only the header, else all values as strings."""

    def ragged(row: pacsv.InvalidRow) -> str:
        if not columns:
            return "skip"  # only the header is read
        if not rejects.most:
            return "error"
        reason = f"Expected {row.expected_columns} columns, got {row.actual_columns}."
        rejects.add(row.number - 1, None, reason, "", row.text)  # Arrow counts the header
        rejects.ragged.append(row.number - 1)
        return "skip"

    text = data.text
    alone = len(columns) == 1  # an empty line is then a row with NULL
    end = text.separator.join([END, *[""] * (len(columns) - 1)]) if columns else ""
    try:
        return pacsv.open_csv(
            ChunkReader(data.pieces(source, end)),
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
        if batch.num_rows and batch.column(0)[-1].as_py() == END:
            batch, ended = batch.slice(0, batch.num_rows - 1), True
        texts = [_restore(values, data.text) for values in batch.columns]
        bad: set[int] = set()
        arrays = []
        for column, values in zip(schema, texts, strict=True):
            convert = converter(column.type, data.text.null)
            unfit = _unfit(values, convert)
            # The parser skips ragged rows a block ahead, so all up to these rows are known.
            places = original_rows((before + n + 1 for n in unfit), rejects.ragged)
            rows = dict(zip(unfit, places, strict=True))
            for index in unfit:
                if _CUT in values[index].as_py():
                    raise data.unfinished(rows[index])
                if index not in bad:
                    reason = f"{values[index].as_py()!r} is not of type {type_name(column.type)}."
                    is_marker = column.name.lower() == MARKER.lower()
                    hint = MARKER_HINT if is_marker else "correct the value or its DataType."
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
    """Return the original positions of rows, in ascending order from 1, given the rows left out."""
    gaps = sorted(left_out)
    found, more = [], 0
    for row in rows:
        while more < len(gaps) and gaps[more] <= row + more:
            more += 1
        found.append(row + more)
    return found


def _unfit(values: pa.Array, convert: Callable[[Any], pa.Array], at: int = 0) -> list[int]:
    """Return the positions of all values that can't be converted, found by bisection."""
    try:
        convert(values)
        return []
    except UNFIT:
        if len(values) == 1:
            return [at]
    half = len(values) // 2
    return _unfit(values[:half], convert, at) + _unfit(values[half:], convert, at + half)


def _restore(texts: pa.Array, text: TextFormat) -> pa.Array:
    for stand_in, char in ((_QUOTE, text.quote), (_RETURN, "\r")):
        if pc.any(pc.match_substring(texts, stand_in)).as_py():
            texts = pc.replace_substring(texts, stand_in, char)
    return texts


def _plain(found: str, text: TextFormat) -> str:
    """Return a string of Arrow's with the file's own characters instead of the stand-ins."""
    return found.replace(_QUOTE, text.quote).replace(_RETURN, "\r").replace(_CUT, "")


class _Bytes:
    """A file's text in UTF-8, with stand-ins for characters that Arrow would misread.

    Args:
        text: the declared format of the text.
        name: the file's name in errors.
    """

    def __init__(self, text: TextFormat, name: str) -> None:
        self.text = text
        self.name = name
        self._decoding_error = ""  # the decoding error, if the text ends before the file

    def pieces(self, source: IO[bytes], end: str) -> Iterator[bytes]:
        """Yield the text in chunks, followed by a sentinel row."""
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
            last = not raw or bool(self._decoding_error)
            held = ""
            if not last:  # escapes or a carriage return may continue in the next chunk
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
        if not self._decoding_error:
            # Arrow finds no header in a file of one line without a line end.
            yield ("" if finished else "\n").encode() + end.encode()

    def _decode(self, decoder: codecs.IncrementalDecoder, raw: bytes) -> str:
        try:
            return decoder.decode(raw, final=not raw)
        except UnicodeError as error:
            if not isinstance(error, UnicodeDecodeError):  # some codecs give no position
                self._decoding_error = str(error)
                return _CUT
            self._decoding_error = error.reason
            return error.object[: error.start].decode(error.encoding, "ignore") + _CUT

    def broken(self, error: Exception) -> DataFileError:
        """Return the error of the file for an error of the parser."""
        first = _plain(first_line(error), self.text)
        found = re.search(r"Row #(\d+)", first)
        row = int(found[1]) - 1 if found else 0  # Arrow counts the header
        if self._decoding_error:
            return self.unfinished(row)
        return DataFileError(
            f"The file is not readable as delimited text: {first.rstrip('.')}.",
            row=row or None,
            hint="compare the file with FileFormatTypeProperties, and upload it again.",
        )

    def unfinished(self, row: int) -> DataFileError:
        """Return the error of a file that ends within a row."""
        if self._decoding_error:
            encoding = self.text.encoding.removesuffix("-sig")
            return DataFileError(
                f"The file is not {encoding} text: {self._decoding_error}.",
                row=row or None,
                hint="set Encoding in FileFormatTypeProperties to the file's encoding.",
            )
        return DataFileError(
            f"A value begins with {self.text.quote}, which is not closed.",
            row=row or None,
            hint="close the quote, or set QuoteCharacter and EscapeCharacter to those of the file.",
        )


def _with_order(encoding: str, start: bytes) -> str:
    """Return the encoding; without a byte order mark, UTF-16 and UTF-32 are little-endian."""
    marks = _MARKS.get(encoding)
    return encoding if marks is None or start.startswith(marks) else f"{encoding}-le"


def _unescape(found: re.Match[str], text: TextFormat) -> str:
    """Resolve escapes before a quote: two are one escape, an odd one escapes the quote."""
    half, odd = divmod(len(found[1]), 2)
    return text.escape * half + (_QUOTE if odd else text.quote)
