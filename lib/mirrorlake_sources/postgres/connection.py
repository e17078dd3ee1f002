"""Connections to a PostgreSQL server, its replication stream, and pgoutput's messages.

All sessions print values in the same form, so that rows of the snapshot and of the stream are
equal. No error or log line contains a password. The messages are those of version 1 of pgoutput's
protocol: complete transactions, values as text.
"""

from __future__ import annotations

import select
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from struct import Struct
from typing import Any

import psycopg
from adbc_driver_postgresql import dbapi
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import ExecStatus

from mirrorlake.errors import BusyError, MirrorlakeError, SourceError, UsageError

_SETTINGS = {
    "datestyle": "ISO",
    "intervalstyle": "postgres",
    "timezone": "UTC",
    "extra_float_digits": "1",
    "bytea_output": "hex",
    "client_encoding": "UTF8",
    "lc_monetary": "C",
    "row_security": "off",  # an error instead of missing rows
    "statement_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
}
_APPLICATION = "mirrorlake"
UNCHANGED: Any = type("Unchanged", (), {"__repr__": lambda _: "UNCHANGED"})()
"""Represents a large value that an update did not change and that the server does not send."""
Values = tuple[Any, ...]  # the garbage collector does not track tuples of bytes
_SHORT, _INT = Struct(">h"), Struct(">i")
_BEGIN = Struct(">qqi")
_COMMIT = Struct(">bqqq")
_EPOCH = datetime(2000, 1, 1, tzinfo=timezone.utc)
_TEXT, _NULL = b"tn"
_NEW = ord("N")
_KEEPALIVE = Struct(">qq?")
_STATUS = Struct(">cqqqq?")
_STATUS_SECONDS = 10.0
_QUICK = 1000  # messages between two checks of the clock
_DATA = ord("w")


class UnreachableError(SourceError):
    """The server can't be reached or closes its connections; it may be back soon."""


