"""Events as Debezium Server posts them: on the disk before they are answered.

`POST /debezium/NAME` appends to the source's journal; `JournalSource` cuts files from it by its own
measure, so that batches of 200 events do not become files of 200 rows.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from mirrorlake.errors import DataFileError, UsageError
from mirrorlake.names import check_part
from mirrorlake.storage.files import Storage
from mirrorlake_sources.debezium.events import read_event
from mirrorlake_sources.debezium.files import DebeziumFiles
from mirrorlake_sources.position import HOME, sync

_JOURNALS = f"{HOME}/journals"
LARGEST = 64 << 20  # bytes of one file of a journal; then the next one begins


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
