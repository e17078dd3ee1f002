"""Replaces a table's folder in one step: a first load and a TRUNCATE are seen whole or not at all.

The new folder is made aside, as a small lake of its own, then the old one is moved away and the new
one into its place. A kill between the two moves is mended at the next start.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from mirrorlake.landing.zone import published_tables
from mirrorlake.names import STATE, TableName, fingerprint
from mirrorlake.storage.files import Storage
from mirrorlake_sources.position import DOCUMENT, Position, standing_document

HOME = f"{STATE}/sources"
_ASIDE = f"{HOME}/aside"
_GONE = f"{HOME}/replaced"
_READY = "ready"


class NewFolder:
    """A table's next folder, made aside.

    Args:
        storage: the lake's files.
        source: who fills it.
        table: whose folder.
    """

    def __init__(self, storage: Storage, source: str, table: TableName) -> None:
        self._storage = storage
        self._source = source
        self.table = table
        self._place = f"{_ASIDE}/{fingerprint(source)}/{fingerprint(table.place)}"
        self.discard()
        self.storage = Storage(storage.path(self._place))

    def discard(self) -> None:
        """Gives up what was made."""
        self._storage.delete(f"{self._place}/{_READY}")
        self._storage.delete_folder(self._place)

    def take_its_place(self, position: Position) -> None:
        """Moves it in, complete up to a position.

        Args:
            position: where the table begins.
        """
        folder = self.table.folder
        document = standing_document(self._source, position)
        self.storage.write(f"{folder}/{DOCUMENT}", document)
        make_durable(self.storage, [f"{folder}/{DOCUMENT}"])
        # From here on the new folder is complete: whoever finds it without the old one moves it in.
        self._storage.write(f"{self._place}/{_READY}", self.table.place.encode())
        _swap(self._storage, self.table, self._place)


def mend_folders(storage: Storage, source: str) -> None:
    """Ends what a kill has left between two moves, and clears away what was never complete."""
    base = f"{_ASIDE}/{fingerprint(source)}"
    for name in storage.list(base).folders:
        place = f"{base}/{name}"
        inner = Storage(storage.path(place))
        ready = storage.list(place).file(_READY) is not None
        for table in published_tables(inner):
            # While the old folder is there, the source does it all again from its position.
            if ready and not _exists(storage, table):
                _swap(storage, table, place)
        storage.delete_folder(place)
    storage.delete_folder(_GONE)


def make_durable(storage: Storage, paths: Iterable[str]) -> None:
    """Waits until files and their names are on the disk; an object store has them already."""
    if storage.local is None:
        return
    folders = set()
    for path in paths:
        full = storage.local / path
        folders |= {full.parent, full.parent.parent}
        sync(full)
    for folder in folders:
        sync(folder)


def _swap(storage: Storage, table: TableName, place: str) -> None:
    gone = f"{_GONE}/{fingerprint(place)}"
    storage.delete_folder(gone)
    storage.move_folder(table.folder, gone)
    storage.move_folder(f"{place}/{table.folder}", table.folder)
    make_durable(storage, [f"{table.folder}/{DOCUMENT}"])
    storage.delete(f"{place}/{_READY}")
    storage.delete_folder(place)
    storage.delete_folder(gone)


def _exists(storage: Storage, table: TableName) -> bool:
    found = storage.list(table.folder)
    return bool(found.files or found.folders)


def sync(path: str | Path) -> None:
    """Waits until a file, or the names in a folder, are on the disk."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return  # a mirror has moved it on
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
