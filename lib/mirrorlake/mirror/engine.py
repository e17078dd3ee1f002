"""One cycle of the mirror: every table of the zone, several at a time, each on its own.

An idle table costs a listing; Spark is started when the first file has to be applied.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timezone
from threading import Lock
from typing import TYPE_CHECKING

from mirrorlake.delta_log import read_snapshot
from mirrorlake.errors import InvalidNameError, MirrorlakeError, TableNotFoundError
from mirrorlake.landing.identity import read_identity
from mirrorlake.landing.zone import BadFolder, Folder, find_tables, list_folder
from mirrorlake.mirror.failures import explain
from mirrorlake.mirror.state import (
    REPLICATING,
    Report,
    TableState,
    TableStatus,
    failed,
    load_states,
    save_states,
)
from mirrorlake.mirror.steps import StepListener, ignore
from mirrorlake.mirror.table_cycle import MirrorOptions, TableCycle
from mirrorlake.names import IDENTITY, MONITORING, SCHEMA_SUFFIX, ZONE, TableName
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
    """

    def __init__(
        self,
        storage: Storage,
        spark: Callable[[], SparkSession],
        options: MirrorOptions | None = None,
        on_step: StepListener = ignore,
    ) -> None:
        self._storage = storage
        self._start_spark = spark
        self._spark_lock = Lock()
        self._options = options or MirrorOptions()
        self._on_step = on_step

    def run_cycle(self, only: TableName | None = None) -> Report:
        """Applies what is pending, one commit a table (and one more where a crash left a plan).

        Args:
            only: a single table; by default all of the zone.

        Raises:
            TableNotFoundError: the single table has no folder in the zone.
        """
        if only is not None and self._storage.list(only.folder) == Listing((), ()):
            raise TableNotFoundError(
                f"There is no folder for {only} in the landing zone.", hint="publish it first."
            )
        states = load_states(self._storage)
        before = dict(states)
        found = list(find_tables(self._storage)) if only is None else [only]
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
        if states != before or not self._storage.exists(f"{MONITORING}/tables.json"):
            save_states(self._storage, states)
        return Report(tuple(lines))

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
        folder: Folder | None = None
        try:
            if clash:
                raise InvalidNameError(
                    f"The table {table} is named like the schema {table.name}.",
                    hint="rename one of the two folders.",
                )
            for attempt in range(1, _TRIES + 1):
                folder = list_folder(self._storage, table)
                if is_idle(folder, state):
                    break
                cycle = TableCycle(
                    self._storage, self._spark, self._options, self._on_step, folder, state
                )
                try:
                    state = cycle.run()
                except FileNotFoundError:
                    # Another mirror applied and moved a file after our listing: look again.
                    if attempt == _TRIES:
                        raise
                    continue
                folder = list_folder(self._storage, table)
                break
        except Exception as error:  # whatever it is, the other tables go on
            state = failed(state, explain(error))
        return table.folder, state, status_of(state, folder)


def is_idle(folder: Folder, state: TableState) -> bool:
    """Whether a listing alone shows that there is nothing to do."""
    identity = folder.listing.file(IDENTITY)
    if identity is None or state.error is not None:
        return not folder.numbered and state.error is None
    if identity.modified.isoformat() != state.seen:
        return False
    return all(number == state.last_file for number in folder.numbered)


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
    states = load_states(storage)
    lines = []
    for table in find_tables(storage):
        state = states.get(table.folder) or TableState(table.schema, table.name)
        if isinstance(table, BadFolder):
            lines.append(status_of(failed(state, table.error.as_dict()), None))
            continue
        try:
            folder = list_folder(storage, table)
            if folder.backlog(state.last_file):
                state = _caught_up(storage, state, table)
            lines.append(status_of(state, folder))
        except MirrorlakeError as error:
            lines.append(status_of(failed(state, error.as_dict()), None))
    return Report(tuple(lines))
