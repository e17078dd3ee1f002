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
import heapq
import json
import logging
import os
import threading
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import (
    Collection,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    MutableMapping,
    Sequence,
)
from dataclasses import dataclass, field
from itertools import groupby, islice
from operator import methodcaller
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
from mirrorlake.landing.casts import first_unfit
from mirrorlake.landing.metadata import MARKER, Marker
from mirrorlake.landing.publisher import check_separator
from mirrorlake.landing.text import UNFIT
from mirrorlake.landing.types import arrow_of
from mirrorlake.names import TableName, check_part, split_names
from mirrorlake.results import counted
from mirrorlake.storage.files import Storage
from mirrorlake_sources.debezium import Event, EventRows, PrimaryKeys, read_event
from mirrorlake_sources.source import HOME, Batch, ChangesOnly, Group, Position, sync

_log = logging.getLogger("mirrorlake.sources.folders")
_PIECE = 1 << 20
_MOST_ABSENT = 1000  # above this number of files, those that no longer exist are forgotten
_MOST_FILES = 10_000
_MOST_TOGETHER = 1000  # CSV files whose rows are published together
_HEAD = 4096  # bytes of a file that are compared first
_DIGITS = 32  # of a hash in a position, which is stored in each published file
Done = Mapping[str, list[Any]]
"""By file name: the number of bytes that are published, and the start of their SHA-256."""
_ROWS = 50_000


@dataclass(frozen=True)
class Line:
    """One line of a file, without its line break.

    Attributes:
        text: the bytes of the line.
        number: counted from 1.
        end: the position after the line.
        digest: the hash of the file up to there.
    """

    text: bytes
    number: int
    end: int
    digest: str

    @property
    def row(self) -> int | None:
        """The number of the row in a CSV file; None for the header."""
        return self.number - 1 or None


def published_parts(position: Position) -> Done:
    """Return what of each file a table has received, from its position."""
    found: Done = position.facts.get("files", {})
    return {name: [end, digest[:_DIGITS]] for name, (end, digest) in found.items()}


class _Parts:
    """The published parts of a folder's files, of one table, with an index by their length.

    Attributes:
        position: the position that contains these parts, apart from those added since.
        files: as in a position.
        ends: the lengths of the parts, in ascending order.
    """

    def __init__(self, position: Position) -> None:
        self.position = position
        self.files: dict[str, list[Any]] = {}
        self.ends: list[int] = []
        self._digests: dict[int, Counter[str]] = {}
        for name, (end, digest) in published_parts(position).items():
            self.add(name, end, digest)

    def add(self, name: str, end: int, digest: str) -> None:
        """Add the published part of a file, in place of an earlier one."""
        self._remove(name)
        # The newest is last; the oldest is forgotten first.
        self.files[name] = [end, digest]
        if end not in self._digests:
            insort(self.ends, end)
            self._digests[end] = Counter()
        self._digests[end][digest] += 1

    def contains(self, end: int, digest: str) -> bool:
        """Return whether a part of some file has this length and hash."""
        return digest in self._digests.get(end, ())

    def advance(self, present: Collection[str]) -> Position:
        """Return the table's next position, with the parts added since the last one.

        Args:
            present: the names of the files that exist, which are never forgotten.

        Raises:
            SourceError: the folder has too many files for a position.
        """
        if len(self.files) > _MOST_ABSENT:
            absent = [name for name in self.files if name not in present]
            for name in absent[: len(self.files) - _MOST_ABSENT]:
                self._remove(name)
        if len(self.files) > _MOST_FILES:
            raise SourceError(
                f"The folder has more than {_MOST_FILES:,} published files of one table.",
                file=next(reversed(self.files)),
                hint="move the oldest files to another folder, and run the source again.",
            )
        order = (self.position.order or (0,))[0] + 1
        self.position = Position((order,), {"files": dict(self.files)})
        return self.position

    def _remove(self, name: str) -> None:
        if name not in self.files:
            return
        end, digest = self.files.pop(name)
        digests = self._digests[end]
        digests[digest] -= 1
        if not digests[digest]:
            del digests[digest]
        if not digests:
            del self._digests[end], self.ends[bisect_left(self.ends, end)]


