"""Keep a run's record while it runs; write its report, hooks and metrics when it ends.

The record is stored beside the results, in `runs/`, and behind the run's URI. Every change is
written at once. While nothing changes, the record is renewed every minute: on other machines a run
whose record is older than five minutes is reported as lost.

After the last step the run writes the summary, the HTML report, copies and metrics, and calls its
hooks. A failure of one of these does not fail the run.

A hook is a command, which gets the summary on stdin, or an HTTP POST with the summary as its body.
If the hook names a secret, the POST has a signature: `X-Mirrorlake-Signature: sha256=…`, the HMAC
of the body.

The metrics are a text file for Prometheus's node exporter, which each run replaces atomically. Lag
and backlog come from the status of the run's lakes, without Spark.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import html
import json
import logging
import math
import os
import re
import shlex
import signal
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from obstore.exceptions import BaseError

from mirrorlake.errors import MirrorlakeError, UsageError, first_line
from mirrorlake.storage.files import Storage
from mirrorlake.storage.paths import PROGRAM, lake_path, may_be_lake
from mirrorlake_runs.execution import IMPORTED, is_invalid
from mirrorlake_runs.parameters import resolve
from mirrorlake_runs.plan import Prepared
from mirrorlake_runs.records import (
    RECORD,
    REPORT,
    SILENCE,
    SUMMARY,
    RunRecord,
    RunSummary,
    StepResult,
    as_text,
    earlier_attempts,
    resume_command,
    write_whole,
)

if TYPE_CHECKING:
    from nbconvert.exporters import HTMLExporter

_log = logging.getLogger("mirrorlake.runs.reporting")
BEAT = SILENCE / 5
_HISTORY = "diagnostics.runs"
_TEXTS = ("run", "plan", "status", "folder")
_DOCUMENTS = ("parameters", "versions", "steps")


class RecordError(MirrorlakeError):
    """The record of a run can't be written."""


class RecordKeeper:
    """Write a run's record, and renew it while a `with` block runs.

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
        """Start to renew the record."""
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        """Stop to renew the record."""
        self._over.set()
        self._thread.join()

    def keep(self, document: dict[str, Any], *, must: bool = False) -> None:
        """Write the record; an error does not stop a running run.

        Args:
            document: the record.
            must: raise if the record can't be written.

        Raises:
            RecordError: the record can't be written, and `must` is set.
        """
        with self._lock:
            self._text = as_text(document)
            # A run that can't start leaves no record: the local record is written last.
            steps = (self._send, self._write) if must else (self._write, self._send)
            try:
                for step in steps:
                    step()
            except (OSError, BaseError) as error:
                run, place = self._prepared.run, self._prepared.folder
                text = f"The run {run} can't be recorded in {place}: {first_line(error)}."
                if must:
                    raise RecordError(
                        text, hint="free some space, or choose another folder with --out."
                    ) from error
                _log.warning(text)

    def _write(self) -> None:
        work, *others = self._prepared.places
        write_whole(work / RECORD, self._text)
        for place in others:
            with contextlib.suppress(OSError):  # the working folder has the record
                write_whole(place / RECORD, self._text)

    def _send(self) -> None:
        if self._prepared.out and self._text:
            data = self._text.encode(errors="backslashreplace")
            Storage(self._prepared.out).write(RECORD, data)

    def _renew(self) -> None:
        while not self._over.wait(self._beat):
            # The next attempt may reach a store or disk that is unavailable now.
            with self._lock, contextlib.suppress(OSError, BaseError):
                for folder in self._prepared.places:
                    if (folder / RECORD).is_file():
                        os.utime(folder / RECORD)
                self._send()


def fetch_notebooks(record: RunRecord, work: Path) -> None:
    """Copy the executed notebooks of a run behind a URI that are missing on this machine.

    Args:
        record: the run; nothing is copied if it is local.
        work: the local folder in which it continues.
    """
    if not record.is_remote:
        return
    work.mkdir(parents=True, exist_ok=True)
    storage = Storage(record.folder)
    for name in map(str, record.document.get("files", [])):
        if Path(name).name == name and not (work / name).exists():
            with contextlib.suppress(FileNotFoundError):
                (work / name).write_bytes(storage.read(name))


def warm_up_report() -> None:
    """Compile the report's templates in a thread, so that the first report does not wait for it."""

    def compile_templates() -> None:
        # Two threads that import the same packages at once may see half-initialised modules.
        IMPORTED.wait()
        from mirrorlake_runs.notebook_files import nbformat

        cells = [nbformat.v4.new_markdown_cell("#"), nbformat.v4.new_code_cell("1")]  # type: ignore[no-untyped-call]
        _exporter().from_notebook_node(nbformat.v4.new_notebook(cells=cells))  # type: ignore[no-untyped-call]

    threading.Thread(target=compile_templates, daemon=True).start()


