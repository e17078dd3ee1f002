"""The record of runs: one `run.json` each, from the start on, and how they are listed and shown.

Records lie in `runs/<run>/` of the project (or of MIRRORLAKE_HOME). A run with `--out` has its
results there, and its record in both places, so that it is listed too.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import uuid
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from mirrorlake.errors import MirrorlakeError, UsageError
from mirrorlake.paths import home

RECORD, SUMMARY, REPORT = "run.json", "summary.json", "report.html"
RUNNING, LOST = "running", "lost"
OVER = ("done", "failed", "stopped")
_SILENCE = timedelta(minutes=5)  # of a run on another machine, after which it is taken for lost


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

    def as_dict(self) -> dict[str, Any]:
        """One entry of `runs list --json`."""
        names = ("run", "plan", "status", "started", "ended", "folder")
        return {name: getattr(self, name) for name in names}


def runs_folder() -> Path:
    """Where the records of runs are."""
    return home() / "runs"


def write_record(document: dict[str, Any], *folders: Path) -> None:
    """Keeps a run's record in each folder, each in one step.

    Raises:
        OSError: a disk is full or read-only.
    """
    for folder in dict.fromkeys(folders):
        write_whole(folder / RECORD, json.dumps(document, indent=2, ensure_ascii=False) + "\n")


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


def this_process() -> dict[str, Any]:
    """What a record says of the process that runs it."""
    return {"host": socket.gethostname(), "pid": os.getpid(), "born": _born(os.getpid())}


def list_runs(
    *, plan: str | None = None, failed: bool = False, folder: Path | None = None
) -> list[RunRecord]:
    """All runs that have a record, the newest first.

    Args:
        plan: only those of a plan.
        failed: only those that failed, were stopped or are lost.
        folder: where the records are; by default `runs/`.
    """
    place = folder or runs_folder()
    found = []
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        paths = [Path(entry.path) for entry in os.scandir(place) if entry.is_dir()]
        found = [record for path in [*paths, place] if (record := _read(path)) is not None]
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
    """A run by its id, or by the folder of its results.

    Raises:
        RunNotFoundError: there is none.
    """
    is_name = Path(run).name == run and run not in ("", ".", "..")
    if is_name and (found := _read(runs_folder() / run)) is not None:
        return found
    if (Path(run) / RECORD).is_file() and (found := _read(Path(run))) is not None:
        return found
    known = ", ".join(record.run for record in list_runs()[:3])
    raise RunNotFoundError(
        f"There is no run {run!r}.", hint=f"the newest are {known}." if known else "none was kept."
    )


def prune_runs(
    *, keep: int, days: float | None = None, keep_failed: int | None = None, apply: bool = False
) -> list[RunRecord]:
    """Runs that are no longer wanted, of each plan; only with `apply` they are deleted.

    Args:
        keep: how many done runs of each plan stay.
        days: how long done runs stay, even if there are more; by default not at all.
        keep_failed: how many runs that failed, were stopped or are lost stay; by default all.
        apply: whether to delete.

    Returns:
        The runs that were, or would be, deleted; never one that runs.
    """
    if keep < 0 or (keep_failed or 0) < 0:
        raise UsageError("The number of runs to keep is negative.")
    limit = datetime.now(timezone.utc) - timedelta(days=days) if days is not None else None
    seen: dict[tuple[str, bool], int] = {}
    chosen = []
    for record in list_runs():
        if record.status == RUNNING:
            continue
        done = record.status == "done"
        seen[record.plan, done] = seen.get((record.plan, done), 0) + 1
        most = keep if done else keep_failed
        if most is None or seen[record.plan, done] <= most:
            continue
        if done and limit is not None and datetime.fromisoformat(record.started) >= limit:
            continue
        chosen.append(record)
    if apply:
        for record in chosen:
            _delete(record)
    return chosen


def _delete(record: RunRecord) -> None:
    """Takes away what the run made, and folders that are empty then."""
    places = [runs_folder() / record.run]
    if "://" not in record.folder:
        places.append(Path(record.folder))
    made = [str(name) for name in record.document.get("files", [])]
    for place in dict.fromkeys(places):
        other = _read(place)
        if other is None or other.run != record.run:
            continue  # a later run has its results there
        for name in [*made, SUMMARY, REPORT, RECORD]:
            if Path(name).name == name:
                (place / name).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            place.rmdir()


def _read(folder: Path) -> RunRecord | None:
    try:
        document = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        status = str(document["status"])
        record = RunRecord(
            str(document["run"]),
            str(document["plan"]),
            status,
            str(document["started"]),
            str(document.get("ended") or ""),
            str(document["folder"]),
            document,
        )
        datetime.fromisoformat(record.started)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if status == RUNNING and not _lives(document, folder):
        return replace(record, status=LOST)
    return record


def _lives(document: dict[str, Any], folder: Path) -> bool:
    """Whether the process of a run is there; on another machine, whether it was lately."""
    process = document.get("process") or {}
    if process.get("host") == socket.gethostname():
        born = _born(process.get("pid"))
        return born is not None and born == process.get("born")
    # The file's own time and a file of now are by one clock, that of the disk.
    probe = folder / f".clock-{uuid.uuid4().hex}"
    try:
        probe.touch()
        now = probe.stat().st_mtime
        probe.unlink()
        return now - (folder / RECORD).stat().st_mtime < _SILENCE.total_seconds()
    except OSError:
        return True


def _born(pid: Any) -> str | None:
    """When a process of this machine began, in the system's own unit; None if it is gone."""
    try:
        text = Path(f"/proc/{int(pid)}/stat").read_text(encoding="utf-8", errors="replace")
        fields = text.rpartition(")")[2].split()
    except FileNotFoundError:
        return _born_elsewhere(pid)
    except (OSError, ValueError, TypeError):
        return None
    return None if fields[0] == "Z" else fields[19]


def _born_elsewhere(pid: Any) -> str | None:
    """Where there is no /proc: only whether the process is there."""
    if Path("/proc/self").exists():
        return None
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        return "there"
    return "there"