class _Heads:
    """The first bytes of files, in order, to find the files that begin with those of another."""

    def __init__(self) -> None:
        self._by_name: dict[str, bytes] = {}
        self._ordered: list[tuple[bytes, str]] = []

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    def set(self, name: str, path: Path) -> bytes:
        """Read and return the first bytes of a file; a missing file has none."""
        self._remove(name)
        try:
            with path.open("rb") as file:
                head = file.read(_HEAD)
        except OSError:
            return b""
        self._by_name[name] = head
        insort(self._ordered, (head, name))
        return head

    def keep(self, names: Collection[str]) -> None:
        """Forget all files but these."""
        for name in [one for one in self._by_name if one not in names]:
            self._remove(name)

    def beginning_with(self, head: bytes) -> Iterator[str]:
        """Yield the names of the files that begin with these bytes."""
        for place in range(bisect_left(self._ordered, (head, "")), len(self._ordered)):
            found, name = self._ordered[place]
            if not found.startswith(head):
                return
            yield name

    def _remove(self, name: str) -> None:
        if (head := self._by_name.pop(name, None)) is not None:
            del self._ordered[bisect_left(self._ordered, (head, name))]


def files_of(folder: Path, suffixes: Collection[str]) -> list[Path]:
    """Return the files to read, by name; hidden files are still being written."""
    return sorted(
        path
        for path in folder.rglob("*")
        if path.suffix.lower() in suffixes
        and path.is_file()
        and not any(part.startswith((".", "_")) for part in path.relative_to(folder).parts)
    )


def digest_of(path: Path, end: int) -> str:
    """Return the hash of a file's first bytes, or of the whole file if it is shorter."""
    sha = hashlib.sha256()
    with path.open("rb") as file:
        while end > 0 and (piece := file.read(min(_PIECE, end))):
            sha.update(piece)
            end -= len(piece)
    return sha.hexdigest()


def _begins(longer: Path, shorter: Path, size: int) -> bool:
    """Return whether the longer file begins with the content of the shorter one."""
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
    """Yield the complete lines of a file; text after the last line break is still being written."""
    sha, end = hashlib.sha256(), 0
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            if not raw.endswith(b"\n"):
                return
            sha.update(raw)
            end += len(raw)
            yield Line(raw.rstrip(b"\r\n"), number, end, sha.hexdigest())


