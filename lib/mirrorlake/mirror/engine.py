"""One cycle of the mirror: every table of the zone, several at a time, each on its own.

An idle table costs a listing at most; Spark is started when the first file has to be applied.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from threading import Event, Lock

from pyspark.sql import SparkSession

from mirrorlake.delta.snapshot import delta_tables
from mirrorlake.errors import FormatError, InvalidNameError, UsageError
from mirrorlake.landing.zone import BadFolder, find_tables, no_folder
from mirrorlake.mirror.applied_files import sweep
from mirrorlake.mirror.ledger import rebuild_states
from mirrorlake.mirror.options import (
    MirrorOptions,
    OperatorSettings,
    StepListener,
    all_settings,
    at_once,
    side_by_side,
)
from mirrorlake.mirror.shards import Shard, only_mirror
from mirrorlake.mirror.state import (
    INITIALIZED,
    REPLICATING,
    STOPPED,
    StateDocuments,
    TableState,
    failed,
    is_told_running,
    tell_states,
)
from mirrorlake.mirror.status import (
    MirroredTable,
    MirrorReport,
    TableStatus,
    idle_folder,
    listed_folder,
    status_of,
)
from mirrorlake.mirror.table_cycle import TableCycle
from mirrorlake.mirror.trash import follow_folders, purge_dropped
from mirrorlake.names import SCHEMA_SUFFIX, ZONE, TableName
from mirrorlake.notices import noop
from mirrorlake.query.catalog import keep_registered
from mirrorlake.spark.session import cluster_cores
from mirrorlake.storage.files import Listing, Storage

_TRIES = 3
_SLOWER = 1.5  # how much longer each pause gets while nothing happens
_LONGEST_PAUSE = 60  # seconds, where the interval is shorter
_Entry = tuple[TableState, TableStatus]  # what to keep of a table, what to report


class Engine:
    """Mirrors one lake.

    Args:
        storage: the lake's files.
        spark: called when, and only when, a session is needed.
        options: bounds of a cycle.
        on_step: is called after every finished step, from several threads.
        stop: once it is set, the running commits end and no other table is begun.
        others_after: seconds after which the tables that are done are looked at once more, while a
            slow one goes on; by default a cycle applies one batch of each table.
    """

    def __init__(
        self,
        storage: Storage,
        spark: Callable[[], SparkSession],
        options: MirrorOptions | None = None,
        on_step: StepListener = noop,
        stop: Event | None = None,
        others_after: float | None = None,
    ) -> None:
        self._storage = storage
        self._start_spark = spark
        self._spark_lock = Lock()
        self._options = options or MirrorOptions()
        self._on_step = on_step
        self._stop = stop or Event()
        self._others_after = others_after
        self._settings: Callable[[TableName], OperatorSettings]  # read by every cycle
        self._purged: datetime | None = None
        self._shard = Shard.parse(self._options.shard)
        self._documents = StateDocuments(storage, self._shard)

    def run_cycle(self, only: TableName | None = None) -> MirrorReport:
        """Applies what is pending, one commit per table (and one more where a crash left a plan).

        Args:
            only: a single table; by default all of the zone.

        Raises:
            TableNotFoundError: the single table has no folder in the zone.
            BusyError: another mirror works on this lake for too long.
            UsageError: both a table and a shard are named.
        """
        if only is not None and self._options.shard is not None:
            raise UsageError("A cycle is of one table or of a shard.", hint="name only one.")
        with only_mirror(self._storage, self._options.patience, self._shard):
            return self._run_cycle(only)

    def _run_cycle(self, only: TableName | None) -> MirrorReport:
        kept = self._documents.load()
        states = dict(kept or {})
        zone = self._storage.list(ZONE).folders
        found: list[TableName | BadFolder]
        found = [only] if only else list(find_tables(self._storage, folders=zone))
        dropped: list[TableName] = []
        stuck: list[TableState] = []  # could not follow its folder
        if only is not None and self._storage.list(only.folder) == Listing((), ()):
            raise no_folder(only)
        if kept is None:  # of all tables, or else the drops of the others would go unseen
            states = rebuild_states(self._storage, delta_tables(self._storage))
        if only is None:
            dropped, stuck = follow_folders(self._storage, states, found, self._shard)
            left_out = {state.folder for state in stuck}
            found = [t for t in found if t.folder not in left_out and self._shard.has(t.folder)]
            self._purge(bool(dropped))
        before = dict(states)
        schemas = set(zone)
        self._settings = all_settings(self._storage)

        def clash(table: TableName) -> bool:
            return table.schema is None and f"{table.name}{SCHEMA_SUFFIX}" in schemas

        def run(table: TableName) -> _Entry:
            return self._run_table(table, states.get(table.folder), clash=clash(table))

        latest: dict[str, _Entry] = {}
        told = dict(states)

        def begin(tables: list[TableName | BadFolder]) -> list[TableName]:
            """Notes the tables with nothing to do; the others."""
            listed = self._storage.list_many(ZONE, {table.folder for table in tables})

            def look(table: TableName | BadFolder) -> _Entry | None:
                if isinstance(table, BadFolder):
                    state = failed(TableState(table.schema, table.name), table.error)
                    return state, status_of(state, None)
                if clash(table):
                    return None
                return self._if_idle(table, states.get(table.folder), listed.get(table.folder))

            entries = side_by_side(self._storage, look, tables)
            latest.update({entry[0].folder: entry for entry in entries if entry is not None})
            seen = zip(tables, entries, strict=True)
            return [t for t, entry in seen if entry is None and isinstance(t, TableName)]

        busy = begin(found)
        with ThreadPoolExecutor(self._at_once(len(busy))) as pool:
            running = {pool.submit(run, table): table for table in busy}
            while running:
                for done in wait(running, self._others_after).done:
                    del running[done]
                    state, status = done.result()
                    latest[state.folder] = state, status
                states |= {folder: state for folder, (state, _) in latest.items()}
                if running and not self._stop.is_set():
                    slow = {table.folder for table in running.values()}
                    if states != told:
                        self._documents.save(states)
                        told = dict(states)
                    again = begin([table for table in found if table.folder not in slow])
                    running |= {pool.submit(run, table): table for table in again}
        states |= {folder: state for folder, (state, _) in latest.items()}
        if states != kept or not is_told_running(self._storage):
            self._documents.save(states)
        mirrored = (entry.table for entry in states.values() if entry.state == REPLICATING)
        keep_registered(self._storage, self._spark, mirrored, dropped)
        latest |= {state.folder: (state, status_of(state, None)) for state in stuck}
        folders = [*(table.folder for table in found), *(state.folder for state in stuck)]
        tables = (_mirrored(before.get(one), *latest[one]) for one in folders)
        names = tuple(str(table) for table in dropped)
        return MirrorReport(tuple(tables), names, storage=self._storage)

    def close(self) -> None:
        """Says in the monitoring files that the mirror has stopped."""
        states = self._documents.load()
        if states is None:  # no cycle has ended: the next mirror reads the logs
            tell_states(self._storage, {}, STOPPED)
        else:
            self._documents.save(states, STOPPED)

    def _at_once(self, busy: int) -> int:
        """How many tables are worked on side by side; where they are many, a cluster is asked."""
        here = at_once(self._options)
        if busy <= here or self._options.tables_at_once is not None:
            return here
        return at_once(self._options, cluster_cores(self._spark))

    def _purge(self, at_once: bool) -> None:
        """Once a day, and after every drop, deletes for good what was dropped long ago."""
        keep = timedelta(days=self._options.keep_dropped_days)
        if at_once or _is_due(self._purged, keep):
            purge_dropped(self._storage, keep=keep)
            self._purged = datetime.now(timezone.utc)

    def _spark(self) -> SparkSession:
        with self._spark_lock:
            return self._start_spark()

    def _if_idle(
        self, table: TableName, known: TableState | None, listed: Listing | None
    ) -> _Entry | None:
        """The entry of a table with nothing to do; costs a listing where there is none yet."""
        try:
            paused = self._settings(table).paused
        except FormatError:
            return None  # said where the table's other errors are
        if known is not None and paused:
            stopped = replace(known, state=STOPPED, error=None)
            return _entry(listed or self._storage.list(table.folder), stopped)
        if known is None or known.state == STOPPED or self._sweep_due(known):
            return None
        folder = idle_folder(listed or self._storage.list(table.folder), known)
        return (known, status_of(known, folder)) if folder else None

    def _run_table(self, table: TableName, known: TableState | None, *, clash: bool) -> _Entry:
        state = known or TableState(table.schema, table.name)
        first = listing = self._storage.list(table.folder)
        try:
            if clash:
                raise InvalidNameError(
                    f"The table {table} is named like the schema {table.name}.",
                    hint="rename one of the two folders.",
                )
            settings = self._settings(table)
            if settings.paused:
                state = replace(state, state=STOPPED)
            elif state.state == STOPPED:
                state = replace(state, state=REPLICATING if state.last_file else INITIALIZED)
            for attempt in range(1, _TRIES + 1):
                if self._stop.is_set() or settings.paused or idle_folder(listing, state):
                    break
                cycle = TableCycle(
                    self._storage,
                    self._spark,
                    self._options,
                    self._on_step,
                    listing,
                    state,
                    settings,
                )
                try:
                    state = cycle.run()
                    break
                except FileNotFoundError:
                    # Another mirror applied and moved a file after our listing: look again.
                    if attempt == _TRIES:
                        raise
                finally:
                    listing = self._storage.list(table.folder)
            state = self._sweep(table, state)
        except Exception as error:  # the other tables are mirrored anyway
            state = failed(state, error)
            listing = self._storage.list(table.folder)
        if first != listing == Listing((), ()):
            # A folder that was deleted under our hands is no failure: the next cycle drops it.
            state = replace(state, state=INITIALIZED, error=None)
        return _entry(listing, state)

    def _sweep_due(self, state: TableState) -> bool:
        """Once a day applied files are moved on, of idle tables too."""
        swept = None if state.swept is None else datetime.fromisoformat(state.swept)
        return _is_due(swept, timedelta(days=self._options.keep_processed_days))

    def _sweep(self, table: TableName, state: TableState) -> TableState:
        if not self._sweep_due(state):
            return state
        keep = timedelta(days=self._options.keep_processed_days)
        now = datetime.now(timezone.utc)
        sweep(self._storage, table, last=state.last_file, now=now, keep=keep)
        return replace(state, swept=now.isoformat())


def _is_due(last: datetime | None, keep: timedelta) -> bool:
    """Whether something of once a day is to be done; more often where less is kept."""
    return last is None or datetime.now(timezone.utc) - last >= min(keep, timedelta(days=1))


def _mirrored(before: TableState | None, state: TableState, status: TableStatus) -> MirroredTable:
    """Return a table's entry of the report, with what the cycle applied."""
    is_same = before is not None and before.incarnation == state.incarnation
    return MirroredTable.since(status, before if is_same else None)


def _entry(listing: Listing, state: TableState) -> _Entry:
    return state, status_of(state, listed_folder(listing, state))


def watch(
    engine: Engine,
    stop: Event,
    *,
    only: TableName | None = None,
    interval: float = 5,
    on_report: Callable[[MirrorReport], None] = noop,
) -> MirrorReport:
    """Runs cycles until `stop` is set; a running commit is always ended.

    Args:
        engine: the mirror, made with the same `stop`, so that a cycle of many tables ends early.
        stop: set by a signal's handler or another thread.
        only: a single table; by default all of the zone.
        interval: seconds from one cycle to the next while there is something to do.
        on_report: is called after every cycle.

    Returns:
        The last cycle's report.
    """
    pause = interval
    before: MirrorReport | None = None
    try:
        while True:
            report = engine.run_cycle(only)
            on_report(report)
            busy = before is None or report.progress != before.progress
            pause = interval if busy else min(pause * _SLOWER, max(interval, _LONGEST_PAUSE))
            before = report
            if stop.wait(pause):
                return report
    finally:
        engine.close()
