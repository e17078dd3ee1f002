"""The replication slot and publications of a source, and the snapshot that a slot exports.

Tables with a key are in one publication. Tables without a key are in another one that has no
updates and no deletes: in the first one, the server would refuse the application's own updates. A
temporary slot exports the snapshot and reports the commit after which the stream continues, without
gap or overlap. Each part is a range of the table's pages, so memory is bounded by a few batches.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event
from typing import Any

import psycopg
import pyarrow as pa

from mirrorlake.errors import BusyError, MirrorlakeError, SourceError
from mirrorlake.names import TableName
from mirrorlake_sources.postgres.catalog import Connection, PgTable, lake_name
from mirrorlake_sources.postgres.connection import Server, ident, quoted
from mirrorlake_sources.source import Publish

_HELD = 5.0
_OLDEST = 13  # the first with `wal_status`, and with `publish_via_partition_root`
_VERSION_UNIT = 10_000  # libpq reports 13.2 as 130002
_SLOT = """
SELECT active_pid, wal_status, coalesce(safe_wal_size, -1),
       pg_wal_lsn_diff(pg_current_wal_lsn(), confirmed_flush_lsn)::int8, confirmed_flush_lsn::text,
       plugin, database = current_database()
FROM pg_replication_slots WHERE slot_name = %s"""
_SLOTS = """
SELECT slot_name::text FROM pg_replication_slots
WHERE plugin = 'pgoutput' AND database = current_database() AND NOT temporary ORDER BY 1"""
_MEMBERS = """
SELECT r.prrelid::int8 FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid
WHERE p.pubname = %s"""
MOST_PAGES = 16_384  # of 8 KiB: 128 MiB of a table per part
FEWEST_PAGES = 2_048  # 16 MiB: smaller parts cost more than a second reader gains


class Slot:
    """A source's slot and publications.

    Args:
        connection: for queries.
        name: of the slot; the names of the publications are derived from it.
    """

    def __init__(self, connection: Connection, name: str) -> None:
        self._connection = connection
        self.name = name
        self.publications = (name, f"{name}_inserts")

    def source_name(self) -> str:
        """Return the name of the source: the server's identity, the database, and the slot."""
        query = "SELECT system_identifier, current_database() FROM pg_control_system()"
        system, database = self._one(query)
        return f"postgres:{system}/{database}/{self.name}"

    def check_server(self) -> None:
        """Check that the server can stream changes, and lock the source.

        Raises:
            SourceError: the server is too old, or `wal_level` or the role's rights are not
                sufficient; the hint has the fix.
            BusyError: another process runs this source.
        """
        found = self._connection.info.server_version // _VERSION_UNIT
        if found < _OLDEST:
            raise SourceError(
                f"The server is PostgreSQL {found}. The source needs {_OLDEST} or newer.",
                hint="upgrade the server.",
            )
        (level,) = self._one("SHOW wal_level")
        if level != "logical":
            raise SourceError(
                f"The server's wal_level is {level}, not logical.",
                hint="restart the server after this statement: ALTER SYSTEM SET wal_level ="
                " 'logical';",
            )
        (may,) = self._one(
            "SELECT rolsuper OR rolreplication FROM pg_roles WHERE rolname = current_user"
        )
        if not may:
            user = self._connection.info.user
            hint = f"ALTER ROLE {ident(user)} REPLICATION;"
            raise SourceError(f"The role {user} lacks the REPLICATION attribute.", hint=hint)
        deadline = time.monotonic() + _HELD
        lock = f"SELECT pg_try_advisory_lock(hashtextextended({quoted(self.name)}, 7261))"
        while not (alone := self._one(lock)[0]) and time.monotonic() < deadline:
            time.sleep(0.1)  # the server may not have noticed yet that a process was killed
        if not alone:
            raise BusyError(
                f"Another process reads the slot {self.name}.",
                hint="stop it, or choose another slot.",
            )

    def exists(self) -> bool:
        """Return whether the server has the slot with all later changes.

        Raises:
            SourceError: the slot belongs to another program.
        """
        found = self._connection.execute(_SLOT, (self.name,)).fetchone()
        if found is None:
            return False
        if found[5] != "pgoutput" or not found[6]:
            raise SourceError(
                f"The slot {self.name} belongs to another plug-in or database.",
                hint="choose another slot.",
            )
        return bool(found[1] != "lost")

    def check_exists(self) -> None:
        """Check that the database has the slot.

        Raises:
            SourceError: the slot does not exist. The error names the existing slots.
        """
        names = [name for (name,) in self._connection.execute(_SLOTS).fetchall()]
        if self.name not in names:
            raise SourceError(
                f"The database {self._connection.info.dbname} has no replication slot {self.name}"
                f" for pgoutput; it has {', '.join(names) or 'none'}.",
                hint="pass the slot that publishes the tables (--slot); if there is none, publish"
                " the tables first.",
            )

    def lost(self, tables: Iterable[object]) -> SourceError:
        """Return the error for a slot whose changes are missing."""
        return SourceError(
            f"The slot {self.name} is lost: changes after the last published ones are missing.",
            hint=f"load the tables again with reseed (--reseed {','.join(map(str, tables))});"
            " consider a larger max_slot_wal_keep_size.",
        )

    def create(self) -> None:
        """Create the slot if it does not exist; replace a lost one."""
        if self.exists():
            return
        self._connection.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
            " WHERE slot_name = %s AND wal_status = 'lost'",
            (self.name,),
        )
        self._connection.execute(
            "SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (self.name,)
        )

    def members(self) -> set[int]:
        """Return the oids of all published tables."""
        found: set[int] = set()
        for name in self.publications:
            found |= {relid for (relid,) in self._connection.execute(_MEMBERS, (name,)).fetchall()}
        return found

    def published(self) -> list[TableName]:
        """Return the names of all published tables in the lake."""
        query = "SELECT schemaname, tablename FROM pg_publication_tables WHERE pubname = ANY(%s)"
        found = self._connection.execute(query, (list(self.publications),)).fetchall()
        return [lake_name(TableName(schema, name)) for schema, name in found]

    def create_publications(self) -> None:
        """Create the publications that do not exist.

        Raises:
            SourceError: the role lacks the right; the hint has the statement.
        """
        for name, what in zip(self.publications, ("", "insert, truncate"), strict=True):
            known = self._connection.execute(
                "SELECT 1 FROM pg_publication WHERE pubname = %s", (name,)
            ).fetchone()
            options = f"publish = '{what}', " if what else ""
            if known is None:
                self._run(
                    f"CREATE PUBLICATION {ident(name)}"
                    f" WITH ({options}publish_via_partition_root = true)"
                )

    def publish(self, table: PgTable) -> None:
        """Add a table to its publication; raises as `create_publications`."""
        self.create_publications()
        name, other = self.publications if table.keys else reversed(self.publications)
        if table.relid in self._of(other):
            self._run(f"ALTER PUBLICATION {ident(other)} DROP TABLE {table.quoted}")
        if table.relid not in self._of(name):
            self._run(f"ALTER PUBLICATION {ident(name)} ADD TABLE {table.quoted}")

    def withdraw(self, keep: set[int]) -> None:
        """Remove tables from the publications that the source does not publish any more."""
        for name in self.publications:
            for relid in self._of(name) - keep:
                (table,) = self._one(f"SELECT {relid}::regclass::text")
                self._run(f"ALTER PUBLICATION {ident(name)} DROP TABLE {table}")

    def facts(self) -> dict[str, Any]:
        """Return the slot's state: its lag in bytes, and the log that the server keeps for it."""
        found = self._connection.execute(_SLOT, (self.name,)).fetchone()
        if found is None:
            return {"slot": self.name, "wal_status": "missing"}
        _, status, safe, lag, confirmed, _, _ = found
        facts: dict[str, Any] = {"slot": self.name, "wal_status": status, "lag_bytes": lag}
        if safe >= 0:
            facts["safe_wal_bytes"] = safe
        return facts | {"confirmed": confirmed}

    def _of(self, publication: str) -> set[int]:
        rows = self._connection.execute(_MEMBERS, (publication,)).fetchall()
        return {relid for (relid,) in rows}

    def _one(self, statement: str) -> tuple[Any, ...]:
        found = self._connection.execute(statement).fetchone()
        return found or (None,)

    def _run(self, statement: str) -> None:
        try:
            self._connection.execute(statement)
        except psycopg.errors.InsufficientPrivilege as error:
            raise _refused(statement, error) from None