class FolderSource(ChangesOnly):
    """A folder in which files appear and grow.

    Args:
        folder: the folder.
        kind: the first part of the source's name; the folder is the second.
        suffixes: the suffixes of the files to read.
        pause: seconds between two scans of the folder, without `once`.

    Raises:
        UsageError: the folder does not exist.
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
        self._once = False
        self._present: set[str] = set()
        self._parts: dict[TableName, _Parts] = {}
        self._heads = _Heads()

    def __enter__(self) -> FolderSource:
        """Forget the files read before; the tables' positions determine what is new."""
        self._read, self._parts, self._heads = {}, {}, _Heads()
        return self

    def __exit__(self, *_error: object) -> None:
        """Do nothing: no file is open between two scans."""

    def tables(self) -> Mapping[TableName, tuple[str, ...] | MirrorlakeError]:
        """Return no table: tables appear with their first row."""
        return {}

    def changes(
        self, since: MutableMapping[TableName, Position], stop: threading.Event, *, once: bool
    ) -> Generator[Group, None, None]:
        """Yield the new parts of the files, by name."""
        self._once = once
        while not stop.is_set():
            paths = files_of(self.folder, self._suffixes)
            self._present = {self.label(path) for path in paths}
            self._heads.keep(self._present)
            for path in paths:
                stat = path.stat()
                seen = (stat.st_size, stat.st_mtime_ns)
                if self._read.get(path) == seen or self.waits(path):
                    continue
                self._read[path] = seen
                for group in self.pieces(path, since):
                    yield group
                    if stop.is_set():
                        return
                self.published(path, seen[0])
            yield from self._rest(since)
            if once:
                return
            yield Group()
            stop.wait(self._pause)

    def pieces(self, path: Path, since: MutableMapping[TableName, Position]) -> Iterator[Group]:
        """Yield the parts of a file that are new to its tables."""
        raise NotImplementedError

    def _rest(self, since: MutableMapping[TableName, Position]) -> Iterator[Group]:
        """Yield the rows that `pieces` has read but not yielded, at the end of a scan."""
        return iter(())

    def _parts_of(self, table: TableName, since: Mapping[TableName, Position]) -> _Parts:
        """Return a table's published parts; rebuild them if another position has been set."""
        found = self._parts.get(table)
        if found is None or found.position is not since[table]:
            found = self._parts[table] = _Parts(since[table])
            for name in found.files:
                if name not in self._heads:
                    self._heads.set(name, self.folder / name)
        return found

    def starts(
        self,
        path: Path,
        since: Mapping[TableName, Position],
        tables: Iterable[TableName],
    ) -> dict[TableName, int]:
        """Return the position in a file from which its content is new to each of some tables.

        If the file was replaced, another file of its folder can have the old content, and must be
        recognised before the position forgets it.

        Args:
            path: the file.
            since: the positions of all tables.
            tables: the tables.
        """
        found = self._starts(path, since, tables)
        label = self.label(path)
        replaced = [
            one for one in found if not found[one] and label in self._parts_of(one, since).files
        ]
        if replaced:
            for other in files_of(path.parent, self._suffixes):
                if other != path:
                    self._starts(other, since, replaced)
        return found

    def _starts(
        self,
        path: Path,
        since: Mapping[TableName, Position],
        tables: Iterable[TableName],
    ) -> dict[TableName, int]:
        """Return the result of `starts`, without the search for the old content of the file.

        A file that is recognised under another name is added to the table's parts, too. Otherwise,
        its content could be forgotten while the file exists.
        """
        found = dict.fromkeys(tables, 0)
        label = self.label(path)
        head = self._heads.set(label, path)
        whole = path.stat().st_size
        own = [since[table].facts.get("files", {}).get(label, (0, "")) for table in found]
        if own and all(end == whole for end, _ in own):  # usually unchanged: compare no other part
            digest = digest_of(path, whole)[:_DIGITS]
            if all(part[:_DIGITS] == digest for _, part in own):
                return dict.fromkeys(found, whole)
        parts = {table: self._parts_of(table, since) for table in found}
        last: dict[TableName, tuple[int, str]] = {}
        sha, at = hashlib.sha256(), 0
        with path.open("rb") as file:
            for end, _ in groupby(heapq.merge(*(one.ends for one in parts.values()))):
                while at < end and (piece := file.read(min(_PIECE, end - at))):
                    sha.update(piece)
                    at += len(piece)
                if at < end:
                    break
                digest = sha.hexdigest()[:_DIGITS]
                last |= {one: (end, digest) for one in parts if parts[one].contains(end, digest)}
        for table, (end, digest) in last.items():
            found[table] = end
            if parts[table].files.get(label, (0, ""))[0] < end:  # less, if it is being rewritten
                parts[table].add(label, end, digest)
        size = path.stat().st_size
        for name in self._heads.beginning_with(head):
            for table, one in parts.items():
                end, _ = one.files.get(name, (0, ""))
                # An earlier copy of a file that has grown since: all of it is published.
                if found[table] < size < end and _begins(self.folder / name, path, size):
                    found[table] = size
        return found

    def waits(self, path: Path) -> bool:
        """Return whether a file is read later, because another file must be published first."""
        return False

    def published(self, path: Path, size: int) -> None:
        """Handle a file that is published up to a size."""

    def facts(self) -> dict[str, Any]:
        """Return the number of files in the last scan; a scan for each report would be slow."""
        return {"files": len(self._present or files_of(self.folder, self._suffixes))}

    def label(self, path: Path) -> str:
        """Return the name of a file in positions and messages."""
        return path.relative_to(self.folder).as_posix()


