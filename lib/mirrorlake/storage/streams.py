"""Readers and writers of an object store as Python's and Arrow's files are."""

from __future__ import annotations

import io
import os
from typing import IO, Any

import obstore
from obstore.exceptions import BaseError

TAIL = 2**20
"""How many of a file's last bytes one request brings, with its size: a small file is all there."""
_AHEAD = 2**20
_SLACK = 2**16  # what a buffer in front asks for beyond what it was asked for


class TailReader(io.RawIOBase):
    """A file of a store, some end of which is there already; the rest is fetched by ranges."""

    def __init__(self, store: Any, path: str, size: int, tail: bytes) -> None:
        self._store, self._path, self._size = store, path, size
        self._tail, self._tail_at = tail, size - len(tail)
        self._block, self._block_at = b"", 0
        self._at = 0

    def readable(self) -> bool:
        """Always."""
        return True

    def seekable(self) -> bool:
        """Always."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """As of a file."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def tell(self) -> int:
        """As of a file."""
        return self._at

    def readinto(self, buffer: Any, /) -> int:
        """As of a file; may bring less than there is room for."""
        if self._at >= self._size:
            return 0
        if self._at >= self._tail_at:
            kept, start = self._tail, self._at - self._tail_at
        else:
            start = self._at - self._block_at
            if not 0 <= start < len(self._block):
                self._fetch(len(buffer))
                start = 0
            kept = self._block
        data = kept[start : start + len(buffer)]
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)

    def _fetch(self, wanted: int) -> None:
        end = min(self._tail_at, self._at + max(_AHEAD, wanted + _SLACK))
        found = obstore.get_range(self._store, self._path, start=self._at, end=end)
        self._block, self._block_at = bytes(found), self._at


def open_tail(store: Any, path: str) -> IO[bytes]:
    """A reader that one request has opened.

    Raises:
        FileNotFoundError: there is no such file.
    """
    try:
        found = obstore.get(store, path, options={"range": {"suffix": TAIL}})
        size, tail = found.meta["size"], bytes(found.bytes())
    except FileNotFoundError:
        raise
    except (BaseError, OSError):  # Azure knows no such ranges, S3 none of an empty file
        size, tail = obstore.head(store, path)["size"], b""
    if len(tail) == size:
        return io.BytesIO(tail)
    return io.BufferedReader(TailReader(store, path, size, tail))


class Writer(io.RawIOBase):
    """An obstore writer that may be closed more than once, as Parquet writers do."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def writable(self) -> bool:
        """Always."""
        return True

    def write(self, data: Any, /) -> int:
        """As of a file; nothing is there before it is closed."""
        return int(self._inner.write(bytes(data)))

    def close(self) -> None:
        """Ends the file, at the first call."""
        if not self.closed:
            super().close()
            self._inner.close()
