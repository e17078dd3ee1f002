"""Drop, rename and restore tables when their folders in the landing zone are deleted or renamed.

The identity file, not the name, identifies a folder. If a folder is deleted, its table is moved
aside and kept for a while. If it is renamed, its table moves with it; if the renamed folder was
also refilled with other files, the table is replaced as well. A copied folder starts its own
incarnation.

In an object store a dropped table is not moved: a document hides it, see `delta.log_files`. It is
moved only if another table takes its place.

A restored table has its whole history. The folder's next incarnation overwrites it in one commit,
so old versions, and frames of them, survive a drop.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import Any

from mirrorlake.delta.log_files import (
    dropped_in_place,
    is_dropped,
    note_drop,
    read_drop,
    take_note_back,
)
from mirrorlake.delta.snapshot import read_snapshot
from mirrorlake.errors import InvalidNameError, MirrorlakeError, TableNotFoundError, UsageError
from mirrorlake.landing.metadata import (
    Identity,
    declare_keys,
    is_in_folder,
    last_applied,
    read_identity,
    read_metadata,
    renew_identity,
    write_identity,
)
from mirrorlake.landing.zone import BadFolder, published_tables
from mirrorlake.mirror.ledger import read_mirrored
from mirrorlake.mirror.next_batch import is_refilled
from mirrorlake.mirror.options import declared_keys
from mirrorlake.mirror.state import ALL, Shard, TableState, failed
from mirrorlake.names import STATE, TableName
from mirrorlake.results import Outcome
from mirrorlake.storage.files import Listing, Storage
from mirrorlake.storage.kept import read_kept

_log = logging.getLogger(__name__)
FORMAT = 1  # notes of earlier versions have none
_DROPPED = f"{STATE}/dropped"
_STAMP = "%Y%m%dT%H%M%S.%fZ"


@dataclass(frozen=True)
class DroppedTable:
    """A table that was dropped.

    Attributes:
        when: when it was dropped.
        path: where it lies now, relative to the lake's root; on a store where it always was.
        identity: the folder's incarnation that filled it last, where that is known.
    """

    table: TableName
    when: datetime
    path: str
    identity: Identity | None

    @classmethod
    def of(
        cls, table: TableName, stamp: str, path: str, document: dict[str, Any] | None
    ) -> DroppedTable:
        """A table by the stamp of its drop, and by the document that was left then."""
        when = datetime.strptime(stamp, _STAMP).replace(tzinfo=timezone.utc)
        identity = None
        if document is not None and "incarnation" in document:
            origin = TableName.parse(document["origin"])
            identity = Identity(table, document["incarnation"], origin)
        return cls(table, when, path, identity)

    @property
    def is_in_place(self) -> bool:
        """Whether it still lies where it was, hidden by a document."""
        return self.path == self.table.table_path

    def is_of(self, identity: Identity) -> bool:
        """Whether a folder's incarnation filled it last."""
        return self.identity is not None and self.identity.incarnation == identity.incarnation


def drop_table(storage: Storage, table: TableName, identity: Identity | None) -> bool:
    """Moves a table aside, or hides it in its place on a store; False if there is none.

    Args:
        storage: the lake's files.
        table: which table.
        identity: the incarnation that filled it, so that it can be taken back under another name.
    """
    stamp = datetime.now(timezone.utc).strftime(_STAMP)
    if storage.local is None:
        if is_dropped(storage, table.table_path) or not storage.files_below(table.table_path):
            return False
        note_drop(storage, table, {"when": stamp, **_told(identity)})
        return True
    return _move_aside(storage, table, identity, stamp)


def _told(identity: Identity | None) -> dict[str, Any]:
    if identity is None:
        return {}
    origin = identity.origin or identity.table
    return {"incarnation": identity.incarnation, "origin": str(origin)}


def _move_aside(storage: Storage, table: TableName, identity: Identity | None, stamp: str) -> bool:
    folder = f"{_DROPPED}/{table.place}/{stamp}"
    if identity is not None:
        storage.write_json(f"{folder}/identity.json", {"format": FORMAT, **_told(identity)})
    if storage.move_folder(table.table_path, f"{folder}/table"):
        return True
    storage.delete_folder(folder)
    return False


def dropped_tables(storage: Storage) -> list[DroppedTable]:
    """All dropped tables that can still be taken back, the newest first."""
    found = []
    for table in published_tables(storage, _DROPPED):
        for stamp in storage.list(f"{_DROPPED}/{table.place}").folders:
            folder = f"{_DROPPED}/{table.place}/{stamp}"
            document = read_kept(storage, f"{folder}/identity.json", FORMAT)
            found.append(DroppedTable.of(table, stamp, f"{folder}/table", document))
    found += filter(None, (_in_place(storage, table) for table in dropped_in_place(storage)))
    return sorted(found, key=lambda dropped: dropped.when, reverse=True)


def _in_place(storage: Storage, table: TableName) -> DroppedTable | None:
    document = read_drop(storage, table)
    if document is None:
        return None
    return DroppedTable.of(table, document["when"], table.table_path, document)


