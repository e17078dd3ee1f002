"""The record of runs: one `run.json` each, from the start on, and how they are listed and shown.

Records lie in `runs/<run>/` of the project (or of MIRRORLAKE_HOME). A run with `--out` has its
results there, and its record in both places, so that it is listed too. What is said here of folders
holds for URIs of object stores as well.
"""

from __future__ import annotations

import contextlib
import json
import os
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from obstore.exceptions import BaseError

from mirrorlake.errors import MirrorlakeError
from mirrorlake.lease import store_now
from mirrorlake.paths import home
from mirrorlake.runs.processes import is_alive, is_here
from mirrorlake.storage import Storage, storage_errors

RECORD, SUMMARY, REPORT = "run.json", "summary.json", "report.html"
RUNNING, LOST = "running", "lost"
SILENCE = 300.0  # seconds of a run on another machine, after which it is taken for lost
_READERS = 16


class RunNotFoundError(MirrorlakeError):
    """There is no run of that name."""


@dataclass(frozen=True)
class RunRecord:
    """A run as it is listed; `document` is all of its record.

    Attributes:
        run: its id.
        status: `done`, `failed`, `stopped`, `running` or `lost`.
        started, ended: ISO-8601 UTC; `ended` is empty if nobody knows.
        folder: where its results are, a path or URI.
    """

    run: str
    plan: str
    status: str
    started: str
    ended: str
    folder: str
    document: dict[str, Any]

    @property
    def is_remote(self) -> bool:
        """Whether its results are behind a URI."""
        return "://" in self.folder

    @property
    def places(self) -> list[Path]:
        """The folders of this machine that may have its files, first the one it works in."""
        record = runs_folder() / self.run
        return [record] if self.is_remote else list(dict.fromkeys([Path(self.folder), record]))

    def as_dict(self) -> dict[str, Any]:
        """One entry of `runs list --json`."""
        names = ("run", "plan", "status", "started", "ended", "folder")
        return {name: getattr(self, name) for name in names}


def runs_folder() -> Path:
    """Where the records of runs are."""
    return home() / "runs"


def as_text(document: dict[str, Any]) -> str:
    """A run's record, as its file holds it."""
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def write_record(document: dict[str, Any], folder: Path) -> None:
    """Keeps a run's record in a folder, in one step.

    Raises:
        OSError: a disk is full or read-only.
    """
    write_whole(folder / RECORD, as_text(document))


def write_whole(path: Path, text: str) -> None:
    """Puts a file there in one step, so that nobody reads half of it.

    Raises:
        OSError: a disk is full or read-only; what was there stays.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    staged = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        staged.write_text(text, encoding="utf-8", errors="backslashreplace")
        staged.replace(path)
    finally:
        staged.unlink(missing_ok=True)


def list_runs(
    *, plan: str | None = None, failed: bool = False, folder: str | Path | None = None
) -> list[RunRecord]:
    """All runs that have a record, the newest first.

    Args:
        plan: only those of a plan.
        failed: only those that failed, were stopped or are lost.
        folder: where the records are, a folder or URI; by default `runs/`.

    Raises:
        SetupError: a store can't be reached.
    """
    place = runs_folder() if folder is None else folder
    found = _list_remote(str(place)) if "://" in str(place) else _list_local(Path(place))
    return sorted(
        (
            record
            for record in {record.run: record for record in found}.values()
            if plan in (None, record.plan)
            and (not failed or record.status not in ("done", RUNNING))
        ),
        key=lambda record: (record.document.get("began", record.started), record.run),
        reverse=True,
    )


def find_run(run: str) -> RunRecord:
    """A run by its id, or by the folder or URI of its results.

    Raises:
        RunNotFoundError: there is none.
        SetupError: a store can't be reached.
    """
    if (found := _find(run)) is not None:
        return found
    known = ", ".join(record.run for record in list_runs()[:3])
    raise RunNotFoundError(
        f"There is no run {run!r}.", hint=f"the newest are {known}." if known else "none was kept."
    )


def _find(run: str) -> RunRecord | None:
    if "://" in run:
        with storage_errors(run):
            return read_record(Storage(run))
    is_name = Path(run).name == run and run not in ("", ".", "..")
    named = read_record(runs_folder(), run) if is_name else None
    return named or read_record(Path(run))


def _list_local(place: Path) -> Iterator[RunRecord]:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        names = [entry.name for entry in os.scandir(place) if entry.is_dir()]
        yield from (record for name in [*names, ""] if (record := read_record(place, name)))


def _list_remote(place: str) -> list[RunRecord]:
    with storage_errors(place), ThreadPoolExecutor(_READERS) as pool:
        storage = Storage(place)
        names = [*storage.list("").folders, ""]
        found = pool.map(lambda name: read_record(storage, name), names)
        return [record for record in found if record is not None]


def read_record(place: Path | Storage, name: str = "") -> RunRecord | None:
    """The record in a place, or in a folder there; None if there is none.

    Args:
        place: a folder of this machine, or what lies behind a URI.
        name: a folder in it.
    """
    path = f"{name}/{RECORD}" if name else RECORD
    try:
        data = (place / path).read_bytes() if isinstance(place, Path) else place.read(path)
        document = json.loads(data)
        record = RunRecord(
            str(document["run"]),
            str(document["plan"]),
            str(document["status"]),
            str(document["started"]),
            str(document.get("ended") or ""),
            str(document["folder"]),
            document,
        )
        datetime.fromisoformat(record.started)
        if Path(record.run).name != record.run:
            raise ValueError(record.run)  # a name from outside, which would lead elsewhere
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if record.status == RUNNING and not _lives(document.get("process") or {}, place, path):
        return replace(record, status=LOST)
    return record


def _lives(process: dict[str, Any], place: Path | Storage, path: str) -> bool:
    """Whether the process of a run is there; on another machine, whether it was lately."""
    if is_here(process):
        return is_alive(process)
    try:
        silence = _silence(place / path) if isinstance(place, Path) else _quiet(place, path)
    except (OSError, BaseError):
        return True
    return silence < SILENCE


def _silence(record: Path) -> float:
    """Seconds since a record was written, by one clock, that of its disk."""
    probe = record.with_name(f".clock-{uuid.uuid4().hex}")
    try:
        probe.touch()
        return probe.stat().st_mtime - record.stat().st_mtime
    finally:
        probe.unlink(missing_ok=True)


def _quiet(storage: Storage, path: str) -> float:
    """The same by the clock of an object store."""
    found = storage.stat(path)
    return (store_now(storage, path) - found.modified).total_seconds() if found else 0.0
