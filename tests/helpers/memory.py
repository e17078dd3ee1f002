"""The memory of a test run with all its processes, sampled once a second."""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import psutil  # a dependency of ipykernel

_GB = 1e9
_YOUNG_SECONDS = 0.5  # a new fork still appears as large as its parent


@dataclass(frozen=True)
class Sample:
    """The memory of a process and its descendants in bytes, by kind of program.

    Memory that several processes share, such as forked workers, is divided among them.
    """

    processes: int = 0
    sizes: Counter[str] = field(default_factory=Counter)

    @property
    def total(self) -> int:
        """The total in bytes."""
        return self.sizes.total()

    def __str__(self) -> str:
        parts = (f"{kind} {size / _GB:.1f}" for kind, size in self.sizes.most_common(3))
        return f"{self.total / _GB:.1f} GB in {self.processes} processes ({', '.join(parts)})"


def take_sample(process: psutil.Process) -> Sample:
    """Return the current memory of a process and its descendants."""
    sizes: Counter[str] = Counter()
    processes = 0
    for one in [process, *process.children(recursive=True)]:
        try:
            if time.time() - one.create_time() < _YOUNG_SECONDS:
                continue
            sizes[_kind(one.name())] += _memory(one)
            processes += 1
        except psutil.Error:  # the process has ended
            continue
    return Sample(processes, sizes)


def _memory(process: psutil.Process) -> int:
    """Return private pages and the share of common ones; all pages if the system has no shares."""
    try:
        rollup = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
    except OSError:
        return process.memory_info().rss
    (kilobytes,) = (line.split()[1] for line in rollup.splitlines() if line.startswith("Pss:"))
    return int(kilobytes) * 1024


def _kind(program: str) -> str:
    return next((kind for kind in ("java", "chrom") if program.startswith(kind)), "other")


class PeakMemory:
    """Samples a process and its descendants in a thread until it is stopped.

    Args:
        seconds: the interval.
        pid: the process; None for this one.

    Attributes:
        peak: the largest sample so far.
    """

    def __init__(self, seconds: float = 1.0, pid: int | None = None) -> None:
        self._process = psutil.Process(pid)
        self.peak = Sample()
        self._seconds = seconds
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while True:
            found = take_sample(self._process)
            self.peak = max(self.peak, found, key=lambda sample: sample.total)
            if self._stopped.wait(self._seconds):
                return

    def stop(self) -> Sample:
        """Stop the thread and return the peak."""
        self._stopped.set()
        self._thread.join()
        return self.peak
