"""Gather the stream's changes by table until complete transactions are published.

A position is `(lsn, n)`: with n = 0 all commits before lsn; with n > 0 also the table's first n
changes of the commit at lsn. A file can end within a transaction that alters or truncates the
table, and a restart still continues at the next change.

Changes are kept in memory, then in a file of Arrow batches, so that a transaction of any size takes
bounded memory. Large values that an update did not change are read by key, and may be newer than
the change. That is safe: the newer change follows in the stream with the same value, and so does
the delete of a row that does not exist any more.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import IO, Any

import pyarrow as pa

from mirrorlake.errors import MirrorlakeError, SourceError
from mirrorlake.landing.check import UNCHANGED_TYPE
from mirrorlake.landing.metadata import MARKER, Marker
from mirrorlake.landing.metadata import UNCHANGED as UNCHANGED_NAMES
from mirrorlake.names import TableName
from mirrorlake_sources.postgres.catalog import Column, Connection, PgTable
from mirrorlake_sources.postgres.connection import (
    UNCHANGED,
    Begin,
    Commit,
    Relation,
    Truncate,
    Values,
    ident,
    quoted,
    read_change,
)
from mirrorlake_sources.postgres.slot import show_lsn
from mirrorlake_sources.source import Batch, Group, Position

_TEXT, _VARCHAR = 25, 1043
Convert = Callable[[list[Any], list[int], bool], pa.RecordBatch]
_MARKER = pa.field(MARKER, pa.int32())
MOST_ROWS = 50_000
MOST_BYTES = 32 << 20
_UPDATE = ord("U")
Lookup = Callable[["Shape", list[Values]], list[Values | None]]
"""Returns rows with their `UNCHANGED` values filled; None for a row that does not exist."""
_ROWS = 500


class Alteration(Enum):
    """The consequence of an alteration."""

    NO = "nothing"
    CONTINUES = "a column was added or dropped"
    LOAD_AGAIN = "a column was added with a value for the rows that were there"
    RENAMED = "a column was renamed"
    TYPE = "a column's type was changed"
    TABLE = "the table was renamed"
    KEY = "its key was changed"


@dataclass(frozen=True)
class KnownTable:
    """A table at the time when its last rows were published."""

    columns: tuple[tuple[int | None, str, int, int], ...]
    filenodes: str

    @classmethod
    def of(cls, facts: dict[str, Any]) -> KnownTable:
        """Return the table from a position's facts."""
        columns = tuple((n, name, oid, mod) for n, name, oid, mod in facts["columns"])
        return cls(columns, facts["filenodes"])

    def differs(self, relation: Relation) -> bool:
        """Return whether the stream's rows have other columns now."""
        return [column[1:] for column in self.columns] != list(relation.columns)


def compare(
    kept: KnownTable, relation: Relation, before: PgTable, now: PgTable | None
) -> Alteration:
    """Return the consequence of an alteration of a table.

    Args:
        kept: the table when its last rows were published.
        relation: the table of its next rows in the stream.
        before: the table in the catalog at the start.
        now: the table in the catalog now, which may be later still; None if it does not exist.
    """
    if (before.schema, before.table.name) != (relation.schema, relation.name):
        return Alteration.TABLE
    if now is not None and now.relid != before.relid:
        now = None  # dropped and created again: the catalog does not describe these rows
    if now is not None and now.keys != before.keys:
        return Alteration.KEY
    numbers = {column.name: column.number for column in now.columns} if now else {}
    old = {name: (number, oid, mod) for number, name, oid, mod in kept.columns}
    new = {name: (oid, mod) for name, oid, mod in relation.columns}
    added, dropped = new.keys() - old.keys(), old.keys() - new.keys()
    if not new.keys() >= set(before.keys):
        return Alteration.KEY
    by_number = {number: name for number, name, _, _ in kept.columns}
    known = (numbers.get(name) for name in added)
    if any(by_number[number] in dropped for number in known if number in by_number):
        return Alteration.RENAMED
    for name in new.keys() & old.keys():
        number, oid, mod = old[name]
        if number is not None and numbers.get(name, number) != number:
            return Alteration.LOAD_AGAIN  # dropped and added again: old rows have other values
        if (oid, mod) != new[name] and {oid, new[name][0]} - {_TEXT, _VARCHAR}:
            return Alteration.TYPE
    if added and (now is None or now.filenodes != kept.filenodes):
        return Alteration.LOAD_AGAIN  # the server rewrote the table, possibly to fill the column
    missing = {column.name for column in now.columns if column.has_missing} if now else set()
    if added & missing:
        return Alteration.LOAD_AGAIN
    return Alteration.CONTINUES if added or dropped else Alteration.NO


