"""The state of the mirrored tables, and the report or preview of a mirror cycle.

Both are computed without Spark, from listings, state documents and checks of files. Reading the
state writes a file only if the caller asks to rebuild the state documents. A preview writes no
identity, plan or state. To check a text file, it converts the file to Parquet in a temporary
folder. A preview does not find files that are older than the last applied file; only a cycle does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final

from mirrorlake.delta.snapshot import delta_tables, read_snapshot
from mirrorlake.errors import (
    CheckError,
    FormatError,
    InvalidNameError,
    MetadataError,
    MirrorlakeError,
    SequenceError,
    TableFailedError,
    with_place,
)
from mirrorlake.landing.metadata import (
    BY_TIME,
    Identity,
    read_identity,
    read_metadata,
    read_own_snapshot,
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
from mirrorlake.mirror.ledger import last_note, rebuild_states, with_note
from mirrorlake.mirror.next_batch import (
    Batch,
    load_context,
    number_files,
    operator_skips,
    preview_batch,
)
from mirrorlake.mirror.options import (
    MirrorOptions,
    OperatorSettings,
    all_settings,
    or_skip,
    read_settings,
    skip_command,
)
from mirrorlake.mirror.state import (
    REPLICATING,
    STOPPED,
    Shard,
    TableState,
    failed,
    file_signature,
    load_states,
    save_states,
)
from mirrorlake.names import IDENTITY, METADATA, ZONE, TableName, file_number, place_of
from mirrorlake.results import Count, Result, TextTable, counted, note, optional_figure, size_text
from mirrorlake.storage.files import Listing, Storage

if TYPE_CHECKING:
    from mirrorlake.show.chart import Chart


_HINT: Final = " Hint: "

_NOT_IN_JSON = ("applied_bytes", "synced", "latency", "stopped_at", "skipped")
GOOD, WARN, BAD, IDLE = "good", "warn", "bad", "idle"


@dataclass(frozen=True)
class TableStatus:
    """The state of one table that publishers fill through the landing zone.

    Attributes:
        rows: operations applied so far.
        last_file: the number of the last applied file; 0 if no file was applied.
        backlog_files: the number of published files that are not applied yet.
        backlog_bytes: the sum of the sizes of these files.
        waiting_for: the number of a missing file for which later files wait, or None.
        waiting_since: when the first file after the missing file was published, ISO-8601 UTC.
        lag_seconds: the age of the oldest file that is not applied yet; 0 if all files are applied.
        error: the error that stopped the table, with file, row and column; None if there is none.
        applied_bytes: the sum of the sizes of the applied files. The JSON document does not contain
            this attribute and the following ones.
        synced: the time of the last commit, ISO-8601 UTC; None before the first one.
        latency: seconds from the publication of the last applied file to its commit, or None.
        stopped_at: the waiting file that stopped the table, as `skip` takes it: its number, or its
            name if the files are ordered by time. Empty if no such file stopped it.
        skipped: the files that the mirror will skip, as `skip` takes them.
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
    stopped_at: str = ""
    skipped: tuple[str, ...] = ()

    @property
    def table(self) -> TableName | None:
        """The table's name; None for a folder whose name no table can have."""
        try:
            return TableName(self.schema, self.name)
        except InvalidNameError:
            return None

    @property
    def full_name(self) -> str:
        """The table's name with its schema, as it is shown."""
        return self.name if self.schema is None else f"{self.schema}.{self.name}"

    @property
    def level(self) -> str:
        """`bad` after an error, `warn` if a file is missing, `idle` if paused, else `good`."""
        if self.error:
            return BAD
        if self.waiting_for is not None:
            return WARN
        return IDLE if self.state == STOPPED else GOOD

    @property
    def shown_state(self) -> str:
        """The state in words: `Paused` for the format's `Stopped`, which only a pause causes."""
        return "Paused" if self.state == STOPPED else self.state

    @property
    def problem(self) -> str:
        """The error with its file, row and column, or the missing file; empty without a problem."""
        if self.error:
            return with_place(str(self.error["message"]).partition(_HINT)[0], self.error)
        if self.waiting_for is not None:
            return f"File {self.waiting_for} is missing; later files wait for it."
        return ""

    @property
    def shown_problem(self) -> str:
        """The problem, or that the table is paused, and the files that the mirror will skip."""
        known = self.problem or ("The table is paused." if self.level == IDLE else "")
        return " ".join(filter(None, (known, skip_note(self.skipped))))

    @property
    def fix(self) -> str:
        """The action that solves the problem or resumes a paused table; empty if none is needed."""
        if self.error:
            if self.stopped_at in self.skipped:
                return "run the mirror: its next cycle skips the file."
            hint = str(self.error["message"]).partition(_HINT)[2]
            if not self.stopped_at or self.table is None:
                return hint
            return or_skip(hint, self.table, self.stopped_at)
        if self.waiting_for is not None and self.table is not None:
            command = skip_command(self.table, self.waiting_for)
            return f"publish file {self.waiting_for}, or skip it ({command})."
        return "resume the table." if self.level == IDLE else ""

    @property
    def lag(self) -> str:
        """The lag as text, such as `524 s`."""
        return lag_text(self.lag_seconds)

    @property
    def backlog(self) -> str:
        """The backlog as text, such as `2 files, 3.1 KiB`; empty if no file waits."""
        files = counted(self.backlog_files, "file")
        return f"{files}, {size_text(self.backlog_bytes)}" if self.backlog_files else ""

    def as_dict(self) -> dict[str, Any]:
        """Return the table's entry in the documents of `status --json` and `mirror --json`."""
        names = [field.name for field in fields(TableStatus) if field.name not in _NOT_IN_JSON]
        return {name: getattr(self, name) for name in names}