class Server:
    """A server and a database.

    Args:
        dsn: a libpq connection string or URI, which is never logged; libpq's environment variables
            complete it.

    Raises:
        UsageError: the string can't be parsed.
    """

    def __init__(self, dsn: str) -> None:
        try:
            found = conninfo_to_dict(dsn)
        except psycopg.Error:
            # libpq's message quotes text around the error, which may be a part of the password.
            raise UsageError(
                "The connection string can't be parsed.",
                hint="write postgresql://user@host:5432/database, or host=… dbname=… user=….",
            ) from None
        self._parts = {name: str(value) for name, value in found.items() if value is not None}
        given = self._parts.pop("options", "")
        options = " ".join(f"-c {name}={value}" for name, value in _SETTINGS.items())
        self._parts |= {
            "options": f"{given} {options}".strip(),
            "application_name": _APPLICATION,
            "connect_timeout": self._parts.get("connect_timeout", "10"),
        }

    def query(self) -> psycopg.Connection[tuple[Any, ...]]:
        """Return a connection for queries, in autocommit mode.

        Raises:
            SourceError: the server refuses the connection.
        """
        with self.explained():
            return psycopg.connect(make_conninfo("", **self._parts), autocommit=True)

    def replication(self) -> psycopg.Connection[tuple[Any, ...]]:
        """Return a connection with the replication protocol; raises as `query`."""
        with self.explained():
            parts = self._parts | {"replication": "database"}
            return psycopg.connect(make_conninfo("", **parts), autocommit=True)

    def arrow(self) -> dbapi.Connection:
        """Return a connection whose results are Arrow batches; raises as `query`."""
        with self.explained():
            return dbapi.connect(make_conninfo("", **self._parts))

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Convert errors of the driver in the block into ours, with hints and without passwords."""
        try:
            yield
        except (psycopg.Error, dbapi.Error) as error:
            raise self.explain(error) from None

    def explain(self, error: Exception) -> MirrorlakeError:
        """Return our error for an error of the driver, with a hint if the fix is known."""
        text = " ".join(str(error).split())
        for secret in (self._parts.get("password"), self._parts.get("sslpassword")):
            if secret:
                text = text.replace(secret, "…")
        user = self._parts.get("user")
        state = getattr(error, "sqlstate", None)
        if "password authentication failed" in text or state in ("28P01", "28000"):
            return SourceError(text, hint="check user and password, and the server's pg_hba.conf.")
        if "is active for PID" in text:
            return BusyError(
                text, hint="another process reads this slot; stop it, or choose another slot."
            )
        if state == "53400" or "replication slots are in use" in text:
            hint = (
                "restart the server after this statement: ALTER SYSTEM SET max_replication_slots"
                " = 20;"
            )
            return SourceError(text, hint=hint)
        if "must be superuser or replication role" in text:
            hint = f"ALTER ROLE {ident(user) if user else '…'} REPLICATION;"
            return SourceError(text, hint=hint)
        if isinstance(error, psycopg.OperationalError) and (state or "08")[:2] in ("08", "57"):
            return UnreachableError(f"PostgreSQL: {text}", hint="check that the server runs.")
        return SourceError(f"PostgreSQL: {text}")


def ident(*names: str) -> str:
    """Return quoted names, joined by dots."""
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


def quoted(text: str) -> str:
    """Return a text as an SQL literal, for statements without parameters."""
    return "'" + text.replace("'", "''") + "'"


@dataclass(frozen=True)
class Begin:
    """The begin of a transaction; `lsn` is the position of its commit."""

    lsn: int


@dataclass(frozen=True)
class Commit:
    """The end of a transaction; `end` is the position after it."""

    lsn: int
    end: int
    at: datetime


@dataclass(frozen=True)
class Relation:
    """The columns of a table from here on: name, type and modifier of each."""

    relid: int
    schema: str
    name: str
    columns: tuple[tuple[str, int, int], ...]


@dataclass(frozen=True)
class Truncate:
    """A TRUNCATE of tables."""

    relids: tuple[int, ...]


Message = Begin | Commit | Relation | Truncate


def read_message(data: bytes) -> Message | None:
    """Return a message that is not a row; None for messages that do not concern tables."""
    kind = data[:1]
    if kind == b"B":
        return Begin(_BEGIN.unpack_from(data, 1)[0])
    if kind == b"C":
        _, lsn, end, at = _COMMIT.unpack_from(data, 1)
        return Commit(lsn, end, _EPOCH + timedelta(microseconds=at))
    if kind == b"R":
        return _relation(data)
    if kind == b"T":
        (count,) = _INT.unpack_from(data, 1)
        return Truncate(tuple(_oid(data, 6 + 4 * index) for index in range(count)))
    return None


def read_change(data: bytes) -> tuple[int, Values | None, Values | None]:
    """Return a row's change: the table's oid, the row before if it is sent, and the row after.

    Values are bytes, None for NULL, or `UNCHANGED`.
    """
    relid = int.from_bytes(data[1:5], "big")
    old = new = None
    position = 5
    while position < len(data):
        is_new = data[position] == _NEW
        values, position = _tuple(data, position + 1)
        if is_new:
            new = values
        else:
            old = values
    return relid, old, new


def _tuple(data: bytes, position: int) -> tuple[Values, int]:
    count = data[position] << 8 | data[position + 1]
    position += 2
    values: list[Any] = []
    add, size_at = values.append, _INT.unpack_from
    for _ in range(count):
        kind = data[position]
        if kind == _TEXT:
            start = position + 5
            position = start + size_at(data, position + 1)[0]
            add(data[start:position])
        else:
            add(None if kind == _NULL else UNCHANGED)
            position += 1
    return tuple(values), position


def _relation(data: bytes) -> Relation:
    relid = _oid(data, 1)
    schema, position = _text(data, 5)
    name, position = _text(data, position)
    (count,) = _SHORT.unpack_from(data, position + 1)
    position += 3
    columns = []
    for _ in range(count):
        column, position = _text(data, position + 1)
        columns.append((column, _oid(data, position), _INT.unpack_from(data, position + 4)[0]))
        position += 8
    return Relation(relid, schema or "pg_catalog", name, tuple(columns))


def _text(data: bytes, position: int) -> tuple[str, int]:
    end = data.index(b"\0", position)
    return data[position:end].decode(), end + 1


def _oid(data: bytes, position: int) -> int:
    return int.from_bytes(data[position : position + 4], "big")


class LostConnectionError(Exception):
    """The server closed the connection or can't be reached."""


