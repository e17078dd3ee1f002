"""Sources that read growing files in a folder, and the CSV files among them.

Per file, the length and the hash of what a table has received are kept. A file that arrives again,
under any name, is recognised as far as its content is the same; a file that replaces another one is
new. CSV files are read from `TABLE/anything.csv`; each has its header, and all values land as text
or as the types that are given for them.
"""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Collection, Generator, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from threading import Event
from typing import Any

import pyarrow as pa

from mirrorlake.errors import DataFileError, InvalidNameError, MirrorlakeError, UsageError
from mirrorlake.landing.metadata import MARKER, Marker
from mirrorlake.landing.text import UNFIT
from mirrorlake.landing.types import arrow_of
from mirrorlake.names import TableName
from mirrorlake_sources.position import Position
from mirrorlake_sources.source import Batch, ChangesOnly, Group

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
        self, since: MutableMapping[TableName, Position], stop: Event, *, once: bool
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
