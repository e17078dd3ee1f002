"""What processes a run has left: those that have its home in their environment."""

from __future__ import annotations

import os
import time
from pathlib import Path


def processes_of(home: Path) -> list[str]:
    """The command lines of processes whose `MIRRORLAKE_HOME` is this one; not our own."""
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
    """Waits for the end of such processes; those that are left after so many seconds."""
    end = time.monotonic() + seconds
    while (left := processes_of(home)) and time.monotonic() < end:
        time.sleep(0.2)
    return left
