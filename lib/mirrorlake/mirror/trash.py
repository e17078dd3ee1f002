"""Tables follow their folders: renamed with them, dropped when they go, taken back on demand.

A folder is known by the identity in it, not by its name. Deleted means that its table is moved
aside and kept for a while; renamed, that its table moves along with all it has; copied, that the
copy starts an incarnation of its own.

A table that comes back brings its whole history along: the folder's next incarnation overwrites
it in one commit, so that old versions, and frames of them, survive a drop.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone

from mirrorlake.delta.snapshot import read_snapshot
from mirrorlake.errors import InvalidNameError, MirrorlakeError, TableNotFoundError, UsageError
from mirrorlake.kept import read_kept
from mirrorlake.landing.identity import (
    Identity,
    is_in_folder,
    read_identity,
    renew_identity,
    write_identity,
)
from mirrorlake.landing.metadata import declare_keys
from mirrorlake.landing.zone import BadFolder, find_tables
from mirrorlake.mirror.ledger import read_mirrored
from mirrorlake.mirror.properties import KEYS_PROPERTY
from mirrorlake.mirror.state import TableState
from mirrorlake.names import STATE, TableName
from mirrorlake.results import Outcome
from mirrorlake.storage import Listing, Storage

FORMAT = 1  # notes of earlier versions have none
_DROPPED = f"{STATE}/dropped"
_STAMP = "%Y%m%dT%H%M%S.%fZ"


@dataclass(frozen=True)
class DroppedTable:
    """A table that was dropped.

    Attributes:
        when: when it was dropped.
        path: where it lies now, relative to the lake's root.
        identity: the folder's incarnation that filled it last, where that is known.
    """

    table: TableName
    when: datetime
    path: str
    identity: Identity | None


def drop_table(storage: Storage, table: TableName, identity: Identity | None) -> bool:
    """Moves a table aside; False if there is none.

    Args:
        storage: the lake's files.
        table: which table.
        identity: the incarnation that filled it, so that it can be taken back under another name.
    """
    stamp = datetime.now(timezone.utc).strftime(_STAMP)
    folder = f"{_DROPPED}/{table.place}/{stamp}"
    if identity is not None:
        document = {
            "format": FORMAT,
            "incarnation": identity.incarnation,
            "origin": str(identity.origin or identity.table),
        }
        storage.write_json(f"{folder}/identity.json", document)
    if storage.move_folder(table.table_path, f"{folder}/table"):
        return True
    storage.delete_folder(folder)
    return False


def dropped_tables(storage: Storage) -> list[DroppedTable]:
    """All dropped tables that can still be taken back, the newest first."""
    found = []
    for table in find_tables(storage, _DROPPED):
        if isinstance(table, BadFolder):
            continue
        for stamp in storage.list(f"{_DROPPED}/{table.place}").folders:
            folder = f"{_DROPPED}/{table.place}/{stamp}"
            when = datetime.strptime(stamp, _STAMP).replace(tzinfo=timezone.utc)
            known = read_kept(storage, f"{folder}/identity.json", FORMAT)
            identity = None
            if known is not None:
                origin = TableName.parse(known["origin"])
                identity = Identity(table, known["incarnation"], origin)
            found.append(DroppedTable(table, when, f"{folder}/table", identity))
    return sorted(found, key=lambda dropped: dropped.when, reverse=True)


def take_back(storage: Storage, identity: Identity) -> bool:
    """Brings a dropped table back to a folder that is there again, under its name of today.

    The table of this very incarnation counts first, under any name; then the one of that name.
    """
    dropped = dropped_tables(storage)
    own = [d for d in dropped if d.identity and d.identity.incarnation == identity.incarnation]
    alike = [d for d in dropped if d.table == identity.table]
    chosen = next(iter(own + alike), None)
    return chosen is not None and _move_back(storage, chosen, identity.table)


def was_elsewhere(storage: Storage, identity: Identity) -> bool:
    """Whether this incarnation's table was dropped under another name: its folder was renamed."""
    return identity.origin is not None and any(
        dropped.identity is not None and dropped.identity.incarnation == identity.incarnation
        for dropped in dropped_tables(storage)
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
    if storage.list(table.table_path) != Listing((), ()):
        raise UsageError(f"There is a table {table} again.", hint="it has the old one's history.")
    dropped = f"the table that was dropped at {chosen.when:%Y-%m-%d %H:%M:%S} UTC is back"
    done = Outcome("undrop", str(table), f"{dropped}, and so is its folder", applied=not dry_run)
    if dry_run:
        return done
    snapshot = read_snapshot(storage, chosen.path)
    keys = json.loads(snapshot.properties.get(KEYS_PROPERTY, "[]")) if snapshot else []
    # The folder first: a mirror that finds it without its table takes the table back itself.
    declare_keys(storage, table, tuple(keys))
    if chosen.identity is not None:
        write_identity(storage, replace(chosen.identity, table=table), make_folder=True)
    _move_back(storage, chosen, table)
    return done


def purge_dropped(storage: Storage, *, keep: timedelta) -> None:
    """Deletes for good what was dropped longer ago than `keep`."""
    now = datetime.now(timezone.utc)
    for dropped in dropped_tables(storage):
        if now - dropped.when >= keep:
            storage.delete_folder(dropped.path.rpartition("/")[0])


def _move_back(storage: Storage, dropped: DroppedTable, table: TableName) -> bool:
    if not storage.move_folder(dropped.path, table.table_path):
        return False
    storage.delete_folder(dropped.path.rpartition("/")[0])
    return True


def follow_folders(
    storage: Storage, states: dict[str, TableState], found: list[TableName | BadFolder]
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
        if read_mirrored(storage, table) and drop_table(storage, table, identity):
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
    if old in present and is_in_folder(storage, before, identity):
        renew_identity(storage, table)
    elif (
        storage.move_folder(before.table_path, table.table_path)
        or read_snapshot(storage, before.table_path) is None
    ):
        # Kept under the new name, so that a copy of the renamed folder is known as one.
        states[table.folder] = replace(states.pop(old), schema=table.schema, name=table.name)
