"""Keeps a run's record while it goes on: beside its results, in `runs/`, and behind its URI.

What happens is written at once. While nothing does, the record is renewed every minute: on other
machines a run whose record is older than five minutes counts as lost.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from pathlib import Path
from typing import Any

from obstore.exceptions import BaseError

from mirrorlake.errors import MirrorlakeError, first_line
from mirrorlake.paths import cache
from mirrorlake.runs.locks import slug
from mirrorlake.runs.preparing import Prepared
from mirrorlake.runs.store import (
    RECORD,
    REPORT,
    SILENCE,
    RunRecord,
    as_text,
    runs_folder,
    write_whole,
)
from mirrorlake.storage import Storage, storage_errors

_log = logging.getLogger(__name__)
BEAT = SILENCE / 5


class RecordError(MirrorlakeError):
    """A run's record can't be written."""


class RecordKeeper:
    """Writes a run's record, and renews it while a `with` block runs.

    Args:
        prepared: the run.
        beat: seconds between two renewals.
    """

    def __init__(self, prepared: Prepared, beat: float = BEAT) -> None:
        self._run, self._work, self._beat = prepared.run, prepared.work, beat
        self._pointer = runs_folder() / prepared.run
        self._remote = prepared.out
        self._text = ""
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._renew, daemon=True)

    def __enter__(self) -> RecordKeeper:
        """Begins to renew the record."""
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        """Ends it."""
        self._over.set()
        self._thread.join()

    def keep(self, document: dict[str, Any], *, must: bool = False) -> None:
        """Writes the record as the run stands; a disk that is full stops nothing that runs.

        Args:
            document: the record.
            must: whether a record that can't be written is an error.

        Raises:
            RecordError: it can't, and must.
        """
        with self._lock:
            self._text = as_text(document)
            # Of a run that can't begin no record is left: here comes last what can be written.
            steps = (self._send, self._write) if must else (self._write, self._send)
            try:
                for step in steps:
                    step()
            except (OSError, BaseError) as error:
                place = self._remote or self._work
                text = f"The run {self._run} can't be recorded in {place}: {first_line(error)}."
                if must:
                    raise RecordError(
                        text, hint="make room there, or choose another folder by --out."
                    ) from error
                _log.warning(text)

    def _write(self) -> None:
        write_whole(self._work / RECORD, self._text)
        if self._pointer != self._work:
            with contextlib.suppress(OSError):  # the results are where they are wanted
                write_whole(self._pointer / RECORD, self._text)

    def _send(self) -> None:
        if self._remote and self._text:
            Storage(self._remote).write(RECORD, self._text.encode(errors="backslashreplace"))

    def _renew(self) -> None:
        while not self._over.wait(self._beat):
            # A store or disk out of reach: the next time it may be there again.
            with self._lock, contextlib.suppress(OSError, BaseError):
                for folder in (self._work, self._pointer):
                    if (folder / RECORD).is_file():
                        os.utime(folder / RECORD)
                self._send()


def bring_back(record: RunRecord, work: Path) -> None:
    """Fetches the notebooks that a run behind a URI has executed so far, those that are missing.

    Args:
        record: the run; nothing happens if it is not behind a URI.
        work: the folder of this machine where it goes on.
    """
    if not record.is_remote:
        return
    work.mkdir(parents=True, exist_ok=True)
    storage = Storage(record.folder)
    for name in map(str, record.document.get("files", [])):
        if Path(name).name == name and not (work / name).exists():
            with contextlib.suppress(FileNotFoundError):
                (work / name).write_bytes(storage.read(name))


def find_report(record: RunRecord) -> Path | None:
    """A run's report as a file of this machine; one behind a URI is fetched into the cache."""
    for place in record.places:
        if (place / REPORT).is_file():
            return place / REPORT
    if not record.is_remote:
        return None
    fetched = cache() / "reports" / f"{slug(record.run)}.html"
    with storage_errors(record.folder):
        storage = Storage(record.folder)
        if not storage.exists(REPORT):
            return None
        fetched.parent.mkdir(parents=True, exist_ok=True)
        fetched.write_bytes(storage.read(REPORT))
    return fetched
