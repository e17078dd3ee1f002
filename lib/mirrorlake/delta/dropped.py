"""Tables that are dropped where they lie: on an object store a drop is one document, not a move.

A store has no folder to rename: a move copies every file, and can be cut short between any two.
The document hides a table from all that asks for it by its place, in one atomic step; without the
document it is back, in one step as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mirrorlake.errors import InvalidNameError
from mirrorlake.kept import read_kept
from mirrorlake.names import SCHEMA_SUFFIX, STATE, TABLES, TableName
from mirrorlake.storage import Storage

FORMAT = 1
_NOTES = f"{STATE}/dropped_in_place"
_ENDING = ".json"


def is_dropped(storage: Storage, table_path: str) -> bool:
    """Whether a table's place holds a dropped one; never on a local disk. Costs one request."""
    if storage.local is not None:
        return False
    table = _table_at(table_path)
    return table is not None and storage.exists(_note(table))


def note_drop(storage: Storage, table: TableName, document: dict[str, Any]) -> None:
    """Drops a table where it lies; `document` says when, and what filled it."""
    storage.write_json(_note(table), {"format": FORMAT, **document})


def take_note_back(storage: Storage, table: TableName) -> None:
    """Undoes `note_drop`."""
    storage.delete(_note(table))


def read_drop(storage: Storage, table: TableName) -> dict[str, Any] | None:
    """The document of a table that is dropped where it lies, else None.

    Raises:
        FormatError: it is of a newer format.
    """
    return read_kept(storage, _note(table), FORMAT)


def dropped_in_place(storage: Storage) -> Iterator[TableName]:
    """The tables that are dropped where they lie, in no particular order; none on a local disk."""
    if storage.local is not None:
        return
    listing = storage.list(_NOTES)
    for entry in listing.files:
        yield TableName(None, entry.name.removesuffix(_ENDING))
    for folder in listing.folders:
        schema = folder.removesuffix(SCHEMA_SUFFIX)
        for entry in storage.list(f"{_NOTES}/{folder}").files:
            yield TableName(schema, entry.name.removesuffix(_ENDING))


def _note(table: TableName) -> str:
    return f"{_NOTES}/{table.place}{_ENDING}"


def _table_at(path: str) -> TableName | None:
    parts = path.removeprefix(f"{TABLES}/").split("/")
    if not path.startswith(f"{TABLES}/") or len(parts) > 2:
        return None
    try:
        return TableName(parts[0] if len(parts) == 2 else None, parts[-1])
    except InvalidNameError:
        return None