def _refused(statement: str, error: Exception) -> MirrorlakeError:
    text = str(error).strip().splitlines()[0]
    return SourceError(
        f"The role may not change the publication: {text}.",
        hint=f"let the tables' owner run: {statement};",
    )


@dataclass(frozen=True)
class Part:
    """A range of pages of a table or partition."""

    table: str
    first: int
    end: int | None

    @property
    def where(self) -> str:
        """The condition that selects the rows of the part."""
        below = "" if self.end is None else f" AND ctid < '({self.end},0)'::tid"
        return f"ctid >= '({self.first},0)'::tid{below}"


class Stopped(Exception):  # noqa: N818  # it is not an error
    """The reader was requested to stop."""


@contextmanager
def exported_snapshot(server: Server, slot: str) -> Iterator[tuple[int, str]]:
    """Create a temporary slot, and yield its position and the snapshot of all commits before it.

    Other connections can import the snapshot within the block.
    """
    with server.replication() as exporter, server.explained():
        made = exporter.execute(
            f"CREATE_REPLICATION_SLOT {ident(slot)} TEMPORARY LOGICAL pgoutput EXPORT_SNAPSHOT"
        ).fetchone()
        assert made is not None
        yield parse_lsn(made[1]), made[2]


def read_snapshot(
    server: Server, table: PgTable, slot: str, publish: Publish, stop: Event, *, readers: int
) -> int | None:
    """Pass all rows of a table to `publish`, one part at a time per reader.

    Args:
        server: the server.
        table: the table.
        slot: the name of the temporary slot.
        publish: receives the rows of a part.
        stop: ends the snapshot early.
        readers: the number of parallel connections.

    Returns:
        The log position from which commits are not in the snapshot; None if it was stopped.
    """
    with exported_snapshot(server, slot) as (lsn, snapshot):
        seen: list[int] = []

        def read(part: Part) -> None:
            reader = _Reader(server, table, snapshot, part, stop)
            if reader.open():
                publish(pa.RecordBatchReader.from_batches(_schema(table), reader.batches()))
                seen.append(1)

        try:
            with ThreadPoolExecutor(readers) as pool:
                futures = [pool.submit(read, part) for part in parts_of(table, readers)]
                try:
                    for future in futures:
                        future.result()
                except BaseException:
                    for future in futures:
                        future.cancel()
                    raise
        except Stopped:
            return None
        if not seen:  # publish the columns of an empty table
            publish(pa.RecordBatchReader.from_batches(_schema(table), []))
        return None if stop.is_set() else lsn


