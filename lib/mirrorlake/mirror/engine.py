"""One cycle of the mirror: every table of the zone, several at a time, each on its own.

An idle table costs a listing; Spark is started when the first file has to be applied.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from threading import Event, Lock
from typing import TYPE_CHECKING

from mirrorlake.delta_log import delta_tables, read_snapshot
from mirrorlake.errors import (
    InvalidNameError,
    MirrorlakeError,
    SequenceError,
    TableNotFoundError,
)
from mirrorlake.landing.identity import read_identity
from mirrorlake.landing.metadata import BY_TIME
from mirrorlake.landing.zone import BadFolder, Folder, by_number, by_time, find_tables
from mirrorlake.mirror.cleanup import sweep
from mirrorlake.mirror.drops import purge_dropped
from mirrorlake.mirror.failures import explain
from mirrorlake.mirror.folders import follow_folders, rebuild_states
from mirrorlake.mirror.options import MirrorOptions
from mirrorlake.mirror.state import (
    INITIALIZED,
    REPLICATING,
    STOPPED,
    Report,
    TableState,
    TableStatus,
    failed,
    is_told_running,
    load_states,
    save_states,
    tail_of,
)
from mirrorlake.mirror.steps import StepListener, ignore
from mirrorlake.mirror.table_cycle import TableCycle
from mirrorlake.names import IDENTITY, METADATA, SCHEMA_SUFFIX, ZONE, TableName
from mirrorlake.storage import Listing, Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TRIES = 3


class Engine:
    """Mirrors one lake.

    Args:
        storage: the lake's files.
        spark: called when, and only when, a session is needed.
        options: bounds of a cycle.
        on_step: hears of every finished step, from several threads.
        stop: once it is set, the running commits end and no other table is begun.
    """

    def __init__(
        self,
        storage: Storage,
        spark: Callable[[], SparkSession],
        options: MirrorOptions | None = None,
        on_step: StepListener = ignore,
        stop: Event | None = None,
    ) -> None:
        self._storage = storage
        self._start_spark = spark
        self._spark_lock = Lock()
        self._options = options or MirrorOptions()
        self._on_step = on_step
        self._stop = stop or Event()
        self._purged: datetime | None = None

    def run_cycle(self, only: TableName | None = None) -> Report:
        """Applies what is pending, one commit a table (and one more where a crash left a plan).

        Args:
            only: a single table; by default all of the zone.

        Raises:
            TableNotFoundError: the single table has no folder in the zone.
        """
        kept = load_states(self._storage)
        states = dict(kept or {})
        found: list[TableName | BadFolder] = [only] if only else list(find_tables(self._storage))
        dropped: tuple[TableName, ...] = ()
        if only is not None and self._storage.list(only.folder) == Listing((), ()):
            raise TableNotFoundError(
                f"There is no folder for {only} in the landing zone.", hint="publish it first."
            )
        if kept is None:  # of all tables, or else the drops of the others would go unseen
            states = rebuild_states(self._storage, delta_tables(self._storage))
        if only is None:
            dropped = follow_folders(self._storage, states, found)
            self._purge(bool(dropped))
        schemas = set(self._storage.list(ZONE).folders)

        def run(table: TableName | BadFolder) -> tuple[str, TableState, TableStatus]:
            if isinstance(table, BadFolder):
                return self._refuse(table)
            clash = table.schema is None and f"{table.name}{SCHEMA_SUFFIX}" in schemas
            return self._run_table(table, states.get(table.folder), clash=clash)

        lines = []
        with ThreadPoolExecutor(self._options.tables_at_once) as pool:
            for folder, state, status in pool.map(run, found):
                states[folder] = state
                lines.append(status)
        if states != kept or not is_told_running(self._storage):
            save_states(self._storage, states)
        return Report(tuple(lines), tuple(str(table) for table in dropped))

    def close(self) -> None:
        """Says in the monitoring files that nobody mirrors any more."""
        save_states(self._storage, load_states(self._storage) or {}, replicator=STOPPED)

    def _purge(self, at_once: bool) -> None:
        """Once a day, and after every drop, deletes for good what was dropped long ago."""
        keep = timedelta(days=self._options.keep_dropped_days)
        now = datetime.now(timezone.utc)
        if at_once or self._purged is None or now - self._purged >= min(keep, timedelta(days=1)):
            purge_dropped(self._storage, keep=keep)
            self._purged = now

    def _spark(self) -> SparkSession:
        with self._spark_lock:
            return self._start_spark()

    def _refuse(self, folder: BadFolder) -> tuple[str, TableState, TableStatus]:
        state = failed(TableState(folder.schema, folder.name), folder.error.as_dict())
        return folder.folder, state, status_of(state, None)

    def _run_table(
        self, table: TableName, known: TableState | None, *, clash: bool
    ) -> tuple[str, TableState, TableStatus]:
        state = known or TableState(table.schema, table.name)
        first = listing = self._storage.list(table.folder)
        try:
            if clash:
                raise InvalidNameError(
                    f"The table {table} is named like the schema {table.name}.",
                    hint="rename one of the two folders.",
                )
            for attempt in range(1, _TRIES + 1):
                if self._stop.is_set() or is_idle(listing, state):
                    break
                cycle = TableCycle(
                    self._storage, self._spark, self._options, self._on_step, listing, state
                )
                try:
                    state = cycle.run()
                    listing = self._storage.list(table.folder)
                    break
                except FileNotFoundError:
                    # Another mirror applied and moved a file after our listing: look again.
                    if attempt == _TRIES:
                        raise
                listing = self._storage.list(table.folder)
            state = self._sweep(table, state)
        except Exception as error:  # whatever it is, the other tables go on
            state = failed(state, explain(error))
            listing = self._storage.list(table.folder)
        if first != listing == Listing((), ()):
            # A folder that was deleted under our hands is no failure: the next cycle drops it.
            state = replace(state, state=INITIALIZED, error=None)
        return table.folder, state, status_of(state, view(table, listing, state))

    def _sweep(self, table: TableName, state: TableState) -> TableState:
        """Once a day, and for idle tables too, moves applied files on."""
        keep = timedelta(days=self._options.keep_processed_days)
        now = datetime.now(timezone.utc)
        due = min(keep, timedelta(days=1))
        if state.swept and now - datetime.fromisoformat(state.swept) < due:
            return state
        sweep(self._storage, table, last=state.last_file, now=now, keep=keep)
        return replace(state, swept=now.isoformat())


def view(table: TableName, listing: Listing, state: TableState) -> Folder | None:
    """The folder's files as a report counts them, from the listing alone; None if it can't."""
    if state.strategy == BY_TIME:
        tails = (entry.name for entry in listing.files if tail_of(entry) == state.tail)
        return by_time(table, listing, dict.fromkeys(tails, state.last_file), state.last_file)
    try:
        return by_number(table, listing)
    except SequenceError:
        return None  # it is in the state as the table's error


def is_idle(listing: Listing, state: TableState) -> bool:
    """Whether a listing alone shows that there is nothing to do."""
    if state.error is not None or state.seen is None:
        return False
    if (listing.moment(IDENTITY), listing.moment(METADATA)) != (state.seen, state.declared):
        return False
    folder = view(state.table, listing, state)
    return folder is not None and all(number == state.last_file for number in folder.numbered)


def status_of(state: TableState, folder: Folder | None) -> TableStatus:
    """The line of a report: what was kept, and what the listing shows."""
    backlog, waiting, lag = 0, None, 0.0
    if folder is not None:
        backlog = folder.backlog(state.last_file)
        waiting = folder.pending(state.last_file)[1]
        moments = [e.modified for number, e in folder.numbered.items() if number > state.last_file]
        if moments:
            lag = max(0.0, (datetime.now(timezone.utc) - min(moments)).total_seconds())
    return TableStatus(
        name=state.name,
        schema=state.schema,
        state=state.state,
        rows=state.rows,
        last_file=state.last_file,
        backlog_files=backlog,
        waiting_for=waiting,
        lag_seconds=round(lag, 3),
        error=state.error,
    )


def _caught_up(storage: Storage, state: TableState, table: TableName) -> TableState:
    """The state by the table's own log: a mirror may have been killed before it kept its own."""
    identity = read_identity(storage, table)
    snapshot = read_snapshot(storage, table.table_path) if identity else None
    last = snapshot.txns.get(identity.app_id, 0) if snapshot and identity else 0
    if last <= state.last_file:
        return state
    return replace(state, last_file=last, state=REPLICATING, error=None)


def status_report(storage: Storage) -> Report:
    """How every table of the zone stands, without Spark and without changing anything."""
    states = load_states(storage) or {}
    lines = []
    for table in find_tables(storage):
        state = states.get(table.folder) or TableState(table.schema, table.name)
        if isinstance(table, BadFolder):
            lines.append(status_of(failed(state, table.error.as_dict()), None))
            continue
        try:
            listing = storage.list(table.folder)
            folder = view(table, listing, state) or by_number(table, listing)
            if folder.backlog(state.last_file):
                state = _caught_up(storage, state, table)
            lines.append(status_of(state, view(table, listing, state)))
        except MirrorlakeError as error:
            lines.append(status_of(failed(state, error.as_dict()), None))
    return Report(tuple(lines))
