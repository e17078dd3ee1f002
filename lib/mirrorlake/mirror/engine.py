"""Run one cycle of the mirror: apply the pending files of every table, several tables at a time.

An idle table costs at most one listing. Spark is started when the first file has to be applied.

`TableCycle` handles one table: list, check, plan, commit, move. It starts after the last number in
the Delta table's own log, not after the last moved file. It is safe to interrupt at any step.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from functools import partial
from threading import Event, Lock
from typing import Any, cast

import pyarrow as pa
from pyspark.sql import SparkSession

from mirrorlake.delta.snapshot import VECTORS, Snapshot, delta_tables, read_snapshot
from mirrorlake.errors import (
    BusyError,
    FormatError,
    InvalidNameError,
    MirrorlakeError,
    SetupError,
    UsageError,
)
from mirrorlake.landing.check import FileFacts, inspect_file
from mirrorlake.landing.metadata import Identity, TableMetadata, ensure_identity, read_metadata
from mirrorlake.landing.zone import BadFolder, find_tables, no_folder
from mirrorlake.mirror.applied_files import move_applied, move_leftovers, sweep
from mirrorlake.mirror.apply import write_batch
from mirrorlake.mirror.compaction import compact, limit_compaction
from mirrorlake.mirror.ledger import (
    committed_version,
    last_note,
    rebuild_states,
    with_note,
    write_quarantine,
)
from mirrorlake.mirror.next_batch import (
    Batch,
    ChosenFiles,
    Plan,
    Skips,
    TableContext,
    check_batch,
    check_keys_known,
    complete_plan,
    find_plan,
    following_files,
    load_context,
    make_plan,
    operator_skips,
    plan_schema,
    planned_files,
    staging,
)
from mirrorlake.mirror.options import (
    MirrorOptions,
    OperatorSettings,
    Step,
    StepListener,
    all_settings,
    concurrent_tables,
    has_partitioning_policy,
    is_stale_incarnation,
    new_table_properties,
    read_defaults,
    read_settings,
    retention,
)
from mirrorlake.mirror.state import (
    INITIALIZED,
    REPLICATING,
    STOPPED,
    Shard,
    StateDocuments,
    TableState,
    failed,
    file_signature,
    is_running,
    mirror_lease,
    write_monitoring,
)
from mirrorlake.mirror.status import (
    MirroredTable,
    MirrorReport,
    TableStatus,
    idle_folder,
    listed_folder,
    status_of,
)
from mirrorlake.mirror.trash import (
    drop_table,
    filled_by,
    follow_folders,
    purge_dropped,
    restore_dropped,
    was_renamed,
)
from mirrorlake.names import IDENTITY, METADATA, SCHEMA_SUFFIX, ZONE, TableName
from mirrorlake.notices import noop
from mirrorlake.query.catalog import keep_registered
from mirrorlake.spark.executors import map_in_arrow
from mirrorlake.spark.session import cluster_cores
from mirrorlake.storage.files import Listing, Storage, map_concurrently
from mirrorlake.storage.lease import Lease

_log = logging.getLogger(__name__)
_TRIES = 3
_SLOWER = 1.5  # the factor by which each pause grows while there is nothing to do
_LONGEST_PAUSE = 60  # seconds; a longer interval is not shortened
_Entry = tuple[TableState, TableStatus]  # the state to save, and the line of the report


class Engine:
    """The mirror of one lake.

    Args:
        storage: the lake's files.
        spark: returns a Spark session; called only when one is needed.
        options: the options of a cycle.
        on_step: called after every finished step, from several threads.
        stop: once it is set, running commits finish and no new one starts.
        others_after: seconds after which finished tables are checked for new files while a slow
            table is still running. By default, a cycle applies one batch per table.
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
        self._settings: Callable[[TableName], OperatorSettings]  # set at the start of each cycle
        self._purged: datetime | None = None
        self._shard = Shard.parse(self._options.shard)
        self._documents = StateDocuments(storage, self._shard)

    def run_cycle(self, only: TableName | None = None) -> MirrorReport:
        """Apply pending files, one commit per table, plus one to complete a plan after a crash.

        Args:
            only: a single table; by default all tables of the landing zone.

        Raises:
            TableNotFoundError: The single table has no folder in the landing zone.
            BusyError: Another mirror of this lake did not finish within `patience` seconds, or
                before the stop.
            UsageError: Both a table and a shard are given.
        """
        if only is not None and self._options.shard is not None:
            raise UsageError("A table and a shard exclude each other.", hint="choose one.")
        with mirror_lease(self._storage, self._options.patience, self._shard, self._stop) as lease:
            return self._run_cycle(only, lease)

    def _run_cycle(self, only: TableName | None, lease: Lease | None) -> MirrorReport:
        kept = self._documents.load()
        states = dict(kept or {})
        save = partial(self._save, before=kept or {}, lease=lease)
        zone = self._storage.list(ZONE).folders
        found: list[TableName | BadFolder]
        found = [only] if only else list(find_tables(self._storage, folders=zone))
        dropped: list[TableName] = []
        stuck: list[TableState] = []  # could not be dropped or renamed
        if only is not None and self._storage.list(only.folder) == Listing((), ()):
            raise no_folder(self._storage, only)
        if kept is None:  # rebuild all, so that drops of the other tables are noticed
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
            known = states.get(table.folder)
            return self._run_table(table, known, before, clash=clash(table))

        latest: dict[str, _Entry] = {}

        def begin(tables: list[TableName | BadFolder]) -> list[TableName]:
            """Return the tables with pending work; record the others in `latest`."""
            listed = self._storage.list_many(ZONE, {table.folder for table in tables})

            def look(table: TableName | BadFolder) -> _Entry | None:
                if isinstance(table, BadFolder):
                    state = failed(TableState(table.schema, table.name), table.error)
                    return state, status_of(state, None)
                if clash(table):
                    return None
                return self._if_idle(table, states.get(table.folder), listed.get(table.folder))

            entries = map_concurrently(self._storage, look, tables)
            latest.update({entry[0].folder: entry for entry in entries if entry is not None})
            seen = zip(tables, entries, strict=True)
            return [t for t, entry in seen if entry is None and isinstance(t, TableName)]

        busy = begin(found)
        new = [TableState(t.schema, t.name) for t in busy if t.folder not in states]
        if new:
            # Save new tables before their first commit, so that a drop after a kill is noticed.
            states |= {state.folder: state for state in new}
            save(states)
        saved = dict(states)
        with ThreadPoolExecutor(self._concurrent_tables(len(busy))) as pool:
            running = {pool.submit(run, table): table for table in busy}
            while running:
                for done in wait(running, self._others_after).done:
                    del running[done]
                    state, status = done.result()
                    latest[state.folder] = state, status
                states |= {folder: state for folder, (state, _) in latest.items()}
                if running and not self._stop.is_set():
                    slow = {table.folder for table in running.values()}
                    if states != saved:
                        save(states)
                        saved = dict(states)
                    again = begin([table for table in found if table.folder not in slow])
                    running |= {pool.submit(run, table): table for table in again}
        states |= {folder: state for folder, (state, _) in latest.items()}
        if states != kept or not is_running(self._storage):
            save(states)
        mirrored = (entry.table for entry in states.values() if entry.state == REPLICATING)
        keep_registered(self._storage, self._spark, mirrored, dropped)
        latest |= {state.folder: (state, status_of(state, None)) for state in stuck}
        folders = [*(table.folder for table in found), *(state.folder for state in stuck)]
        tables = (_mirrored(before.get(one), *latest[one]) for one in folders)
        names = tuple(str(table) for table in dropped)
        return MirrorReport(tuple(tables), names, storage=self._storage)

    def _save(
        self,
        states: dict[str, TableState],
        before: Mapping[str, TableState],
        lease: Lease | None,
    ) -> None:
        """Save the states; if the lease expired, only those that this cycle has changed.

        Args:
            states: the states of all tables by folder.
            before: the states at the start of the cycle.
            lease: the lease of this mirror. After it expired, other mirrors may have saved theirs.
        """
        if lease is not None and not lease.is_kept():
            changed = {folder: s for folder, s in states.items() if before.get(folder) != s}
            states = (self._documents.load() or {}) | changed
        self._documents.save(states)

    def close(self) -> None:
        """Record in the monitoring files that the mirror has stopped."""
        states = self._documents.load()
        if states is None:  # no cycle has finished: the next mirror reads the Delta logs
            write_monitoring(self._storage, {}, STOPPED)
        else:
            self._documents.save(states, STOPPED)

    def _concurrent_tables(self, busy: int) -> int:
        """Return the number of tables to process concurrently.

        The size of a cluster is looked up only if there are more tables than this machine's limit.
        """
        here = concurrent_tables(self._options)
        if busy <= here or self._options.tables_at_once is not None:
            return here
        return concurrent_tables(self._options, cluster_cores(self._spark))

    def _purge(self, has_dropped: bool) -> None:
        """Delete tables whose retention has ended, once a day and after every drop."""
        keep = timedelta(days=self._options.keep_dropped_days)
        if has_dropped or _is_due(self._purged, keep):
            purge_dropped(self._storage, keep=keep)
            self._purged = datetime.now(timezone.utc)

    def _spark(self) -> SparkSession:
        with self._spark_lock:
            return self._start_spark()

    def _if_idle(
        self, table: TableName, known: TableState | None, listed: Listing | None
    ) -> _Entry | None:
        """Return the entry of an idle table, or `None`; list its folder if `listed` is missing."""
        try:
            paused = self._settings(table).paused
        except FormatError:
            return None  # the table's own cycle reports the error
        if known is not None and paused:
            stopped = replace(known, state=STOPPED, error=None)
            return _entry(listed or self._storage.list(table.folder), stopped)
        if known is None or known.state == STOPPED or self._sweep_due(known):
            return None
        folder = idle_folder(listed or self._storage.list(table.folder), known)
        return (known, status_of(known, folder)) if folder else None

    def _run_table(
        self,
        table: TableName,
        known: TableState | None,
        before: dict[str, TableState],
        *,
        clash: bool,
    ) -> _Entry:
        state = known or TableState(table.schema, table.name)
        first = listing = self._storage.list(table.folder)
        try:
            if clash:
                raise InvalidNameError(
                    f"{table.name} can't be both a table and a schema.",
                    hint="rename one of the two folders.",
                )
            settings = self._settings(table)
            state = state.as_asked(settings.paused)
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
                    before,
                )
                try:
                    state = cycle.run()
                    break
                except FileNotFoundError:
                    # Another mirror moved an applied file after the listing: list again.
                    if attempt == _TRIES:
                        raise
                finally:
                    listing = self._storage.list(table.folder)
            state = self._sweep(table, state)
        except Exception as error:  # one table's failure must not stop the others
            state = failed(state, error)
            listing = self._storage.list(table.folder)
        if first != listing == Listing((), ()):
            # The folder was deleted during the cycle: no error, the next cycle drops it.
            state = replace(state, state=INITIALIZED, error=None)
        return _entry(listing, state)

    def _sweep_due(self, state: TableState) -> bool:
        """Return whether the daily sweep of applied files is due; idle tables are swept, too."""
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
    """Return whether a daily task is due; it runs more often if the retention is shorter."""
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
    """Run cycles until `stop` is set; a running commit always finishes.

    Args:
        engine: the mirror, created with the same `stop`, so that a cycle of many tables ends early.
        stop: set by a signal handler or another thread.
        only: a single table; by default all tables of the landing zone.
        interval: seconds between cycles while there is work. Without work, the pauses grow to one
            minute.
        on_report: called after every cycle.

    Returns:
        The report of the last cycle.
    """
    pause, is_busy = interval, False
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
    except BusyError:
        is_busy = True  # the monitoring files belong to the mirror that runs
        if stop.is_set():
            return before or MirrorReport()
        raise
    finally:
        if not is_busy:
            engine.close()