class _Reader:
    """The rows of one part; the connection is closed after the last row."""

    def __init__(
        self, server: Server, table: PgTable, snapshot: str, part: Part, stop: Event
    ) -> None:
        self._server, self._table, self._stop = server, table, stop
        self._snapshot, self._part = snapshot, part
        self._first: pa.RecordBatch | None = None
        self._rest: Iterator[pa.RecordBatch] = iter(())

    def open(self) -> bool:
        """Return whether the part has rows."""
        self._rest = self._read()
        self._first = next(self._rest, None)
        return self._first is not None

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the part's rows."""
        if self._first is not None:
            yield self._first
            self._first = None
            yield from self._rest

    def _read(self) -> Iterator[pa.RecordBatch]:
        columns = ", ".join(
            f"{column.kind.selected(ident(column.name))} AS {ident(column.name)}"
            for column in self._table.columns
        )
        query = f"SELECT {columns} FROM ONLY {self._part.table} WHERE {self._part.where}"
        with (
            self._server.explained(),
            self._server.arrow() as connection,
            connection.cursor() as cursor,
        ):
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            cursor.execute(f"SET TRANSACTION SNAPSHOT {quoted(self._snapshot)}")
            cursor.execute(query)
            for batch in cursor.fetch_record_batch():
                if self._stop.is_set():
                    raise Stopped
                if batch.num_rows:
                    yield self._converted(batch)

    def _converted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        arrays = []
        for column, values in zip(self._table.columns, batch.columns, strict=True):
            found = values.storage if isinstance(values, pa.ExtensionArray) else values
            arrays.append(column.kind.convert(found, column.name))
        return pa.RecordBatch.from_arrays(arrays, schema=_schema(self._table))


def _schema(table: PgTable) -> pa.Schema:
    return pa.schema([pa.field(column.name, column.kind.arrow) for column in table.columns])


def parts_of(table: PgTable, readers: int) -> Iterator[Part]:
    """Yield the parts of a table, each for one reader at a time."""
    for leaf in table.leaves:
        pages = min(max(-(-leaf.pages // readers), FEWEST_PAGES), MOST_PAGES)
        starts = range(0, max(leaf.pages, 1), pages)
        for start in starts:
            last = start == starts[-1]
            yield Part(leaf.quoted, start, None if last else start + pages)


def parse_lsn(text: str) -> int:
    """Return a log position as a number."""
    high, _, low = text.partition("/")
    return (int(high, 16) << 32) + int(low, 16)


def show_lsn(lsn: int) -> str:
    """Return a log position as PostgreSQL writes it."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"
