"""Sources that read growing files in a folder: CSV files, Debezium events, and event journals.

A position contains, for each file, the length and the hash of the content that was published. A
file that arrives again under another name is recognised by its content. A file that replaces
another one is new.

`POST /debezium/NAME` of the server appends to a `Journal` and responds once the events are durable.
`JournalSource` cuts data files from the journal by its own limits, so that requests of 200 events
do not become files of 200 rows.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import threading
from collections.abc import Collection, Generator, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from mirrorlake.errors import (
    DataFileError,
    InvalidNameError,
    MirrorlakeError,
    SourceError,
    UsageError,
)
from mirrorlake.landing.metadata import MARKER, Marker
from mirrorlake.landing.text import UNFIT
from mirrorlake.landing.types import arrow_of
from mirrorlake.names import TableName, check_part
from mirrorlake.storage.files import Storage
from mirrorlake_sources.debezium import Event, EventRows, KeysOf, read_event
from mirrorlake_sources.source import HOME, Batch, ChangesOnly, Group, Position, sync

_PIECE = 1 << 20
_MOST_FILES = 1000
Done = Mapping[str, list[Any]]
"""By a file's name: how many bytes of it are done, and the SHA-256 of those."""
_ROWS = 50_000


@dataclass(frozen=True)
class Line:
    """A line of a file, without its end.

    Attributes:
        number: counted from 1.
        end: the byte after it.
        digest: the hash of the file up to there.
    """

    text: bytes
    number: int
    end: int
    digest: str


def done_of(position: Position) -> Done:
    """What a table has had, by its position."""
    found: Done = position.facts.get("files", {})
    return found


def with_done(position: Position, name: str, line: Line) -> Position:
    """The next position of a table: a file is done up to a line."""
    files = {**done_of(position)}
    files.pop(name, None)
    files[name] = [line.end, line.digest]  # the newest last: the oldest are forgotten first
    kept = dict(list(files.items())[-_MOST_FILES:])
    return Position(((position.order or (0,))[0] + 1,), {"files": kept})


def files_of(folder: Path, suffixes: Collection[str]) -> list[Path]:
    """The files to read, by name; hidden ones are still being written."""
    return sorted(
        path
        for path in folder.rglob("*")
        if path.suffix in suffixes
        and path.is_file()
        and not any(part.startswith((".", "_")) for part in path.relative_to(folder).parts)
    )


def starts(folder: Path, path: Path, since: Mapping[TableName, Position]) -> dict[TableName, int]:
    """From which byte on a file is new to each table.

    Args:
        folder: where all files are.
        path: the file.
        since: where the tables stand.
    """
    known: dict[int, dict[str, set[TableName]]] = {}
    for table, position in since.items():
        for end, digest in done_of(position).values():
            known.setdefault(end, {}).setdefault(digest, set()).add(table)
    found = dict.fromkeys(since, 0)
    sha, at = hashlib.sha256(), 0
    with path.open("rb") as file:
        for end in sorted(known):
            while at < end and (piece := file.read(min(_PIECE, end - at))):
                sha.update(piece)
                at += len(piece)
            if at < end:
                break
            for table in known[end].get(sha.hexdigest(), ()):
                found[table] = end
    size = path.stat().st_size
    for table, position in since.items():
        for name, (end, _) in done_of(position).items():
            # A copy from before the file grew on: it is the beginning of what is done.
            if found[table] < size <= end and _begins(folder / name, path, size):
                found[table] = size
    return found


def digest_of(path: Path, end: int) -> str:
    """The hash of a file's first bytes; of all that there are if it is shorter."""
    sha = hashlib.sha256()
    with path.open("rb") as file:
        while end > 0 and (piece := file.read(min(_PIECE, end))):
            sha.update(piece)
            end -= len(piece)
    return sha.hexdigest()


def _begins(longer: Path, shorter: Path, size: int) -> bool:
    """Whether a file begins with all that another one has."""
    if longer == shorter or not longer.is_file():
        return False
    with longer.open("rb") as one, shorter.open("rb") as other:
        while size > 0:
            piece = other.read(min(_PIECE, size))
            if not piece or one.read(len(piece)) != piece:
                return False
            size -= len(piece)
    return True


def lines(path: Path) -> Iterator[Line]:
    """The whole lines of a file; what follows the last line's end is still being written."""
    sha, end = hashlib.sha256(), 0
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            if not raw.endswith(b"\n"):
                return
            sha.update(raw)
            end += len(raw)
            yield Line(raw.rstrip(b"\r\n"), number, end, sha.hexdigest())


