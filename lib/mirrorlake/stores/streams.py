"""Readers and writers of an object store as Python's and Arrow's files are."""

from __future__ import annotations

import io
import os
from typing import Any


class Reader(io.RawIOBase):
    """An obstore reader as Python's and Arrow's files are: with `with`, and closed at most once."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def readable(self) -> bool:
        """Always."""
        return True

    def seekable(self) -> bool:
        """Always."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """As of a file."""
        return int(self._inner.seek(offset, whence))

    def tell(self) -> int:
        """As of a file."""
        return int(self._inner.tell())

    def readinto(self, buffer: Any, /) -> int:
        """As of a file."""
        data = bytes(self._inner.read(len(buffer)))
        buffer[: len(data)] = data
        return len(data)


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
