"""A batch's token: its publisher's own name of it, so that publishing it again writes nothing.

Tokens lie in the footers of the published files. A table remembers a token as long as it keeps the
file: in its folder, in `_ProcessedFiles`, and until `_FilesReadyToDelete` is swept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa
import pyarrow.parquet as pq

from mirrorlake.landing.zone import every_file
from mirrorlake.names import TableName, file_number
from mirrorlake.storage import Storage

TOKEN = b"mirrorlake.token"


class TokenIndex:
    """The tokens of one table's kept files; each file's footer is read once.

    Args:
        storage: the lake's files.
        table: whose files.
    """

    def __init__(self, storage: Storage, table: TableName) -> None:
        self._storage = storage
        self._table = table
        self._seen: dict[tuple[str, int], str | None] = {}
        self._files: dict[str, str] = {}

    def find(self, token: str) -> str | None:
        """The path of the file that carries a token, relative to the lake's root; or None."""
        here: set[tuple[str, int]] = set()
        for path, entry in every_file(self._storage, self._table):
            if file_number(entry.name) is None:
                continue
            key = (entry.name, entry.size)
            here.add(key)
            if key not in self._seen:
                found = read_footer(self._storage, path).get(TOKEN)
                self._seen[key] = found.decode() if found is not None else None
            carried = self._seen[key]
            if carried is not None:
                self._files[carried] = path
        for key in self._seen.keys() - here:  # swept, or replaced with the whole folder
            gone = self._seen.pop(key)
            if gone is not None and gone not in self._seen.values():
                self._files.pop(gone, None)
        return self._files.get(token)


def encoded(footer: Mapping[str, str] | None) -> dict[bytes, bytes]:
    """What a footer is to carry, as Arrow wants it."""
    return {key.encode(): value.encode() for key, value in (footer or {}).items()}


def read_footer(storage: Storage, path: str) -> dict[bytes, bytes]:
    """What a published file's footer carries; nothing where it is no readable Parquet file."""
    try:
        with storage.open(path) as source:
            return dict(pq.read_metadata(source).metadata or {})
    except (FileNotFoundError, pa.ArrowException, OSError):
        return {}


def footers_from_the_newest(
    storage: Storage, table: TableName
) -> Iterator[tuple[str, dict[bytes, bytes]]]:
    """Paths and footers of a table's kept numbered files, the highest number first."""
    found = [
        (file_number(entry.name), path)
        for path, entry in every_file(storage, table)
        if file_number(entry.name) is not None
    ]
    for _, path in sorted(found, reverse=True):
        yield path, read_footer(storage, path)
