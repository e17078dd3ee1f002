"""Events of one table as rows to publish: their key, their markers, their columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from mirrorlake.errors import MirrorlakeError, SchemaError
from mirrorlake.landing.metadata import MARKER, Marker, keys_are_given, read_metadata
from mirrorlake.landing.text_format import arrow_type as declared_type
from mirrorlake.names import TableName
from mirrorlake.storage.files import Storage
from mirrorlake_sources.debezium.events import Event, KeysOf
from mirrorlake_sources.debezium.types import column
from mirrorlake_sources.position import Position
from mirrorlake_sources.source import Batch


class EventRows:
    """Turns events into rows, whichever door they came through.

    Args:
        storage: the lake's files, for what the tables' `_metadata.json` declare.
        keys: the key columns of tables whose events have no key.
    """

    def __init__(self, storage: Storage, keys: Mapping[str, Sequence[str]] | None = None) -> None:
        self._storage = storage
        self._named = {TableName.parse(name): tuple(names) for name, names in (keys or {}).items()}
        self._learned: dict[TableName, tuple[str, ...]] = {}
        self._keys: dict[TableName, tuple[str, ...]] = {}

    def learn(self, found: KeysOf) -> None:
        """Keeps the keys that a schema change names."""
        self._learned |= found.keys

    def key(self, event: Event) -> tuple[str, ...]:
        """The key columns of an event's table; empty if nobody names any.

        They are those named by hand, or the event's, or those of the folder's `_metadata.json`,
        or those of a schema change, in this order.
        """
        table = event.table
        found = self._named.get(table) or event.keys
        if not found:
            found = read_metadata(self._storage, table).keys or self._learned.get(table, ())
        self._keys[table] = found
        return found

    def recall(self, table: TableName) -> tuple[str, ...]:
        """Return the key of a table that was published before; named by hand if it may change."""
        found = read_metadata(self._storage, table).keys
        if table in self._named and not keys_are_given(self._storage, table):
            found = self._named[table]
        self._keys[table] = found
        return found

    def rows(self, table: TableName, events: list[Event]) -> pa.RecordBatchReader:
        """Events of one table and one schema.

        Raises:
            SchemaError: they have no schema, or a value or an operation that does not fit.
        """
        types = events[0].types
        if types is None:
            names, arrays = self._declared(table, events)
        else:
            names = list(types)
            arrays = [column([e.row.get(name) for e in events], types[name]) for name in names]
        arrays.append(pa.array(self._markers(table, events), pa.int32()))
        made = pa.RecordBatch.from_arrays(arrays, names=[*names, MARKER])
        return pa.RecordBatchReader.from_batches(made.schema, [made])

    def batch(self, table: TableName, events: list[Event], position: Position) -> Batch:
        """The same as a batch, or as what stops the table."""
        try:
            return Batch(table, self.rows(table, events), position)
        except MirrorlakeError as error:
            return Batch(table, None, position, problem=error)

    def _markers(self, table: TableName, events: list[Event]) -> list[int | None]:
        """Upserts need a key; a table without one takes inserts only."""
        markers = [event.marker for event in events]
        known = self._keys[table]
        told = {event.keys for event in events if event.keys} if table not in self._named else ()
        if known and any(set(keys) != set(known) for keys in told):
            raise SchemaError(
                f"The key of {table} is {list(known)}, and its events name another one.",
                hint="delete the table's folder, and let Debezium take a new snapshot.",
            )
        if known:
            return markers
        if set(markers) - {Marker.UPSERT}:
            raise SchemaError(
                f"The events of {table} change rows, but name no key.",
                hint='hand over keys, as {"key": …, "value": …}; or name the key columns by'
                " --keys, or as keyColumns in the folder's _metadata.json.",
            )
        return [int(Marker.INSERT)] * len(markers)

    def _declared(self, table: TableName, events: list[Event]) -> tuple[list[str], list[pa.Array]]:
        """Columns of events without a schema, by what `_metadata.json` declares."""
        declared = read_metadata(self._storage, table).columns
        if not declared:
            raise SchemaError(
                f"The events of {table} have no schema.",
                hint="set schemas.enable=true at Debezium's converter, or declare the columns in"
                " the folder's _metadata.json, as SchemaDefinition.",
            )
        unknown = {name for event in events for name in event.row} - set(declared)
        if unknown:
            raise SchemaError(
                f"The events of {table} have a column {min(unknown)!r} that is not declared.",
                column=min(unknown),
            )
        arrays = []
        for name, kind in declared.items():
            values: list[Any] = [event.row.get(name) for event in events]
            wanted = declared_type(kind, column=name)
            try:
                arrays.append(pa.array(values).cast(wanted))
            except (pa.ArrowException, ValueError, TypeError) as error:
                raise SchemaError(f"A value is no {kind}: {error}.", column=name) from error
        return list(declared), arrays
