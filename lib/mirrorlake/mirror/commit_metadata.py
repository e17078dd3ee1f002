"""The note that each of the mirror's commits carries in the table's own history.

With the plans it is the ledger: which files a version holds, how many rows by operation, when.
"""

from __future__ import annotations

from itertools import count
from typing import Any

from mirrorlake.delta.commits import parse_note, read_commit_info
from mirrorlake.delta.snapshot import Snapshot, read_snapshot
from mirrorlake.delta.timestamps import from_milliseconds
from mirrorlake.mirror.state import INITIALIZED, REPLICATING, TableState
from mirrorlake.names import TableName
from mirrorlake.storage import Storage

_BACK = 50  # versions to look through for the mirror's own last commit


def read_note(storage: Storage, table: TableName, version: int) -> dict[str, Any]:
    """The note of one version; empty if somebody else made it, or the log no longer has it."""
    info = read_commit_info(storage, table.table_path, version)
    note = parse_note(info.get("userMetadata"))
    if "incarnation" not in note:
        return {}
    stamp = from_milliseconds(info.get("timestamp", 0))
    return {**note, "version": version, "committed": stamp.isoformat(timespec="milliseconds")}


def last_note(
    storage: Storage, table: TableName, snapshot: Snapshot | None, incarnation: str | None = None
) -> dict[str, Any]:
    """The newest note in the last versions, of one life of the folder or of any; else empty."""
    newest = snapshot.version if snapshot else -1
    for version in range(newest, max(-1, newest - _BACK), -1):
        note = read_note(storage, table, version)
        if note and incarnation in (None, note["incarnation"]):
            return note
    return {}


def committed_version(
    storage: Storage, table: TableName, before: int, note: dict[str, Any]
) -> int | None:
    """The version that a commit with this note has just made; only what is new is looked at.

    Args:
        storage: the lake's files.
        table: which table.
        before: the version before the commit; -1 for none.
        note: what the commit carried.
    """
    life = (note["incarnation"], note["last"])
    for version in count(before + 1):
        found = read_note(storage, table, version)
        if (found.get("incarnation"), found.get("last")) == life:
            return version
        if not found and not read_commit_info(storage, table.table_path, version):
            break  # the log's end, or a commit that says nothing of itself
    newest = read_snapshot(storage, table.table_path)
    return last_note(storage, table, newest, note["incarnation"]).get("version")


def state_of_note(table: TableName, note: dict[str, Any]) -> TableState:
    """What a table's newest note says of its state; an empty note says that nothing was applied."""
    return TableState(
        table.schema,
        table.name,
        state=REPLICATING if note.get("last") else INITIALIZED,
        incarnation=note.get("incarnation"),
        last_file=note.get("last", 0),
        version=note.get("version"),
        rows=note.get("total_rows", 0),
        bytes=note.get("total_bytes", 0),
        synced=note.get("synced"),
    )
