"""Hooks: who is told how a run went, by a command or by an HTTP POST; they never fail the run.

A command gets the summary on stdin. A POST carries it as its body, with a signature where the hook
names a secret: `X-Mirrorlake-Signature: sha256=…`, the HMAC of the body.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import os
import shlex
import signal
import subprocess
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

from mirrorlake.errors import UsageError
from mirrorlake.runs.secrets import resolve

if TYPE_CHECKING:
    from mirrorlake.runs.preparing import Prepared

_log = logging.getLogger(__name__)
LIMIT = 10.0  # seconds for all attempts at one hook
ATTEMPTS = 3
_PAUSE = 0.5
_QUIET = urllib.request.build_opener()


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
