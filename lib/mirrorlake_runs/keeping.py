"""Keeps a run's record while it goes on, and its results when it ends.

The record lies beside the results, in `runs/`, and behind the run's URI. What happens is written at
once. While nothing does, the record is renewed every minute: on other machines a run whose record
is older than five minutes counts as lost.

After the last step come summary, report, copies, and who is told. None of them fails the run.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from obstore.exceptions import BaseError

from mirrorlake.errors import MirrorlakeError, UsageError, first_line
from mirrorlake.storage.files import Storage
from mirrorlake.storage.paths import lake_path
from mirrorlake_runs.engine import IMPORTED
from mirrorlake_runs.preparing import Prepared
from mirrorlake_runs.results import RunSummary
from mirrorlake_runs.store import RECORD, SILENCE, SUMMARY, RunRecord, as_text, write_whole

_log = logging.getLogger("mirrorlake.runs.keeping")
BEAT = SILENCE / 5
_HISTORY = "diagnostics.runs"
_TEXTS = ("run", "plan", "status", "folder")
_DOCUMENTS = ("parameters", "versions", "steps")


class RecordError(MirrorlakeError):
    """A run's record can't be written."""


class RecordKeeper:
    """Writes a run's record, and renews it while a `with` block runs.

    Args:
        prepared: the run.
        beat: seconds between two renewals.
    """

    def __init__(self, prepared: Prepared, beat: float = BEAT) -> None:
        self._prepared, self._beat = prepared, beat
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
                run, place = self._prepared.run, self._prepared.folder
                text = f"The run {run} can't be recorded in {place}: {first_line(error)}."
                if must:
                    raise RecordError(
                        text, hint="make room there, or choose another folder by --out."
                    ) from error
                _log.warning(text)

    def _write(self) -> None:
        work, *others = self._prepared.places
        write_whole(work / RECORD, self._text)
        for place in others:
            with contextlib.suppress(OSError):  # the results are where they are wanted
                write_whole(place / RECORD, self._text)

    def _send(self) -> None:
        if self._prepared.out and self._text:
            data = self._text.encode(errors="backslashreplace")
            Storage(self._prepared.out).write(RECORD, data)

    def _renew(self) -> None:
        while not self._over.wait(self._beat):
            # A store or disk out of reach: the next time it may be there again.
            with self._lock, contextlib.suppress(OSError, BaseError):
                for folder in self._prepared.places:
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


def ready_report() -> None:
    """Makes the report ready beside the first notebook, once papermill is imported."""

    def ready() -> None:
        IMPORTED.wait()
        from mirrorlake_runs.report import ready

        ready()

    threading.Thread(target=ready, daemon=True).start()


def finish(
    prepared: Prepared, summary: RunSummary, document: dict[str, Any], metrics: Path | None
) -> RunSummary:
    """Keeps a run's results, and tells who wants to know.

    Args:
        prepared: the run.
        summary: how it went.
        document: its record.
        metrics: a file for Prometheus.

    Returns:
        The summary; its `kept` is False if it could not be written.
    """
    from mirrorlake_runs.notifications import call_hooks, write_metrics
    from mirrorlake_runs.report import write_report

    text = as_text(summary.as_dict())
    kept = _try("the summary", lambda: write_whole(prepared.work / SUMMARY, text))
    _try("the report", lambda: write_report(document, prepared.work))
    if prepared.plan.history:
        _try("the history", lambda: _add_to_history(document, prepared.roots()))
    if metrics is not None:
        _try("the metrics", lambda: write_metrics(metrics, document, prepared.roots()))
    outcome = "on_success" if summary.status == "done" else "on_failure"
    document["hooks"] = call_hooks(prepared.plan.hooks[outcome], text, prepared)
    record = as_text(document)
    written = [
        _try("the record", partial(write_whole, place / RECORD, record))
        for place in prepared.places
    ]
    kept &= written[0]
    if prepared.out:
        kept &= _try(f"the copy in {prepared.out}", lambda: _copy_out(prepared))
    return replace(summary, kept=kept)


def _add_to_history(document: dict[str, Any], roots: set[str]) -> None:
    """Appends a run to a table in the lake of its first root; starts Spark, for some seconds."""
    import pyarrow as pa

    from mirrorlake.lake import Lake

    if not roots:
        raise UsageError("The plan has history, but no step has a root.")
    row = {name: str(document[name]) for name in _TEXTS}
    row |= {name: json.dumps(document[name], ensure_ascii=False) for name in _DOCUMENTS}
    row |= {"host": str(document["process"]["host"])}
    times = {name: datetime.fromisoformat(document[name]) for name in ("started", "ended")}
    fields = [(name, pa.timestamp("us", tz="UTC")) for name in times]
    fields += [(name, pa.string()) for name in row]
    rows = pa.Table.from_pylist([times | row], pa.schema(fields))
    Lake(lake_path(min(roots))).write(_HISTORY, rows)


def _copy_out(prepared: Prepared) -> None:
    """Copies a run's files to where its results are wanted."""
    target = Storage(prepared.out)
    for path in sorted(prepared.work.iterdir()):
        if path.is_file() and not path.name.startswith("."):
            target.write(path.name, path.read_bytes())


def _try(what: str, call: Callable[[], object]) -> bool:
    """Whether something could be done; what went wrong is said, without secrets' values."""
    try:
        call()
    except Exception as error:
        _log.warning(f"{what} can't be written: {type(error).__name__}: {error}")
        return False
    return True