def finish(
    prepared: Prepared, summary: RunSummary, document: dict[str, Any], metrics: Path | None
) -> RunSummary:
    """Write a run's results, metrics and history, and call its hooks.

    Args:
        prepared: the run.
        summary: its result.
        document: its record.
        metrics: a file for Prometheus.

    Returns:
        The summary; `kept` is False if it could not be written.
    """
    if summary.status != "done":
        summary = replace(summary, next_steps=_next_steps(prepared, summary.steps))
    document["next_steps"] = list(summary.next_steps)
    text = as_text(summary.as_dict())
    kept = _try("the summary", lambda: write_whole(prepared.work / SUMMARY, text))
    _try(
        "the report",
        lambda: write_whole(prepared.work / REPORT, render_report(document, prepared.work)),
    )
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


def _next_steps(prepared: Prepared, results: Sequence[StepResult]) -> tuple[str, ...]:
    """Return how to continue or repeat a run, and how to skip files at which the mirror stopped."""
    from mirrorlake.lake import Lake

    pairs = zip(prepared.plan.steps, results, strict=True)
    found = [f"Continue the run with the same parameters: {resume_command(prepared.folder)}"]
    if names := ", ".join(step.name for step, result in pairs if is_invalid(result.error)):
        found = [
            f"Correct the parameters of {names} and run the"
            f" {'notebook' if prepared.plan.single else 'plan'} again. A resumed run would use the"
            " same values."
        ]
    for place in sorted(map(lake_path, prepared.roots())):
        with contextlib.suppress(MirrorlakeError, OSError, BaseError):  # the lake can't be read now
            for table in Lake(place).status().tables if may_be_lake(place) else ():
                if table.error and table.stopped_at and table.stopped_at not in table.skipped:
                    words = shlex.join([place, str(table.table), table.stopped_at])
                    file = table.error["file"]
                    found.append(f"Leave out {file}: {PROGRAM} skip {words} --apply")
    return tuple(map(prepared.scrubber.text, found))


def _add_to_history(document: dict[str, Any], roots: Collection[str]) -> None:
    """Append the run to a table in the lake of its first root; starts Spark for some seconds."""
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
    """Copy a run's files to the URI of its results."""
    target = Storage(prepared.out)
    for path in sorted(prepared.work.iterdir()):
        if path.is_file() and not path.name.startswith("."):
            target.write(path.name, path.read_bytes())


def _try(what: str, call: Callable[[], object]) -> bool:
    """Return whether a call succeeded; log its error without secrets."""
    try:
        call()
    except Exception as error:
        _log.warning(f"{what} can't be written: {type(error).__name__}: {error}")
        return False
    return True


HOOK_LIMIT = 10.0  # seconds for all attempts of one hook
HOOK_ATTEMPTS = 3
_HOOK_PAUSE = 0.5
_QUIET = urllib.request.build_opener()
STATUSES = ("done", "failed", "stopped", "skipped")


def call_hooks(
    hooks: list[dict[str, Any]], summary: str, prepared: Prepared
) -> list[dict[str, Any]]:
    """Call each hook of an outcome; retry a failed hook up to a time limit.

    Args:
        hooks: the hooks of the plan.
        summary: the document for the hooks.
        prepared: the run.

    Returns:
        For the record, the result of each hook: `hook`, `status`, `attempts`, `error`.
    """
    return [_call_hook(hook, summary, prepared) for hook in hooks]


