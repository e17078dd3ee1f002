"""Processes that a run has left: those with its home in their environment."""

from __future__ import annotations

import os
import time
from pathlib import Path


def processes_of(home: Path) -> list[str]:
    """Return the command lines of other processes with this `MIRRORLAKE_HOME`."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            variables = (folder / "environ").read_bytes().split(b"\0")
            command = (folder / "cmdline").read_text().replace("\0", " ")
        except OSError:
            continue
        if f"MIRRORLAKE_HOME={home}".encode() in variables and int(folder.name) != os.getpid():
            found.append(command)
    return found


def wait_until_gone(home: Path, seconds: float = 60) -> list[str]:
    """Wait for the end of such processes; return those that still run after some seconds."""
    end = time.monotonic() + seconds
    while (left := processes_of(home)) and time.monotonic() < end:
        time.sleep(0.2)
    return left