class Spool:
    """Rows with their markers, in order.

    Args:
        schema: of the rows, without the marker.
        convert: turns rows and markers into a batch of this schema with the marker as last column;
            its last argument says whether rows have gaps.

    Attributes:
        gaps: whether a row has values that must be looked up.
    """

    def __init__(self, schema: pa.Schema, convert: Convert) -> None:
        self.schema = schema.append(_MARKER)
        self._convert = convert
        self._rows: list[tuple[Any, ...]] = []
        self._markers: list[int] = []
        self._bytes = 0
        self._file: IO[bytes] | None = None
        self._writer: Any = None
        self.gaps = False

    def add(self, row: tuple[Any, ...], marker: int, size: int) -> None:
        """Add one row of about `size` bytes."""
        self._rows.append(row)
        self._markers.append(marker)
        self._bytes += size
        if len(self._rows) >= MOST_ROWS or self._bytes >= MOST_BYTES:
            self._spill()

    def _spill(self) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="mirrorlake-")  # noqa: SIM115  # close() closes it
            self._writer = pa.ipc.new_stream(self._file, self.schema)
        self._writer.write_batch(self._drain())

    def _drain(self) -> pa.RecordBatch:
        batch = self._convert(self._rows, self._markers, self.gaps)
        self._rows, self._markers, self._bytes, self.gaps = [], [], 0, False
        return batch

    def reader(self) -> pa.RecordBatchReader:
        """Return a reader of all rows; it closes the spool at its end."""
        return pa.RecordBatchReader.from_batches(self.schema, self._batches())

    def _batches(self) -> Iterator[pa.RecordBatch]:
        try:
            if self._file is not None:
                self._writer.close()
                self._file.seek(0)
                yield from pa.ipc.open_stream(self._file)
            if self._rows:
                yield self._drain()
        finally:
            self.close()

    def close(self) -> None:
        """Release the file and the rows."""
        if self._file is not None:
            self._file.close()
            self._file = None
        self._rows, self._markers = [], []


def marked(arrays: list[pa.Array], markers: list[int], names: list[str]) -> pa.RecordBatch:
    """Return columns and markers as a batch of a spool's schema."""
    columns = [*arrays, pa.array(markers, _MARKER.type)]
    return pa.RecordBatch.from_arrays(columns, names=[*names, _MARKER.name])


@dataclass(frozen=True)
class Shape:
    """A table as its current rows in the stream describe it.

    Attributes:
        table: as the catalog describes it.
        columns: the columns of the stream's rows.
        keys: the indexes of the key columns.
        facts: the facts that a position stores.
    """

    table: PgTable
    columns: tuple[Column, ...]
    keys: tuple[int, ...]
    facts: dict[str, Any]


@dataclass
class _PendingChanges:
    """Unpublished changes of one table: complete batches and the open one."""

    table: PgTable
    batches: list[Batch]
    relation: Relation
    shape: Shape | None = None  # set by the first change that is not skipped
    accepted: bool = False
    spool: Spool | None = None
    replaces: bool = False
    touched: bool = False
    failed: bool = False
    index: int = 0  # the number of the change among the table's in the transaction
    skip: int = 0  # the number of these that are published already


