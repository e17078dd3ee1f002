"""A table as it was at one moment: an exported snapshot, read as Arrow by several connections.

A temporary slot exports it and says from which commit on the stream goes beyond it: no gap and no
overlap. Each part is a range of the table's pages, so memory stays at a few batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Event

import pyarrow as pa

from mirrorlake_sources.postgres.catalog import PgTable
from mirrorlake_sources.postgres.connect import Server, ident, quoted
from mirrorlake_sources.source import Publish

MOST_PAGES = 16_384  # of 8 KiB: 128 MiB of table a part
FEWEST_PAGES = 2_048  # 16 MiB: below that, a part costs more than a second reader gains


@dataclass(frozen=True)
class Part:
    """A range of a table's pages, or of a partition's."""

    table: str
    first: int
    end: int | None

    @property
    def where(self) -> str:
        """The rows of the part, by their place in the table."""
        below = "" if self.end is None else f" AND ctid < '({self.end},0)'::tid"
        return f"ctid >= '({self.first},0)'::tid{below}"


class Stopped(Exception):  # noqa: N818  # nothing is wrong
    """The reading was asked to stop."""


def read_snapshot(
    server: Server, table: PgTable, slot: str, publish: Publish, stop: Event, *, readers: int
) -> int | None:
    """Hands all rows of a table to `publish`, a reader a part.

    Args:
        server: where.
        table: which.
        slot: a name for the temporary slot.
        publish: takes the rows of a part.
        stop: ends it early.
        readers: how many connections read at the same time.

    Returns:
        The place in the log from which commits are not in the snapshot; None if stopped.
    """
    with server.replication() as exporter, server.explained():
        made = exporter.execute(
            f"CREATE_REPLICATION_SLOT {ident(slot)} TEMPORARY LOGICAL pgoutput EXPORT_SNAPSHOT"
        ).fetchone()
        assert made is not None
        lsn, snapshot = parse_lsn(made[1]), made[2]
        seen: list[int] = []

        def read(part: Part) -> None:
            reader = _Reader(server, table, snapshot, part, stop)
            if reader.open():
                publish(pa.RecordBatchReader.from_batches(_schema(table), reader.batches()))
                seen.append(1)

        try:
            with ThreadPoolExecutor(readers) as pool:
                futures = [pool.submit(read, part) for part in _parts(table, readers)]
                try:
                    for future in futures:
                        future.result()
                except BaseException:
                    for future in futures:
                        future.cancel()
                    raise
        except Stopped:
            return None
        if not seen:  # the columns arrive all the same
            publish(pa.RecordBatchReader.from_batches(_schema(table), []))
        return None if stop.is_set() else lsn


class _Reader:
    """The rows of one part, as they come; the connection is closed with the last one."""

    def __init__(
        self, server: Server, table: PgTable, snapshot: str, part: Part, stop: Event
    ) -> None:
        self._server, self._table, self._stop = server, table, stop
        self._snapshot, self._part = snapshot, part
        self._first: pa.RecordBatch | None = None
        self._rest: Iterator[pa.RecordBatch] = iter(())

    def open(self) -> bool:
        """Whether there is a row."""
        self._rest = self._read()
        self._first = next(self._rest, None)
        return self._first is not None

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The part's rows."""
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
                    yield self._turned(batch)

    def _turned(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        arrays = []
        for column, values in zip(self._table.columns, batch.columns, strict=True):
            found = values.storage if isinstance(values, pa.ExtensionArray) else values
            arrays.append(column.kind.turned(found, column.name))
        return pa.RecordBatch.from_arrays(arrays, schema=_schema(self._table))


def _schema(table: PgTable) -> pa.Schema:
    return pa.schema([pa.field(column.name, column.kind.arrow) for column in table.columns])


def _parts(table: PgTable, readers: int) -> Iterator[Part]:
    for leaf in table.leaves:
        pages = min(max(-(-leaf.pages // readers), FEWEST_PAGES), MOST_PAGES)
        starts = range(0, max(leaf.pages, 1), pages)
        for start in starts:
            last = start == starts[-1]
            yield Part(leaf.quoted, start, None if last else start + pages)


def parse_lsn(text: str) -> int:
    """A place in the log as a number."""
    high, _, low = text.partition("/")
    return (int(high, 16) << 32) + int(low, 16)


def show_lsn(lsn: int) -> str:
    """A place in the log as PostgreSQL writes it."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"
