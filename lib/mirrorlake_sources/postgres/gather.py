"""Gathers the stream's changes by table until they are published, whole transactions at a time.

A position is `(lsn, n)`: with n 0 all commits that lie before lsn; with n > 0 also the table's
first n changes of the commit that lies at lsn. So a file may end within a transaction (where the
table was altered or emptied in it), and a restart still goes on at the very next change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from mirrorlake.errors import MirrorlakeError, SourceError
from mirrorlake.landing.metadata import UNCHANGED as UNCHANGED_NAMES
from mirrorlake.landing.metadata import Marker
from mirrorlake.landing.rows import UNCHANGED_TYPE
from mirrorlake.names import TableName
from mirrorlake_sources.position import Position
from mirrorlake_sources.postgres.altered import Altered, Kept, compare
from mirrorlake_sources.postgres.catalog import Column, PgTable
from mirrorlake_sources.postgres.messages import (
    UNCHANGED,
    Begin,
    Commit,
    Relation,
    Truncate,
    Values,
    read_change,
)
from mirrorlake_sources.postgres.snapshot import show_lsn
from mirrorlake_sources.source import Batch, Group
from mirrorlake_sources.spool import Spool, marked

_UPDATE = ord("U")
Lookup = Callable[["Shape", list[Values]], list[Values | None]]
"""Given a table and rows with `UNCHANGED` values: the rows filled, None where one is gone."""


@dataclass(frozen=True)
class Shape:
    """A table as its present rows in the stream are.

    Attributes:
        keys: the places of the key columns.
        facts: what a position keeps of it.
    """

    table: PgTable
    columns: tuple[Column, ...]
    keys: tuple[int, ...]
    facts: dict[str, Any]


@dataclass
class _Pending:
    """What waits to be published of one table: closed parts, and the open one."""

    table: PgTable
    batches: list[Batch]
    relation: Relation
    shape: Shape | None = None  # once a change that is not skipped has come
    accepted: bool = False
    spool: Spool | None = None
    replaces: bool = False
    touched: bool = False
    failed: bool = False
    index: int = 0  # the change's place among the table's in the present transaction
    skip: int = 0  # how many of them are published already


class Gathering:
    """Changes that are read and not yet published.

    Args:
        since: where each table stands; those that are not in it are passed over.
        tables: the tables by oid, as they are now.
        fresh: asks the catalogue again for a table.
        columns: the columns of the stream's rows.
        lookup: fills what the stream leaves out.
        keep: leave to the mirror what an update leaves alone, instead of looking it up.
    """

    def __init__(
        self,
        since: Mapping[TableName, Position],
        tables: Mapping[int, PgTable],
        fresh: Callable[[PgTable], PgTable | None],
        columns: Callable[[PgTable, Relation, Kept], tuple[Column, ...]],
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
        self._pending: dict[int, _Pending] = {}
        self._lsn = 0
        self.rows = 0
        self.bytes = 0
        self.open = False

    @property
    def empty(self) -> bool:
        """Whether there is nothing to publish."""
        return not any(one.touched for one in self._pending.values())

    def begin(self, message: Begin) -> None:
        """A transaction begins."""
        self._lsn = message.lsn
        self.open = True
        for one in self._pending.values():
            self._place(one)

    def _place(self, one: _Pending) -> None:
        position = self._since.get(one.table.table)
        one.index = 0
        if position is None or position.order[0] > self._lsn:
            one.skip = 1 << 62
        elif position.order[0] == self._lsn:
            one.skip = position.order[1]
        else:
            one.skip = 0

    def relation(self, message: Relation) -> None:
        """A table is named for the first time, or again because it was altered."""
        table = self._tables.get(message.relid)
        if table is None:
            return
        one = self._pending.get(message.relid)
        if one is None:
            one = self._pending[message.relid] = _Pending(table, [], message)
            self._place(one)
        one.relation, one.accepted = message, False

    def change(self, data: bytes) -> None:
        """One row."""
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
        """Tables are emptied: what waits for them needs no file any more."""
        for relid in message.relids:
            one = self._pending.get(relid)
            if one is None or one.failed:
                continue
            one.index += 1
            if one.index > one.skip and (one.accepted or self._accept(one)):
                self._drop(one)
                one.replaces = one.touched = True

    def _accept(self, one: _Pending) -> bool:
        """Compares a table with what it was; False if its changes can't go on into the folder."""
        table, relation = one.table, one.relation
        facts = one.shape.facts if one.shape else self._since[table.table].facts
        kept = Kept.of(facts)
        now: PgTable | None = table
        if one.shape is not None or kept.differs(relation):
            now = self._fresh(table)
        found = compare(kept, relation, table, now)
        if found in (Altered.NO, Altered.GOES_ON):
            columns = self._columns(now or table, relation, kept)
            places = {column.name: place for place, column in enumerate(columns)}
            if one.shape is not None and columns != one.shape.columns:
                self._close(one, (self._lsn, one.index - 1))
            keys = tuple(places[key] for key in table.keys)
            # What the table was when it was loaded, not what the catalogue has by now.
            listed = [column.document() for column in columns]
            known = {"relid": table.relid, "columns": listed, "filenodes": kept.filenodes}
            one.shape, one.accepted = Shape(now or table, columns, keys, known), True
            return True
        name = table.table
        problem = SourceError(
            f"{name} was altered at the source: {found.value}.",
            hint=f"load it again: --reseed {name}; its history is kept.",
        )
        self._fail(one, None if found is Altered.LOAD_AGAIN else problem)
        return False

    def commit(self, message: Commit) -> None:
        """The transaction is whole."""
        self.open = False
        self._lsn = message.end

    def group(self, commit: Commit) -> Group:
        """All that waits, up to a commit; then nothing waits any more."""
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
        """Forgets all that waits: the server sends it again."""
        for one in self._pending.values():
            self._drop(one)

    def _spool(self, shape: Shape) -> Spool:
        fields = [pa.field(column.name, column.kind.arrow) for column in shape.columns]
        if self._keeps(shape):
            fields.append(pa.field(UNCHANGED_NAMES, UNCHANGED_TYPE))
        return Spool(pa.schema(fields), lambda *found: self._convert(shape, *found))

    def _keeps(self, shape: Shape) -> bool:
        """Whether a table's files say which values an update left alone."""
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

    def _close(self, one: _Pending, order: tuple[int, int]) -> None:
        if one.shape is None or (one.spool is None and not one.replaces):
            return
        rows = one.spool.reader() if one.spool is not None else None
        position = Position(order, one.shape.facts)
        one.batches.append(Batch(one.table.table, rows, position, replaces=one.replaces))
        one.spool, one.replaces = None, False

    def _drop(self, one: _Pending) -> None:
        if one.spool is not None:
            one.spool.close()
        for batch in one.batches:
            if batch.rows is not None:
                batch.rows.close()
        one.spool, one.batches, one.replaces = None, [], False

    def _fail(self, one: _Pending, problem: MirrorlakeError | None) -> None:
        """Ends a table here: what came before is published, then it stops or is loaded again."""
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
            marker = Marker.UPSERT  # the table has no row of the new key, nor its large values
    spool.gaps = spool.gaps or UNCHANGED in new
    spool.add(new, marker, size)


def _filled(old: Values, new: Values) -> Values:
    """The new row; a value that was left alone is the old row's, where that has it."""
    if UNCHANGED not in new:
        return new
    pairs = zip(old, new, strict=True)
    return tuple(o if n is UNCHANGED and o is not None else n for o, n in pairs)
