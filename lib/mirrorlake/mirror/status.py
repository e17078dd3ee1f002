"""The state of each table: from a listing and the kept state alone, without Spark."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timezone

from mirrorlake.delta.snapshot import delta_tables
from mirrorlake.errors import (
    FormatError,
    MirrorlakeError,
    SequenceError,
)
from mirrorlake.landing.metadata import BY_TIME, last_applied
from mirrorlake.landing.zone import BadFolder, Folder, by_number, by_time, find_tables
from mirrorlake.mirror.ledger import rebuild_states
from mirrorlake.mirror.operator_settings import all_settings
from mirrorlake.mirror.state import (
    REPLICATING,
    STOPPED,
    Report,
    TableState,
    TableStatus,
    failed,
    file_signature,
    load_states,
    save_states,
)
from mirrorlake.names import IDENTITY, METADATA, ZONE, TableName
from mirrorlake.storage import Listing, Storage


def listed_folder(table: TableName, listing: Listing, state: TableState) -> Folder | None:
    """The folder's files as a report counts them, from the listing alone; None if it can't."""
    if state.strategy == BY_TIME:
        tails = (entry.name for entry in listing.files if file_signature(entry) == state.tail)
        return by_time(table, listing, dict.fromkeys(tails, state.last_file), state.last_file)
    try:
        return by_number(table, listing)
    except SequenceError:
        return None  # it is in the state as the table's error


def is_idle(listing: Listing, state: TableState) -> bool:
    """Whether a listing alone shows that there is nothing to do."""
    if state.error is not None or state.seen is None:
        return False
    if (listing.state_of(IDENTITY), listing.state_of(METADATA)) != (
        state.seen,
        state.declared,
    ):
        return False
    folder = listed_folder(state.table, listing, state)
    return folder is not None and all(number == state.last_file for number in folder.numbered)


def status_of(state: TableState, folder: Folder | None, skip: Collection[int] = ()) -> TableStatus:
    """The entry of a report: what was kept, and what the listing shows; `skip` is no gap."""
    behind = folder.behind(state.last_file) if folder else []
    waiting = folder.pending(state.last_file, skip)[1] if folder else None
    blocked = folder.behind(waiting) if folder and waiting is not None else []
    since = min((entry.modified for entry in blocked), default=None)
    now = datetime.now(timezone.utc)
    oldest = min((entry.modified for entry in behind), default=now)
    return TableStatus(
        name=state.name,
        schema=state.schema,
        state=state.state,
        rows=state.rows,
        last_file=state.last_file,
        backlog_files=len(behind),
        backlog_bytes=sum(entry.size for entry in behind),
        waiting_for=waiting,
        waiting_since=since.isoformat() if since else None,
        lag_seconds=round(max(0.0, (now - oldest).total_seconds()), 3),
        error=state.error,
    )


def _caught_up(storage: Storage, state: TableState, table: TableName) -> TableState:
    """The state by the table's own log: a mirror may have been killed before it kept its own."""
    last = last_applied(storage, table)
    if last <= state.last_file:
        return state
    return replace(state, last_file=last, state=REPLICATING, error=None)


def status_report(storage: Storage, *, rebuild: bool = False) -> Report:
    """The state of every table of the zone, without Spark; only `rebuild` changes anything."""
    states = None
    if not rebuild:
        with suppress(FormatError):  # they are newer: the tables' logs tell as well
            states = load_states(storage) or {}
    if states is None:
        states = rebuild_states(storage, delta_tables(storage))
    if rebuild:
        save_states(storage, states)
    settings_of = all_settings(storage)
    tables = list(find_tables(storage))
    listed = storage.list_many(ZONE, {table.folder for table in tables})
    lines = []
    for table in tables:
        state = states.get(table.folder) or TableState(table.schema, table.name)
        if isinstance(table, BadFolder):
            lines.append(status_of(failed(state, table.error.as_dict()), None))
            continue
        try:
            asked = settings_of(table)
            listing = listed.get(table.folder) or storage.list(table.folder)
            folder = listed_folder(table, listing, state) or by_number(table, listing)
            if folder.behind(state.last_file):
                state = _caught_up(storage, state, table)
            elif state.seen not in (None, listing.state_of(IDENTITY)):
                # The folder has a new incarnation, of which nothing may be applied yet.
                state = _caught_up(storage, replace(state, last_file=0), table)
            if asked.paused is not None:
                state = replace(state, state=STOPPED)
            lines.append(status_of(state, listed_folder(table, listing, state), asked.skip))
        except MirrorlakeError as error:
            lines.append(status_of(failed(state, error.as_dict()), None))
    return Report(tuple(lines))