def _call_hook(hook: dict[str, Any], summary: str, prepared: Prepared) -> dict[str, Any]:
    shown = prepared.scrubber.text(hook.get("url") or shlex.join(hook.get("command", [])))
    end, attempts, error = time.monotonic() + HOOK_LIMIT, 0, "it took too long"
    while attempts < HOOK_ATTEMPTS and (left := end - time.monotonic()) > 0:
        attempts += 1
        try:
            _call_once(hook, summary, prepared, left)
        except subprocess.TimeoutExpired:
            error = f"it took longer than {HOOK_LIMIT:.0f} s"
        except Exception as failure:
            error = prepared.scrubber.text(f"{type(failure).__name__}: {failure}")
            time.sleep(max(0.0, min(_HOOK_PAUSE * attempts, end - time.monotonic())))
        else:
            return {"hook": shown, "status": "done", "attempts": attempts, "error": None}
    _log.warning(f"The hook {shown} failed: {error}")
    return {"hook": shown, "status": "failed", "attempts": attempts, "error": error}


def _call_once(hook: dict[str, Any], summary: str, prepared: Prepared, limit: float) -> None:
    if "url" in hook:
        key = resolve(hook.get("secret", ""), prepared.secrets)
        _post_hook(str(resolve(hook["url"], prepared.secrets)), summary, prepared.run, key, limit)
    if "command" in hook:
        _run_hook(hook["command"], summary, prepared, limit)