class FolderSource(ChangesOnly):
    """A folder into which files come, and in which files grow.

    Args:
        folder: where they are.
        kind: what the source is called, before the folder's own name.
        suffixes: which files count.
        pause: seconds between two looks, without `once`.
    """

    keeps_changes = True

    def __init__(
        self, folder: str | Path, kind: str, suffixes: tuple[str, ...], *, pause: float = 1.0
    ) -> None:
        self.folder = Path(folder)
        if not self.folder.is_dir():
            raise UsageError(f"There is no folder {self.folder}.")
        self.name = f"{kind}:{self.folder.absolute()}"
        self._suffixes = suffixes
        self._pause = pause
        self._read: dict[Path, tuple[int, int]] = {}

    def __enter__(self) -> FolderSource:
        """Forgets what it has seen: the tables' positions say what is done."""
        self._read = {}
        return self

    def __exit__(self, *_error: object) -> None:
        """Nothing is open between two looks."""

    def tables(self) -> Mapping[TableName, tuple[str, ...] | MirrorlakeError]:
        """None in advance: they appear with their first row."""
        return {}

    def changes(
        self, since: MutableMapping[TableName, Position], stop: threading.Event, *, once: bool
    ) -> Generator[Group, None, None]:
        """Each new piece of each file, by name."""
        while not stop.is_set():
            for path in files_of(self.folder, self._suffixes):
                stat = path.stat()
                seen = (stat.st_size, stat.st_mtime_ns)
                if self._read.get(path) == seen:
                    continue
                for group in self.pieces(path, since):
                    yield group
                    if stop.is_set():
                        return
                self._read[path] = seen
                self.published(path, seen[0])
            if once:
                return
            yield Group()
            stop.wait(self._pause)

    def pieces(self, path: Path, since: MutableMapping[TableName, Position]) -> Iterator[Group]:
        """What of a file is new to its tables."""
        raise NotImplementedError

    def published(self, path: Path, size: int) -> None:
        """All of a file, as long as it was then, stands in the zone."""

    def facts(self) -> dict[str, Any]:
        """How many files there are."""
        return {"files": len(files_of(self.folder, self._suffixes))}

    def label(self, path: Path) -> str:
        """A file's name in positions and messages."""
        return path.relative_to(self.folder).as_posix()


class CsvDrops(FolderSource):
    """A folder of CSV files, a folder a table.

    Args:
        folder: where the tables' folders are.
        keys: the key columns of tables that have some: their rows are upserts, by key. Rows of
            other tables are inserts.
        types: of columns that are no text, as `{"orders": {"n": "long"}}`, in Delta's words.
        pause: seconds between two looks, without `once`.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        keys: Mapping[str, Sequence[str]] | None = None,
        types: Mapping[str, Mapping[str, str]] | None = None,
        pause: float = 1.0,
    ) -> None:
        super().__init__(folder, "csv", (".csv",), pause=pause)
        self._keys = {name: tuple(columns) for name, columns in (keys or {}).items()}
        self._types = types or {}

    def pieces(self, path: Path, since: MutableMapping[TableName, Position]) -> Iterator[Group]:
        """The new rows of a file, at most some ten thousand at a time."""
        label = self.label(path)
        name, slash, _ = label.partition("/")
        if not slash:
            return
        try:
            table = TableName(None, name)
        except InvalidNameError as error:
            raise DataFileError(error.message, file=label, hint=error.hint) from error
        keys = self._keys.get(name, ())
        found = lines(path)
        header = next(found, None)
        if header is None:
            return
        if table not in since:
            yield Group(appeared={table: keys})
        if table not in since:
            return  # it is stopped
        start = starts(self.folder, path, {table: since[table]})[table]
        columns = _cells(header, label)
        fresh = (line for line in found if line.end > start)
        while chunk := list(islice(fresh, _ROWS)):
            position = with_done(since[table], label, chunk[-1])
            try:
                rows = self._rows(name, columns, chunk, bool(keys), label)
            except DataFileError as error:
                yield Group([Batch(table, None, position, problem=error)])
                return
            yield Group([Batch(table, rows, position)])

    def _rows(
        self, table: str, columns: list[str], chunk: list[Line], keyed: bool, label: str
    ) -> pa.RecordBatchReader:
        cells = []
        for line in chunk:
            row = _cells(line, label)
            if len(row) != len(columns):
                raise DataFileError(
                    f"The line has {len(row)} values for {len(columns)} columns.",
                    file=label,
                    row=line.number,
                )
            cells.append([value or None for value in row])
        types = self._types.get(table, {})
        arrays = []
        for place, column in enumerate(columns):
            texts = pa.array([row[place] for row in cells], pa.string())
            try:
                arrays.append(texts.cast(arrow_of(types.get(column, "string"))))
            except UNFIT as error:
                raise DataFileError(str(error), file=label, column=column) from error
        marker = Marker.UPSERT if keyed else Marker.INSERT
        arrays.append(pa.repeat(pa.scalar(int(marker), pa.int32()), len(cells)))
        made = pa.RecordBatch.from_arrays(arrays, names=[*columns, MARKER])
        return pa.RecordBatchReader.from_batches(made.schema, [made])


def _cells(line: Line, label: str) -> list[str]:
    """The values of a line; one whose quotes span lines is refused, so that a byte is a place."""
    try:
        (row,) = csv.reader([line.text.decode()], strict=True)
    except (csv.Error, ValueError) as error:
        raise DataFileError(f"No line of CSV: {error}.", file=label, row=line.number) from error
    return row


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
