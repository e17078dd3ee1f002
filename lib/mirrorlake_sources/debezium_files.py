"""Debezium's events in files of JSON lines: a folder of growing files, or a journal.

`POST /debezium/NAME` appends to the source's journal and is answered once its events are durable.
`JournalSource` cuts files from the journal by its own measure, so that batches of 200 events do not
become files of 200 rows.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mirrorlake.errors import DataFileError, SourceError, UsageError
from mirrorlake.names import TableName, check_part
from mirrorlake.storage.files import Storage
from mirrorlake_sources.debezium import Event, EventRows, KeysOf, read_event
from mirrorlake_sources.folders import FolderSource, Line, digest_of, lines, starts, with_done
from mirrorlake_sources.position import HOME, Position, sync
from mirrorlake_sources.source import Batch, Group

_ROWS = 50_000
_SUFFIXES = (".jsonl", ".ndjson", ".json")
_JOURNALS = f"{HOME}/journals"
LARGEST = 64 << 20  # bytes of one file of a journal; then the next one begins


@dataclass
class _PendingEvents:
    """Unpublished events of one table, all of one schema."""

    events: list[Event] = field(default_factory=list)
    last: Line | None = None


class DebeziumFiles(FolderSource):
    """A folder of files with an event of Debezium's in each line.

    Args:
        folder: where they are.
        storage: the files of the lake; a `SchemaDefinition` there gives the schema of events
            without one.
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
        pending: dict[TableName, _PendingEvents] = {}
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
            one = pending.setdefault(table, _PendingEvents())
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
        pending: dict[TableName, _PendingEvents],
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
        one: _PendingEvents,
        since: MutableMapping[TableName, Position],
        label: str,
    ) -> Batch:
        assert one.last is not None
        position = with_done(since[table], label, one.last)
        return self._rows.batch(table, one.events, position)


class Journal:
    """The journal of one source of events, in the lake.

    Args:
        storage: the lake's files, on a disk.
        name: the source's name.

    Raises:
        UsageError: the lake is in an object store, which can't append.
        InvalidNameError: the name could leave its folder.
    """

    def __init__(self, storage: Storage, name: str) -> None:
        check_part(name)
        if storage.local is None:
            raise UsageError("A journal needs a disk.", hint="serve a lake that is a folder.")
        self._storage = storage
        self.name = name
        self.folder: Path = storage.local / _JOURNALS / name
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()

    def append(self, body: bytes) -> int:
        """Takes the body of one POST: an event, or a list of events.

        Returns:
            How many events are now on the disk.

        Raises:
            DataFileError: it is not JSON, or holds what is no event; nothing of it is taken.
        """
        import fcntl  # Unix only; a folder of events needs no lock

        try:
            found = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise DataFileError(f"The body is not JSON: {error}.", file=self.name) from error
        events = found if isinstance(found, list) else [found]
        for row, event in enumerate(events, start=1):
            read_event(event, file=self.name, row=row)
        text = b"".join(json.dumps(event).encode() + b"\n" for event in events)
        with self._lock:
            path = self._newest()
            is_new = not path.exists()
            with path.open("ab") as file:
                fcntl.flock(file, fcntl.LOCK_EX)  # another process may serve the lake, too
                # What a kill or a full disk has left of a line is ended; it was never answered.
                if file.tell() and not self._ends_whole(path):
                    os.truncate(path, self._whole(path))
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            if is_new:
                sync(self.folder)
        return len(events)

    def source(self, *, keys: Mapping[str, Sequence[str]] | None = None) -> JournalSource:
        """The journal as a source.

        Args:
            keys: the key columns of tables whose events have no key.
        """
        return JournalSource(self.folder, self._storage, name=self.name, keys=keys)

    def _newest(self) -> Path:
        numbers = sorted(int(path.stem) for path in self.folder.glob("[0-9]*.jsonl"))
        number = numbers[-1] if numbers else 1
        newest = self.folder / f"{number:020d}.jsonl"
        if newest.exists() and newest.stat().st_size >= LARGEST:
            newest = self.folder / f"{number + 1:020d}.jsonl"
        return newest

    @staticmethod
    def _ends_whole(path: Path) -> bool:
        with path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read() == b"\n"

    @staticmethod
    def _whole(path: Path) -> int:
        return path.read_bytes().rfind(b"\n") + 1


class JournalSource(DebeziumFiles):
    """What a journal holds; files of it that are published whole, and full, are removed.

    Args:
        folder: the journal's.
        storage: the lake's files.
        name: the journal's name.
        keys: the key columns of tables whose events have no key.
    """

    def __init__(
        self,
        folder: Path,
        storage: Storage,
        *,
        name: str,
        keys: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        super().__init__(folder, storage, keys=keys)
        self.name = f"debezium:{name}"
        self._needed: set[Path] = set()

    def passed_over(self, path: Path) -> None:
        """Keeps a file that has a line of a stopped table."""
        self._needed.add(path)

    def published(self, path: Path, size: int) -> None:
        """Removes a file that nobody appends to and nobody needs any more."""
        later = path.with_name(f"{int(path.stem) + 1:020d}.jsonl")
        if later.exists() and path not in self._needed and path.stat().st_size == size:
            path.unlink()


def journals_of(storage: Storage) -> list[str]:
    """The names of a lake's journals."""
    return sorted(storage.list(_JOURNALS).folders)
