"""Results and records of runs: write `run.json`, list and find runs, delete old ones.

A notebook records results with `record`. A run returns a `RunSummary` with a `StepResult` for each
step.

Records are stored in `runs/<run>/` of the project, or of `MIRRORLAKE_HOME`. A run with `--out`
stores its results there and its record in both places. Results can also be behind the URI of an
object store. A record names the process that executes the run; if that process is gone, the run is
reported as `lost`.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import socket
import uuid
from collections import Counter
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from obstore.exceptions import BaseError

from mirrorlake.errors import MirrorlakeError, UsageError
from mirrorlake.storage.files import Storage, storage_errors
from mirrorlake.storage.lease import store_now
from mirrorlake.storage.paths import PROGRAM, cache, home

MIME = "application/vnd.mirrorlake.record+json"  # type of the outputs of `record`
NOT_SUMMED = "not_summed"  # key in the metadata of these outputs


@dataclass(frozen=True)
class StepResult:
    """The result of one notebook.

    Attributes:
        notebook: the notebook as the plan names it.
        status: `done`, `failed`, `stopped` or `skipped`.
        seconds: wall time of all attempts, without the pauses between them.
        output: the executed notebook of the last attempt, a path or URI.
        error: the failing cell (counted from 1), the exception's name and text; or None.
        records: the notebook's records; numbers are summed over all attempts, see `record`.
        attempts: the number of attempts.
        earlier_errors: why earlier attempts failed or were stopped, each like `error`, in order.
    """

    notebook: str
    status: str
    seconds: float = 0.0
    output: str | None = None
    error: dict[str, Any] | None = None
    records: dict[str, Any] = field(default_factory=dict)
    attempts: int = 0
    earlier_errors: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class RunSummary:
    """The result of a plan; also stored as `summary.json` beside the executed notebooks.

    Attributes:
        plan: its name.
        folder: the path or URI of the executed notebooks.
        started, ended: ISO-8601 UTC.
        parameters: the values that applied to every notebook that has them.
        steps: the notebooks in the plan's order.
        run: the run's id.
        signal: the signal that stopped it, SIGTERM or SIGINT; 0 if none did.
        next_steps: after a run that is not done, how to continue or repeat it, and how to skip
            files.
        kept: False if the summary could not be written.
    """

    plan: str
    folder: str
    started: str
    steps: tuple[StepResult, ...]
    ended: str
    parameters: dict[str, Any]
    run: str
    signal: int
    next_steps: tuple[str, ...] = ()
    kept: bool = True

    @property
    def status(self) -> str:
        """`done`, `failed` or `stopped`."""
        if self.signal:
            return "stopped"
        return "failed" if self.failed else "done"

    def as_dict(self) -> dict[str, Any]:
        """Return the document of `summary.json` and of `run --json`."""
        return {
            "run": self.run,
            "plan": self.plan,
            "status": self.status,
            "started": self.started,
            "ended": self.ended,
            "parameters": self.parameters,
            "steps": [asdict(step) for step in self.steps],
            "next_steps": list(self.next_steps),
        }

    @property
    def failed(self) -> StepResult | None:
        """The first failed step, or None."""
        return next((step for step in self.steps if step.status == "failed"), None)


def record(*, not_summed: Collection[str] = (), **results: Any) -> None:
    """Record results, by name, in the output of the running cell.

    A step of a plan may have several attempts. Its numbers are summed over them, so that the work
    of an
    attempt that failed later counts. Of other values the last one is kept.

    Args:
        not_summed: names of numbers that describe a state, such as the number of tables; the last
            one
            is kept.
        results: values that JSON supports.

    Example:
        >>> record(rows=12)  # doctest: +SKIP
        rows: 12
    """
    from IPython.display import display

    text = "\n".join(f"{name}: {value}" for name, value in results.items())
    facts = {MIME: {NOT_SUMMED: list(not_summed)}}
    display({MIME: results, "text/plain": text}, metadata=facts, raw=True)  # type: ignore[no-untyped-call]


RECORD, SUMMARY, REPORT = "run.json", "summary.json", "report.html"
FOLDER_LEASE = "run.lease"
RUNNING, LOST = "running", "lost"
OWN_LAKES = "%env MIRRORLAKE_HOME=."
"""The line of a lesson's copy that keeps its lakes in the folder of the notebook."""
SILENCE = 300.0  # seconds after which a run on another machine without a sign is lost
_READERS = 16
DECIDES = "MIRRORLAKE_HOME decides which folder is searched."


class RunNotFoundError(MirrorlakeError):
    """The run does not exist."""


