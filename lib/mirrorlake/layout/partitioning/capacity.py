"""How many operations may run at a time: from 1 to 32, one more each time nearly all succeed."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any

from mirrorlake.names import STATE
from mirrorlake.storage import Storage

LEAST, MOST = 1, 32
SUCCESS_RATE = 0.9
FORMAT = 1
_PATH = f"{STATE}/partitioning_capacity.json"


@dataclass(frozen=True)
class Capacity:
    """What the process may do at a time.

    Attributes:
        current: operations at a time.
        in_progress: how many are at work.
    """

    current: int = LEAST
    in_progress: int = 0

    def after(self, succeeded: int, failed: int) -> Capacity:
        """The capacity after a round: raised by one if it was full and 90 % succeeded.

        Example:
            >>> Capacity(2).after(2, 0).current, Capacity(2).after(1, 1).current
            (3, 1)
            >>> Capacity(2).after(1, 0).current, Capacity(32).after(32, 0).current
            (2, 32)
        """
        count = succeeded + failed
        if count == 0:
            return replace(self, in_progress=0)
        if succeeded < SUCCESS_RATE * count:
            return Capacity(max(LEAST, self.current - 1))
        return Capacity(min(MOST, self.current + 1) if count >= self.current else self.current)

    @property
    def workers(self) -> int:
        """How many threads that makes on this machine: no more than it has cores."""
        return min(self.current, os.cpu_count() or 1)


def read_capacity(storage: Storage) -> Capacity:
    """What was kept last; the least if nothing was."""
    document: dict[str, Any] = storage.read_json(_PATH) or {}
    return Capacity(document.get("capacity", LEAST), document.get("in_progress", 0))


def write_capacity(storage: Storage, capacity: Capacity) -> None:
    """Keeps it for the next process, and for the diagnostics."""
    now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
    document = {
        "format": FORMAT,
        "capacity": capacity.current,
        "in_progress": capacity.in_progress,
        "at": now,
    }
    storage.write_json(_PATH, document)
