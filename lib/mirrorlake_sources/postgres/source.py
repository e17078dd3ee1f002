"""A PostgreSQL database as a source: checks, first loads from snapshots, the slot's stream."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Generator, Iterable, Mapping, MutableMapping
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from threading import Event
from typing import TYPE_CHECKING, Any

import psycopg

from mirrorlake.errors import BusyError, MirrorlakeError, SourceError, UsageError
from mirrorlake.names import TableName, fingerprint
from mirrorlake.results import Result, TextTable
from mirrorlake.source_status import SourceReport
from mirrorlake_sources.engine import run_source
from mirrorlake_sources.postgres.catalog import (
    Catalogue,
    Column,
    Connection,
    PgTable,
    as_landed,
    column_of,
    problem_of,
    reseeded,
)
from mirrorlake_sources.postgres.connection import (
    Begin,
    Commit,
    LostConnectionError,
    Relation,
    Server,
    Stream,
    Truncate,
    UnreachableError,
    read_message,
)
from mirrorlake_sources.postgres.gather import Gathering, Kept, look_up
from mirrorlake_sources.postgres.slot import Slot, parse_lsn, read_snapshot, show_lsn
from mirrorlake_sources.source import Group, Position, Publish

if TYPE_CHECKING:
    from mirrorlake.lake import Lake

_log = logging.getLogger("mirrorlake.sources.postgres.source")
_ROWS = frozenset(b"IUD")
_PATIENCE = 20.0  # seconds for the rest of a transaction once it is to stop
_HELD = 10.0  # seconds until the server must have noticed that a process is dead
_HEARTBEAT = "SELECT pg_logical_emit_message(true, 'mirrorlake', '')"
DSN = "MIRRORLAKE_DSN"


class PostgresSource:
    """Tables of one PostgreSQL database.

    Args:
        dsn: a libpq connection string or URI; never shown.
        tables: their names; `public.t` is `t`.
        slot: the name of the slot and the publications at the server.
        toast: what to do about large values that an update leaves alone and the stream leaves out:
            `refuse` wants REPLICA IDENTITY FULL, `lookup` reads them by key, `keep` has the
            mirror keep what the table has: an extension of the format that others don't read.
        text: columns to land as psql prints them, as `table.column`.
        interval: publish at the latest after so many seconds, at a commit.
        rows: publish after so many changes, at a commit.
        size: publish after so many bytes, at a commit.
        readers: how many connections read a snapshot at the same time.
        heartbeat: seconds between messages that move an idle database's slot; 0: none.

    Raises:
        UsageError: an argument that makes no sense.
    """

    def __init__(
        self,
        dsn: str,
        tables: Iterable[str],
        *,
        slot: str = "mirrorlake",
        toast: str = "refuse",
        text: Iterable[str] = (),
        interval: float = 5.0,
        rows: int = 100_000,
        size: int = 64 << 20,
        readers: int = 2,
        heartbeat: float = 30.0,
    ) -> None:
        self._server = Server(dsn)
        self._wanted = [as_landed(TableName.parse(name)) for name in tables]
        if not self._wanted:
            raise UsageError("No tables are named.", hint="--tables a,b")
        if toast not in ("refuse", "lookup", "keep"):
            raise UsageError(f"toast is {toast!r}.", hint="it may be refuse, lookup or keep.")
        if not slot or not set(slot) <= set("abcdefghijklmnopqrstuvwxyz0123456789_") or slot[56:]:
            raise UsageError(
                f"{slot!r} can't name a slot.", hint="small letters, digits and _; at most 56."
            )
        self._text = frozenset(column_of(name) for name in text)
        self._slot_name, self._toast, self._readers = slot, toast, readers
        self._interval, self._most_rows, self._most_bytes = interval, rows, size
        self._heartbeat = heartbeat
        self._tables: dict[int, PgTable] = {}
        self._known: dict[TableName, PgTable] = {}
        self._members: set[int] = set()
        self._target = 0
        self._sql: Connection | None = None
        self._stream: Stream | None = None
        self._committed: datetime | None = None
        self._facts: dict[str, Any] = {}
        self._name = ""

    @property
    def name(self) -> str:
        """The server's own identity, the database, and the slot."""
        return self._name

    @property
    def keeps_changes(self) -> bool:
        """The slot goes on for the other tables, so a stopped one misses its changes."""
        return False

    def __enter__(self) -> PostgresSource:
        """Connects, and checks the server."""
        self._connect()
        system, database = self._one(
            "SELECT system_identifier, current_database() FROM pg_control_system()"
        )
        self._name = f"postgres:{system}/{database}/{self._slot_name}"
        self._target = self._now()
        return self

    def _connect(self) -> None:
        self._disconnect()
        self._sql = self._server.query()
        self._catalogue = Catalogue(self._sql, self._text)
        self._slot = Slot(self._sql, self._slot_name)
        try:
            with self._server.explained():
                self._slot.check_server()
                self._has_slot = self._slot.exists()
                self._members = self._slot.members()
        except BaseException:
            self._disconnect()
            raise

    def _disconnect(self) -> None:
        self._end_stream()
        if self._sql is not None:
            self._sql.close()

    def __exit__(self, *_error: object) -> None:
        """Closes the connections."""
        self._disconnect()

    def tables(self) -> Mapping[TableName, tuple[str, ...] | MirrorlakeError]:
        """The tables with their keys, or with what must be altered first.

        Those that are no longer asked for are withdrawn from the publication.
        """
        found = self.examine()
        if self._has_slot:
            with self._server.explained():
                self._slot.withdraw({one.relid for one in self._known.values()})
        return found

    def examine(self) -> dict[TableName, tuple[str, ...] | MirrorlakeError]:
        """The same, with nothing changed at the server."""
        found: dict[TableName, tuple[str, ...] | MirrorlakeError] = {}
        with self._server.explained():
            for table in self._wanted:
                try:
                    one = self._catalogue.table(table)
                except SourceError as error:
                    found[table] = error
                    continue
                self._known[table] = one
                problem = problem_of(one, toast=self._toast)
                found[table] = problem or one.keys
                if problem is None:
                    self._tables[one.relid] = one
                    if not one.keys:
                        _log.warning(f"{table} has no key: only its inserts are mirrored.")
        return found

    def covers(self, table: TableName) -> bool:
        """Whether the table has been in the publication all the time.

        Raises:
            SourceError: the slot is gone, and what it kept with it.
        """
        if not self._has_slot:
            raise self._slot.lost(self._wanted)
        return self._known[table].relid in self._members

    def snapshot(self, table: TableName, publish: Publish, stop: Event) -> Position | None:
        """Reads a table as it is at one moment; its changes are in the stream from there on."""
        with self._server.explained():
            one = self._tables[self._known[table].relid] = self._catalogue.table(table)
            self._slot.publish(one)
            self._members.add(one.relid)
            self._slot.create()
            self._has_slot = True
        suffix = fingerprint(str(table), 6)
        lsn = read_snapshot(
            self._server, one, f"{self._slot_name}_{suffix}", publish, stop, readers=self._readers
        )
        if lsn is None:
            return None
        return Position((lsn, 0), {**one.facts(), "lsn": show_lsn(lsn)})

    def changes(
        self, since: MutableMapping[TableName, Position], stop: Event, *, once: bool
    ) -> Generator[Group, None, None]:
        """Whole transactions; without `once` it connects again when the server has gone."""
        wait = 0.5
        while not stop.is_set():
            try:
                for group in self._follow(since, stop, once):
                    wait = 0.5
                    yield group
                return
            except (LostConnectionError, UnreachableError, psycopg.OperationalError) as error:
                self._end_stream()
                if once:
                    text = " ".join(str(error).split())
                    raise SourceError(
                        f"The server is gone: {text}.", hint="run it again."
                    ) from None
                _log.warning(f"{error}; connecting again in {wait:g} s …")
            while not stop.wait(wait) and not self._connects_again():
                wait = min(wait * 2, 30)

    def _connects_again(self) -> bool:
        try:
            self._connect()
        except (UnreachableError, BusyError) as error:
            _log.warning(str(error))
            return False
        if not self._has_slot:
            raise self._slot.lost(self._wanted)
        return True

    def _follow(
        self, since: MutableMapping[TableName, Position], stop: Event, once: bool
    ) -> Generator[Group, None, None]:
        if not since or not self._has_slot:
            if not once and not since:
                raise SourceError("No table is left to follow.", hint="see what stopped each.")
            return
        gathering = Gathering(
            since,
            self._tables,
            self._again,
            self._columns,
            self._look_up,
            keep=self._toast == "keep",
        )
        try:
            self._stream = self._open_stream(stop)
            yield from self._groups(self._stream, gathering, stop, once)
        finally:
            gathering.discard()
            self._end_stream()

    def _open_stream(self, stop: Event) -> Stream:
        """The stream; a process that was just killed may hold the slot for a moment."""
        deadline = time.monotonic() + _HELD
        while True:
            try:
                return Stream(self._server, self._slot_name, self._slot.publications)
            except BusyError:
                if time.monotonic() > deadline or stop.wait(0.1):
                    raise

    def _groups(
        self, stream: Stream, gathering: Gathering, stop: Event, once: bool
    ) -> Generator[Group, None, None]:
        commit: Commit | None = None
        first = beat = time.monotonic()
        ends, pause = float("inf"), min(0.2, self._interval)
        stream.tell(answer=True)
        while True:
            data = stream.next(pause)
            if data is not None and data[0] in _ROWS:
                gathering.change(data)
                if not stop.is_set():
                    continue
            now = time.monotonic()
            if data is None:
                if commit is None and not gathering.open:
                    stream.confirmed = max(stream.confirmed, stream.reached)
            elif data[0] not in _ROWS:
                done = self._take(gathering, data)
                if done is not None:
                    commit, first = done, first if commit else now
            if stop.is_set():
                ends = min(ends, now + _PATIENCE)
            whole = not gathering.open
            reached = max(stream.reached, commit.end if commit else 0)
            ending = (once and reached >= self._target) or ends < float("inf")
            if whole and commit and (ending or self._is_full(gathering, now - first)):
                self._committed = None if gathering.empty else commit.at
                yield gathering.group(commit)
                stream.tell()
                commit = None
            if (whole and ending and commit is None) or now > ends:
                stream.tell()
                return
            if data is None:
                if once:
                    stream.tell(answer=True)
                elif whole and commit is None:
                    beat = self._beat(beat, now)
                    yield Group()

    def _is_full(self, gathering: Gathering, waited: float) -> bool:
        return (
            waited >= self._interval
            or gathering.rows >= self._most_rows
            or gathering.bytes >= self._most_bytes
        )

    @staticmethod
    def _take(gathering: Gathering, data: bytes) -> Commit | None:
        message = read_message(data)
        if isinstance(message, Begin):
            gathering.begin(message)
        elif isinstance(message, Relation):
            gathering.relation(message)
        elif isinstance(message, Truncate):
            gathering.truncate(message)
        elif isinstance(message, Commit):
            gathering.commit(message)
            return message
        return None

    def confirm(self, end: Any) -> None:
        """Lets the server forget what lies before a commit's end, once its files are durable."""
        if self._stream is not None:
            self._stream.confirmed = max(self._stream.confirmed, int(end))

    def facts(self) -> dict[str, Any]:
        """The slot's state and lag, for `status`."""
        try:
            self._facts = self._slot.facts()
        except psycopg.Error:
            return self._facts | {"connection": "lost"}
        if self._committed is not None:
            seconds = (datetime.now(timezone.utc) - self._committed).total_seconds()
            self._facts["last_commit"] = self._committed.isoformat()
            self._facts["last_commit_age_seconds"] = round(seconds, 1)
        return self._facts

    def _again(self, table: PgTable) -> PgTable | None:
        try:
            return self._catalogue.table(table.table)
        except SourceError:
            return None

    def _columns(self, table: PgTable, relation: Relation, kept: Kept) -> tuple[Column, ...]:
        numbers = {column.name: column.number for column in table.columns}
        numbers |= {name: number for number, name, _, _ in kept.columns}
        return tuple(
            Column(
                numbers.get(name),
                name,
                oid,
                typmod,
                self._catalogue.kind(table.table, name, oid, typmod),
            )
            for name, oid, typmod in relation.columns
        )

    def _look_up(self, shape: Any, rows: list[Any]) -> list[Any]:
        return look_up(self._query, shape, rows)

    def _beat(self, last: float, now: float) -> float:
        if not self._heartbeat or now - last < self._heartbeat:
            return last
        self._now()
        return now

    def _now(self) -> int:
        """The log's end, after a message of our own that takes the slot there."""
        with contextlib.suppress(psycopg.errors.InsufficientPrivilege):
            self._query.execute(_HEARTBEAT)
        return parse_lsn(self._one("SELECT pg_current_wal_flush_lsn()")[0])

    def _one(self, statement: Any) -> tuple[Any, ...]:
        with self._server.explained():
            return self._query.execute(statement).fetchone() or ()

    @property
    def _query(self) -> Connection:
        if self._sql is None:
            raise UsageError("The source is not open.", hint="with source: …")
        return self._sql

    def _end_stream(self) -> None:
        if self._stream is not None:
            with contextlib.suppress(LostConnectionError):
                self._stream.tell()
            self._stream.close()
            self._stream = None