@dataclass(frozen=True)
class TableCycle:
    """The cycle of one table, which brings it up to date with its folder.

    Args:
        storage: the lake's files.
        spark: returns a Spark session; called only when one is needed.
        options: the options of the cycle.
        on_step: called after every finished step.
        listing: the listing of the folder.
        state: the saved state of the table.
        settings: the operator's settings of the table.
        before: the states before this cycle, by folder; the cycle adds that of a table without one,
            for example of a restored table.
    """

    _storage: Storage
    _spark: Callable[[], SparkSession]
    _options: MirrorOptions
    _on_step: StepListener
    _listing: Listing
    _state: TableState
    _settings: OperatorSettings
    _before: dict[str, TableState]

    @property
    def _table(self) -> TableName:
        return self._state.table

    def _skip(self, at: TableContext) -> Skips:
        settings = self._settings
        if settings.skip or settings.files:
            # Read again: a reseed since the start of the cycle has changed them.
            settings = read_settings(self._storage, self._table)
        return operator_skips(at, settings)

    def run(self) -> TableState:
        """Run the cycle.

        Returns:
            The table's new state. If a file is invalid, the state has its error.
        """
        self._done(Step.LISTED)
        metadata = read_metadata(self._storage, self._table)
        identity = ensure_identity(self._storage, self._table)
        self._done(Step.IDENTIFIED)
        snapshot = self._restore_or_drop(identity)
        at = load_context(self._storage, identity, metadata, snapshot, self._listing, self._state)
        last_error = at.last_file_error()
        at = replace(at, state=self._recall_state(at))
        self._before.setdefault(at.state.folder, at.state)
        if last_error is not None:
            return failed(replace(at.state, tail=None), last_error)
        reused = move_leftovers(self._storage, identity, at.folder, at.last)
        batch = Batch(at)
        for next_batch in (self._resume_batch, self._new_batch):
            batch = next_batch(at)
            at = self._commit(batch)
            if batch.error is not None:
                break
        problem = batch.error or reused
        return at.state if problem is None else failed(at.state, problem)

    def _done(self, step: Step) -> None:
        self._on_step(self._table, step)

    def _restore_or_drop(self, identity: Identity) -> Snapshot | None:
        """Restore the dropped table of this folder; first drop another table that has its path."""
        snapshot = read_snapshot(self._storage, self._table.table_path)
        if is_stale_incarnation(snapshot, identity) and was_renamed(self._storage, identity):
            filled = filled_by(self._storage, self._table, snapshot)
            drop_table(self._storage, self._table, filled)
            snapshot = None
        if snapshot is None and restore_dropped(self._storage, identity):
            snapshot = read_snapshot(self._storage, self._table.table_path)
        return snapshot

    def _recall_state(self, at: TableContext) -> TableState:
        """Return the saved state, corrected by the Delta log, which is authoritative."""
        known, incarnation = at.state, at.identity.incarnation
        if known.incarnation != incarnation or known.last_file != at.last:
            note = {}
            if at.last:
                note = last_note(self._storage, self._table, at.snapshot, incarnation)
            known = with_note(TableState(self._table.schema, self._table.name), note)
            known = replace(known, incarnation=incarnation, last_file=at.last)
        return replace(
            known,
            state=REPLICATING if at.last else INITIALIZED,
            error=None,
            # As listed before they were read. A later change is noticed by the next cycle.
            seen=self._listing.state_of(IDENTITY),
            declared=self._listing.state_of(METADATA),
            strategy=at.metadata.strategy,
            tail=at.tail,
        )

    def _resume_batch(self, at: TableContext) -> Batch:
        """Return the batch of an unfinished plan of an earlier cycle; an empty one if none."""
        plan = find_plan(self._storage, at.identity, at.last + 1)
        return Batch(at) if plan is None else self._planned_batch(at, plan)

    def _planned_batch(self, at: TableContext, plan: Plan) -> Batch:
        """Return the batch of an existing plan: all of its files or none."""
        return complete_plan(plan, self._check(at, planned_files(plan, self._skip(at))))

    def _new_batch(self, at: TableContext) -> Batch:
        """Plan the files after the last applied one and return them as a batch."""
        if at.state.last_file != at.last:  # an unfinished plan was just committed
            listing = self._storage.list(self._table.folder)
            snapshot = self._restore_or_drop(at.identity)
            at = load_context(self._storage, at.identity, at.metadata, snapshot, listing, at.state)
            last_error = at.last_file_error()
            at = replace(at, state=replace(at.state, tail=None if last_error else at.tail))
            if last_error is not None:
                return Batch(at, error=last_error)
        chosen = following_files(at, self._options, self._skip(at))
        if not chosen.names and at.last == 0:
            return self._declare_or_drop(at)
        if chosen.error is not None:
            return Batch(at, error=chosen.error)
        batch = self._check(at, chosen)
        if not batch.facts:
            return batch
        # Check before the plan, because skipped files have no columns, and a plan is not extended.
        check_keys_known(at.metadata.keys, batch.target)
        plan = make_plan(self._storage, at.identity, at.last + 1, batch.facts, chosen.on_error)
        self._done(Step.PLANNED)
        if [file.name for file in plan.files] != [file.name for file in batch.facts]:
            # Another mirror planned this batch first: use its plan.
            return self._planned_batch(at, plan)
        return replace(batch, plan=plan)

    def _declare_or_drop(self, at: TableContext) -> Batch:
        """Handle a folder without files: create an empty table if columns are declared."""
        if at.recreated and not at.metadata.columns:
            # In an object store, `ensure_identity` recreates a folder that was renamed during the
            # cycle. The renamed folder restores the table by its incarnation.
            filled = filled_by(self._storage, self._table, at.snapshot)
            drop_table(self._storage, self._table, filled)
        if not at.metadata.columns or (at.snapshot is not None and not at.recreated):
            return Batch(at)
        try:
            return Batch(at, target=plan_schema(at, (), widen=self._options.widen))
        except MirrorlakeError as error:
            return Batch(at, error=error)

    def _check(self, at: TableContext, chosen: ChosenFiles) -> Batch:
        options = replace(self._options, on_error=chosen.on_error)
        sizes = {entry.name: entry.size for entry in at.folder.numbered.values()}
        wanted = {name: sizes.get(name, 0) for name in chosen.names}
        inspect = choose_inspection(self._spark, wanted, options.driver_bytes)
        batch = check_batch(at, chosen.names, options, chosen.skip, inspect=inspect)
        if chosen.names:
            self._done(Step.CHECKED)
        return batch

    def _commit(self, batch: Batch) -> TableContext:
        """Commit a checked batch, move its files, and return the new state of the table."""
        at, plan = batch.at, batch.plan
        note: dict[str, Any] = {"incarnation": at.identity.incarnation}
        if plan is None:
            if batch.target.columns:  # a declared table without files
                self._write(batch, note)
            return at
        note |= {
            "first": plan.first,
            "last": plan.last,
            "rows": {marker.name.lower(): count for marker, count in batch.rows.items()},
            "total_rows": at.state.rows + batch.row_count,
            "total_bytes": at.state.bytes + sum(file.size for file in batch.facts),
            "synced": datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
        }
        if any(file.skipped or file.rejects for file in batch.facts):
            write_quarantine(self._spark(), batch, at=plan.planned)
            self._done(Step.QUARANTINED)
        self._write(batch, note)
        before = at.snapshot.version if at.snapshot else -1
        version = committed_version(self._storage, self._table, before, note)
        published = at.folder.listing.file(plan.files[-1].name)
        age = datetime.now(timezone.utc) - published.modified if published else None
        state = replace(
            with_note(at.state, note | {"version": version}),
            tail=file_signature(published) if published else None,
            latency=age.total_seconds() if age else None,
        )
        move_applied(self._storage, at.identity, at.folder, plan)
        self._storage.delete_folder(staging(at.identity))
        self._done(Step.MOVED)
        compacted = self._compact(at, version or 0, state.compacted)
        return replace(at, state=replace(state, compacted=compacted))

    def _write(self, batch: Batch, note: dict[str, Any]) -> None:
        """Write a batch with its commit metadata and the table properties from the options."""
        vectors, properties = self._options.deletion_vectors, retention(self._options)
        if batch.at.snapshot is None:
            if vectors is None:
                vectors = read_defaults(self._storage).deletion_vectors
            if vectors is None:
                vectors = bool(batch.at.metadata.keys)
            properties |= new_table_properties(self._storage)
        properties |= {VECTORS: "true"} if vectors else {}
        noted = replace(batch, note=note, properties=properties)
        write_batch(self._spark, noted, self._done)

    def _compact(self, at: TableContext, version: int, before: int) -> int:
        """Compact files of the table; return the version after which files were last merged.

        Files are merged after `compact_after` commits. After each commit, files with many deleted
        rows can be rewritten; see `limit_compaction`.
        """
        interval = at.snapshot.checkpoint_interval if at.snapshot else 1
        # Writing a checkpoint takes as long as a compaction, so a cycle does not do both. With an
        # interval of 1 or 2, every compaction would be postponed.
        if interval > 2 and 0 in (version % interval, (version + 1) % interval):
            return before
        every = self._options.compact_after
        merges = bool(every and version - before >= every)
        vectors = self._options.deletion_vectors or bool(at.snapshot and at.snapshot.has_vectors)
        if not merges and not vectors:
            return before
        limits = limit_compaction(at.files.of(version), merges=merges)
        # Files with a partitioning policy are merged by the partitioning process.
        if limits and not has_partitioning_policy(self._storage, self._table):
            folder = self._table.table_path
            if not compact(self._spark(), self._storage, folder, at.files, limits):
                return before
            self._done(Step.COMPACTED)
            if not limits.complete:
                return before
        return version if merges else before


