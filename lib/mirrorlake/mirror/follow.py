"""Tables follow their folders: renamed with them, dropped when they go.

A table that can't follow stops no other: it is told as failed, and tried again by the next cycle.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from mirrorlake.delta.snapshot import read_snapshot
from mirrorlake.errors import InvalidNameError, MirrorlakeError
from mirrorlake.landing.metadata import Identity, is_in_folder, read_identity, renew_identity
from mirrorlake.landing.zone import BadFolder
from mirrorlake.mirror.apply import explain
from mirrorlake.mirror.ledger import read_mirrored
from mirrorlake.mirror.shards import ALL, Shard
from mirrorlake.mirror.state import TableState, failed
from mirrorlake.mirror.trash import drop_table
from mirrorlake.names import TableName
from mirrorlake.storage import Storage


@dataclass(frozen=True)
class Followed:
    """What became of the tables whose folders were dropped or renamed.

    Attributes:
        dropped: the tables that were dropped.
        failed: those that could not be dropped, or moved to their new name; each is tried again.
    """

    dropped: tuple[TableName, ...] = ()
    failed: tuple[TableState, ...] = ()


def follow_folders(
    storage: Storage,
    states: dict[str, TableState],
    found: list[TableName | BadFolder],
    shard: Shard = ALL,
) -> Followed:
    """Renames and drops tables as their folders were; `states` is brought in line.

    A table that fails stops no other, and its folder must not be mirrored before it went well.

    Args:
        storage: the lake's files.
        states: what was known of each folder.
        found: the folders that the zone has now.
        shard: only folders of this one are followed. A folder that came to another shard by its
            new name is that one's to follow; its table is not dropped here meanwhile.
    """
    present = {table.folder for table in found}
    dropped: list[TableName] = []
    stuck: list[TableState] = []
    held: set[str | None] = set()  # the incarnations whose rename failed, or is to come: no drop
    others: list[TableName] = []  # another shard's new folders
    for table in found:
        if isinstance(table, TableName) and table.folder not in states:
            if not shard.has(table.folder):
                others.append(table)
                continue
            try:
                _follow_rename(storage, states, present, table)
            except Exception as error:  # the other tables are mirrored anyway
                stuck.append(failed(TableState(table.schema, table.name), explain(error)))
                held.add(_incarnation(storage, table))
    gone = [f for f in states if f not in present and shard.has(f)]
    if gone:
        held |= {_incarnation(storage, table) for table in others}
    for folder in gone:
        state = states[folder]
        if state.incarnation and state.incarnation in held:
            continue
        del states[folder]
        try:
            if _drop(storage, state):
                dropped.append(state.table)
        except InvalidNameError:
            continue  # it never had a table
        except Exception as error:
            states[folder] = failed(state, explain(error))
            stuck.append(states[folder])
    return Followed(tuple(dropped), tuple(stuck))


def _drop(storage: Storage, state: TableState) -> bool:
    identity = Identity(state.table, state.incarnation) if state.incarnation else None
    return bool(read_mirrored(storage, state.table)) and drop_table(storage, state.table, identity)


def _incarnation(storage: Storage, table: TableName) -> str | None:
    """The incarnation of a table's folder, where it can be read."""
    try:
        identity = read_identity(storage, table)
    except Exception:  # the same store has just failed, and the table's error is told
        return None
    return identity.incarnation if identity else None


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
    if old in present and is_in_folder(storage, before, identity):
        renew_identity(storage, table)
    elif (
        storage.move_folder(before.table_path, table.table_path)
        or read_snapshot(storage, before.table_path) is None
    ):
        # Kept under the new name, so that a copy of the renamed folder is known as one.
        states[table.folder] = replace(states.pop(old), schema=table.schema, name=table.name)