class Stream:
    """The stream of a slot's changes, from its confirmed position.

    Args:
        server: the server.
        slot: the slot's name.
        publications: the publications whose tables are sent.

    Attributes:
        reached: the position up to which the server has sent all changes of the published tables.
        confirmed: the position up to which the server may forget changes.
    """

    def __init__(self, server: Server, slot: str, publications: tuple[str, ...]) -> None:
        self._server = server
        self._connection = server.replication()
        self._pg = self._connection.pgconn
        self.reached = 0
        self.confirmed = 0
        self._status_sent = time.monotonic()
        self._quick = 0
        names = quoted(",".join(ident(name) for name in publications))
        statement = (
            f"START_REPLICATION SLOT {ident(slot)} LOGICAL 0/0"
            f" (proto_version '1', publication_names {names})"
        )
        result = self._pg.exec_(statement.encode())
        if result.status != ExecStatus.COPY_BOTH:
            text = result.error_message.decode(errors="replace").strip()
            self._connection.close()
            raise self._refused(text)

    def _refused(self, text: str) -> Exception:
        if "can no longer get changes" in text or "invalidated" in text:
            return SourceError(
                "The server has removed log files that the slot needs.",
                hint="load the tables again with reseed (--reseed); consider a larger"
                " max_slot_wal_keep_size.",
            )
        return self._server.explain(psycopg.OperationalError(text))

    def next(self, seconds: float) -> bytes | None:
        """Return the next message of the plug-in; None if none arrives within some seconds.

        Args:
            seconds: the longest wait.

        Raises:
            LostConnectionError: the server closed the connection.
        """
        # Usually a message is available already; this path is kept short for large transactions.
        self._quick += 1
        if self._quick % _QUICK:
            try:
                size, found = self._pg.get_copy_data(1)
            except psycopg.Error as error:
                raise LostConnectionError(_line(error)) from None
            if size > 25 and found[0] == _DATA:
                return bytes(found[25:])
        else:
            size, found = 0, memoryview(b"")
        deadline = time.monotonic() + seconds
        while True:
            if size > 0:
                if found[0] == _DATA:
                    return bytes(found[25:])
                self._keepalive(bytes(found))
            elif size < 0:
                raise LostConnectionError("the server has closed the stream")
            if time.monotonic() - self._status_sent > _STATUS_SECONDS:
                self.send_status()
            try:
                size, found = self._pg.get_copy_data(1)
            except psycopg.Error as error:
                raise LostConnectionError(_line(error)) from None
            if size:
                continue
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            select.select([self._pg.socket], [], [], left)
            try:
                self._pg.consume_input()
            except psycopg.Error as error:
                raise LostConnectionError(_line(error)) from None

    def _keepalive(self, data: bytes) -> None:
        reached, _, wanted = _KEEPALIVE.unpack_from(data, 1)
        self.reached = max(self.reached, reached)
        if wanted:
            self.send_status()

    def send_status(self, *, answer: bool = False) -> None:
        """Send the confirmed position to the server; `answer` requests the server's position."""
        self._status_sent = time.monotonic()
        now = int((time.time() - _EPOCH.timestamp()) * 1_000_000)
        done = self.confirmed
        try:
            self._pg.put_copy_data(_STATUS.pack(b"r", done, done, done, now, answer))
            while self._pg.flush():
                select.select([], [self._pg.socket], [], 1)
        except psycopg.Error as error:
            raise LostConnectionError(_line(error)) from None

    def close(self) -> None:
        """Close the stream."""
        self._connection.close()


def _line(error: Exception) -> str:
    return (str(error).strip().splitlines() or ["the connection is lost"])[0]