def skip_note(files: Iterable[str]) -> str:
    """Return a sentence with the files that the mirror will skip; empty if there are none."""
    names = ", ".join(f"file {one}" for one in files)
    return f"The mirror will skip {names}." if names else ""


def lag_text(seconds: float | None) -> str:
    """Return a lag in whole seconds, `?` if it is unknown."""
    return "?" if seconds is None else f"{seconds:,.0f} s"


@dataclass(frozen=True)
class MirroredTable(TableStatus):
    """One table in the report of a cycle: its state after the cycle, and what the cycle applied.

    Attributes:
        applied_files: the number of files that the cycle applied; after a dry run, that it would
            apply.
        applied_rows: the number of rows in these files.
        file_names: after a dry run, the names of these files, in order.
    """

    applied_files: int = 0
    applied_rows: int = 0
    file_names: tuple[str, ...] = ()

    @classmethod
    def since(cls, status: TableStatus, before: TableState | None) -> MirroredTable:
        """Return what was applied between two states of a table.

        Args:
            status: the state after the cycle.
            before: the state before the cycle; None if the folder is new (another incarnation).
        """
        files, rows = (before.last_file, before.rows) if before else (0, 0)
        applied = max(0, status.last_file - files)
        return cls(
            **vars(status),
            applied_files=applied,
            applied_rows=max(0, status.rows - rows) if applied else 0,
        )