@dataclass(frozen=True)
class RunRecord:
    """A run as `list_runs` returns it.

    Attributes:
        run: its id.
        plan: its plan's name.
        status: `done`, `failed`, `stopped`, `running` or `lost`.
        started, ended: ISO-8601 UTC; `ended` is empty if it is unknown.
        folder: the path or URI of its results.
        document: the complete record.
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
        """The local folders that may have its files; the first is its working folder."""
        record = runs_folder() / self.run
        return [record] if self.is_remote else list(dict.fromkeys([Path(self.folder), record]))

    def as_dict(self) -> dict[str, Any]:
        """Return the run's entry of `runs list --json`."""
        names = ("run", "plan", "status", "started", "ended", "folder")
        return {name: getattr(self, name) for name in names}


def earlier_attempts(document: dict[str, Any]) -> list[str]:
    """Return one line for each earlier attempt of a run's steps that failed or was stopped."""
    lines = []
    for step in document["steps"]:
        # Records of earlier versions lack the entry.
        for error in step.get("earlier_errors", ()):
            where = f" in cell {error['cell']}" if error["cell"] else ""
            message = (error["message"].splitlines() or [""])[0]
            lines.append(f"{step['name']}, earlier attempt: {error['name']}{where}: {message}")
    return lines


def resume_command(run: str) -> str:
    """Return the command that continues a run, from its id or folder."""
    return f"{PROGRAM} run --resume {shlex.quote(run)}"


def runs_folder() -> Path:
    """Return the folder of the records of runs."""
    return home() / "runs"


def as_text(document: dict[str, Any]) -> str:
    """Return a record as the text of its file."""
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def write_whole(path: Path, text: str) -> None:
    """Write a file atomically, so that no process reads a part of it.

    Raises:
        OSError: the disk is full or read-only; an existing file does not change.
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
    """Return all runs that have a record, newest first.

    Args:
        plan: only runs of this plan.
        failed: only runs that failed, were stopped or are lost.
        folder: the folder or URI of the records; by default `runs/`.

    Raises:
        SetupError: a store can't be reached.

    Example:
        >>> [one.status for one in list_runs(plan="nightly")]  # doctest: +SKIP
        ['done', 'failed']
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
    """Return a run by its id, or by the folder or URI of its results.

    Raises:
        RunNotFoundError: the run does not exist.
        SetupError: a store can't be reached.

    Example:
        >>> find_run("nightly-20260101T020000000000").status  # doctest: +SKIP
        'done'
    """
    found: RunRecord | None = None
    if "://" in run:
        with storage_errors(run):
            found = read_record(Storage(run))
    else:
        if Path(run).name == run and run not in ("", ".", ".."):
            found = read_record(runs_folder(), run)
        found = found or read_record(Path(run))
    if found is not None:
        return found
    known = ", ".join(record.run for record in list_runs()[:3])
    place = f"in {runs_folder()}"
    newest = f"the newest runs {place} are {known}." if known else f"there are no runs {place}."
    raise RunNotFoundError(f"There is no run {run!r}.", hint=f"{newest} {DECIDES}")


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
    """Return the record in a folder, or None.

    Args:
        place: a local folder or a storage.
        name: a subfolder.
    """
    path = f"{name}/{RECORD}" if name else RECORD
    try:
        data = (place / path).read_bytes() if isinstance(place, Path) else place.read(path)
        document = json.loads(data)
        names = ("run", "plan", "status", "started", "folder")
        texts = {name: str(document[name]) for name in names}
        record = RunRecord(**texts, ended=str(document.get("ended") or ""), document=document)
        datetime.fromisoformat(record.started)
        if Path(record.run).name != record.run:
            raise ValueError(record.run)  # the id would lead to another folder
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if record.status == RUNNING and not _is_alive(document.get("process") or {}, place, path):
        return replace(record, status=LOST)
    return record


def _is_alive(process: dict[str, Any], place: Path | Storage, path: str) -> bool:
    """Return whether a run's process exists; on another machine, whether the record is recent."""
    if process.get("host") == socket.gethostname():
        born = _start_time(process.get("pid"))
        return born is not None and born == process.get("born")
    try:
        silence = _silence(place, path)
    except (OSError, BaseError):
        return True
    return silence < SILENCE


def _silence(place: Path | Storage, path: str) -> float:
    """Return the seconds since a record was written, by the clock of its disk or store."""
    if isinstance(place, Storage):
        found = place.stat(path)
        return (store_now(place, path) - found.modified).total_seconds() if found else 0.0
    probe = (place / path).with_name(f".clock-{uuid.uuid4().hex}")
    try:
        probe.touch()
        return probe.stat().st_mtime - (place / path).stat().st_mtime
    finally:
        probe.unlink(missing_ok=True)


