"""Run a source: publish first loads and changes exactly once, then confirm them to the source.

A file contains its end position, and a token derived from the position before its first change. A
batch that is published again, by this process or by one that seemed to be dead, can't be stored
twice. An error in one table does not stop the others.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from threading import Event, Lock

import pyarrow as pa

from mirrorlake.errors import (
    BusyError,
    MetadataError,
    MirrorlakeError,
    SetupError,
    SourceError,
    UsageError,
)
from mirrorlake.landing.metadata import declare_keys, keys_are_given, read_metadata
from mirrorlake.landing.publisher import Partner, Publisher
from mirrorlake.landing.zone import read_footer
from mirrorlake.names import PROCESSED, READY_TO_DELETE, TableName, as_table
from mirrorlake.source_status import SourceReport, SourceTable
from mirrorlake.storage.files import Storage
from mirrorlake_sources.source import (
    FOOTER,
    FROM_THE_START,
    Batch,
    ChangesOnly,
    Group,
    NewFolder,
    Position,
    Progress,
    Source,
    make_durable,
    read_progress,
    recover_folders,
    write_progress,
    write_report,
)

_log = logging.getLogger("mirrorlake.sources.engine")
_REPORT_SECONDS = 5.0
_LOADING = "It is being loaded again."


def run_source(
    storage: Storage,
    source: Source,
    *,
    once: bool = True,
    stop: Event | None = None,
    reseed: Collection[str | TableName] = (),
    on_report: Callable[[SourceReport], None] | None = None,
    footer: Mapping[str, str] | None = None,
) -> SourceReport:
    """Publish the data of a source: first loads where they are missing, then all changes since.

    Args:
        storage: the lake's storage.
        source: the source.
        once: return when all data that the source had at the start is published; otherwise
            continue.
        stop: stops the run soon after it is set, after complete batches.
        reseed: tables to load again from the start.
        on_report: called with the state after each group.
        footer: additional entries for the footers of the published files.

    Returns:
        The final state; `failed` if a table is stopped.

    Raises:
        SourceError: the source is lost or can't be read at all.
        BusyError: another process publishes the same source.

    Example:
        >>> run_source(lake.storage, CsvDrops("drops"))  # doctest: +SKIP
        csv:/data/drops: 12 rows and changes of 1 table published
    """
    run = _Run(storage, source, stop or Event(), on_report, dict(footer or {}))
    with source:
        run.report.source = source.name
        try:
            run.begin({as_table(name) for name in reseed})
            while run.follow(once=once):
                pass
        except BaseException as error:
            run.report.state = "Stopped"
            run.report.error = str(error) if isinstance(error, MirrorlakeError) else repr(error)
            run.report_state(now=True)
            raise
        run.report.state = "Ended" if once else "Stopped"
        run.report_state(now=True)
    return run.report


@dataclass
class _Run:
    storage: Storage
    source: Source
    stop: Event
    on_report: Callable[[SourceReport], None] | None
    footer: dict[str, str]
    report: SourceReport = field(default_factory=lambda: SourceReport(""))
    since: dict[TableName, Position] = field(default_factory=dict)
    keys: dict[TableName, tuple[str, ...]] = field(default_factory=dict)
    lines: dict[TableName, SourceTable] = field(default_factory=dict)
    publishers: dict[TableName, Publisher] = field(default_factory=dict)
    again: set[TableName] = field(default_factory=set)
    reported: float = 0.0

    def begin(self, reseed: set[TableName]) -> None:
        """Read the position of each table, and load the tables that have none."""
        recover_folders(self.storage, self.source.name)
        for table, keys in self.source.tables().items():
            self.add_table(table, keys, again=table in reseed)
        if unknown := reseed - self.lines.keys():
            raise UsageError(f"The source has no table {min(unknown, key=str)} to load again.")
        self.load()

    def add_table(
        self, table: TableName, keys: tuple[str, ...] | MirrorlakeError, *, again: bool = False
    ) -> None:
        """Start to publish a table."""
        if table in self.lines:  # a stopped table that continues
            self.lines[table].state, self.lines[table].error = "Waiting", None
        else:
            self.lines[table] = SourceTable(str(table))
            self.report.tables.append(self.lines[table])
        try:
            progress = read_progress(self.storage, table, self.source.name)
        except MetadataError as error:
            self.stop_table(table, error)
            return
        self.classify(table, keys, progress, again=again)

    def classify(
        self,
        table: TableName,
        keys: tuple[str, ...] | MirrorlakeError,
        progress: Progress | None,
        *,
        again: bool,
    ) -> None:
        """Decide whether a table continues, is loaded or is stopped."""
        if progress is not None:
            self.since[table] = progress.position  # `stop_table` writes it into the folder
        if isinstance(keys, MirrorlakeError):
            self.stop_table(table, keys)
            return
        self.keys[table] = keys
        if progress is None or again or progress.stopped == _LOADING:
            self.again.add(table)
        elif progress.stopped:
            del self.since[table]
            self.lines[table].state, self.lines[table].error = "Stopped", progress.stopped
        elif not self.source.covers(table):
            self.load_again(table)
        elif (kept := read_metadata(self.storage, table).keys) != keys and keys_are_given(
            self.storage, table
        ):
            hint = f"load it again with reseed (--reseed {table}); its history is kept."
            if isinstance(self.source, ChangesOnly):  # it can't be loaded again
                hint = f"use the earlier keys, or {FROM_THE_START}"
            text = f"The key of {table} was {list(kept)}, and is {list(keys)} now."
            self.stop_table(table, MetadataError(text, hint=hint))
        else:
            self.lines[table].state = "Running"

    def load_again(self, table: TableName) -> None:
        """Request a new load, and record the request, so that a restart completes the load."""
        position = self.since.pop(table)
        write_progress(self.storage, table, self.source.name, position, _LOADING)
        self.again.add(table)

    def load(self) -> None:
        """Load the tables that need a first load."""
        for table in sorted(self.again, key=str):
            if self.stop.is_set():
                return
            self.report_state(now=True)
            try:
                position = self.load_one(table)
            except MirrorlakeError as error:
                if isinstance(error, (BusyError, SetupError, SourceError)):
                    raise
                self.stop_table(table, error, keep=False)
                continue
            finally:
                self.again.discard(table)
            if position is not None:
                self.since[table] = position
                self.lines[table].state, self.lines[table].error = "Running", None
        self.report_state(now=True)

    def load_one(self, table: TableName) -> Position | None:
        """Load one table into a new folder; return the position after which its changes begin."""
        aside = NewFolder(self.storage, self.source.name, table)
        line, lock = self.lines[table], Lock()
        self.publishers.pop(table, None)
        self.since.pop(table, None)
        files: list[str] = []

        def publish(rows: pa.RecordBatchReader) -> None:
            done = self.open(aside.storage, table).load(rows)
            with lock:
                line.rows += done.rows
                line.files += 1
                if done.file:
                    files.append(f"{table.folder}/{done.file}")

        begin = self.source.snapshot(table, publish, self.stop)
        if begin is None:
            aside.discard()
            if self.stop.is_set():
                return None
            # All rows come as changes. The keys are declared now, for a source that restarts before
            # the first change and reads its keys from the folder.
            declare_keys(self.storage, table, self.keys[table])
            write_progress(self.storage, table, self.source.name, Position(()))
            return Position(())
        make_durable(aside.storage, files)
        aside.move_into_place(begin)
        return begin

    def follow(self, *, once: bool) -> bool:
        """Publish changes; return whether tables were loaded again and more changes may follow."""
        with closing(self.source.changes(self.since, self.stop, once=once)) as groups:
            for group in groups:
                self.publish(group)
                if self.again:
                    break
        if self.again:
            self.load()
            return not self.stop.is_set()
        return False

    def publish(self, group: Group) -> None:
        """Publish a group, and confirm it once all its files are durable."""
        written: list[str] = []
        for table, keys in group.appeared.items():
            self.add_table(table, keys)
        if group.appeared:
            self.load()
        for batch in group.batches:
            table = batch.table
            try:
                written += self.publish_one(batch)
            except (BusyError, SetupError, SourceError):  # not an error of this table
                raise
            except MirrorlakeError as error:
                self.stop_table(table, error)
        make_durable(self.storage, written)
        if group.end is not None:
            self.source.confirm(group.end)
        self.report_state(now=bool(group.batches))

    def publish_one(self, batch: Batch) -> list[str]:
        """Publish a batch unless it is known already; return the files to make durable."""
        table = batch.table
        if table not in self.since or batch.position <= self.since[table]:
            return []
        if batch.problem is not None:
            self.stop_table(table, batch.problem)
            return []
        if batch.reseed:
            self.load_again(table)
            return []
        written = self.write(batch)
        self.since[table] = batch.position
        return written

    def write(self, batch: Batch) -> list[str]:
        """Write the rows of a batch; return the files to make durable."""
        table, line = batch.table, self.lines[batch.table]
        if batch.replaces:
            self.publishers.pop(table, None)
            aside = NewFolder(self.storage, self.source.name, table)
            declare_keys(aside.storage, table, self.keys[table])
            if batch.rows is not None:
                footer = batch.position.footer(self.source.name)
                line.rows += self.open(aside.storage, table).write(batch.rows, footer=footer).rows
                line.files += 1
            aside.move_into_place(batch.position)
            return []
        if batch.rows is None:
            return []
        publisher = self.publishers.get(table) or self.open(self.storage, table)
        self.publishers[table] = publisher
        footer = batch.position.footer(self.source.name)
        token = f"{self.source.name} after {json.dumps(self.since[table].order)}"
        done = publisher.write(batch.rows, token=token, footer=footer, origin=batch.origin)
        if done.file is None:
            return []
        if done.repeated and not self.is_ours(table, done.file, footer[FOOTER]):
            raise BusyError(
                f"Another process publishes {self.source.name} into {table}.",
                hint="stop one of the processes; no row is lost or duplicated.",
            )
        line.rows += done.rows
        line.files += 1
        return [f"{table.folder}/{done.file}"]

    def is_ours(self, table: TableName, name: str, footer: str) -> bool:
        """Return whether a file ends at the position of our batch."""
        for folder in ("", f"{PROCESSED}/", f"{READY_TO_DELETE}/"):
            found = read_footer(self.storage, f"{table.folder}/{folder}{name}")
            if found:
                return found.get(FOOTER.encode()) == footer.encode()
        return False

    def open(self, storage: Storage, table: TableName) -> Publisher:
        """Return the publisher of a table, in the lake or in a new folder."""
        partner = Partner(source_type=self.source.name.partition(":")[0])
        keys = self.keys[table]
        return Publisher(storage, table, keys=keys, partner=partner, footer=self.footer)

    def stop_table(self, table: TableName, error: MirrorlakeError, *, keep: bool = True) -> None:
        """Stop one table; the reason is kept until the table is loaded again."""
        line = self.lines[table]
        line.state, line.error = "Stopped", str(error)
        _log.error(f"{table} is stopped: {error}")
        position = self.since.pop(table, None)
        if keep and position is not None and not self.source.keeps_changes:
            # The source does not keep further changes; a restart must know that the table stopped.
            write_progress(self.storage, table, self.source.name, position, str(error))

    def report_state(self, *, now: bool = False) -> None:
        """Write the state for `status`, at most every few seconds unless `now`."""
        if not now and time.monotonic() - self.reported < _REPORT_SECONDS:
            return
        self.reported = time.monotonic()
        self.report.facts = self.source.facts()
        write_report(self.storage, self.report)
        if self.on_report is not None:
            self.on_report(self.report)


def problem_lines(report: SourceReport) -> Iterable[str]:
    """Return one line for each stopped table, with the reason."""
    return (f"{one.table}: {one.error}" for one in report.tables if one.error)