@dataclass(frozen=True)
class MirrorReport(Result):
    """The result of a mirror cycle: one entry per table, ordered by name.

    Attributes:
        dropped: the tables that the cycle dropped because their folders were deleted; after a dry
            run, those that it would drop.
        dry_run: whether the cycle was only previewed.
        note: why no table was mirrored; empty if some were.
    """

    tables: tuple[MirroredTable, ...] = ()
    dropped: tuple[str, ...] = ()
    dry_run: bool = False
    note: str = ""
    storage: Storage | None = field(default=None, repr=False, compare=False)

    @property
    def failed(self) -> tuple[MirroredTable, ...]:
        """The tables that an error stopped."""
        return tuple(table for table in self.tables if table.error)

    @property
    def fed(self) -> set[TableName]:
        """The tables that publishers fill."""
        return names_of(self.tables)

    @property
    def files(self) -> int:
        """The number of files that were applied, or would be."""
        return sum(table.applied_files for table in self.tables)

    @property
    def rows(self) -> int:
        """The number of rows in these files."""
        return sum(table.applied_rows for table in self.tables)

    @property
    def progress(self) -> tuple[Any, ...]:
        """A token that two reports share only if nothing was applied or published in between."""
        lines = ((t.schema, t.name, t.last_file, t.backlog_files) for t in self.tables)
        return (self.dropped, *lines)

    @property
    def errors(self) -> TextTable:
        """One row per table that an error stopped: its file, row, column and message."""
        return error_table(self.tables)

    def as_dict(self) -> dict[str, Any]:
        """Return the document that `mirror --json` prints."""
        if not self.dry_run:
            return {"tables": [one.as_dict() for one in self.tables]}
        planned = [
            one.as_dict() | {"files": list(one.file_names), "rows_to_apply": one.applied_rows}
            for one in self.tables
        ]
        return {"tables": planned, "dropped": list(self.dropped)}

    def shown(self) -> TextTable:
        """Return one row per table, or a note if no table was mirrored."""
        if not self.tables:
            return note(self.note or "No publisher feeds a table of this lake.")
        first = ("first file",) * self.dry_run
        columns = ("table", "state", "files", *first, "rows", "waiting", "problem")
        rows = tuple(
            (
                *(one.full_name, one.shown_state, Count(one.applied_files)),
                *one.file_names[:1],
                *("",) * (self.dry_run and not one.file_names),
                Count(one.applied_rows),
                Count(one.backlog_files - one.applied_files * self.dry_run),
                one.problem,
            )
            for one in self.tables
        )
        return TextTable(columns, rows)

    @optional_figure
    def plot(self) -> Chart | None:
        """Draw the lag of the newest files over time: one line for each of at most six tables.

        Returns:
            None if no file was applied yet.
        """
        from mirrorlake.mirror.lag import plot_replication

        names = largest_first(self.tables)
        return None if self.storage is None else plot_replication(self.storage, names)

    def check(self) -> None:
        """Raise an error if an error stopped a table.

        Raises:
            CheckError: with the first table's problem and its fix; a TableFailedError if the cause
                of an error may not be in the published files.
        """
        if self.failed:
            first, others = self.failed[0], len(self.failed) - 1
            more = f" ({counted(others, 'more table')} failed.)" if others else ""
            in_files = all(one.error and one.error["file"] for one in self.failed)
            kind = CheckError if in_files else TableFailedError
            raise kind(f"{first.full_name} failed: {first.problem}{more}", hint=first.fix)

    def __repr__(self) -> str:
        verb = "would be applied" if self.dry_run else "applied"
        text = f"{counted(self.files, 'file')} with {counted(self.rows, 'row')} {verb}"
        dropped = f", {', '.join(self.dropped)} dropped" if self.dropped else ""
        stopped = f", {counted(len(self.failed), 'table')} failed" if self.failed else ""
        return f"{text}{dropped}{stopped}{' (dry run)' if self.dry_run else ''}"


def names_of(tables: Iterable[TableStatus]) -> set[TableName]:
    """Return the tables' names, without folders whose names no table can have."""
    return {table for one in tables if (table := one.table) is not None}


def largest_first(tables: Iterable[TableStatus]) -> list[TableName]:
    """Return the names of the tables with applied files; the table with most files comes first."""
    ordered = sorted(tables, key=lambda one: (-one.last_file, one.full_name))
    return [table for one in ordered if one.last_file and (table := one.table)]