def choose_inspection(
    start: Callable[[], SparkSession], sizes: Mapping[str, int], driver_bytes: int
) -> Callable[..., FileFacts]:
    """Return the function that checks a batch's files: on the driver, or on a cluster's executors.

    A check reads the marker column of a file, and converts text to Parquet. For gigabytes this is
    too slow in one process, so executors check large files. Their results are small.

    Args:
        start: returns a Spark session; called only for a large file on a cluster.
        sizes: the sizes of the files in bytes, by name.
        driver_bytes: the largest file that the driver checks itself, in bytes.
    """
    if max(sizes.values(), default=0) <= driver_bytes or cluster_cores(start) is None:
        return inspect_file

    def inspect(storage: Storage, path: str, metadata: TableMetadata, **options: Any) -> FileFacts:
        if sizes.get(path.rpartition("/")[2], 0) > driver_bytes:
            try:
                return inspect_on_executor(start(), storage, path, metadata, **options)
            except SetupError as error:
                _log.warning("Checking %s on the driver, not on an executor: %s", path, error)
        return inspect_file(storage, path, metadata, **options)

    return inspect


def inspect_on_executor(
    spark: SparkSession, storage: Storage, path: str, metadata: TableMetadata, **options: Any
) -> FileFacts:
    """Run `inspect_file` in a Spark task.

    Raises:
        SetupError: The executors can't run it.
        MirrorlakeError: See `inspect_file`.
        FileNotFoundError: The file does not exist.
    """

    def run(_batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        found: FileFacts | Exception
        try:
            found = inspect_file(storage, path, metadata, **options)
        except (MirrorlakeError, FileNotFoundError) as error:
            found = error
        yield pa.RecordBatch.from_pydict({"found": pa.array([pickle.dumps(found)], pa.binary())})

    (row,) = map_in_arrow(spark.range(0, 1, 1, 1), run, "found binary").collect()
    found = pickle.loads(bytes(row["found"]))  # noqa: S301 - pickled by `run`
    if isinstance(found, Exception):
        raise found
    return cast("FileFacts", found)
