"""What a sample's making writes down: its marker, its journal, and a storage that keeps it.

`Files/_mirrorlake/sample.json` lists the files that were there when the making began (`making`) or
ended (`sealed`), with size and SHA-256. While it goes on, `sample.jsonl` beside it gets a line for
every file, before that file is written. Both are data: nothing is deleted because a path stands in
them, only what a walk over the lake finds and they account for.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Lock
from typing import IO, Any, Final, Literal, cast

from mirrorlake.errors import SampleError
from mirrorlake.names import PROCESSED, READY_TO_DELETE, STATE, ZONE
from mirrorlake.storage import Storage

FORMAT: Final = 1
MARKER: Final = f"{STATE}/sample.json"
JOURNAL: Final = f"{STATE}/sample.jsonl"
ANY: Final = "*"
"""Stands for the content of a file that is written piece by piece: it is not known before."""
_MOVED = re.compile(rf"({re.escape(ZONE)}/.+)/(?:{PROCESSED}|{READY_TO_DELETE})/([^/]+)")
_SHA256 = re.compile(r"[0-9a-f]{64}")

Known = dict[str, set[str]]
"""Contents that a file may have, by where it lies: SHA-256, or `ANY`."""


@dataclass(frozen=True)
class Marker:
    """A sample's marker.

    Attributes:
        making: the id of the making that wrote it; its commits carry it.
        state: `making` from before its first write until `sealed`.
        tables: what the making has Spark write without creating it first.
        files: size in bytes and SHA-256 of every file, by its path in the lake.
    """

    making: str
    state: Literal["making", "sealed"]
    tables: tuple[str, ...] = ()
    files: dict[str, tuple[int, str]] = field(default_factory=dict)

    def known(self, storage: Storage) -> Known:
        """What the marker accounts for, and the journal if the making has not ended."""
        found: Known = {}
        for path, (_, sha256) in self.files.items():
            _add(found, path, sha256)
        if self.state == "making":
            for path, sha256 in _read_journal(storage, self.making):
                _add(found, path, sha256)
        return found

    def write(self, storage: Storage) -> None:
        """Puts it there in one atomic step; a journal of another making counts no more."""
        files = {path: list(facts) for path, facts in sorted(self.files.items())}
        document = {"format": FORMAT, "making": self.making, "state": self.state}
        storage.write_json(MARKER, document | {"tables": list(self.tables), "files": files})
        storage.delete(JOURNAL)


def read_marker(storage: Storage) -> Marker | None:
    """A lake's marker, or None if it has none.

    Raises:
        SampleError: it can't be read.
    """
    try:
        document = storage.read_json(MARKER)
        if document is None:
            return None
        if document["format"] != FORMAT or document["state"] not in ("making", "sealed"):
            raise ValueError(f"format {document['format']}, state {document['state']}")
        files = {str(p): (int(size), str(sha)) for p, (size, sha) in document["files"].items()}
        if not all(_SHA256.fullmatch(sha256) for _, sha256 in files.values()):
            raise ValueError("a checksum is no SHA-256")
        tables = tuple(map(str, document["tables"]))
        return Marker(str(document["making"]), document["state"], tables, files)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SampleError(
            f"The sample's marker {MARKER} in {storage.root} can't be read: {error}.",
            hint="choose another root, or remove that lake yourself.",
        ) from error


def place_of(path: str) -> str:
    """A path, the same for a published file wherever the mirror has moved it since."""
    moved = _MOVED.fullmatch(path)
    return f"{moved[1]}/{moved[2]}" if moved else path


def _add(known: Known, path: str, sha256: str) -> None:
    contents = known.setdefault(place_of(path), set())
    contents.discard(ANY)  # the file is whole now
    contents.add(sha256)


def _read_journal(storage: Storage, making: str) -> list[tuple[str, str]]:
    try:
        lines = storage.read(JOURNAL).splitlines()
    except FileNotFoundError:
        return []
    found = []
    for line in lines:
        try:
            entry = json.loads(line)
            if entry["making"] == making:
                found.append((str(entry["path"]), str(entry["sha256"])))
        except (ValueError, KeyError, TypeError):
            continue  # a line that was cut off: its file was not written yet
    return found


class JournalStorage(Storage):
    """A lake's files, where each write of a making is put into its journal first.

    Args:
        storage: the lake's files.
        marker: of the making that begins.
    """

    def __init__(self, storage: Storage, marker: Marker) -> None:
        vars(self).update(vars(storage))  # the same store, also where it is in memory
        self.marker = marker
        self._known = marker.known(storage)
        self._lines: list[bytes] = []
        self._lock = Lock()
        self._open = True

    def end(self) -> None:
        """What is written from now on is not the making's."""
        self._open = False

    def write(self, path: str, data: bytes) -> None:
        """As in `Storage`, put down before."""
        self._note(path, hashlib.sha256(data).hexdigest())
        super().write(path, data)

    def create(self, path: str, data: bytes, *, make_folder: bool = True) -> bool:
        """As in `Storage`, put down before."""
        self._note(path, hashlib.sha256(data).hexdigest())
        return super().create(path, data, make_folder=make_folder)

    def open_writer(self, path: str) -> IO[bytes]:
        """As in `Storage`, put down before, and with its content when it is closed."""
        self._note(path, ANY)
        inner = super().open_writer(path)
        return cast("IO[bytes]", _Writer(inner, lambda sha256: self._note(path, sha256)))

    def rename(self, source: str, target: str) -> bool:
        """As in `Storage`, put down before."""
        self._note_move(source, target)
        return super().rename(source, target)

    def move_folder(self, source: str, target: str) -> bool:
        """As in `Storage`, put down before."""
        for path in self.files_below(source):
            self._note_move(path, target + path[len(source) :])
        return super().move_folder(source, target)

    def _note_move(self, source: str, target: str) -> None:
        """A file keeps its maker: somebody else's is not the making's because it was moved."""
        if place_of(source) == place_of(target):
            return
        contents = self._known.get(place_of(source), set())
        for sha256 in sorted(contents - {ANY}):
            self._note(target, sha256)

    def _note(self, path: str, sha256: str) -> None:
        path = path.removeprefix(f"{self.root}/")  # local writers take full paths, too
        with self._lock:
            if not self._open or path in (MARKER, JOURNAL):
                return
            contents = self._known.get(place_of(path), set())
            if sha256 in contents and (sha256 == ANY or ANY not in contents):
                return
            _add(self._known, path, sha256)
            entry = {"making": self.marker.making, "path": path, "sha256": sha256}
            line = json.dumps(entry).encode() + b"\n"
            if self.local is not None:
                with open(self.local / JOURNAL, "ab", buffering=0) as journal:
                    journal.write(line)
                return
            # Object stores don't append.
            self._lines.append(line)
            super().write(JOURNAL, b"".join(self._lines))


class _Writer(io.RawIOBase):
    """A writer that tells the SHA-256 of all that it wrote when it is closed."""

    def __init__(self, inner: IO[bytes], done: Callable[[str], None]) -> None:
        self._inner = inner
        self._done = done
        self._digest = hashlib.sha256()

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        self._digest.update(data)
        return self._inner.write(data)

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._inner.close()
            self._done(self._digest.hexdigest())
