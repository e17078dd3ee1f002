"""Runs a source: first loads, changes, each published exactly once, one table's trouble its own.

A file carries the position it ends at, and a token made of the position it follows. So a batch that
is published again, by this process or by one that was thought dead, can't land twice.
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
    Batch,
    Group,
    NewFolder,
    Position,
    Source,
    Standing,
    make_durable,
    mend_folders,
    read_standing,
    write_report,
    write_standing,
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
    """Publishes what a source has: first loads where there is none, then all changes since.

    Args:
        storage: the lake's files.
        source: where the rows come from.
        once: end when all that the source had at the start is published; else go on.
        stop: ends it soon after it is set, with whole batches published.
        reseed: tables to load again from the start, in place of what they have.
        on_report: told after each group how it stands.
        footer: what the published files' footers carry besides.

    Returns:
        How it ended; `failed` if a table is stopped.

    Raises:
        SourceError: the source is lost, or can't be read at all.
        BusyError: another process publishes the same source.
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
            run.tell(now=True)
            raise
        run.report.state = "Ended" if once else "Stopped"
        run.tell(now=True)
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
    told: float = 0.0

    def begin(self, reseed: set[TableName]) -> None:
        """Finds where each table stands, and loads those that have not begun."""
        mend_folders(self.storage, self.source.name)
        for table, keys in self.source.tables().items():
            self.meet(table, keys, again=table in reseed)
        if unknown := reseed - self.lines.keys():
            raise UsageError(f"The source has no table {min(unknown, key=str)} to reseed.")
        self.load()

    def meet(
        self, table: TableName, keys: tuple[str, ...] | MirrorlakeError, *, again: bool = False
    ) -> None:
        """Takes up a table."""
        self.lines[table] = SourceTable(str(table))
        self.report.tables.append(self.lines[table])
        try:
            standing = read_standing(self.storage, table, self.source.name)
        except MetadataError as error:
            self.halt(table, error)
            return
        self.find(table, keys, standing, again=again)

    def find(
        self,
        table: TableName,
        keys: tuple[str, ...] | MirrorlakeError,
        standing: Standing | None,
        *,
        again: bool,
    ) -> None:
        """Puts a table among those that go on, that are to be loaded, or that are stopped."""
        if standing is not None:
            self.since[table] = standing.position  # so that `halt` says it in the folder
        if isinstance(keys, MirrorlakeError):
            self.halt(table, keys)
            return
        self.keys[table] = keys
        if standing is None or again or standing.stopped == _LOADING:
            self.again.add(table)
        elif standing.stopped:
            del self.since[table]
            self.lines[table].state, self.lines[table].error = "Stopped", standing.stopped
        elif not self.source.covers(table):
            self.load_again(table)
        elif (kept := read_metadata(self.storage, table).keys) != keys and keys_are_given(
            self.storage, table
        ):
            self.halt(
                table,
                MetadataError(
                    f"The key of {table} was {list(kept)}, and is {list(keys)} now.",
                    hint=f"load it again: --reseed {table}; its history is kept.",
                ),
            )
        else:
            self.lines[table].state = "Running"

    def load_again(self, table: TableName) -> None:
        """Asks for a new load; a kill meanwhile must not make the old position look good."""
        position = self.since.pop(table)
        write_standing(self.storage, table, self.source.name, position, _LOADING)
        self.again.add(table)

    def load(self) -> None:
        """First loads of the tables that need one."""
        for table in sorted(self.again, key=str):
            if self.stop.is_set():
                return
            self.tell(now=True)
            try:
                position = self.load_one(table)
            except MirrorlakeError as error:
                if isinstance(error, SourceError):
                    raise
                self.halt(table, error, keep=False)
                continue
            finally:
                self.again.discard(table)
            if position is not None:
                self.since[table] = position
                self.lines[table].state, self.lines[table].error = "Running", None
        self.tell(now=True)

    def load_one(self, table: TableName) -> Position | None:
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
            # All rows come as changes. A source that reads its keys from the folder finds them
            # there when it starts again before the first one.
            declare_keys(self.storage, table, self.keys[table])
            write_standing(self.storage, table, self.source.name, Position(()))
            return Position(())
        make_durable(aside.storage, files)
        aside.take_its_place(begin)
        return begin

    def follow(self, *, once: bool) -> bool:
        """Publishes changes; True if tables were loaded again, and there may be more to do."""
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
        """Publishes a group; only when all its files are on the disk is it confirmed."""
        stands: list[str] = []
        for table, keys in group.appeared.items():
            self.meet(table, keys)
        if group.appeared:
            self.load()
        for batch in group.batches:
            table = batch.table
            try:
                stands += self.publish_one(batch)
            except (BusyError, SourceError):
                raise
            except MirrorlakeError as error:
                self.halt(table, error)
        make_durable(self.storage, stands)
        if group.end is not None:
            self.source.confirm(group.end)
        self.tell(now=bool(group.batches))

    def publish_one(self, batch: Batch) -> list[str]:
        table = batch.table
        if table not in self.since or batch.position <= self.since[table]:
            return []
        if batch.problem is not None:
            self.halt(table, batch.problem)
            return []
        if batch.reseed:
            self.load_again(table)
            return []
        stands = self.write(batch)
        self.since[table] = batch.position
        return stands

    def write(self, batch: Batch) -> list[str]:
        """Puts a batch's rows into the zone: the files that must be on the disk then."""
        table, line = batch.table, self.lines[batch.table]
        if batch.replaces:
            self.publishers.pop(table, None)
            aside = NewFolder(self.storage, self.source.name, table)
            declare_keys(aside.storage, table, self.keys[table])
            if batch.rows is not None:
                footer = batch.position.footer(self.source.name)
                line.rows += self.open(aside.storage, table).write(batch.rows, footer=footer).rows
                line.files += 1
            aside.take_its_place(batch.position)
            return []
        if batch.rows is None:
            return []
        publisher = self.publishers.get(table) or self.open(self.storage, table)
        self.publishers[table] = publisher
        footer = batch.position.footer(self.source.name)
        token = f"{self.source.name} after {json.dumps(self.since[table].order)}"
        done = publisher.write(batch.rows, token=token, footer=footer)
        if done.file is None:
            return []
        if done.repeated and not self.is_ours(table, done.file, footer[FOOTER]):
            raise BusyError(
                f"Another process publishes {self.source.name} into {table}.",
                hint="stop one of the two; nothing is lost or doubled.",
            )
        line.rows += done.rows
        line.files += 1
        return [f"{table.folder}/{done.file}"]

    def is_ours(self, table: TableName, name: str, footer: str) -> bool:
        """Whether a file ends where our batch does."""
        for folder in ("", f"{PROCESSED}/", f"{READY_TO_DELETE}/"):
            found = read_footer(self.storage, f"{table.folder}/{folder}{name}")
            if found:
                return found.get(FOOTER.encode()) == footer.encode()
        return False

    def open(self, storage: Storage, table: TableName) -> Publisher:
        """Return the publisher of a table, in the lake or aside."""
        partner = Partner(source_type=self.source.name.partition(":")[0])
        keys = self.keys[table]
        return Publisher(storage, table, keys=keys, partner=partner, footer=self.footer)

    def halt(self, table: TableName, error: MirrorlakeError, *, keep: bool = True) -> None:
        """Stops one table; it says why until it is loaded again."""
        line = self.lines[table]
        line.state, line.error = "Stopped", str(error)
        _log.error(f"{table} is stopped: {error}")
        position = self.since.pop(table, None)
        if keep and position is not None and not self.source.keeps_changes:
            # What comes meanwhile is not kept by the source, so this must outlive the process.
            write_standing(self.storage, table, self.source.name, position, str(error))

    def tell(self, *, now: bool = False) -> None:
        """Leaves how it stands for `status`."""
        if not now and time.monotonic() - self.told < _REPORT_SECONDS:
            return
        self.told = time.monotonic()
        self.report.facts = self.source.facts()
        write_report(self.storage, self.report)
        if self.on_report is not None:
            self.on_report(self.report)


def stopped_tables(report: SourceReport) -> Iterable[str]:
    """The lines that say which tables are stopped, and why."""
    return (f"{one.table}: {one.error}" for one in report.tables if one.error)