@dataclass(frozen=True)
class CheckedTable:
    """Whether one table can be published.

    Attributes:
        table: its name in the lake.
        keys: its key columns; empty for inserts only.
        problem: what is in the way; None if nothing is.
        hint: what to run at the server.
    """

    table: str
    keys: tuple[str, ...] = ()
    problem: str | None = None
    hint: str | None = None


@dataclass(frozen=True)
class PostgresCheck(Result):
    """What a database would publish.

    Attributes:
        database: the source's name; empty if no database is named.
        tables: those that are asked for.
    """

    database: str
    tables: tuple[CheckedTable, ...] = ()

    @property
    def ready(self) -> bool:
        """Whether there is a table that can be published."""
        return any(one.problem is None for one in self.tables)

    def as_dict(self) -> dict[str, Any]:
        """The check as a document."""
        return asdict(self)

    def shown(self) -> TextTable:
        """A line a table: its key, or what is in the way and the statement that helps."""
        if not self.database:
            text = f"No database is named: set {DSN}, or the parameter dsn, and tables."
            return TextTable(("note",), ((text,),))
        rows = tuple(
            (
                one.table,
                ", ".join(one.keys) or "none: inserts only",
                one.problem or "",
                one.hint or "",
            )
            for one in self.tables
        )
        return TextTable(("table", "key", "problem", "what helps"), rows)

    def __repr__(self) -> str:
        good = sum(one.problem is None for one in self.tables)
        return f"{good} of {len(self.tables)} tables can be published"


