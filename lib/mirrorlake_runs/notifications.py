"""Who is told how a run went: hooks and Prometheus. None fails the run.

A hook is a command, which gets the summary on stdin, or an HTTP POST, which carries it as its body,
with a signature where the hook names a secret: `X-Mirrorlake-Signature: sha256=…`, the HMAC of the
body.

Prometheus's node exporter reads a text file by its textfile collector. Each run replaces it in one
step. Lag and backlog come from the status of the lakes that the run worked on, without Spark.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import math
import os
import shlex
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

from mirrorlake.errors import UsageError
from mirrorlake.storage.paths import lake_path, may_be_lake
from mirrorlake_runs.parameters import resolve
from mirrorlake_runs.preparing import Prepared

_log = logging.getLogger("mirrorlake.runs.notifications")
LIMIT = 10.0  # seconds for all attempts at one hook
ATTEMPTS = 3
_PAUSE = 0.5
_QUIET = urllib.request.build_opener()
STATUSES = ("done", "failed", "stopped", "skipped")


def call_hooks(hooks: list[Any], summary: str, prepared: Prepared) -> list[dict[str, Any]]:
    """Calls each hook of an outcome, again if it fails, up to a limit of time.

    Args:
        hooks: as the plan has them.
        summary: the document that they get.
        prepared: the run.

    Returns:
        For the record, how each went: `hook`, `status`, `attempts`, `error`.
    """
    return [_call(hook, summary, prepared) for hook in hooks]


def _call(hook: Any, summary: str, prepared: Prepared) -> dict[str, Any]:
    shown = prepared.scrubber.text(hook if isinstance(hook, str) else json.dumps(hook))
    end, attempts, error = time.monotonic() + LIMIT, 0, "it took too long"
    while attempts < ATTEMPTS and (left := end - time.monotonic()) > 0:
        attempts += 1
        try:
            _once(hook, summary, prepared, left)
        except subprocess.TimeoutExpired:
            error = f"it took longer than {LIMIT:.0f} s"
        except Exception as failure:
            error = prepared.scrubber.text(f"{type(failure).__name__}: {failure}")
            time.sleep(max(0.0, min(_PAUSE * attempts, end - time.monotonic())))
        else:
            return {"hook": shown, "status": "done", "attempts": attempts, "error": None}
    _log.warning(f"the hook {shown} was given up: {error}")
    return {"hook": shown, "status": "failed", "attempts": attempts, "error": error}


def _once(hook: Any, summary: str, prepared: Prepared, limit: float) -> None:
    if isinstance(hook, str):
        hook = {"url" if hook.startswith(("http://", "https://")) else "command": hook}
    if "url" in hook:
        key = resolve(hook.get("secret", ""), prepared.secrets)
        _post(str(resolve(hook["url"], prepared.secrets)), summary, prepared.run, key, limit)
    if "command" in hook:
        command = hook["command"]
        _run(
            shlex.split(command) if isinstance(command, str) else command, summary, prepared, limit
        )


def _run(command: list[str], summary: str, prepared: Prepared, limit: float) -> None:
    """Runs a command in a group of its own, which is ended as a whole if it hangs."""
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
        _log.info(f"the hook {command[0]} says: {text}")
    if process.returncode:
        raise UsageError(f"exit status {process.returncode}{': ' * bool(text)}{text[-300:]}")


def _post(url: str, summary: str, run: str, key: str, limit: float) -> None:
    body = summary.encode(errors="backslashreplace")
    # The id is the same for each attempt, so that the receiver can tell a second one.
    headers = {"Content-Type": "application/json", "X-Mirrorlake-Run": run}
    if key:
        digest = hmac.new(key.encode(), body, hashlib.sha256).hexdigest()
        headers["X-Mirrorlake-Signature"] = f"sha256={digest}"
    if not url.startswith(("http://", "https://")):
        raise UsageError("the address of a hook is http or https")
    request = urllib.request.Request(url, body, headers, method="POST")  # noqa: S310 - checked
    with _QUIET.open(request, timeout=limit) as answer:
        answer.read(1)


def write_metrics(path: Path, document: dict[str, Any], roots: Iterable[str]) -> None:
    """Writes the figures.

    Args:
        path: the file.
        document: the run's record.
        roots: the lakes that it worked on.

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
