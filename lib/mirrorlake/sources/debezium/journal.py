"""Events as Debezium Server posts them: on the disk before they are answered.

`POST /debezium/NAME` appends to the source's journal; `DebeziumFiles` on the journal's folder cuts
files from it by its own measure, so that batches of 200 events do not become files of 200 rows.
"""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

from mirrorlake.errors import DataFileError, UsageError
from mirrorlake.names import check_part
from mirrorlake.sources.debezium.events import read_event
from mirrorlake.sources.debezium.files import DebeziumFiles
from mirrorlake.sources.folder import HOME
from mirrorlake.storage import Storage

_LARGEST = 64 << 20


class Journal:
    """The journal of one source of events, in the lake; one process appends.

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
        self.folder: Path = storage.local / HOME / "journals" / name
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
        except ValueError as error:
            raise DataFileError(f"The body is not JSON: {error}.", file=self.name) from error
        events = found if isinstance(found, list) else [found]
        for row, event in enumerate(events, start=1):
            read_event(event, file=self.name, row=row)
        text = b"".join(json.dumps(event).encode() + b"\n" for event in events)
        with self._lock, self._newest().open("ab") as file:
            # What a kill has left of a line is ended; it was never answered.
            torn = file.tell() and not self._ends_whole(Path(file.name))
            if torn:
                os.truncate(file.name, self._whole(Path(file.name)))
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        return len(events)

    def source(self) -> DebeziumFiles:
        """The journal as a source."""
        return DebeziumFiles(self.folder, self._storage, kind=f"debezium-{self.name}")

    def _newest(self) -> Path:
        numbers = sorted(int(path.stem) for path in self.folder.glob("[0-9]*.jsonl"))
        number = numbers[-1] if numbers else 1
        newest = self.folder / f"{number:020d}.jsonl"
        if newest.exists() and newest.stat().st_size >= _LARGEST:
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
