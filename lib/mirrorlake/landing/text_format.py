"""How delimited text is written: separators, quotes, NULL, encoding, compression, declared types.

The properties, their defaults and what each may be are those of the format's documentation; values
are taken as they come in JSON, names without regard to case. Compression is known by a file's first
bytes: gzip, zstd, snappy in two framings.
"""

from __future__ import annotations

import base64
import codecs
import io
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO, Any, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from mirrorlake.errors import DataFileError, MetadataError

COMPRESSED = ("gz", "gzip", "zst", "zstd", "snappy")
_GZIP, _ZSTD, _SNAPPY = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\xff\x06\x00\x00sNaPpY"
# In the order of `TextFormat`; the first value of each is its default.
_CHOICES = {
    "RowSeparator": ("\r\n", "\n", "\r"),
    "ColumnSeparator": (",", ";", "|", "\t"),
    "QuoteCharacter": ('"', "'", ""),
    "EscapeCharacter": ("\\", "/", '"', ""),
}
PROPERTIES = ("FirstRowAsHeader", *_CHOICES, "NullValue", "Encoding")
# Endings that text files have; a table's own `fileExtension` is one more.
_EXTENSIONS = frozenset({"csv", "tsv", "psv", "txt"})
_CODE_PAGE = re.compile(r"^(ibm0*|windows-)(?=\d{3})")
_TYPES = {
    "double": pa.float64(),
    "single": pa.float32(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "datetime": pa.timestamp("us", "UTC"),
    "idate": pa.date32(),
    "itime": pa.time64("us"),
    "string": pa.string(),
    "boolean": pa.bool_(),
    "bytearray": pa.binary(),
}


@dataclass(frozen=True)
class TextFormat:
    """One table's delimited text.

    Attributes:
        extensions: the file endings that mean text, without a compression's.
        declared: whether the folder says that its files are text.
        escape: before a quote it makes the quote part of the value; a quote is doubled then.
        null: the text that stands for NULL where it is not quoted.
    """

    extensions: frozenset[str] = _EXTENSIONS
    declared: bool = False
    row_separator: str = "\r\n"
    separator: str = ","
    quote: str = '"'
    escape: str = "\\"
    null: str = ""
    encoding: str = "utf-8-sig"


def arrow_type(kind: str, *, column: str | None = None) -> pa.DataType:
    """The Arrow type for a `DataType` of a `SchemaDefinition`.

    Raises:
        MetadataError: there is no such type.
    """
    try:
        return _TYPES[kind.lower()]
    except KeyError:
        raise MetadataError(
            f"There is no data type {kind!r}.",
            column=column,
            hint="choose one of Boolean, ByteArray, DateTime, Double, IDate, Int16, Int32, Int64, "
            "ITime, Single, String.",
        ) from None


def parse_text_format(
    properties: dict[str, Any], extension: str | None, *, declared: bool
) -> TextFormat:
    """The format that `FileFormatTypeProperties` and `fileExtension` describe.

    Args:
        properties: the properties by lower-case name.
        extension: with or without a dot.
        declared: whether `fileFormat` says text.

    Raises:
        MetadataError: a property is not one of its documented values.
    """
    if properties.get("firstrowasheader", True) is not True:
        raise MetadataError(
            "FirstRowAsHeader must be true.",
            hint="write the column names into the first row of every text file.",
        )
    chosen: list[str] = []
    for name, allowed in _CHOICES.items():
        value = properties.get(name.lower())
        if value is not None and value not in allowed:
            raise MetadataError(f"{name} is {value!r}.", hint=f"it may be one of {allowed}.")
        chosen.append(allowed[0] if value is None else value)
    null = properties.get("nullvalue")
    if not isinstance(null, (str, type(None))):
        raise MetadataError(f"NullValue is {null!r}, not a text.")
    own = (extension or "").lower().lstrip(".")
    endings = _EXTENSIONS | ({own} - {"", "parquet"})
    encoding = _encoding(properties.get("encoding"))
    row, column, quote, escape = chosen
    return TextFormat(endings, declared, row, column, quote, escape, null or "", encoding)


def _encoding(name: Any) -> str:
    try:
        # The format's names for encodings are not always Python's: IBM00858, UTF-8 without BOM.
        python = _CODE_PAGE.sub("cp", "utf-8" if name is None else name.lower())
        found = codecs.lookup(python.removesuffix(" without bom"))
        "".encode(found.name)  # base64 and its like are codecs too, but of bytes
    except (LookupError, AttributeError, ValueError):
        raise MetadataError(
            f"There is no encoding {name!r}.", hint="UTF-8 is the default."
        ) from None
    return "utf-8-sig" if found.name == "utf-8" else found.name  # a byte order mark is no data


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
