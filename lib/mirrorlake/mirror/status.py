"""How tables stand, and what the next cycle would apply: from listings, kept states, and checks.

Neither needs Spark. `status` writes states only where it is asked to rebuild them; a preview writes
no identity, plan or state, and checks text files as Parquet in a temporary folder. Files that are
late by time are found by the cycle only.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from typing import Any

from mirrorlake.delta.snapshot import delta_tables, read_snapshot
from mirrorlake.errors import FormatError, InvalidNameError, MirrorlakeError, SequenceError
from mirrorlake.landing.metadata import (
    BY_TIME,
    Identity,
    last_applied,
    read_identity,
    read_metadata,
)
from mirrorlake.landing.zone import (
    BadFolder,
    Folder,
    by_number,
    by_time,
    find_tables,
    no_folder,
    published_tables,
)
from mirrorlake.mirror.ledger import rebuild_states
from mirrorlake.mirror.next_batch import Batch, load_context, preview_batch
from mirrorlake.mirror.options import MirrorOptions, all_settings, read_settings
from mirrorlake.mirror.shards import Shard
from mirrorlake.mirror.state import (
    REPLICATING,
    STOPPED,
    TableState,
    failed,
    file_signature,
    load_states,
    save_states,
)
from mirrorlake.names import IDENTITY, METADATA, ZONE, TableName, place_of
from mirrorlake.results import Result, TextTable
from mirrorlake.storage.files import Listing, Storage


@dataclass(frozen=True)
class TableStatus:
    """One table's entry of a report.

    Attributes:
        rows: operations applied so far.
        last_file: the number of the last applied file, 0 if none.
        backlog_files: files published and not yet applied.
        backlog_bytes: their sizes.
        waiting_for: the number of the missing file that blocks later ones, or None.
        waiting_since: when the first file behind it came, ISO-8601 UTC.
        lag_seconds: age of the oldest file not yet applied; 0 if there is none.
        applied_bytes: sizes of the files applied so far. This and the following attributes are not
            part of the JSON document.
        synced: the time of the last commit, ISO-8601 UTC; None before the first one.
        latency: seconds from the publication of the last applied file to its commit, or None.
    """

    name: str
    schema: str | None
    state: str
    rows: int
    last_file: int
    backlog_files: int
    backlog_bytes: int
    waiting_for: int | None
    waiting_since: str | None
    lag_seconds: float
    error: dict[str, Any] | None
    applied_bytes: int = 0
    synced: str | None = None
    latency: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the table's entry of the JSON document."""
        hidden = ("applied_bytes", "synced", "latency")
        return {name: value for name, value in asdict(self).items() if name not in hidden}

    @property
    def table(self) -> TableName | None:
        """Which table this is; None for a folder whose name no table can have."""
        try:
            return TableName(self.schema, self.name)
        except InvalidNameError:
            return None

    @property
    def full_name(self) -> str:
        """The table's name with its schema, for people."""
        return self.name if self.schema is None else f"{self.schema}.{self.name}"


@dataclass(frozen=True)
class Report(Result):
    """What a cycle did, or how things stand: one entry per table, ordered by name.

    Attributes:
        dropped: the tables that this cycle dropped because their folders are gone.
    """

    tables: tuple[TableStatus, ...] = ()
    dropped: tuple[str, ...] = ()

    @property
    def failed(self) -> tuple[TableStatus, ...]:
        """The tables with an error."""
        return tuple(table for table in self.tables if table.error)

    @property
    def fed(self) -> set[TableName]:
        """The tables that publishers feed."""
        return {table for line in self.tables if (table := line.table) is not None}

    @property
    def progress(self) -> tuple[Any, ...]:
        """What differs between two reports when something was done, or is there to be done."""
        lines = ((t.schema, t.name, t.last_file, t.backlog_files) for t in self.tables)
        return (self.dropped, *lines)

    def as_dict(self) -> dict[str, Any]:
        """The document that `--json` prints."""
        return {"tables": [table.as_dict() for table in self.tables]}

    def shown(self) -> TextTable:
        """One row per table, without what changes from run to run."""
        columns = ("table", "state", "rows", "last_file", "backlog_files", "error")
        rows = tuple(
            (
                table.full_name,
                table.state,
                table.rows,
                table.last_file,
                table.backlog_files,
                table.error and table.error["message"],
            )
            for table in self.tables
        )
        # A column of nothing but "no error" tells nothing.
        keep = len(columns) if self.failed else len(columns) - 1
        return TextTable(columns[:keep], tuple(row[:keep] for row in rows))

    def __repr__(self) -> str:
        rows = sum(table.rows for table in self.tables)
        text = f"{len(self.tables)} tables, {rows:,} rows applied so far"
        return f"{text}, {len(self.failed)} failed" if self.failed else text


def listed_folder(listing: Listing, state: TableState) -> Folder | None:
    """The folder's files as a report counts them, from the listing alone; None if it can't."""
    if state.strategy == BY_TIME:
        tails = (entry.name for entry in listing.files if file_signature(entry) == state.tail)
        last = state.last_file
        return by_time(state.table, listing, dict.fromkeys(tails, last), last)
    try:
        return by_number(state.table, listing)
    except SequenceError:
        return None  # it is in the state as the table's error


def idle_folder(listing: Listing, state: TableState) -> Folder | None:
    """The folder, if a listing alone shows that there is nothing to do in it."""
    if state.error is not None or state.seen is None:
        return None
    now = (listing.state_of(IDENTITY), listing.state_of(METADATA))
    if now != (state.seen, state.declared):
        return None
    folder = listed_folder(listing, state)
    applied = (state.last_file, state.tail)
    if folder is None or any((n, file_signature(e)) != applied for n, e in folder.numbered.items()):
        return None
    return folder


