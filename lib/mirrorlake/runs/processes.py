"""Which process runs something, and whether it is still there: for records of runs."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any


def this_process() -> dict[str, Any]:
    """What a record says of the process that runs it: `host`, `pid`, `born`."""
    return {"host": socket.gethostname(), "pid": os.getpid(), "born": _born(os.getpid())}


def is_here(process: dict[str, Any]) -> bool:
    """Whether a process ran on this machine."""
    return bool(process.get("host") == socket.gethostname())


def is_alive(process: dict[str, Any]) -> bool:
    """Whether a process of this machine is still there, and no other one that has its number."""
    born = _born(process.get("pid"))
    return born is not None and born == process.get("born")


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
