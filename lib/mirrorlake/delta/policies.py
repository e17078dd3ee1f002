"""A table's partitioning policy as numbered documents: the newest counts, the others are history.

It lies left of the mirror and of all maintenance, because none of them may compact such a table: a
plain OPTIMIZE would put files of different partitions together.
"""

from __future__ import annotations

import json
from typing import Any

from mirrorlake.delta.snapshot import read_snapshot
from mirrorlake.errors import ConflictError
from mirrorlake.names import SCHEMA_SUFFIX, STATE, TableName
from mirrorlake.storage import Storage, to_json

FORMAT = 1
_TRIES = 20
_ALL = f"{STATE}/partitioning"


def append_policy(storage: Storage, table: TableName, document: dict[str, Any]) -> int:
    """Puts down the next document; of two writers at once both are kept, one after the other.

    Returns:
        Its number.
    """
    for _ in range(_TRIES):
        number = len(_names(storage, table)) + 1
        body = to_json({"format": FORMAT, **document})
        if storage.create(f"{_folder(table)}/{number:08d}.json", body):
            return number
    raise ConflictError(f"The policy of {table} is written by many at once.", hint="try again.")


def newest_policy(storage: Storage, table: TableName) -> dict[str, Any] | None:
    """The newest document, or None if there is none."""
    names = _names(storage, table)
    return _read(storage, table, names[-1]) if names else None


def all_policies(storage: Storage, table: TableName) -> list[dict[str, Any]]:
    """All documents, the oldest first."""
    return [_read(storage, table, name) for name in _names(storage, table)]


def has_policy(storage: Storage, table: TableName) -> bool:
    """Whether the table's files are partitioned by a policy, and not to be compacted.

    The policy of a table that was there before under the same name is none of this one's.
    """
    newest = newest_policy(storage, table)
    if newest is None or newest["policy"] is None:
        return False
    snapshot = read_snapshot(storage, table.table_path)
    return snapshot is not None and bool(snapshot.metadata["id"] == newest["table_id"])


def count_policies(storage: Storage, table: TableName) -> int:
    """The newest document's number, 0 if there is none: one listing, and nothing is read."""
    return len(_names(storage, table))


def tables_with_policies(storage: Storage) -> list[TableName]:
    """The tables that have, or had, a policy; nobody looks at those that never had one."""
    found = []
    for folder in storage.list(_ALL).folders:
        if not folder.endswith(SCHEMA_SUFFIX):
            found.append(TableName(None, folder))
            continue
        schema = folder[: -len(SCHEMA_SUFFIX)]
        inner = storage.list(f"{_ALL}/{folder}").folders
        found += [TableName(schema, name) for name in inner]
    return found


def _folder(table: TableName) -> str:
    return f"{table.partitioning_path}/policies"


def _names(storage: Storage, table: TableName) -> list[str]:
    return [entry.name for entry in storage.list(_folder(table)).files if entry.name[0] != "_"]


def _read(storage: Storage, table: TableName, name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(storage.read(f"{_folder(table)}/{name}"))
    return document
