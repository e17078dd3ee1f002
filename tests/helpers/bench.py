"""Benches: ratios measured side by side in one run, as the median of pairs.

A bench is a module in `tests/bench` with a function `run(pairs) -> BenchResult`. A bench whose
parts can run separately has them as `PARTS`, by name. A ratio is how many times better this project
is than the peer, so a higher ratio is better.
"""

from __future__ import annotations

import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from helpers.project import PROJECT
from mirrorlake.errors import MirrorlakeError, UsageError

if TYPE_CHECKING:
    from mirrorlake import Lake


BENCHES = PROJECT / "tests" / "bench"


@dataclass(frozen=True)
class BenchResult:
    """The result of a bench.

    Attributes:
        seconds: medians by measurement.
        ratios: the peer's seconds divided by ours, each the median of the pairs.
        requests: to a server, by cause, if the bench has a server.
        costs: computed from the requests, each with its unit in its name.
        sizes: bytes by what was written, if the bench measures them.
        counts: other numbers, such as files.
    """

    bench: str
    seconds: dict[str, float]
    ratios: dict[str, float]
    requests: dict[str, int] = field(default_factory=dict)
    costs: dict[str, float] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)


def bench_names() -> list[str]:
    """Return the names of all benches."""
    return sorted(path.stem for path in BENCHES.glob("*.py"))


def run_bench(name: str, pairs: int, part: str | None = None) -> BenchResult:
    """Run one bench, or one part of it.

    Raises:
        UsageError: there is no such bench or part.
    """
    path = BENCHES / f"{name}.py"
    if name not in bench_names():
        raise UsageError(f"There is no bench {name!r}.", hint=f"there are {bench_names()}.")
    spec = importlib.util.spec_from_file_location(f"bench_{name}", path)
    assert spec is not None and spec.loader is not None  # noqa: PT018 - for the type checker
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    run = module.run
    if part is not None:
        parts = getattr(module, "PARTS", {})
        if part not in parts:
            raise UsageError(f"Bench {name} has no part {part!r}.", hint=f"it has {list(parts)}.")
        run = parts[part]
    result: BenchResult = run(pairs)
    return result


def lake_part(
    measure: Callable[[Lake, int], BenchResult], *, profile: str | None = None
) -> Callable[[int], BenchResult]:
    """Run a part of a bench with its own lake; Spark starts before the measurement."""
    from mirrorlake import Lake
    from mirrorlake.spark.session import get_spark

    def part(pairs: int) -> BenchResult:
        get_spark(profile)
        with tempfile.TemporaryDirectory() as folder:
            return measure(Lake(folder), pairs)

    return part


def join_results(name: str, results: Iterable[BenchResult]) -> BenchResult:
    """Join several results into one."""
    joined = BenchResult(name, {}, {})
    for result in results:
        for kind in fields(BenchResult)[1:]:
            getattr(joined, kind.name).update(getattr(result, kind.name))
    return joined


def compare(
    name: str,
    what: str,
    ours: Callable[[], float],
    peer: Callable[[], float],
    pairs: int,
    *,
    warm_up: Callable[[], object] | None = None,
    warm_ups: int = 1,
) -> BenchResult:
    """Measure two functions in turns, after some runs of each that do not count.

    Args:
        name: the bench.
        what: the measurement.
        ours: returns seconds.
        peer: returns the seconds of the peer for the same work.
        pairs: the number of pairs that count.
        warm_up: called instead of the first runs, if a complete run takes too long.
        warm_ups: the number of runs of each that do not count.
    """
    if warm_up is None:
        for _ in range(warm_ups):
            ours(), peer()
    else:
        warm_up()
    measured = [(ours(), peer()) for _ in range(pairs)]
    mine, theirs = zip(*measured, strict=True)
    ratio = statistics.median(other / own for own, other in measured)
    seconds = {what: statistics.median(mine), f"{what}, peer": statistics.median(theirs)}
    rounded = {key: round(value, 3) for key, value in seconds.items()}
    return BenchResult(name, rounded, {what: round(ratio, 2)})


def run_script(path: Path, *arguments: str, env: dict[str, str] | None = None) -> dict[str, Any]:
    """Run a Python program to its end; return the JSON of its last line and the process's seconds.

    Raises:
        MirrorlakeError: the program failed.
    """
    began = time.monotonic()
    command = [sys.executable, str(path), *arguments]
    # The program finds the helpers of benches and tests in the same way as this one.
    shared = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    environment = os.environ | shared | (env or {})
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    seconds = time.monotonic() - began
    if done.returncode != 0:
        raise MirrorlakeError(f"{path.name} failed: {done.stderr[-2000:]}")
    lines = done.stdout.strip().splitlines()
    return {**(json.loads(lines[-1]) if lines else {}), "seconds": seconds}
