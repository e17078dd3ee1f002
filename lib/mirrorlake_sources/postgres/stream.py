"""The replication protocol over libpq: messages as they come, and what the server may forget."""

from __future__ import annotations

import select
import time
from struct import Struct

import psycopg
from psycopg.pq import ExecStatus

from mirrorlake.errors import SourceError
from mirrorlake_sources.postgres.connect import Server, ident, quoted

_KEEPALIVE = Struct(">qq?")
_STATUS = Struct(">cqqqq?")
_STATUS_SECONDS = 10.0
_QUICK = 1000  # messages between two looks at the clock
_DATA = ord("w")
_EPOCH = 946_684_800  # 2000-01-01, in Unix seconds


class LostConnectionError(Exception):
    """The server ended the connection, or is not there."""


class Stream:
    """What the server sends of a slot from where it was confirmed.

    Args:
        server: where.
        slot: whose changes.
        publications: of which tables.

    Attributes:
        reached: all up to here has been sent, of the published tables.
    """

    def __init__(self, server: Server, slot: str, publications: tuple[str, ...]) -> None:
        self._server = server
        self._connection = server.replication()
        self._pg = self._connection.pgconn
        self.reached = 0
        self.confirmed = 0
        self._told = time.monotonic()
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
                "The server has thrown away what the slot needs.",
                hint="load the tables again with --reseed; and see max_slot_wal_keep_size.",
            )
        return self._server.explain(psycopg.OperationalError(text))

    def next(self, seconds: float) -> bytes | None:
        """The next message of the plug-in; None if there is none within some seconds.

        Raises:
            LostConnectionError: the server has gone.
        """
        # Messages come by the hundred thousand, and mostly one is there already.
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
                raise LostConnectionError("the server ended the stream")
            if time.monotonic() - self._told > _STATUS_SECONDS:
                self.tell()
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
            self.tell()

    def tell(self, *, answer: bool = False) -> None:
        """Tells the server what it may forget; `answer` asks how far it is."""
        self._told = time.monotonic()
        now = int((time.time() - _EPOCH) * 1_000_000)
        done = self.confirmed
        try:
            self._pg.put_copy_data(_STATUS.pack(b"r", done, done, done, now, answer))
            while self._pg.flush():
                select.select([], [self._pg.socket], [], 1)
        except psycopg.Error as error:
            raise LostConnectionError(_line(error)) from None

    def close(self) -> None:
        """Ends the stream."""
        self._connection.close()


def _line(error: Exception) -> str:
    return (str(error).strip().splitlines() or ["the connection is lost"])[0]