class Gathering:
    """Changes that are read and not published yet.

    Args:
        since: the tables' positions; other tables are skipped.
        tables: the current tables by oid.
        fresh: reads a table from the catalog again.
        columns: returns the columns of the stream's rows.
        lookup: fills values that the stream omits.
        keep: let the mirror keep unchanged large values instead of looking them up.
    """

    def __init__(
        self,
        since: Mapping[TableName, Position],
        tables: Mapping[int, PgTable],
        fresh: Callable[[PgTable], PgTable | None],
        columns: Callable[[PgTable, Relation, KnownTable], tuple[Column, ...]],
        lookup: Lookup,
        *,
        keep: bool = False,
    ) -> None:
        self._since = since
        self._tables = tables
        self._fresh = fresh
        self._columns = columns
        self._lookup = lookup
        self._keep = keep
        self._pending: dict[int, _PendingChanges] = {}
        self._lsn = 0
        self.rows = 0
        self.bytes = 0
        self.open = False

    @property
    def empty(self) -> bool:
        """Whether there is nothing to publish."""
        return not any(one.touched for one in self._pending.values())

    def begin(self, message: Begin) -> None:
        """Begin a transaction."""
        self._lsn = message.lsn
        self.open = True
        for one in self._pending.values():
            self._place(one)

    def _place(self, one: _PendingChanges) -> None:
        position = self._since.get(one.table.table)
        one.index = 0
        if position is None or position.order[0] > self._lsn:
            one.skip = 1 << 62
        elif position.order[0] == self._lsn:
            one.skip = position.order[1]
        else:
            one.skip = 0

    def relation(self, message: Relation) -> None:
        """Handle a table that is named for the first time, or again because it was altered."""
        table = self._tables.get(message.relid)
        if table is None:
            return
        one = self._pending.get(message.relid)
        if one is None:
            one = self._pending[message.relid] = _PendingChanges(table, [], message)
            self._place(one)
        one.relation, one.accepted = message, False

    def change(self, data: bytes) -> None:
        """Add the change of one row."""
        relid, old, new = read_change(data)
        one = self._pending.get(relid)
        if one is None or one.failed:
            return
        one.index += 1
        if one.index <= one.skip or not (one.accepted or self._accept(one)):
            return
        shape, spool = one.shape, one.spool
        assert shape is not None
        if spool is None:
            spool = one.spool = self._spool(shape)
        self.rows += 1
        self.bytes += len(data)
        one.touched = True
        try:
            marker = Marker.UPDATE if data[0] == _UPDATE else Marker.UPSERT
            _add(spool, shape, old, new, marker, len(data))
        except MirrorlakeError as error:
            self._fail(one, error)

    def truncate(self, message: Truncate) -> None:
        """Handle a TRUNCATE: earlier unpublished changes of the tables are dropped."""
        for relid in message.relids:
            one = self._pending.get(relid)
            if one is None or one.failed:
                continue
            one.index += 1
            if one.index > one.skip and (one.accepted or self._accept(one)):
                self._drop(one)
                one.replaces = one.touched = True

    def _accept(self, one: _PendingChanges) -> bool:
        """Compare a table with its last state; return whether its changes fit into its folder."""
        table, relation = one.table, one.relation
        facts = one.shape.facts if one.shape else self._since[table.table].facts
        kept = KnownTable.of(facts)
        now: PgTable | None = table
        if one.shape is not None or kept.differs(relation):
            now = self._fresh(table)
        found = compare(kept, relation, table, now)
        if found in (Alteration.NO, Alteration.CONTINUES):
            columns = self._columns(now or table, relation, kept)
            places = {column.name: place for place, column in enumerate(columns)}
            if one.shape is not None and columns != one.shape.columns:
                self._close(one, (self._lsn, one.index - 1))
            keys = tuple(places[key] for key in table.keys)
            # The table when it was loaded, not as the catalog describes it now.
            listed = [column.document() for column in columns]
            known = {"relid": table.relid, "columns": listed, "filenodes": kept.filenodes}
            one.shape, one.accepted = Shape(now or table, columns, keys, known), True
            return True
        name = table.table
        problem = SourceError(
            f"{name} was altered at the source: {found.value}.",
            hint=f"load it again with reseed (--reseed {name}); its history is kept.",
        )
        self._fail(one, None if found is Alteration.LOAD_AGAIN else problem)
        return False

    def commit(self, message: Commit) -> None:
        """End a transaction."""
        self.open = False
        self._lsn = message.end

    def group(self, commit: Commit) -> Group:
        """Return all unpublished changes up to a commit, and forget them."""
        batches: list[Batch] = []
        facts = {"lsn": show_lsn(commit.end), "committed": commit.at.isoformat()}
        for one in self._pending.values():
            if not one.touched:
                continue
            if not one.failed:
                self._close(one, (commit.end, 0))
            batches += [
                replace(
                    batch, position=Position(batch.position.order, batch.position.facts | facts)
                )
                for batch in one.batches
            ]
            one.batches, one.touched = [], False
        self.rows = self.bytes = 0
        return Group(batches, commit.end)

    def discard(self) -> None:
        """Forget all unpublished changes: the server sends them again."""
        for one in self._pending.values():
            self._drop(one)

    def _spool(self, shape: Shape) -> Spool:
        fields = [pa.field(column.name, column.kind.arrow) for column in shape.columns]
        if self._keeps(shape):
            fields.append(pa.field(UNCHANGED_NAMES, UNCHANGED_TYPE))
        return Spool(pa.schema(fields), lambda *found: self._convert(shape, *found))

    def _keeps(self, shape: Shape) -> bool:
        """Return whether a table's files name the values that an update did not change."""
        return self._keep and bool(shape.keys) and shape.table.identity != "f"

    def _convert(
        self, shape: Shape, rows: list[Values], markers: list[int], gaps: bool
    ) -> pa.RecordBatch:
        kept = self._keeps(shape)
        left: list[list[str]] | None = None
        names = [column.name for column in shape.columns]
        if gaps:
            lacking = [
                place
                for place, row in enumerate(rows)
                if UNCHANGED in row and not (kept and markers[place] == Marker.UPDATE)
            ]
            filled = self._lookup(shape, [rows[place] for place in lacking])
            for place, row in zip(lacking, filled, strict=True):
                rows[place] = row or ()
            found = [place for place, row in enumerate(rows) if row]
            rows, markers = [rows[k] for k in found], [markers[k] for k in found]
            left = [[n for n, v in zip(names, row, strict=True) if v is UNCHANGED] for row in rows]
            rows = [tuple(None if v is UNCHANGED else v for v in row) for row in rows]
        arrays = [
            column.kind.parsed(pa.array([row[place] for row in rows], pa.binary()), column.name)
            for place, column in enumerate(shape.columns)
        ]
        if kept:
            none = pa.repeat(pa.scalar([], UNCHANGED_TYPE), len(rows))
            arrays.append(none if left is None else pa.array(left, UNCHANGED_TYPE))
            names.append(UNCHANGED_NAMES)
        return marked(arrays, markers, names)

    def _close(self, one: _PendingChanges, order: tuple[int, int]) -> None:
        if one.shape is None or (one.spool is None and not one.replaces):
            return
        rows = one.spool.reader() if one.spool is not None else None
        position = Position(order, one.shape.facts)
        one.batches.append(Batch(one.table.table, rows, position, replaces=one.replaces))
        one.spool, one.replaces = None, False

    def _drop(self, one: _PendingChanges) -> None:
        if one.spool is not None:
            one.spool.close()
        for batch in one.batches:
            if batch.rows is not None:
                batch.rows.close()
        one.spool, one.batches, one.replaces = None, [], False

    def _fail(self, one: _PendingChanges, problem: MirrorlakeError | None) -> None:
        """End a table here: earlier changes are published, then it is stopped or loaded again."""
        self._close(one, (self._lsn, one.index - 1))
        position = Position((self._lsn, one.index), self._since[one.table.table].facts)
        table = one.table.table
        one.batches.append(Batch(table, None, position, problem=problem, reseed=problem is None))
        one.failed = one.touched = True


