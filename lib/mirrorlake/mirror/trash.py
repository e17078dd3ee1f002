"""Drop, rename and restore tables when their folders in the landing zone are deleted or renamed.

The identity file, not the name, identifies a folder. If a folder is deleted, its table is moved
aside and kept for a while. If it is renamed, its table moves with it, and so do the documents that
the lake stores under the table's name. If the renamed folder was also refilled with other files,
the table is replaced as well. A copied folder starts its own incarnation.

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

from mirrorlake.delta.commits import read_commit_info
from mirrorlake.delta.log_files import (
    dropped_in_place,
    is_dropped,
    note_drop,
    read_drop,
    take_note_back,
)
from mirrorlake.delta.snapshot import Snapshot, read_snapshot
from mirrorlake.delta.timestamps import from_milliseconds
from mirrorlake.errors import InvalidNameError, MirrorlakeError, TableNotFoundError, UsageError
from mirrorlake.landing.metadata import (
    Identity,
    declare_keys,
    has_files,
    is_in_folder,
    last_applied,
    logged_identity,
    read_identity,
    read_metadata,
    renew_identity,
    write_identity,
)
from mirrorlake.landing.zone import BadFolder, published_tables
from mirrorlake.mirror.ledger import last_note, read_mirrored
from mirrorlake.mirror.next_batch import is_refilled
from mirrorlake.mirror.options import (
    OperatorSettings,
    copy_settings,
    declared_keys,
    is_mirrored,
    write_settings,
)
from mirrorlake.mirror.state import ALL, Shard, TableState, failed
from mirrorlake.names import STATE, TableName
from mirrorlake.notices import noop
from mirrorlake.results import Outcome
from mirrorlake.storage.files import Listing, Storage, map_concurrently
from mirrorlake.storage.kept import read_kept

_log = logging.getLogger(__name__)
FORMAT = 1  # documents of earlier versions have no format
_DROPPED = f"{STATE}/dropped"
_STAMP = "%Y%m%dT%H%M%S.%fZ"


@dataclass(frozen=True)
class DroppedTable:
    """A table that was dropped.

    Attributes:
        table: the table's name.
        when: the time of the drop.
        path: its current path, relative to the lake's root; unchanged in an object store.
        identity: the incarnation of the folder that filled it last; None if it is unknown.
    """

    table: TableName
    when: datetime
    path: str
    identity: Identity | None

    @classmethod
    def of(
        cls, table: TableName, stamp: str, path: str, document: dict[str, Any] | None
    ) -> DroppedTable:
        """Return a table by the timestamp of its drop, and by the document that the drop wrote."""
        when = datetime.strptime(stamp, _STAMP).replace(tzinfo=timezone.utc)
        identity = None
        if document is not None and "incarnation" in document:
            origin = TableName.parse(document["origin"])
            identity = Identity(table, document["incarnation"], origin)
        return cls(table, when, path, identity)

    @property
    def is_in_place(self) -> bool:
        """True if the table was not moved and a document hides it."""
        return self.path == self.table.table_path

    def is_of(self, identity: Identity) -> bool:
        """Return whether this incarnation of a folder filled the table last."""
        return self.identity is not None and self.identity.incarnation == identity.incarnation


def drop_table(storage: Storage, table: TableName, identity: Identity | None) -> bool:
    """Drop a table: move it aside on a disk, or hide it in an object store.

    Args:
        storage: the lake's files.
        table: the table's name.
        identity: the incarnation that filled it, so that it can be restored under another name.

    Returns:
        False if there is no such table.
    """
    stamp = datetime.now(timezone.utc).strftime(_STAMP)
    if is_dropped(storage, table.table_path):
        return False
    if storage.local is None:
        if not storage.files_below(table.table_path):
            return False
        note_drop(storage, table, {"when": stamp, **_identity_fields(identity)})
        return True
    return _move_aside(storage, table, identity, stamp)


def filled_by(
    storage: Storage, table: TableName, snapshot: Snapshot | None, known: str | None = None
) -> Identity | None:
    """Return the identity of the folder that filled a table last; None if it is unknown.

    Args:
        storage: the lake's files.
        table: the table's name.
        snapshot: the table's newest snapshot.
        known: the incarnation if the log does not have it.
    """
    incarnation = last_note(storage, table, snapshot).get("incarnation") or known
    return logged_identity(snapshot, table, incarnation) if incarnation else None


def _identity_fields(identity: Identity | None) -> dict[str, Any]:
    if identity is None:
        return {}
    origin = identity.origin or identity.table
    return {"incarnation": identity.incarnation, "origin": str(origin)}


def _move_aside(storage: Storage, table: TableName, identity: Identity | None, stamp: str) -> bool:
    folder = f"{_DROPPED}/{table.place}/{stamp}"
    if identity is not None:
        storage.write_json(
            f"{folder}/identity.json", {"format": FORMAT, **_identity_fields(identity)}
        )
    if storage.move_folder(table.table_path, f"{folder}/table"):
        return True
    storage.delete_folder(folder)
    return False


def dropped_tables(storage: Storage) -> list[DroppedTable]:
    """Return all dropped tables that can be restored, the newest first."""
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


def restore_dropped(storage: Storage, identity: Identity) -> bool:
    """Restore the dropped table of a folder that exists again, under the folder's current name.

    A table of the same incarnation has priority, whatever its name; then a table of the same name.

    Returns:
        False if no such table was dropped, or its place is taken.
    """
    dropped = dropped_tables(storage)
    own = [d for d in dropped if d.is_of(identity)]
    alike = [d for d in dropped if d.table == identity.table]
    chosen = next(iter(own + alike), None)
    return chosen is not None and _move_back(storage, chosen, identity.table)


def was_renamed(storage: Storage, identity: Identity) -> bool:
    """Return whether the table of a renamed folder was dropped under its former name."""
    return identity.origin is not None and any(
        dropped.is_of(identity) for dropped in dropped_tables(storage)
    )


def undrop(storage: Storage, table: TableName, *, dry_run: bool = False) -> Outcome:
    """Restore a dropped table and its folder; see `Operations.undrop`.

    Args:
        storage: the lake's files.
        table: the table's name.
        dry_run: preview the effect and change nothing.

    Raises:
        TableNotFoundError: No dropped table of that name is kept.
        UsageError: A table of that name exists again.
    """
    chosen = next((d for d in dropped_tables(storage) if d.table == table), None)
    if chosen is None:
        raise TableNotFoundError(
            f"There is no dropped table {table}.",
            hint="choose a table that was dropped in the last 7 days; older ones are deleted.",
        )
    if not _is_free(storage, table) and not is_dropped(storage, table.table_path):
        raise UsageError(
            f"A table {table} exists again.",
            hint="use this table, or drop it first and then undrop the older one.",
        )
    dropped = f"the table that was dropped at {chosen.when:%Y-%m-%d %H:%M:%S} UTC"
    effect = f"{dropped} and its folder {'would be' if dry_run else 'are'} restored"
    done = Outcome("undrop", str(table), effect, applied=not dry_run)
    if dry_run:
        return done
    snapshot = read_snapshot(storage, chosen.path, dropped=True)
    properties = snapshot.properties if snapshot else {}
    # The folder first: a mirror that finds it without a table restores the table itself.
    if chosen.identity is not None or is_mirrored(properties):
        declare_keys(storage, table, declared_keys(properties))
    # If the folder was published again, its files are not those that filled the table.
    if chosen.identity is not None and not has_files(storage, table):
        write_identity(storage, replace(chosen.identity, table=table), make_folder=True)
    _move_back(storage, chosen, table)
    return done


def purge_dropped(storage: Storage, *, keep: timedelta) -> None:
    """Delete tables permanently that were dropped longer ago than `keep`."""
    now = datetime.now(timezone.utc)
    for dropped in dropped_tables(storage):
        if now - dropped.when >= keep:
            try:
                if not dropped.is_in_place:
                    storage.delete_folder(dropped.path.rpartition("/")[0])
                elif _in_place(storage, dropped.table) == dropped:  # it was not restored meanwhile
                    if not _is_used_again(storage, dropped):
                        storage.delete_folder(dropped.path)
                    take_note_back(storage, dropped.table)
            except Exception as error:  # the next purge tries again
                _log.warning("The dropped table %s was not deleted: %s", dropped.table, error)


def _is_used_again(storage: Storage, dropped: DroppedTable) -> bool:
    """Return whether a table on a disk has commits after its drop.

    Earlier versions ignored the documents in the copy of a store's lake.
    """
    if storage.local is None:
        return False
    snapshot = read_snapshot(storage, dropped.path, dropped=True)
    info = read_commit_info(storage, dropped.path, snapshot.version) if snapshot else {}
    return from_milliseconds(info.get("timestamp", 0)) > dropped.when


def _move_back(storage: Storage, dropped: DroppedTable, table: TableName) -> bool:
    if dropped.path == table.table_path:
        take_note_back(storage, table)
        return True
    make_room(storage, table)
    if not _move_table(storage, dropped.path, dropped.table, table):
        return False
    if dropped.is_in_place:
        take_note_back(storage, dropped.table)
    else:
        storage.delete_folder(dropped.path.rpartition("/")[0])
    return True


def _move_table(storage: Storage, path: str, old: TableName, new: TableName) -> bool:
    """Move a table to a name, with the documents that the lake stores under its old name.

    These are its policies, the positions of its consumers and its settings. Safe to interrupt: as
    long as the table can be read under its old name, the next call copies them again.

    Args:
        storage: the lake's files.
        path: the path of the table's folder.
        old: the table's former name.
        new: the table's new name.

    Returns:
        False if the new name is taken or the folder does not exist.
    """
    # If there is a later table of the old name, the documents belong to that table.
    follows = old != new and (path == old.table_path or _is_free(storage, old))

    def carry() -> None:
        for source, target in zip(_kept_under(old), _kept_under(new), strict=True):
            storage.delete_folder(target)  # of an earlier table
            _copy_folder(storage, source, target)
        copy_settings(storage, old, new)

    if follows and storage.local is not None and _is_free(storage, new):
        carry()
    if not storage.move_folder(path, new.table_path, carry if follows else noop):
        return False
    if follows:
        for source in _kept_under(old):
            storage.delete_folder(source)
        write_settings(storage, old, OperatorSettings())
    return True


def _kept_under(table: TableName) -> tuple[str, ...]:
    return table.feeds_path, table.partitioning_path, table.horizons_path


def _copy_folder(storage: Storage, source: str, target: str) -> None:
    def copy(file: str) -> None:
        storage.write(target + file.removeprefix(source), storage.read(file))

    map_concurrently(storage, copy, storage.files_below(source))


def _is_free(storage: Storage, table: TableName) -> bool:
    return storage.list(table.table_path) == Listing((), ())


def make_room(storage: Storage, table: TableName) -> None:
    """Move a table that was dropped in place aside, so that another one can have its path."""
    other = _in_place(storage, table)
    if other is not None:
        _move_aside(storage, table, other.identity, other.when.strftime(_STAMP))
        take_note_back(storage, table)


def follow_folders(
    storage: Storage,
    states: dict[str, TableState],
    found: list[TableName | BadFolder],
    shard: Shard = ALL,
) -> tuple[list[TableName], list[TableState]]:
    """Rename and drop tables whose folders were renamed or deleted, and update `states`.

    One table's failure does not stop the others. A folder whose table failed must not be mirrored
    until a later cycle succeeds.

    Args:
        storage: the lake's files.
        states: the saved states by folder.
        found: the current folders of the landing zone.
        shard: the shard to process. If a folder's new name is in another shard, the mirror of that
            shard moves the table, and this one does not drop it.

    Returns:
        The dropped tables, and the tables that could not be dropped or renamed. The next cycle
        tries these again.
    """
    present = {table.folder for table in found}
    dropped: list[TableName] = []
    stuck: list[TableState] = []
    held: set[str | None] = set()  # incarnations with a failed or pending rename: do not drop
    others: list[TableName] = []  # new folders of other shards
    for table in found:
        if isinstance(table, TableName) and table.folder not in states:
            if not shard.has(table.folder):
                others.append(table)
                continue
            try:
                _follow_rename(storage, states, present, table)
            except Exception as error:  # one table's failure must not stop the others
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
            snapshot = read_mirrored(storage, state.table)
            if snapshot is None:
                continue  # no mirror created such a table
            # If a mirror was killed, the log can have a newer incarnation than the saved state.
            filled = filled_by(storage, state.table, snapshot, state.incarnation)
            if drop_table(storage, state.table, filled):
                dropped.append(state.table)
        except InvalidNameError:
            continue  # an invalid name never had a table
        except Exception as error:
            states[folder] = failed(state, error)
            stuck.append(states[folder])
    return dropped, stuck


def _incarnation(storage: Storage, table: TableName) -> str | None:
    """Return the incarnation of a table's folder, or `None` if it can't be read."""
    try:
        identity = read_identity(storage, table)
    except Exception:  # the table's state already has the error
        return None
    return identity.incarnation if identity else None


def _follow_rename(
    storage: Storage, states: dict[str, TableState], present: set[str], table: TableName
) -> None:
    try:
        identity = read_identity(storage, table)
    except MirrorlakeError:
        return  # the table's own cycle reports the error
    if identity is None:
        return
    alike = (f for f, state in states.items() if state.incarnation == identity.incarnation)
    old = next(alike, None)
    if old is None:
        # If a mirror was killed, no state has the incarnation of the folder that was copied.
        if identity.origin is not None and is_in_folder(storage, identity.origin, identity):
            renew_identity(storage, table)
        return
    before = states[old].table
    if old in present and is_in_folder(storage, before, identity):
        renew_identity(storage, table)
    elif (
        # The table of a folder without files was dropped in place, and is not moved.
        read_snapshot(storage, before.table_path) is None
        or _move_table(storage, before.table_path, before, table)
    ):
        last = last_applied(storage, table)
        if is_refilled(storage, identity, read_metadata(storage, table), last):
            # After the move, so that the next cycle detects the rename again after a kill.
            renew_identity(storage, table)
        # Save the state under the new name, so that a copy of the renamed folder is recognized.
        states[table.folder] = replace(states.pop(old), schema=table.schema, name=table.name)
