"""What sources of files in a folder share: they look, read whole lines, and wait for more."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, MutableMapping
from pathlib import Path
from threading import Event
from typing import Any

from mirrorlake.errors import MirrorlakeError, UsageError
from mirrorlake.names import TableName
from mirrorlake_sources.growing import files_of
from mirrorlake_sources.position import Position
from mirrorlake_sources.source import ChangesOnly, Group


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