def _add(
    spool: Spool, shape: Shape, old: Values | None, new: Values | None, marker: Marker, size: int
) -> None:
    if new is None:
        if old is not None:
            spool.add(old, Marker.DELETE, size)
        return
    if not shape.keys:
        spool.add(new, Marker.INSERT, size)
        return
    if old is not None:
        new = _filled(old, new)
        if any(old[key] != new[key] for key in shape.keys):
            spool.add(old, Marker.DELETE, size)
            marker = Marker.UPSERT  # the table has no row with the new key, nor its large values
    spool.gaps = spool.gaps or UNCHANGED in new
    spool.add(new, marker, size)


def _filled(old: Values, new: Values) -> Values:
    """Return the new row, with unchanged values from the old row where it has them."""
    if UNCHANGED not in new:
        return new
    pairs = zip(old, new, strict=True)
    return tuple(o if n is UNCHANGED and o is not None else n for o, n in pairs)


def look_up(connection: Connection, shape: Shape, rows: list[Values]) -> list[Values | None]:
    """Fill the values that are `UNCHANGED`.

    Args:
        connection: for queries.
        shape: the rows' table.
        rows: rows with at least one such value each.

    Returns:
        The rows in their order, filled; None for a row that the table does not have any more.
    """
    found: dict[tuple[Any, ...], list[Any]] = {}
    for start in range(0, len(rows), _ROWS):
        found |= _read(connection, shape, rows[start : start + _ROWS])
    filled: list[Values | None] = []
    for row in rows:
        now = found.get(tuple(row[key] for key in shape.keys))
        filled.append(
            None
            if now is None
            else tuple(
                n if value is UNCHANGED else value for value, n in zip(row, now, strict=True)
            )
        )
    return filled


def _read(
    connection: Connection, shape: Shape, rows: list[Values]
) -> dict[tuple[Any, ...], list[Any]]:
    known = {column.name for column in shape.table.columns}
    columns = [printed(column.name) if column.name in known else "NULL" for column in shape.columns]
    keys = [shape.columns[key].name for key in shape.keys]
    wanted = {tuple(row[key] for key in shape.keys) for row in rows}
    # A literal without a type, so that the server reads it with the column's type.
    places = " OR ".join(
        "("
        + " AND ".join(f"{ident(n)} = {quoted(v.decode())}" for n, v in zip(keys, key, strict=True))
        + ")"
        for key in wanted
    )
    query = f"SELECT {', '.join(columns)} FROM {shape.table.quoted} WHERE {places}"
    found = {}
    for row in connection.execute(query).fetchall():
        values = [None if value is None else value.encode() for value in row]
        found[tuple(values[key] for key in shape.keys)] = values
    return found


def printed(name: str) -> str:
    """Return an expression that prints a column as the stream and psql do."""
    return f"CASE WHEN {ident(name)} IS DISTINCT FROM NULL THEN concat({ident(name)}) END"