@dataclass
class _PendingRows:
    """Unpublished rows of one table, from files with the same columns.

    Rows of many small files are published together: each published file contains the position, and
    therefore the names of all files.
    """

    table: TableName
    columns: list[str]
    paths: list[Path] = field(default_factory=list)
    batches: list[pa.RecordBatch] = field(default_factory=list)
    rows: int = 0

    def takes(self, table: TableName, columns: list[str], rows: int) -> bool:
        """Return whether further rows can be published together with these."""
        is_alike = (table, columns) == (self.table, self.columns)
        return is_alike and self.rows + rows <= _ROWS and len(self.paths) < _MOST_TOGETHER

    def add(self, path: Path, rows: pa.RecordBatch) -> None:
        """Add rows of a file."""
        self.paths.append(path)
        self.batches.append(rows)
        self.rows += rows.num_rows


class CsvDrops(FolderSource):
    """A folder with one subfolder of CSV files for each table.

    Args:
        folder: the folder of the tables' folders.
        keys: the key columns by table; rows of these tables are upserts, rows of other tables
            inserts.
        types: Delta types of columns that are not text, as `{"orders": {"n": "long"}}`.
        pause: seconds between two scans of the folder, without `once`.

    Raises:
        UsageError: the folder does not exist.

    Example:
        >>> run_source(lake.storage, CsvDrops("drops", keys={"orders": ["id"]}))  # doctest: +SKIP
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
        self._keys = {name: tuple(split_names(columns)) for name, columns in (keys or {}).items()}
        self._types = {
            table: {column.lower(): kind for column, kind in columns.items()}
            for table, columns in (types or {}).items()
        }
        self._untyped: dict[str, set[str]] = {}  # by table, until its first file is read
        self._stopped_at: dict[str, Path] = {}  # by table: the file with the problem
        self._pending: _PendingRows | None = None

    def __enter__(self) -> CsvDrops:
        """Forget the files read before, and the problems found in them."""
        super().__enter__()
        self._stopped_at, self._pending = {}, None
        self._untyped = {table: set(columns) for table, columns in self._types.items()}
        return self

    def waits(self, path: Path) -> bool:
        """Return whether the table is stopped at another file: its files are published in order."""
        first = self._stopped_at.get(self.label(path).partition("/")[0])
        return first not in (None, path) and first.is_file()

    def pieces(self, path: Path, since: MutableMapping[TableName, Position]) -> Iterator[Group]:
        """Read the new rows of a file, and yield the rows read so far if there are enough.

        With `once`, an incomplete last line is a problem: no later scan of this run publishes it.
        """
        label = self.label(path)
        name, slash, _ = label.partition("/")
        if not slash:
            return
        try:
            table = TableName(None, name)
        except InvalidNameError as error:
            raise DataFileError(error.message, file=label, hint=error.hint) from error
        size = path.stat().st_size
        found = lines(path)
        header = next(found, None)
        if header is None and not (self._once and size):
            return  # if the table is stopped at this file, the file is being written again
        self._stopped_at.pop(name, None)
        if table not in since:
            self._warn_of_names(name)
            yield Group(appeared={table: self._keys.get(name, ())})
        if table in since:
            yield from self._changes(path, table, since, header, found, size)
        if table not in since and self._stopped_at.setdefault(name, path) != path:
            self._read.pop(path, None)  # the file waits for an earlier one

    def _warn_of_names(self, table: str) -> None:
        """Log a warning if the keys or types of a table without them may have a misspelt name."""
        tables = sorted({label.partition("/")[0] for label in self._present if "/" in label})
        for given, what, effect in (
            (self._keys, "keys (--keys)", "without keys"),
            (self._types, "types", "as text"),
        ):
            unknown = [repr(name) for name in given if name not in tables]
            if unknown and table not in given:
                _log.warning(
                    f"{table} is published {effect}. {what} contains {', '.join(unknown)},"
                    f" but {self.folder} has no such folder. Hint: use the names of the folders:"
                    f" {', '.join(tables)}."
                )

    def _warn_of_types(self, table: str, columns: list[str], label: str) -> None:
        """Log a warning if types contains columns that the first file of a table does not have."""
        missing = self._untyped.pop(table, set())
        missing -= {column.lower() for column in columns}
        if missing:
            names = ", ".join(map(repr, sorted(missing)))
            _log.warning(
                f"types of {table} contains {names}, but {label} has no such column. Hint: check"
                " the spelling; other columns are published as text."
            )

    def _changes(
        self,
        path: Path,
        table: TableName,
        since: MutableMapping[TableName, Position],
        header: Line | None,
        found: Iterator[Line],
        size: int,
    ) -> Iterator[Group]:
        label = self.label(path)
        start = self.starts(path, since, [table])[table]
        end = max(start, header.end if header else 0)
        try:
            columns = self._columns(table.name, header, label) if header else []
            fresh = (line for line in found if line.end > start)
            while chunk := list(islice(fresh, _ROWS)):
                end = chunk[-1].end
                rows = self._rows(table.name, columns, chunk, label)
                if self._pending and not self._pending.takes(table, columns, len(chunk)):
                    yield from self._rest(since)
                    if table not in since:
                        return
                self._pending = self._pending or _PendingRows(table, columns)
                self._pending.add(path, rows)
                self._parts_of(table, since).add(label, end, chunk[-1].digest[:_DIGITS])
            if self._once and end < size:
                raise DataFileError(
                    "The last line has no line break, and may be incomplete. It is not published.",
                    file=label,
                    hint="end the last line with a line break, and run the source again.",
                )
        except DataFileError as error:
            yield from self._rest(since)
            if table in since:
                position = Position(((since[table].order or (0,))[0] + 1,), since[table].facts)
                yield Group([Batch(table, None, position, problem=error)])

    def _rest(self, since: MutableMapping[TableName, Position]) -> Iterator[Group]:
        """Yield the rows read so far; if their table stops, their files are read again later."""
        pending, self._pending = self._pending, None
        if pending is None:
            return
        table, (first, *later) = pending.table, pending.paths
        position = self._parts_of(table, since).advance(self._present)
        rows = pa.Table.from_batches(pending.batches).combine_chunks().to_reader()
        labels = list(dict.fromkeys(map(self.label, pending.paths)))
        more = f" and {counted(len(labels) - 1, 'more file')}" if labels[1:] else ""
        yield Group([Batch(table, rows, position, origin=f"{labels[0]}{more}")])
        if table not in since:
            self._stopped_at[table.name] = first
            for path in later:
                self._read.pop(path, None)

    def _columns(self, table: str, header: Line, label: str) -> list[str]:
        columns = _cells(header, label)
        check_separator(label, columns)
        self._warn_of_types(table, columns, label)
        lower = {column.lower() for column in columns}
        for key in self._keys.get(table, ()):
            if key.lower() not in lower:
                raise DataFileError(
                    f"Key column {key!r} is missing.",
                    file=label,
                    column=key,
                    hint="name columns of the file in keys (--keys).",
                )
        return columns

    def _rows(
        self, table: str, columns: list[str], chunk: list[Line], label: str
    ) -> pa.RecordBatch:
        keys = {key.lower() for key in self._keys.get(table, ())}
        cells = []
        for line in chunk:
            row = _cells(line, label)
            if len(row) != len(columns):
                values, wanted = counted(len(row), "value"), counted(len(columns), "column")
                raise DataFileError(
                    f"The line has {values} for {wanted}.",
                    file=label,
                    row=line.row,
                    hint=_LINE_HINT,
                )
            cells.append([value or None for value in row])
        types = self._types.get(table, {})
        arrays = []
        for place, column in enumerate(columns):
            texts = pa.array([row[place] for row in cells], pa.string())
            if column.lower() in keys and texts.null_count:
                empty = texts.to_pylist().index(None)
                raise DataFileError(
                    f"Key column {column!r} is empty.",
                    file=label,
                    row=chunk[empty].row,
                    column=column,
                    hint="fill in the key.",
                )
            kind = types.get(column.lower(), "string")
            convert = methodcaller("cast", arrow_of(kind))
            try:
                arrays.append(convert(texts))
            except UNFIT as error:
                wrong = first_unfit(texts, convert)
                raise DataFileError(
                    f"{texts[wrong].as_py()!r} is not of type {kind}.",
                    file=label,
                    row=chunk[wrong].row,
                    column=column,
                    hint="correct the value, or declare another type.",
                ) from error
        marker = Marker.UPSERT if keys else Marker.INSERT
        arrays.append(pa.repeat(pa.scalar(int(marker), pa.int32()), len(cells)))
        return pa.RecordBatch.from_arrays(arrays, names=[*columns, MARKER])


_LINE_HINT = "write the file in UTF-8, each row on one line, with as many values as columns."


def _cells(line: Line, label: str) -> list[str]:
    """Return the values of a line; refuse quotes that span lines, since positions end at a line."""
    try:
        text = line.text.decode("utf-8-sig" if line.number == 1 else "utf-8")
        (row,) = csv.reader([text], strict=True)
    except (csv.Error, ValueError) as error:
        raise DataFileError(
            f"The line is not valid CSV: {error}.",
            file=label,
            row=line.row,
            hint=_LINE_HINT,
        ) from error
    return row


_SUFFIXES = (".jsonl", ".ndjson", ".json")
_JOURNALS = f"{HOME}/journals"
LARGEST = 64 << 20  # bytes of one file of a journal


@dataclass
class _PendingEvents:
    """Unpublished events of one table with a common schema."""

    events: list[Event] = field(default_factory=list)
    last: Line | None = None


class DebeziumFiles(FolderSource):
    """A folder of files with one Debezium event in each line.

    Args:
        folder: the folder.
        storage: the lake's storage; a `SchemaDefinition` there is the schema of events without one.
        keys: the key columns of tables whose events have no key.
        pause: seconds between two scans of the folder, without `once`.
        kind: the first part of the source's name.

    Raises:
        UsageError: the folder does not exist.

    Example:
        >>> run_source(lake.storage, DebeziumFiles("events", lake.storage))  # doctest: +SKIP
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
        """Forget the files read before; the tables' positions determine what is new."""
        super().__enter__()
        self._met, self._parsed = set(), {}
        return self

    def pieces(self, path: Path, since: MutableMapping[TableName, Position]) -> Iterator[Group]:
        """Yield the new events of a file, by table."""
        label = self.label(path)
        found = self.starts(path, since, since)
        pending: dict[TableName, _PendingEvents] = {}
        waiting, known, last = 0, self._known(path), None
        for line in lines(path):
            last = line
            if line.end <= known or not line.text.strip():
                continue
            event = self._event(line, label)
            if isinstance(event, PrimaryKeys):
                self._rows.learn(event)
            if not isinstance(event, Event):
                continue
            table = event.table
            if table not in found and table not in self._met:
                self._met.add(table)
                yield Group(appeared={table: self._rows.key(event)})
                found |= self.starts(path, since, since.keys() - found.keys())
            if table not in since:
                self.keep_file(path)
                continue
            if line.end <= found[table]:
                continue
            one = pending.setdefault(table, _PendingEvents())
            if one.events and (event.marker is None or event.types != one.events[0].types):
                yield Group([self._batch(table, one, since, label)])
                one.events = []
            one.last = line
            if event.marker is None:
                position = self._advance(table, since, label, line)
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
        """Return how many bytes of a file this process has read, if they have not changed."""
        end, digest = self._parsed.get(path, (0, ""))
        return end if end and digest_of(path, end) == digest else 0

    def keep_file(self, path: Path) -> None:
        """Handle a line of a stopped table: the file is needed once the table continues."""

    def _event(self, line: Line, label: str) -> Event | PrimaryKeys | None:
        try:
            found = json.loads(line.text)
        except (ValueError, RecursionError) as error:
            raise SourceError(
                f"The line is not valid JSON: {error}.", file=label, row=line.number
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
        position = self._advance(table, since, label, one.last)
        return self._rows.batch(table, one.events, position)

    def _advance(
        self, table: TableName, since: Mapping[TableName, Position], label: str, line: Line
    ) -> Position:
        """Return the table's next position, with a file published up to a line."""
        parts = self._parts_of(table, since)
        parts.add(label, line.end, line.digest[:_DIGITS])
        return parts.advance(self._present)


class Journal:
    """The journal of one source of events, in the lake.

    Args:
        storage: the lake's storage, on a local disk.
        name: the source's name.

    Raises:
        UsageError: the lake is in an object store, which can't append.
        InvalidNameError: the name is not a valid folder name.

    Example:
        >>> Journal(lake.storage, "shop").append(body)  # doctest: +SKIP
        1
    """

    def __init__(self, storage: Storage, name: str) -> None:
        check_part(name)
        if storage.local is None:
            raise UsageError(
                "The lake is in an object store, where a journal can't be appended to.",
                hint="serve a lake in a local folder.",
            )
        self._storage = storage
        self.name = name
        self.folder: Path = storage.local / _JOURNALS / name
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()

    def append(self, body: bytes) -> int:
        """Append the body of one POST: an event, or a list of events.

        Args:
            body: the JSON.

        Returns:
            The number of events that are now durable.

        Raises:
            DataFileError: the body is not JSON, or an event is invalid; nothing is stored.
        """
        import fcntl  # Unix only; the other sources of this module need no lock

        try:
            found = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise DataFileError(f"The body is not valid JSON: {error}.", file=self.name) from error
        events = found if isinstance(found, list) else [found]
        for row, event in enumerate(events, start=1):
            read_event(event, file=self.name, row=row)
        text = b"".join(json.dumps(event).encode() + b"\n" for event in events)
        with self._lock:
            path = self._newest()
            is_new = not path.exists()
            with path.open("ab") as file:
                fcntl.flock(file, fcntl.LOCK_EX)  # another process may serve the same lake
                # Remove an incomplete line of a killed process; its request got no response.
                if file.tell() and not self._ends_complete(path):
                    os.truncate(path, self._complete_size(path))
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            if is_new:
                sync(self.folder)
        return len(events)

    def source(self, *, keys: Mapping[str, Sequence[str]] | None = None) -> JournalSource:
        """Return a source that publishes the journal.

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
    def _ends_complete(path: Path) -> bool:
        with path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read() == b"\n"

    @staticmethod
    def _complete_size(path: Path) -> int:
        return path.read_bytes().rfind(b"\n") + 1


class JournalSource(DebeziumFiles):
    """A source that publishes a journal, and deletes files of it that are complete and published.

    Args:
        folder: the journal's folder.
        storage: the lake's storage.
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

    def keep_file(self, path: Path) -> None:
        """Keep a file that has a line of a stopped table."""
        self._needed.add(path)

    def published(self, path: Path, size: int) -> None:
        """Delete a file that is no longer appended to and that no table needs."""
        later = path.with_name(f"{int(path.stem) + 1:020d}.jsonl")
        if later.exists() and path not in self._needed and path.stat().st_size == size:
            path.unlink()


def journals_of(storage: Storage) -> list[str]:
    """Return the names of a lake's journals."""
    return sorted(storage.list(_JOURNALS).folders)
