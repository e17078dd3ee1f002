"""Debezium's events in files of JSON lines, which may grow: a folder, or a journal."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mirrorlake.errors import DataFileError, SourceError
from mirrorlake.names import TableName
from mirrorlake.storage.files import Storage
from mirrorlake_sources.debezium.events import Event, KeysOf, read_event
from mirrorlake_sources.debezium.rows import EventRows
from mirrorlake_sources.folders import FolderSource, Line, digest_of, lines, starts, with_done
from mirrorlake_sources.position import Position
from mirrorlake_sources.source import Batch, Group

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
        self._rows = EventRows(storage, keys)
        self._met: set[TableName] = set()
        self._parsed: dict[Path, tuple[int, str]] = {}

    def __enter__(self) -> DebeziumFiles:
        """Forgets what it has seen: the tables' positions say what is done."""
        super().__enter__()
        self._met, self._parsed = set(), {}
        return self

    def pieces(self, path: Path, since: MutableMapping[TableName, Position]) -> Iterator[Group]:
        """The new events of a file, by table."""
        label = self.label(path)
        found = starts(self.folder, path, since)
        pending: dict[TableName, _Pending] = {}
        waiting, known, last = 0, self._known(path), None
        for line in lines(path):
            last = line
            if line.end <= known or not line.text.strip():
                continue
            event = self._event(line, label)
            if isinstance(event, KeysOf):
                self._rows.learn(event)
            if not isinstance(event, Event):
                continue
            table = event.table
            if table not in found and table not in self._met:
                self._met.add(table)
                yield Group(appeared={table: self._rows.key(event)})
                found |= starts(
                    self.folder, path, {t: p for t, p in since.items() if t not in found}
                )
            if table not in since:
                self.passed_over(path)
                continue
            if line.end <= found[table]:
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
        if last is not None:
            self._parsed[path] = (last.end, last.digest)

    def _known(self, path: Path) -> int:
        """How many bytes of a file this process has had, if they still are what they were."""
        end, digest = self._parsed.get(path, (0, ""))
        return end if end and digest_of(path, end) == digest else 0

    def passed_over(self, path: Path) -> None:
        """A line of a stopped table: the file is needed once it goes on."""

    def _event(self, line: Line, label: str) -> Event | KeysOf | None:
        try:
            found = json.loads(line.text)
        except (ValueError, RecursionError) as error:
            raise SourceError(
                f"The line is not JSON: {error}.", file=label, row=line.number
            ) from error
        try:
            return read_event(found, file=label, row=line.number)
        except DataFileError as error:
            raise SourceError(
                error.message, file=label, row=line.number, column=error.column, hint=error.hint
            ) from error

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
        return self._rows.batch(table, one.events, position)
