"""How much memory a run of the tests takes: of all its processes, sampled once a second."""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import psutil  # which comes with ipykernel

_GB = 1e9
_YOUNG_SECONDS = 0.5  # a process that was just forked still looks as large as its parent


@dataclass(frozen=True)
class Sample:
    """Bytes of memory of a process and all that it has started, by the programs' kinds.

    What several processes share, as forked workers do, is divided among them.
    """

    processes: int = 0
    sizes: Counter[str] = field(default_factory=Counter)

    @property
    def total(self) -> int:
        """All bytes."""
        return self.sizes.total()

    def __str__(self) -> str:
        parts = (f"{kind} {size / _GB:.1f}" for kind, size in self.sizes.most_common(3))
        return f"{self.total / _GB:.1f} GB in {self.processes} processes ({', '.join(parts)})"


def take_sample(process: psutil.Process) -> Sample:
    """What a process and its descendants take now."""
    sizes: Counter[str] = Counter()
    processes = 0
    for one in [process, *process.children(recursive=True)]:
        try:
            if time.time() - one.create_time() < _YOUNG_SECONDS:
                continue
            sizes[_kind(one.name())] += _memory(one)
            processes += 1
        except psutil.Error:  # gone since
            continue
    return Sample(processes, sizes)


def _memory(process: psutil.Process) -> int:
    """Its own pages and its share of common ones; where the system does not tell, all of them."""
    try:
        rollup = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
    except OSError:
        return process.memory_info().rss
    (kilobytes,) = (line.split()[1] for line in rollup.splitlines() if line.startswith("Pss:"))
    return int(kilobytes) * 1024


def _kind(program: str) -> str:
    return next((kind for kind in ("java", "chrom") if program.startswith(kind)), "other")


class PeakMemory:
    """Looks at a process and its descendants in a thread of its own, until it is stopped.

    Args:
        seconds: how often.
        pid: the process; None is this one.

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
        """Ends the watch; the peak."""
        self._stopped.set()
        self._thread.join()
        return self.peak