def error_table(tables: Iterable[TableStatus]) -> TextTable:
    """Return one row per table with an error: file, row if one is known, column, message."""
    found = [(table.full_name, table.error) for table in tables if table.error]
    # Most errors are of a whole column or file: there is a column `row` if one has a row.
    row = ("row",) if any(error["row"] for _, error in found) else ()
    facts = ("file", *row, "column", "message")
    rows = tuple((table, *(error[fact] for fact in facts)) for table, error in found)
    return TextTable(("table", *facts), rows)


def listed_folder(listing: Listing, state: TableState) -> Folder | None:
    """Return the folder's files in order, from its listing; None if the folder has an error."""
    if state.strategy == BY_TIME:
        tails = (entry.name for entry in listing.files if file_signature(entry) == state.tail)
        last = state.last_file
        return by_time(state.table, listing, dict.fromkeys(tails, last), last)
    try:
        return by_number(state.table, listing)
    except SequenceError:
        return None  # the state has this error


def idle_folder(listing: Listing, state: TableState) -> Folder | None:
    """Return the folder if its listing shows that the table has nothing to apply, else None."""
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


def status_of(
    state: TableState, folder: Folder | None, skip: Collection[int | str] = ()
) -> TableStatus:
    """Return a table's status, computed from its state document and its folder.

    Args:
        state: the state in the state document.
        folder: the folder's files; None if the caller has not listed them.
        skip: the files that an operator has skipped, by number, or by name if the files are ordered
            by time. No file is missing under these numbers.
    """
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
        stopped_at=_stopped_at(state.error, state.strategy, folder, state.last_file),
        skipped=_still_skipped(state, folder, skip),
    )


def _stopped_at(
    error: dict[str, Any] | None, strategy: str, folder: Folder | None, last: int
) -> str:
    """Return the file of an error as `skip` takes it; empty if it is not a file that waits."""
    name = error and error["file"]
    if not name or folder is None:
        return ""
    if strategy == BY_TIME:
        return name if any(entry.name == name for entry in folder.behind(last)) else ""
    number = file_number(name) or 0
    return str(number) if number > last else ""


def _still_skipped(
    state: TableState, folder: Folder | None, skip: Collection[int | str]
) -> tuple[str, ...]:
    """Return the skipped files that are not applied, as `skip` takes them."""
    if not skip:
        return ()
    if state.strategy == BY_TIME:
        waiting = sorted(folder.numbered.items()) if folder else ()
        return tuple(
            entry.name
            for number, entry in waiting
            if number > state.last_file and (number in skip or entry.name in skip)
        )
    numbers = sorted(one for one in skip if isinstance(one, int))
    return tuple(str(number) for number in numbers if number > state.last_file)


def _caught_up(
    storage: Storage, state: TableState, table: TableName, listing: Listing
) -> tuple[TableState, Folder | None]:
    """Return the state in line with the table's log, and the folder's files in order.

    A mirror may be killed before it saves the state, and the folder can be a new incarnation.
    """
    identity = read_identity(storage, table)
    incarnation = identity.incarnation if identity else None
    if state.incarnation not in (None, incarnation):
        state = replace(state, last_file=0, tail=None)
    snapshot = read_own_snapshot(storage, identity) if identity else None
    last = snapshot.txns.get(identity.app_id, 0) if snapshot and identity else 0
    if last > state.last_file:
        note = last_note(storage, table, snapshot, incarnation)
        if note.get("last") == last and "total_rows" in note:
            state = with_note(state, note)
        state = replace(
            state, last_file=last, state=REPLICATING, tail=None, latency=None, error=None
        )
    if identity is None or state.strategy != BY_TIME or state.tail is not None:
        return state, listed_folder(listing, state)
    # Only the plans have the name of the last applied file.
    metadata = read_metadata(storage, table)
    return state, number_files(storage, identity, metadata, listing, state.last_file)


