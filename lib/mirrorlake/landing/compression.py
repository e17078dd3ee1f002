"""Compressed text files, known by their first bytes: gzip, zstd, snappy in two framings."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import IO, cast

import pyarrow as pa

from mirrorlake.errors import DataFileError

COMPRESSED = ("gz", "gzip", "zst", "zstd", "snappy")
_GZIP, _ZSTD, _SNAPPY = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\xff\x06\x00\x00sNaPpY"


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
