"""No interleaving, fault or clock loses, repeats or reorders rows, or stops a table silently."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from helpers.examples import under_long
from helpers.project import PROJECT
from simulation.mutants import missing_plans
from simulation.schedules import Result, make_schedule, report, run, shrink

_PRINT = """
from simulation.schedules import make_schedule, run
from simulation.world import replaced
with replaced():
    for seed in range(20):
        print(seed, *run(make_schedule(seed), detailed=True).log, sep="\\n")
"""


def first_failure(seeds: range) -> Result | None:
    """Return the first failure, shrunk."""
    for seed in seeds:
        if (result := run(make_schedule(seed))).error is not None:
            return shrink(result)
    return None


@pytest.mark.parametrize("seeds", [range(300), *under_long(range(300, 20_000))], ids=len)
def test_no_schedule_violates_an_invariant(
    seeds: range, capsys: pytest.CaptureFixture[str]
) -> None:
    start = time.process_time()
    failure = first_failure(seeds)
    assert failure is None, report(failure)
    with capsys.disabled():
        print(f"\n{len(seeds):,} schedules in {time.process_time() - start:.0f} s of one core")


def test_a_seed_always_makes_the_same_schedule() -> None:
    for seed in range(10):
        schedule = make_schedule(seed)
        assert schedule == make_schedule(seed)
        first, again = (run(schedule, detailed=True) for _ in range(2))
        assert first.log == again.log
        replayed = run(first.schedule, detailed=True)  # its decisions, not drawn again
        assert replayed.log == first.log


@pytest.mark.long
def test_a_seed_makes_the_same_schedule_in_every_process() -> None:
    outputs = []
    for hashes in ("1", "2"):
        path = os.pathsep.join(map(str, (PROJECT / "lib", PROJECT / "tests")))
        environment = {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": hashes}
        command = [sys.executable, "-c", _PRINT]
        outputs.append(subprocess.run(command, env=environment, capture_output=True, check=True))
    assert outputs[0].stdout == outputs[1].stdout


def test_a_failure_is_shrunk_and_can_be_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    missing_plans(monkeypatch)
    failure = next(r for r in map(run, map(make_schedule, range(5_000))) if r.error is not None)
    small = shrink(failure)
    steps = [sum(map(len, one.schedule.steps.values())) for one in (failure, small)]
    decisions = [len(one.schedule.decisions or ()) for one in (failure, small)]
    assert (steps[1], decisions[1]) <= (steps[0], decisions[0])
    assert f"seed {failure.schedule.seed}: {small.error}" in report(small)
    assert run(small.schedule).error == small.error