def check_postgres(
    tables: Iterable[str], dsn: str = "", *, slot: str = "mirrorlake", toast: str = "refuse"
) -> PostgresCheck:
    """Looks whether tables of a database can be published; changes nothing there.

    Args:
        tables: their names; `public.t` is `t`.
        dsn: libpq's connection string; empty: the variable `MIRRORLAKE_DSN`.
        slot: the name of the slot at the server.
        toast: see `PostgresSource`.

    Returns:
        A line a table; nothing if no database or no table is named.

    Raises:
        SourceError: the server can't be reached, or lacks something for all tables.

    Example:
        >>> check_postgres(["orders"], "host=db dbname=shop")  # doctest: +SKIP
        1 of 1 tables can be published
    """
    place, names = dsn or os.environ.get(DSN, ""), list(tables)
    if not place or not names:
        return PostgresCheck("")
    source = PostgresSource(place, names, slot=slot, toast=toast)
    with source:
        found = source.examine()
        return PostgresCheck(
            source.name,
            tuple(
                CheckedTable(str(table), problem=known.message, hint=known.hint)
                if isinstance(known, MirrorlakeError)
                else CheckedTable(str(table), known)
                for table, known in found.items()
            ),
        )


def publish_postgres(
    lake: Lake,
    tables: Iterable[str],
    dsn: str = "",
    *,
    slot: str = "mirrorlake",
    toast: str = "refuse",
    text: Iterable[str] = (),
    reseed: Iterable[str] = (),
) -> SourceReport:
    """Publishes tables of a database up to now: a snapshot where there is none, then all changes.

    Args:
        lake: where to.
        tables: their names; `public.t` is `t`.
        dsn: libpq's connection string; empty: the variable `MIRRORLAKE_DSN`.
        slot: the name of the slot at the server; two lakes need two.
        toast: see `PostgresSource`.
        text: columns to land as psql prints them, as `table.column`.
        reseed: tables to load again from the start.

    Raises:
        UsageError: no database is named.
        SourceError: the server can't be reached, or has lost the slot.

    Example:
        >>> publish_postgres(lake, ["orders"], "host=db dbname=shop")  # doctest: +SKIP
        postgres:74…/shop/mirrorlake: 12 rows and changes of 1 tables published
    """
    place = dsn or os.environ.get(DSN, "")
    if not place:
        raise UsageError("No database is named.", hint=f"set {DSN}, or hand over a dsn.")
    source = PostgresSource(place, tables, slot=slot, toast=toast, text=text)
    again = reseeded(list(reseed))
    return run_source(lake.storage, source, reseed=again, footer=lake.published_footer)
