"""The versions of several tables that held at one and the same moment."""

from __future__ import annotations

from collections.abc import Sequence

from mirrorlake.delta.commits import find_newest
from mirrorlake.errors import TableNotFoundError
from mirrorlake.names import TableName
from mirrorlake.storage import Storage

TRIES = 20


def newest_versions(storage: Storage, tables: Sequence[TableName]) -> list[int]:
    """The newest version of each table, looked at one after the other.

    Raises:
        TableNotFoundError: one of the tables is not there.
    """
    found = [find_newest(storage, table.table_path) for table in tables]
    for table, version in zip(tables, found, strict=True):
        if version is None:
            raise TableNotFoundError(f"There is no table {table} in the lake.")
    return [version for version in found if version is not None]


def versions_at_once(storage: Storage, tables: Sequence[TableName]) -> list[int] | None:
    """The newest versions, read twice, so that there was a moment when all of them held.

    Returns:
        None if the tables changed each time they were looked at.

    Raises:
        TableNotFoundError: one of the tables is not there.
    """
    before = newest_versions(storage, tables)
    if len(tables) == 1:
        return before
    for _ in range(TRIES):
        after = newest_versions(storage, tables)
        if after == before:
            return after
        before = after
    return None