def status_of(state: TableState, folder: Folder | None, skip: Collection[int] = ()) -> TableStatus:
    """The entry of a report: what was kept, and what the listing shows; `skip` is no gap."""
    behind = folder.behind(state.last_file) if folder else []
    waiting = folder.pending(state.last_file, skip)[1] if folder and behind else None
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
        applied_bytes=state.bytes,
        synced=state.synced,
        latency=state.latency,
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
            lines.append(status_of(failed(state, table.error), None))
            continue
        try:
            asked = settings_of(table)
            listing = listed.get(table.folder) or storage.list(table.folder)
            folder = listed_folder(listing, state) or by_number(table, listing)
            if folder.behind(state.last_file):
                state = _caught_up(storage, state, table)
            elif state.seen not in (None, listing.state_of(IDENTITY)):
                # The folder has a new incarnation, of which nothing may be applied yet.
                state = _caught_up(storage, replace(state, last_file=0), table)
            if asked.paused is not None:
                state = replace(state, state=STOPPED)
            lines.append(status_of(state, listed_folder(listing, state), asked.skip))
        except MirrorlakeError as error:
            lines.append(status_of(failed(state, error), None))
    return Report(tuple(lines))


@dataclass(frozen=True)
class TablePreview:
    """What a cycle would do with one table.

    Attributes:
        status: how the table stands; its error is the one that the cycle would end with.
        files: the files that would be applied, in order.
        rows: the rows in them.
    """

    status: TableStatus
    files: tuple[str, ...] = ()
    rows: int = 0


@dataclass(frozen=True)
class Preview(Result):
    """What a cycle would do: an entry per table, ordered by name.

    Attributes:
        dropped: the tables that it would drop, because their folders are gone.
    """

    tables: tuple[TablePreview, ...]
    dropped: tuple[str, ...] = ()

    @property
    def failed(self) -> tuple[TablePreview, ...]:
        """The tables that would have an error."""
        return tuple(table for table in self.tables if table.status.error)

    def as_dict(self) -> dict[str, Any]:
        """The document that `mirror --dry-run --json` prints."""
        return {
            "tables": [
                {**one.status.as_dict(), "files": list(one.files), "rows_to_apply": one.rows}
                for one in self.tables
            ],
            "dropped": list(self.dropped),
        }

    def shown(self) -> TextTable:
        """One row a table."""
        rows = tuple(
            (
                one.status.full_name,
                len(one.files),
                f"{one.files[0]} …" if len(one.files) > 1 else "".join(one.files),
                one.rows,
                one.status.waiting_for,
                one.status.error and one.status.error["file"],
            )
            for one in self.tables
        )
        return TextTable(("table", "files", "first file", "rows", "waiting for", "bad file"), rows)

    def __repr__(self) -> str:
        files = sum(len(one.files) for one in self.tables)
        dropped = f", {', '.join(self.dropped)} dropped" if self.dropped else ""
        return f"{files} files of {len(self.tables)} tables would be applied{dropped}: a dry run"


def preview_cycle(
    storage: Storage, only: TableName | None = None, options: MirrorOptions | None = None
) -> Preview:
    """What the next cycle would apply.

    Args:
        storage: the lake's files.
        only: a single table; by default all of the zone.
        options: bounds of the cycle.

    Raises:
        TableNotFoundError: the single table has no folder in the zone.
    """
    lines = status_report(storage).tables
    if only is not None:
        lines = tuple(line for line in lines if line.table == only)
        if not lines:
            raise no_folder(only)
    options = options or MirrorOptions()
    if only is None:
        shard = Shard.parse(options.shard)
        places = ((line, place_of(line.schema, line.name)) for line in lines)
        lines = tuple(line for line, place in places if shard.has(f"{ZONE}/{place}"))
    return Preview(
        tuple(_preview(storage, line, options) for line in lines),
        () if only else _dropped(storage),
    )


def _dropped(storage: Storage) -> tuple[str, ...]:
    """The kept states' tables whose folders are gone, under whatever name."""
    present = published_tables(storage)
    folders = {table.folder for table in present}
    gone = [s for folder, s in (load_states(storage) or {}).items() if folder not in folders]
    identities = [read_identity(storage, table) for table in present] if gone else []
    renamed = {identity.incarnation for identity in identities if identity}
    return tuple(
        str(state.table)
        for state in gone
        if state.incarnation not in renamed and read_snapshot(storage, state.table.table_path)
    )


def _preview(storage: Storage, status: TableStatus, options: MirrorOptions) -> TablePreview:
    table = status.table
    if status.state == STOPPED or table is None:  # the status says what is wrong with its name
        return TablePreview(status)
    try:
        batch = _next_batch(storage, table, options)
    except MirrorlakeError as error:
        return TablePreview(replace(status, error=error.as_dict()))
    status = replace(status, error=None if batch.error is None else batch.error.as_dict())
    facts = [file for file in batch.facts if file.skipped is None]
    rows = sum(file.row_count for file in facts)
    return TablePreview(status, tuple(file.name for file in facts), rows)


def _next_batch(storage: Storage, table: TableName, options: MirrorOptions) -> Batch:
    """Return the sound files that come next, and the error of the file after them."""
    metadata = read_metadata(storage, table)
    at = load_context(
        storage,
        read_identity(storage, table) or Identity(table, "none yet"),
        metadata,
        read_snapshot(storage, table.table_path),
        storage.list(table.folder),
        TableState(table.schema, table.name),
    )
    return preview_batch(at, options, dict.fromkeys(read_settings(storage, table).skip, ""))
