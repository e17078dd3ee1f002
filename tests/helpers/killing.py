"""Kill programs, Spark included, at any time while they work on a lake."""

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
    """Return all files of a lake; some may not exist any more."""
    return {os.path.join(folder, name) for folder, _, names in os.walk(root) for name in names}


def run_until(
    enough: Callable[[Made], bool], root: Path, program: str, *arguments: str
) -> tuple[bool, Made]:
    """Run a Python program on a lake, and kill it once it has created certain files.

    Args:
        enough: returns whether to kill the program, given the files created so far; it is called
            repeatedly.
        root: the lake's folder, the program's first argument.
        program: the program to run.
        arguments: its other arguments.

    Returns:
        Whether the program was killed before its end, and the files that it had created.
    """
    before, made = files(root), set()
    log = root.with_suffix(".log")
    with log.open("wb") as out:
        command = [sys.executable, "-c", program, str(root), *arguments]
        process = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True)
        while process.poll() is None:
            made |= files(root) - before
            if enough(made):
                os.killpg(process.pid, signal.SIGKILL)  # the JVM is in the process group
                break
            time.sleep(0.005)  # there is no event for another process's files
        status = process.wait()
    assert status in (0, -signal.SIGKILL), log.read_text(errors="replace")[-2000:]
    return status != 0, made
