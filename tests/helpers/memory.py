"""How much memory a run of the tests takes: of all its processes, sampled once a second."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field

import psutil  # which comes with ipykernel

_GB = 1e9


@dataclass(frozen=True)
class Sample:
    """Resident bytes of a process and all that it has started, by the programs' kinds.

    Memory that processes share counts for each of them, so this is rather too much.
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
            sizes[_kind(one.name())] += one.memory_info().rss
            processes += 1
        except psutil.Error:  # gone since
            continue
    return Sample(processes, sizes)


def _kind(program: str) -> str:
    return next((kind for kind in ("java", "chrom") if program.startswith(kind)), "other")


class PeakMemory:
    """Looks at this process and its descendants in a thread of its own, until it is stopped.

    Args:
        seconds: how often.

    Attributes:
        peak: the largest sample so far.
    """

    def __init__(self, seconds: float = 1.0) -> None:
        self.peak = Sample()
        self._seconds = seconds
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        process = psutil.Process()
        while True:
            self.peak = max(self.peak, take_sample(process), key=lambda sample: sample.total)
            if self._stopped.wait(self._seconds):
                return

    def stop(self) -> Sample:
        """Ends the watch; the peak."""
        self._stopped.set()
        self._thread.join()
        return self.peak