def slug(name: str) -> str:
    """Return a name for use in a file name: letters, digits, dots and dashes; others become `_`."""
    return re.sub(r"[^A-Za-z0-9.-]+", "_", name).strip(".")[:60] or "_"


def this_process() -> dict[str, Any]:
    """Return the entry of a record for this process: `host`, `pid`, `born`."""
    return {"host": socket.gethostname(), "pid": os.getpid(), "born": _start_time(os.getpid())}


def _start_time(pid: Any) -> str | None:
    """Return the start time of a local process in the system's unit; None if it does not exist."""
    try:
        text = Path(f"/proc/{int(pid)}/stat").read_text(encoding="utf-8", errors="replace")
        fields = text.rpartition(")")[2].split()
    except FileNotFoundError:
        return None if Path("/proc/self").exists() else _exists(int(pid))
    except (OSError, ValueError, TypeError):
        return None
    return None if fields[0] == "Z" else fields[19]


def _exists(pid: int) -> str | None:
    """Return whether a process exists, on a system without /proc."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    return "there"


def prune_runs(
    *,
    keep: int,
    days: float | None = None,
    keep_failed: int | None = None,
    apply: bool = False,
    folder: str | Path | None = None,
) -> list[RunRecord]:
    """Return the runs of each plan that exceed the limits; with `apply` delete them.

    Args:
        keep: the number of completed runs of each plan to keep.
        days: keep completed runs that are younger, in days; by default age does not matter.
        keep_failed: the number of runs that failed, were stopped or are lost to keep; by default
            all.
        apply: delete the runs; by default they are only returned.
        folder: the folder or URI of the records; by default `runs/`.

    Returns:
        The runs that were or would be deleted; never a run in progress.

    Raises:
        UsageError: a number is negative.
        SetupError: a store can't be reached; runs that were not deleted are still listed.

    Example:
        >>> prune_runs(keep=30, apply=True)  # doctest: +SKIP
    """
    if keep < 0 or (keep_failed or 0) < 0:
        raise UsageError(
            "The number of runs to keep is negative.", hint="give a number of 0 or more."
        )
    limit = datetime.now(timezone.utc) - timedelta(days=days) if days is not None else None
    seen: Counter[tuple[str, bool]] = Counter()
    chosen = []
    for record in list_runs(folder=folder):
        if record.status == RUNNING:
            continue
        done = record.status == "done"
        seen[record.plan, done] += 1
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
    """Delete the run's files, its record last, and folders that are empty then."""
    listed = [str(name) for name in record.document.get("files", [])]
    made = [
        name for name in [*listed, SUMMARY, REPORT, FOLDER_LEASE, RECORD] if Path(name).name == name
    ]

    if record.is_remote:
        with storage_errors(record.folder):
            storage = Storage(record.folder)
            if _is_in(storage, record):
                for name in made:
                    storage.delete(name)
    for place in record.places:
        if _is_in(place, record):
            for name in made:
                (place / name).unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                place.rmdir()


def _is_in(place: Path | Storage, record: RunRecord) -> bool:
    """Return whether a folder has the results of a run; a later run may have replaced them."""
    found = read_record(place)
    return found is not None and found.run == record.run


def later_run(record: RunRecord) -> str | None:
    """Return the run that has replaced the results of a run in its folder, or None."""
    with storage_errors(record.folder):
        found = read_record(Storage(record.folder) if record.is_remote else Path(record.folder))
    return None if found is None or found.run == record.run else found.run


def find_report(record: RunRecord) -> Path | None:
    """Return the local file of a run's report, or None if it has none or another run replaced it.

    A report behind a URI is copied to the cache.

    Args:
        record: the run.

    Example:
        >>> find_report(list_runs()[0])  # doctest: +SKIP
        PosixPath('runs/nightly-20260101T020000000000/report.html')
    """
    for place in record.places:
        if (place / REPORT).is_file() and _is_in(place, record):
            return place / REPORT
    if not record.is_remote:
        return None
    fetched = cache() / "reports" / f"{slug(record.run)}.html"
    with storage_errors(record.folder):
        storage = Storage(record.folder)
        if not storage.exists(REPORT) or not _is_in(storage, record):
            return None
        fetched.parent.mkdir(parents=True, exist_ok=True)
        fetched.write_bytes(storage.read(REPORT))
    return fetched