def _run_hook(command: list[str], summary: str, prepared: Prepared, limit: float) -> None:
    """Run a command in its own process group, which is killed as a whole at the time limit."""
    with subprocess.Popen(
        [str(resolve(part, prepared.secrets)) for part in command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as process:
        try:
            shown, _ = process.communicate(summary.encode(errors="backslashreplace"), limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    text = prepared.scrubber.text(shown.decode(errors="replace")).strip()
    if text:
        _log.info(f"The hook {command[0]} printed: {text}")
    if process.returncode:
        raise UsageError(f"It ended with exit status {process.returncode}. {text[-300:]}".rstrip())


def _post_hook(url: str, summary: str, run: str, key: str, limit: float) -> None:
    body = summary.encode(errors="backslashreplace")
    # The id is the same for each attempt, so that the receiver can recognise a repetition.
    headers = {"Content-Type": "application/json", "X-Mirrorlake-Run": run}
    if key:
        digest = hmac.new(key.encode(), body, hashlib.sha256).hexdigest()
        headers["X-Mirrorlake-Signature"] = f"sha256={digest}"
    if not url.startswith(("http://", "https://")):
        raise UsageError("The address of a hook must begin with http:// or https://.")
    request = urllib.request.Request(url, body, headers, method="POST")  # noqa: S310 - checked
    with _QUIET.open(request, timeout=limit) as answer:
        answer.read(1)


def write_metrics(path: Path, document: dict[str, Any], roots: Iterable[str]) -> None:
    """Write the metrics of a run and of its lakes.

    Args:
        path: the file.
        document: the run's record.
        roots: the run's lakes.

    Raises:
        OSError: the file can't be written.
    """
    from prometheus_client import CollectorRegistry, Gauge, write_to_textfile

    from mirrorlake.lake import Lake

    registry = CollectorRegistry()

    def gauge(name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"mirrorlake_{name}", text, ["plan", *labels], registry=registry)

    plan = document["plan"]
    began, ended = (datetime.fromisoformat(document[name]) for name in ("started", "ended"))
    status = gauge("run_status", "1 for the status of the last run", "status")
    for name in STATUSES[:3]:
        status.labels(plan, name).set(name == document["status"])
    seconds = (ended - began).total_seconds()
    gauge("run_seconds", "How long the last run took").labels(plan).set(seconds)
    moment = gauge("run_ended_timestamp_seconds", "When the last run ended")
    moment.labels(plan).set(ended.timestamp())
    step_status = gauge("step_status", "1 for the status of a step", "step", "status")
    durations = gauge("step_seconds", "How long a step took", "step")
    records = gauge("record", "A number that a notebook recorded", "step", "name")
    for index, kept in enumerate(document["steps"], 1):
        step = f"{index:02d}-{kept['name']}"
        for name in STATUSES:
            step_status.labels(plan, step, name).set(name == kept["status"])
        durations.labels(plan, step).set(kept["seconds"])
        for name, value in kept["records"].items():
            if isinstance(value, (bool, int, float)) and math.isfinite(value):
                records.labels(plan, step, str(name)).set(value)
    lag = gauge("lag_seconds", "How far a table is behind its files", "root", "table")
    backlog = gauge("backlog_files", "How many files of a table wait", "root", "table")
    for root in sorted(roots):
        place = lake_path(root)
        for table in Lake(place).status().tables if may_be_lake(place) else ():
            lag.labels(plan, root, table.full_name).set(table.lag_seconds)
            backlog.labels(plan, root, table.full_name).set(table.backlog_files)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_to_textfile(str(path), registry)


_TEMPLATES = Path(__file__).parent
_WIDGETS = "application/vnd.jupyter.widget"
_RELATIVE_LINK = re.compile(r'<a href="(?![\w+.-]+:|#|/)[^"]*"[^>]*>(.*?)</a>', re.DOTALL)


def render_report(document: dict[str, Any], folder: Path) -> str:
    """Return a run's report: one HTML page that opens offline, with the code of cells folded.

    The page makes no request to another host: its content security policy forbids requests and
    scripts.

    Args:
        document: the run's record.
        folder: the folder of its executed notebooks.
    """
    from jinja2 import Environment, FileSystemLoader
    from pygments.formatters import HtmlFormatter

    known = document.get("versions", {})
    facts = {
        "run": document["run"],
        "started": document["started"],
        "ended": document["ended"],
        "host": document.get("process", {}).get("host", ""),
        "versions": ", ".join(f"{name} {value}" for name, value in known.items()),
        "parameters": _values(document["parameters"]),
    }
    environment = Environment(loader=FileSystemLoader(_TEMPLATES), autoescape=True)
    environment.filters["values"] = _values
    return environment.get_template("report.html.j2").render(
        run=document,
        facts=facts,
        earlier_attempts=earlier_attempts(document),
        notebooks=[_notebook(n, step, folder) for n, step in enumerate(document["steps"], 1)],
        code_style=HtmlFormatter().get_style_defs(".highlight"),
    )


def _notebook(index: int, step: dict[str, Any], folder: Path) -> str:
    """Return the HTML of an executed notebook; the failing cell gets the id that the page links."""
    from mirrorlake_runs.notebook_files import ERROR_MARK, nbformat

    path = folder / Path(step["output"] or "").name
    if not path.is_file():
        return ""
    try:
        notebook = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    except Exception as error:  # the file is incomplete
        return f"<p>The notebook can't be shown: {html.escape(str(error))}</p>"
    cells = [cell for cell in notebook.cells if ERROR_MARK not in cell.metadata.get("tags", [])]
    for cell in cells:
        for output in cell.get("outputs", []):
            for kind in [k for k in output.get("data", {}) if k.startswith(_WIDGETS)]:
                del output["data"][kind]
    failing = [number for number, cell in enumerate(cells) if step["error"] and _is_failing(cell)]
    notebook.cells = cells
    resources = {"step": index, "failing_cell": failing[-1] if failing else None}
    text, _ = _exporter().from_notebook_node(notebook, resources)
    # The linked files are not in the run's folder. Code is escaped in HTML, so it never matches.
    return _RELATIVE_LINK.sub(r"\1", str(text))


def _is_failing(cell: Any) -> bool:
    """Return whether a cell is the one that failed."""
    if any(output.output_type == "error" for output in cell.get("outputs", [])):
        return True
    known = cell.metadata.get("papermill", {})
    return known.get("start_time") is not None and known.get("status") in ("running", "failed")


@cache
def _exporter() -> HTMLExporter:
    from jinja2 import FileSystemLoader
    from nbconvert.exporters import HTMLExporter

    exporter = HTMLExporter(  # type: ignore[no-untyped-call]
        template_name="basic", extra_loaders=[FileSystemLoader(_TEMPLATES)]
    )
    exporter.template_file = "report_notebook.html.j2"
    exporter.exclude_anchor_links = True
    return exporter


def _values(values: dict[str, Any]) -> str:
    return ", ".join(
        f"{name}: {v if isinstance(v, str) else json.dumps(v, ensure_ascii=False)}"
        for name, v in values.items()
    )
