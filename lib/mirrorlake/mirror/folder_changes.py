"""What became of the zone's folders since the last cycle: deleted, renamed, copied.

A folder is known by the identity in it, not by its name. Deleted means that its table is dropped;
renamed, that its table moves along with all it has; copied, that the copy starts a life of its own.
"""

from __future__ import annotations

from dataclasses import replace

from mirrorlake.delta.snapshot import Snapshot, read_snapshot
from mirrorlake.errors import InvalidNameError, MirrorlakeError
from mirrorlake.landing.identity import Identity, read_identity, renew_identity
from mirrorlake.landing.zone import BadFolder
from mirrorlake.mirror.commit_metadata import last_note, state_of_note
from mirrorlake.mirror.properties import KEYS_PROPERTY
from mirrorlake.mirror.state import TableState
from mirrorlake.mirror.trash import drop_table
from mirrorlake.names import TableName
from mirrorlake.storage import Storage

Found = list["TableName | BadFolder"]


def follow_folders(
    storage: Storage, states: dict[str, TableState], found: Found
) -> tuple[TableName, ...]:
    """Renames and drops tables as their folders were; `states` is brought in line.

    Args:
        storage: the lake's files.
        states: what was known of each folder.
        found: the folders that the zone has now.

    Returns:
        The tables that were dropped.
    """
    present = {table.folder for table in found}
    for table in found:
        if isinstance(table, TableName) and table.folder not in states:
            _follow_rename(storage, states, present, table)
    dropped = []
    for folder in [folder for folder in states if folder not in present]:
        state = states.pop(folder)
        try:
            table = state.table
        except InvalidNameError:
            continue  # it never had a table
        identity = Identity(table, state.incarnation) if state.incarnation else None
        if _mirrored(storage, table) and drop_table(storage, table, identity):
            dropped.append(table)
    return tuple(dropped)


def _follow_rename(
    storage: Storage, states: dict[str, TableState], present: set[str], table: TableName
) -> None:
    try:
        identity = read_identity(storage, table)
    except MirrorlakeError:
        return  # the table's own cycle reports it
    if identity is None:
        return
    alike = (f for f, state in states.items() if state.incarnation == identity.incarnation)
    old = next(alike, None)
    if old is None:
        return
    before = states[old].table
    if old in present and _lives(storage, before, identity.incarnation):
        renew_identity(storage, table)
    elif (
        storage.move_folder(before.table_path, table.table_path)
        or read_snapshot(storage, before.table_path) is None
    ):
        # Kept under the new name, so that a copy of the renamed folder is known as one.
        states[table.folder] = replace(states.pop(old), schema=table.schema, name=table.name)


def _lives(storage: Storage, table: TableName, incarnation: str) -> bool:
    identity = read_identity(storage, table)
    return identity is not None and identity.incarnation == incarnation


def _mirrored(storage: Storage, table: TableName) -> Snapshot | None:
    """The table as it is, if a mirror made it."""
    snapshot = read_snapshot(storage, table.table_path)
    return snapshot if snapshot and KEYS_PROPERTY in snapshot.properties else None


def rebuild_states(storage: Storage, tables: list[TableName]) -> dict[str, TableState]:
    """States from the tables' own logs, where the kept ones are lost."""
    states = {}
    for table in tables:
        if snapshot := _mirrored(storage, table):
            note = last_note(storage, table, snapshot)
            states[table.folder] = state_of_note(table, note)
    return states
