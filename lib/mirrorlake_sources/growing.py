"""Files that only grow, in a folder: from which byte on each is new to a table, by their content.

What a table has had of a file is kept as its length and the hash of that much. So a file that
arrives again, under any name, is known as far as it is the same, and a file that was put in place
of another one is new.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mirrorlake.names import TableName
from mirrorlake_sources.position import Position

_PIECE = 1 << 20
_MOST_FILES = 1000

Done = Mapping[str, list[Any]]
"""By a file's name: how many bytes of it are done, and the SHA-256 of those."""


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