def table_statuses(storage: Storage, *, rebuild: bool = False) -> tuple[TableStatus, ...]:
    """Return the state of every table of the landing zone, ordered by name; needs no Spark.

    Args:
        storage: the lake's files.
        rebuild: compute the state documents from the tables' logs again, and write them.
    """
    states = None
    if not rebuild:
        with suppress(FormatError):  # the format is newer: use the tables' logs instead
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
            if state.seen is None and listing.file(METADATA):  # no mirror has read the folder
                with suppress(MetadataError):
                    state = replace(state, strategy=read_metadata(storage, table).strategy)
            found = listed_folder(listing, state) or by_number(table, listing)
            folder: Folder | None = found
            is_other = state.seen not in (None, listing.state_of(IDENTITY))
            if is_other or found.behind(state.last_file):
                state, folder = _caught_up(storage, state, table, listing)
            state = state.as_asked(asked.paused)
            lines.append(status_of(state, folder, _skips(storage, table, asked, state, folder)))
        except MirrorlakeError as error:
            lines.append(status_of(failed(state, error), None))
    return tuple(lines)


def _skips(
    storage: Storage,
    table: TableName,
    settings: OperatorSettings,
    state: TableState,
    folder: Folder | None,
) -> frozenset[int | str]:
    """Return the files that an operator has skipped, as `status_of` takes them."""
    if not settings.skip and not settings.files:
        return frozenset()
    identity = read_identity(storage, table) or Identity(table, "")
    return settings.skips(storage, identity, folder.behind(state.last_file) if folder else ())


def preview_cycle(
    storage: Storage, only: TableName | None = None, options: MirrorOptions | None = None
) -> MirrorReport:
    """Return what the next cycle would apply; writes nothing, needs no Spark.

    Args:
        storage: the lake's files.
        only: preview only this table; by default, all tables.
        options: the limits of the cycle, and what it does on errors.

    Raises:
        TableNotFoundError: the table `only` has no folder in the landing zone.
    """
    lines = table_statuses(storage)
    if only is not None:
        lines = tuple(line for line in lines if line.table == only)
        if not lines:
            raise no_folder(storage, only)
    options = options or MirrorOptions()
    if only is None:
        shard = Shard.parse(options.shard)
        places = ((line, place_of(line.schema, line.name)) for line in lines)
        lines = tuple(line for line, place in places if shard.has(f"{ZONE}/{place}"))
    return MirrorReport(
        tuple(_preview(storage, line, options) for line in lines),
        () if only else _dropped(storage),
        dry_run=True,
        storage=storage,
    )


def _dropped(storage: Storage) -> tuple[str, ...]:
    """Return the tables whose folders were deleted; renamed folders are not among them."""
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


def _preview(storage: Storage, status: TableStatus, options: MirrorOptions) -> MirroredTable:
    found, table = MirroredTable(**vars(status)), status.table
    if status.state == STOPPED or table is None:  # a bad name is the status's error
        return found
    try:
        batch = _next_batch(storage, table, options)
    except MirrorlakeError as error:
        return replace(found, error=error.as_dict(), stopped_at="")
    facts = [file for file in batch.facts if file.skipped is None]
    at, stop = batch.at, None if batch.error is None else batch.error.as_dict()
    return replace(
        found,
        error=stop,
        stopped_at=_stopped_at(stop, at.metadata.strategy, at.folder, at.last),
        applied_files=len(facts),
        applied_rows=sum(file.row_count for file in facts),
        file_names=tuple(file.name for file in facts),
    )


def _next_batch(storage: Storage, table: TableName, options: MirrorOptions) -> Batch:
    """Return the sound files that come next, and the error of the file after them."""
    metadata = read_metadata(storage, table)
    identity = read_identity(storage, table)
    at = load_context(
        storage,
        identity or Identity(table, "none yet"),
        metadata,
        read_snapshot(storage, table.table_path),
        storage.list(table.folder),
        TableState(table.schema, table.name),
    )
    return preview_batch(at, options, operator_skips(at, read_settings(storage, table)))