def take_back(storage: Storage, identity: Identity) -> bool:
    """Brings a dropped table back to a folder that is there again, under its name of today.

    The table of this very incarnation counts first, under any name; then the one of that name.
    """
    dropped = dropped_tables(storage)
    own = [d for d in dropped if d.is_of(identity)]
    alike = [d for d in dropped if d.table == identity.table]
    chosen = next(iter(own + alike), None)
    return chosen is not None and _move_back(storage, chosen, identity.table)


def was_elsewhere(storage: Storage, identity: Identity) -> bool:
    """Whether this incarnation's table was dropped under another name: its folder was renamed."""
    return identity.origin is not None and any(
        dropped.is_of(identity) for dropped in dropped_tables(storage)
    )


def undrop(storage: Storage, table: TableName, *, dry_run: bool = False) -> Outcome:
    """Undoes a drop: the table is back, and its folder, so that publishers can go on.

    Args:
        storage: the lake's files.
        table: which table.
        dry_run: only say what would be done.

    Raises:
        TableNotFoundError: no dropped table of that name is kept.
        UsageError: there is a table of that name again.
    """
    chosen = next((d for d in dropped_tables(storage) if d.table == table), None)
    if chosen is None:
        raise TableNotFoundError(
            f"No dropped table {table} is kept.", hint="a week after its drop a table is deleted."
        )
    there = storage.list(table.table_path) != Listing((), ())
    if there and not is_dropped(storage, table.table_path):
        raise UsageError(f"There is a table {table} again.", hint="it has the old one's history.")
    dropped = f"the table that was dropped at {chosen.when:%Y-%m-%d %H:%M:%S} UTC is back"
    done = Outcome("undrop", str(table), f"{dropped}, and so is its folder", applied=not dry_run)
    if dry_run:
        return done
    snapshot = read_snapshot(storage, chosen.path, dropped=True)
    # The folder first: a mirror that finds it without its table takes the table back itself.
    declare_keys(storage, table, declared_keys(snapshot.properties) if snapshot else ())
    if chosen.identity is not None:
        write_identity(storage, replace(chosen.identity, table=table), make_folder=True)
    _move_back(storage, chosen, table)
    return done


def purge_dropped(storage: Storage, *, keep: timedelta) -> None:
    """Deletes for good what was dropped longer ago than `keep`."""
    now = datetime.now(timezone.utc)
    for dropped in dropped_tables(storage):
        if now - dropped.when >= keep:
            try:
                if not dropped.is_in_place:
                    storage.delete_folder(dropped.path.rpartition("/")[0])
                elif _in_place(storage, dropped.table) == dropped:  # and not taken back meanwhile
                    storage.delete_folder(dropped.path)
                    take_note_back(storage, dropped.table)
            except Exception as error:  # what is left over stops no mirror
                _log.warning("%s, dropped long ago, is kept: %s", dropped.table, error)


def _move_back(storage: Storage, dropped: DroppedTable, table: TableName) -> bool:
    if dropped.path == table.table_path:
        take_note_back(storage, table)
        return True
    other = _in_place(storage, table) if storage.local is None else None
    if other is not None:  # dropped as well, and in the place that is wanted now
        _move_aside(storage, table, other.identity, other.when.strftime(_STAMP))
        take_note_back(storage, table)
    if not storage.move_folder(dropped.path, table.table_path):
        return False
    if dropped.is_in_place:
        take_note_back(storage, dropped.table)
    else:
        storage.delete_folder(dropped.path.rpartition("/")[0])
    return True


def follow_folders(
    storage: Storage,
    states: dict[str, TableState],
    found: list[TableName | BadFolder],
    shard: Shard = ALL,
) -> tuple[list[TableName], list[TableState]]:
    """Renames and drops tables as their folders were; `states` is brought in line.

    A table that fails stops no other, and its folder must not be mirrored before it went well.

    Args:
        storage: the lake's files.
        states: what was known of each folder.
        found: the folders that the zone has now.
        shard: only folders of this one are followed. A folder that came to another shard by its
            new name is that one's to follow; its table is not dropped here meanwhile.

    Returns:
        The tables that were dropped; and those that could not be dropped, or moved to their new
        name: each is tried again by the next cycle.
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
                stuck.append(failed(TableState(table.schema, table.name), error))
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
            identity = Identity(state.table, state.incarnation) if state.incarnation else None
            if read_mirrored(storage, state.table) and drop_table(storage, state.table, identity):
                dropped.append(state.table)
        except InvalidNameError:
            continue  # it never had a table
        except Exception as error:
            states[folder] = failed(state, error)
            stuck.append(states[folder])
    return dropped, stuck


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
        last = last_applied(storage, table)
        if is_refilled(storage, identity, read_metadata(storage, table), last):
            # After the move, so that a killed mirror finds the rename again.
            renew_identity(storage, table)
        # Kept under the new name, so that a copy of the renamed folder is known as one.
        states[table.folder] = replace(states.pop(old), schema=table.schema, name=table.name)
