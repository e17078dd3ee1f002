"""How far a source is in a table, kept in the table's own folder, and replacing that folder.

The footer of each file contains the position of its last row, and `_source.json` in the folder the
position where the table began. The source continues after the highest position found, so nothing
can contradict the files. When a source publishes and confirms is decided in `engine`.

A first load and a TRUNCATE replace the folder in one step. The new folder is made aside, as a small
lake of its own; then the old one is moved away and the new one into its place. If the process is
killed between the two moves, the next start completes them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mirrorlake.errors import MetadataError
from mirrorlake.landing.zone import footers_from_the_newest, published_tables
from mirrorlake.names import STATE, TableName, fingerprint
from mirrorlake.storage.files import Storage, to_json
from mirrorlake.storage.kept import read_kept

FORMAT = 1
DOCUMENT = "_source.json"
FOOTER = "mirrorlake.source"
HOME = f"{STATE}/sources"
_ASIDE = f"{HOME}/aside"
_GONE = f"{HOME}/replaced"
_READY = "ready"


@dataclass(frozen=True, order=True)
class Position:
    """A place in a source's changes.

    Attributes:
        order: compares positions of one source and table; a higher one is later.
        facts: what the source needs to go on from there, as JSON.
    """

    order: tuple[int, ...]
    facts: dict[str, Any] = field(default_factory=dict, compare=False)

    def footer(self, source: str) -> dict[str, str]:
        """What a file carries whose rows end here."""
        document = {"source": source, "order": list(self.order), "facts": self.facts}
        return {FOOTER: json.dumps(document, ensure_ascii=False)}


@dataclass(frozen=True)
class Standing:
    """How a table stands with its source.

    Attributes:
        position: up to where its files go.
        stopped: why nothing more is published into it, and the fix; None while all is well.
    """

    position: Position
    stopped: str | None = None


def read_standing(storage: Storage, table: TableName, source: str) -> Standing | None:
    """How far a source is in a table; None if the table's first load is still to come.

    Raises:
        MetadataError: another source, or a publisher of its own, fills the folder.
    """
    path = f"{table.folder}/{DOCUMENT}"
    try:
        document = read_kept(storage, path, FORMAT)
    except (ValueError, TypeError) as error:
        raise MetadataError(
            f"{DOCUMENT} of {table} is broken.",
            file=DOCUMENT,
            hint="delete the table's folder; it is loaded again.",
        ) from error
    if document is None:
        if any(not name.startswith("_") for name in _files(storage, table)):
            raise MetadataError(
                f"The folder of {table} holds files of another publisher.",
                hint="choose another lake, or delete the folder.",
            )
        return None
    if document["source"] != source:
        raise MetadataError(
            f"{table} is filled by the source {document['source']}, not by {source}.",
            file=DOCUMENT,
            hint="name that source, or delete the table's folder; it is loaded again.",
        )
    position = Position(tuple(document["order"]), document["facts"])
    for footer in footers_from_the_newest(storage, table):
        carried = footer.get(FOOTER.encode())
        if carried is None:
            continue  # a replayed file, say
        found = json.loads(carried)
        if found["source"] == source:
            newest = Position(tuple(found["order"]), found["facts"])
            position = max(position, newest)
        break
    return Standing(position, document.get("stopped"))


def write_standing(
    storage: Storage, table: TableName, source: str, position: Position, stopped: str | None = None
) -> None:
    """Leaves in the folder where the table began, or why it is stopped."""
    storage.write(f"{table.folder}/{DOCUMENT}", standing_document(source, position, stopped))


def standing_document(source: str, position: Position, stopped: str | None = None) -> bytes:
    """The content of `_source.json`."""
    return to_json(
        {
            "format": FORMAT,
            "source": source,
            "order": list(position.order),
            "facts": position.facts,
            "stopped": stopped,
        }
    )


def _files(storage: Storage, table: TableName) -> list[str]:
    return [entry.name for entry in storage.list(table.folder).files]


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
