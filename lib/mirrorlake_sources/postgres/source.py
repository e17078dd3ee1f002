"""PostgreSQL as a source: checks, first loads, changes from the slot, and confirmed positions."""

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
from mirrorlake.names import TableName, fingerprint, split_names
from mirrorlake.results import Result, TextTable
from mirrorlake.source_status import SourceReport
from mirrorlake_sources.engine import run_source
from mirrorlake_sources.postgres.catalog import (
    Catalog,
    Column,
    Connection,
    PgTable,
    column_of,
    lake_name,
    parse_tables,
    problem_of,
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
from mirrorlake_sources.postgres.gather import Gathering, KnownTable, look_up
from mirrorlake_sources.postgres.slot import Slot, parse_lsn, read_snapshot, show_lsn
from mirrorlake_sources.source import Group, Position, Publish

if TYPE_CHECKING:
    from mirrorlake.lake import Lake

_log = logging.getLogger("mirrorlake.sources.postgres.source")
_ROWS = frozenset(b"IUD")
_PATIENCE = 20.0  # seconds for the rest of a transaction after a request to stop
_HELD = 10.0  # seconds until the server notices that a process is dead
_HEARTBEAT = "SELECT pg_logical_emit_message(true, 'mirrorlake', '')"
DSN = "MIRRORLAKE_DSN"


class PostgresSource:
    """Tables of one PostgreSQL database.

    Args:
        dsn: a libpq connection string or URI; never logged.
        tables: their names, as a list or separated by commas; `public.t` is `t`.
        slot: the name of the replication slot and of the publications.
        toast: how to treat large values that an update does not change and the stream omits:
            `refuse`
            requires REPLICA IDENTITY FULL; `lookup` reads them by key; `keep` lets the mirror keep
            the
            table's value, with an extension of the format that other mirrors do not support.
        text: columns to publish as psql prints them, as `table.column`.
        interval: publish at least once in this number of seconds, at a commit.
        rows: publish after this number of changes, at a commit.
        size: publish after this number of bytes, at a commit.
        readers: the number of connections that read a snapshot in parallel.
        heartbeat: seconds between messages that advance the slot of an idle database; 0 for none.

    Raises:
        UsageError: an argument is invalid.

    Example:
        >>> source = PostgresSource("host=db dbname=shop", ["orders"])  # doctest: +SKIP
        >>> run_source(lake.storage, source)  # doctest: +SKIP
    """

    def __init__(
        self,
        dsn: str,
        tables: str | Iterable[str],
        *,
        slot: str = "mirrorlake",
        toast: str = "refuse",
        text: str | Iterable[str] = (),
        interval: float = 5.0,
        rows: int = 100_000,
        size: int = 64 << 20,
        readers: int = 2,
        heartbeat: float = 30.0,
    ) -> None:
        self._server = Server(dsn)
        self._wanted = [lake_name(TableName.parse(name)) for name in split_names(tables)]
        if not self._wanted:
            raise UsageError("No tables are named.", hint="name at least one table.")
        if toast not in ("refuse", "lookup", "keep"):
            raise UsageError(
                f"toast can't be {toast!r}.", hint="choose one of refuse, lookup, keep."
            )
        if not slot or not set(slot) <= set("abcdefghijklmnopqrstuvwxyz0123456789_") or slot[56:]:
            raise UsageError(
                f"{slot!r} is not a valid slot name.",
                hint="use at most 56 lower-case letters, digits and underscores.",
            )
        self._text = frozenset(column_of(name) for name in split_names(text))
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
        """The server's identity, the database, and the slot."""
        return self._name

    @property
    def keeps_changes(self) -> bool:
        """False: the slot advances for the other tables, so a stopped table misses changes."""
        return False

    def __enter__(self) -> PostgresSource:
        """Connect, and check the server."""
        self._connect()
        with self._server.explained():
            self._name = self._slot.source_name()
        self._target = self._now()
        return self

    def _connect(self) -> None:
        self._disconnect()
        self._sql = self._server.query()
        self._catalog = Catalog(self._sql, self._text)
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
        """Close the connections."""
        self._disconnect()

    def tables(self) -> Mapping[TableName, tuple[str, ...] | MirrorlakeError]:
        """Return the tables with their keys, or with the problem that must be fixed first.

        Tables that the source does not publish any more are removed from the publication.
        """
        found = self.examine()
        if self._has_slot:
            with self._server.explained():
                self._slot.withdraw({one.relid for one in self._known.values()})
        return found

    def examine(self) -> dict[TableName, tuple[str, ...] | MirrorlakeError]:
        """Return the same as `tables`, without a change on the server."""
        found: dict[TableName, tuple[str, ...] | MirrorlakeError] = {}
        with self._server.explained():
            for table in self._wanted:
                try:
                    one = self._catalog.table(table)
                except SourceError as error:
                    found[table] = error
                    continue
                self._known[table] = one
                problem = problem_of(one, toast=self._toast)
                found[table] = problem or one.keys
                if problem is None:
                    self._tables[one.relid] = one
                    if not one.keys:
                        _log.warning(f"{table} has no key: only its inserts are published.")
        return found

    def covers(self, table: TableName) -> bool:
        """Return whether the table has been in the publication since its last position.

        Raises:
            SourceError: the slot is lost.
        """
        if not self._has_slot:
            raise self._slot.lost(self._wanted)
        return self._known[table].relid in self._members

    def snapshot(self, table: TableName, publish: Publish, stop: Event) -> Position | None:
        """Publish the rows of a consistent snapshot; the stream has all later changes."""
        with self._server.explained():
            one = self._tables[self._known[table].relid] = self._catalog.table(table)
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
        """Yield complete transactions; without `once` reconnect after a lost connection."""
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
                        f"The connection to the server is lost: {text}.", hint="run it again."
                    ) from None
                _log.warning(f"Connecting again in {wait:g} s: {error}")
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
                raise SourceError("All tables are stopped.", hint="fix the error of each table.")
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
        """Open the stream; retry while the server still assigns the slot to a killed process."""
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
        stream.send_status(answer=True)
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
                stream.send_status()
                commit = None
            if (whole and ending and commit is None) or now > ends:
                stream.send_status()
                return
            if data is None:
                if once:
                    stream.send_status(answer=True)
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
        """Let the server forget changes before a commit's end; its files are durable."""
        if self._stream is not None:
            self._stream.confirmed = max(self._stream.confirmed, int(end))

    def facts(self) -> dict[str, Any]:
        """Return the slot's state and lag, for `status`."""
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
            return self._catalog.table(table.table)
        except SourceError:
            return None

    def _columns(self, table: PgTable, relation: Relation, kept: KnownTable) -> tuple[Column, ...]:
        numbers = {column.name: column.number for column in table.columns}
        numbers |= {name: number for number, name, _, _ in kept.columns}
        return tuple(
            Column(
                numbers.get(name),
                name,
                oid,
                typmod,
                self._catalog.kind(table.table, name, oid, typmod),
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
        """Return the end of the log, after a message of our own that advances the slot."""
        with contextlib.suppress(psycopg.errors.InsufficientPrivilege):
            self._query.execute(_HEARTBEAT)
        return parse_lsn(self._one("SELECT pg_current_wal_flush_lsn()")[0])

    def _one(self, statement: Any) -> tuple[Any, ...]:
        with self._server.explained():
            return self._query.execute(statement).fetchone() or ()

    @property
    def _query(self) -> Connection:
        if self._sql is None:
            raise UsageError("The source is not open.", hint="use it in a with block.")
        return self._sql

    def _end_stream(self) -> None:
        if self._stream is not None:
            with contextlib.suppress(LostConnectionError):
                self._stream.send_status()
            self._stream.close()
            self._stream = None


@dataclass(frozen=True)
class CheckedTable:
    """The result of the check of one table.

    Attributes:
        table: its name in the lake.
        keys: its key columns; empty if only inserts are published.
        problem: why it can't be published; None if it can.
        hint: the statement that fixes the problem.
    """

    table: str
    keys: tuple[str, ...] = ()
    problem: str | None = None
    hint: str | None = None


@dataclass(frozen=True)
class PostgresCheck(Result):
    """The tables of a database that can be published.

    Attributes:
        database: the source's name; empty if no database is named.
        tables: the checked tables.
    """

    database: str
    tables: tuple[CheckedTable, ...] = ()

    @property
    def ready(self) -> bool:
        """Whether at least one table can be published."""
        return any(one.problem is None for one in self.tables)

    def as_dict(self) -> dict[str, Any]:
        """Return the check as a document."""
        return asdict(self)

    def shown(self) -> TextTable:
        """Return one row per table: its key, or its problem and the statement that fixes it."""
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
        return TextTable(("table", "key", "problem", "hint"), rows)

    def __repr__(self) -> str:
        good = sum(one.problem is None for one in self.tables)
        return f"{good} of {len(self.tables)} tables can be published"


def check_postgres(
    tables: str | Iterable[str], dsn: str = "", *, slot: str = "mirrorlake", toast: str = "refuse"
) -> PostgresCheck:
    """Check whether tables of a database can be published; changes nothing on the server.

    Args:
        tables: their names, as a list or separated by commas; `public.t` is `t`.
        dsn: libpq's connection string; if empty, the variable `MIRRORLAKE_DSN`.
        slot: the name of the replication slot.
        toast: see `PostgresSource`.

    Returns:
        One entry per table; none if no database or no table is named.

    Raises:
        SourceError: the server can't be reached, or lacks a setting that all tables need.

    Example:
        >>> check_postgres(["orders"], "host=db dbname=shop")  # doctest: +SKIP
        1 of 1 tables can be published
    """
    place, names = dsn or os.environ.get(DSN, ""), split_names(tables)
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


def require_dsn(dsn: str) -> str:
    """Return a connection string: the given one, else that of the environment.

    Raises:
        UsageError: there is none.
    """
    place = dsn or os.environ.get(DSN, "")
    if not place:
        raise UsageError("No database is named.", hint=f"set {DSN}, or pass dsn.")
    return place


def publish_postgres(
    lake: Lake,
    tables: str | Iterable[str],
    dsn: str = "",
    *,
    slot: str = "mirrorlake",
    toast: str = "refuse",
    text: str | Iterable[str] = (),
    reseed: str | Iterable[str] = (),
) -> SourceReport:
    """Publish tables of a database up to now: first loads where they are missing, then all changes.

    Args:
        lake: the lake.
        tables: their names, as a list or separated by commas; `public.t` is `t`.
        dsn: libpq's connection string; if empty, the variable `MIRRORLAKE_DSN`.
        slot: the name of the replication slot; two lakes need two slots.
        toast: see `PostgresSource`.
        text: columns to publish as psql prints them, as `table.column`.
        reseed: tables to load again from the start.

    Raises:
        UsageError: no database is named.
        SourceError: the server can't be reached, or the slot is lost.

    Example:
        >>> publish_postgres(lake, ["orders"], "host=db dbname=shop")  # doctest: +SKIP
        postgres:74…/shop/mirrorlake: 12 rows and changes of 1 table published
    """
    source = PostgresSource(
        require_dsn(dsn), split_names(tables), slot=slot, toast=toast, text=split_names(text)
    )
    again = parse_tables(split_names(reseed))
    return run_source(lake.storage, source, reseed=again, footer=lake.published_footer)
