"""Kills programs for real, Spark included, at any moment of their work on a lake."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

Made = set[str]


def files(root: Path) -> Made:
    """All files of a lake; some may be gone by now."""
    return {os.path.join(folder, name) for folder, _, names in os.walk(root) for name in names}


def run_until(
    enough: Callable[[Made], bool], root: Path, program: str, *arguments: str
) -> tuple[bool, Made]:
    """Runs a Python program on a lake, and kills it once it has made certain files.

    Args:
        enough: tells by the files made so far whether to kill; asked all the time.
        root: the lake's folder, the program's first argument.
        program: what to run.
        arguments: its further arguments.

    Returns:
        Whether it was killed before its end, and what it had made.
    """
    before, made = files(root), set()
    log = root.with_suffix(".log")
    with log.open("wb") as out:
        command = [sys.executable, "-c", program, str(root), *arguments]
        process = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True)
        while process.poll() is None:
            made |= files(root) - before
            if enough(made):
                os.killpg(process.pid, signal.SIGKILL)  # the JVM is one of the group
                break
            time.sleep(0.002)  # another process's files are no event to wait for
        status = process.wait()
    assert status in (0, -signal.SIGKILL), log.read_text(errors="replace")[-2000:]
    return status != 0, made
