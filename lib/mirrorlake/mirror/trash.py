"""Dropped tables: moved aside when their folder goes, kept for a while, taken back on demand.

A table that comes back brings its whole history along: the folder's next life overwrites it in one
commit, so that old versions and whoever stands on them survive a drop.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone

from mirrorlake.delta_log import read_snapshot
from mirrorlake.errors import TableNotFoundError, UsageError
from mirrorlake.landing.identity import Identity, write_identity
from mirrorlake.landing.metadata import declare_keys
from mirrorlake.landing.zone import BadFolder, find_tables
from mirrorlake.mirror.outcome import Outcome
from mirrorlake.mirror.properties import KEYS_PROPERTY
from mirrorlake.names import STATE, TableName
from mirrorlake.storage import Listing, Storage

_DROPPED = f"{STATE}/dropped"
_STAMP = "%Y%m%dT%H%M%S.%fZ"


@dataclass(frozen=True)
class DroppedTable:
    """A table that was dropped.

    Attributes:
        when: the moment of its drop.
        path: where it lies now, relative to the lake's root.
        identity: the folder's life that filled it last, where that is known.
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
        identity: the life that filled it, so that it can be taken back under another name.
    """
    stamp = datetime.now(timezone.utc).strftime(_STAMP)
    folder = f"{_DROPPED}/{table.place}/{stamp}"
    if identity is not None:
        document = {
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
            known = storage.read_json(f"{folder}/identity.json")
            identity = None
            if known is not None:
                origin = TableName.parse(known["origin"])
                identity = Identity(table, known["incarnation"], origin)
            found.append(DroppedTable(table, when, f"{folder}/table", identity))
    return sorted(found, key=lambda dropped: dropped.when, reverse=True)


def take_back(storage: Storage, identity: Identity) -> bool:
    """Brings a dropped table back to a folder that is there again, under its name of today.

    The table of this very life counts first, whatever it was called; then the one of that name.
    """
    dropped = dropped_tables(storage)
    own = [d for d in dropped if d.identity and d.identity.incarnation == identity.incarnation]
    alike = [d for d in dropped if d.table == identity.table]
    chosen = next(iter(own + alike), None)
    return chosen is not None and _move_back(storage, chosen, identity.table)


def was_elsewhere(storage: Storage, identity: Identity) -> bool:
    """Whether the table of this life was dropped under another name: its folder was renamed."""
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
