"""Debezium's events in files of JSON lines, which may grow: a folder, or a journal."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from mirrorlake.errors import DataFileError, MirrorlakeError, SchemaError, SourceError
from mirrorlake.landing.metadata import MARKER, Marker, read_metadata
from mirrorlake.landing.text_format import arrow_type as declared_type
from mirrorlake.names import TableName
from mirrorlake.sources.debezium.events import Event, read_event
from mirrorlake.sources.debezium.types import column
from mirrorlake.sources.folder_source import FolderSource
from mirrorlake.sources.growing import Line, lines, starts, with_done
from mirrorlake.sources.position import Position
from mirrorlake.sources.source import Batch, Group
from mirrorlake.storage import Storage

_ROWS = 50_000
_SUFFIXES = (".jsonl", ".ndjson", ".json")


@dataclass
class _Pending:
    """The events of one table that wait, all of one schema."""

    events: list[Event] = field(default_factory=list)
    last: Line | None = None


class DebeziumFiles(FolderSource):
    """A folder of files with an event of Debezium's in each line.

    Args:
        folder: where they are.
        storage: the lake's files, for `SchemaDefinition`s of tables whose events have no schema.
        keys: the key columns of tables whose events have no key.
        pause: seconds between two looks, without `once`.
        kind: what the source is called.
    """

    def __init__(
        self,
        folder: str | Path,
        storage: Storage,
        *,
        keys: Mapping[str, Sequence[str]] | None = None,
        pause: float = 1.0,
        kind: str = "debezium",
    ) -> None:
        super().__init__(folder, kind, _SUFFIXES, pause=pause)
        self._storage = storage
        self._keys = {TableName.parse(name): tuple(names) for name, names in (keys or {}).items()}
        self._keyed: dict[TableName, bool] = {}

    def pieces(self, path: Path, since: MutableMapping[TableName, Position]) -> Iterator[Group]:
        """The new events of a file, by table."""
        label = self.label(path)
        found = starts(self.folder, path, since)
        pending: dict[TableName, _Pending] = {}
        waiting = 0
        for line in lines(path):
            if not line.text.strip():
                continue
            event = self._event(line, label)
            if event is None:
                continue
            table = event.table
            if table not in found:
                yield Group(appeared={table: self._key(event)})
                found |= starts(
                    self.folder, path, {t: p for t, p in since.items() if t not in found}
                )
            if table not in since or line.end <= found[table]:
                continue
            one = pending.setdefault(table, _Pending())
            if one.events and (event.marker is None or event.types != one.events[0].types):
                yield Group([self._batch(table, one, since, label)])
                one.events = []
            one.last = line
            if event.marker is None:
                position = with_done(since[table], label, line)
                yield Group([Batch(table, None, position, replaces=True)])
                one.last = None
                continue
            one.events.append(event)
            waiting += 1
            if waiting >= _ROWS:
                yield self._group(pending, since, label)
                waiting = 0
        yield self._group(pending, since, label)

    def _event(self, line: Line, label: str) -> Event | None:
        try:
            found = json.loads(line.text)
        except ValueError as error:
            raise SourceError(
                f"The line is not JSON: {error}.", file=label, row=line.number
            ) from error
        try:
            return read_event(found, file=label, row=line.number)
        except DataFileError as error:
            raise SourceError(
                error.message, file=label, row=line.number, column=error.column, hint=error.hint
            ) from error

    def _key(self, event: Event) -> tuple[str, ...]:
        found = self._keys.get(event.table, event.keys or ())
        self._keyed[event.table] = bool(found)
        return found

    def _markers(self, table: TableName, events: list[Event]) -> list[int | None]:
        """Upserts need a key; a table without one takes inserts only."""
        markers = [event.marker for event in events]
        if self._keyed[table]:
            return markers
        if set(markers) - {Marker.UPSERT}:
            raise SchemaError(
                f"The events of {table} change rows, but name no key.",
                hint='hand over keys, as {"key": …, "value": …}, or name the key columns.',
            )
        return [int(Marker.INSERT)] * len(markers)

    def _group(
        self,
        pending: dict[TableName, _Pending],
        since: MutableMapping[TableName, Position],
        label: str,
    ) -> Group:
        batches = [
            self._batch(table, one, since, label)
            for table, one in pending.items()
            if one.events and table in since
        ]
        pending.clear()
        return Group(batches)

    def _batch(
        self,
        table: TableName,
        one: _Pending,
        since: MutableMapping[TableName, Position],
        label: str,
    ) -> Batch:
        assert one.last is not None
        position = with_done(since[table], label, one.last)
        try:
            rows = self._rows(table, one.events)
        except MirrorlakeError as error:
            return Batch(table, None, position, problem=error)
        return Batch(table, rows, position)

    def _rows(self, table: TableName, events: list[Event]) -> pa.RecordBatchReader:
        types = events[0].types
        if types is None:
            names, arrays = self._declared(table, events)
        else:
            names = list(types)
            arrays = [column([e.row.get(name) for e in events], types[name]) for name in names]
        arrays.append(pa.array(self._markers(table, events), pa.int32()))
        made = pa.RecordBatch.from_arrays(arrays, names=[*names, MARKER])
        return pa.RecordBatchReader.from_batches(made.schema, [made])

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
