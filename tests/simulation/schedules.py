"""Compute the schedule of a seed, run it, and shrink it if it fails."""

from __future__ import annotations

import random
import re
import traceback
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from simulation.actors import (
    Actor,
    Mirror,
    Operator,
    OriginalPublisher,
    OurPublisher,
    Server,
    SourceReader,
)  # fmt: skip
from simulation.scheduler import (
    DELAY,
    FAIL,
    KILL,
    KILL_AFTER,
    LATER,
    LOST,
    SKEW,
    SUSPEND,
    TWICE,
    Decision,
    Key,
    Odds,
    Scheduler,
    Violation,
)  # fmt: skip
from simulation.world import SimulatedLake

KINDS = (FAIL, KILL, KILL_AFTER, LOST, TWICE, DELAY, SUSPEND, SKEW, LATER)
ACTIONS = (
    "pause", "resume", "skip", "replay", "reseed", "undrop", "drop", "drop slowly", "rename",
)  # fmt: skip
Steps = dict[str, list[tuple[Any, ...]]]


@dataclass(frozen=True)
class Schedule:
    """The steps of the actors, and the decisions of the scheduler.

    Attributes:
        steps: the steps of each actor.
        decisions: the recorded decisions; None draws them with the seed.
    """

    seed: int
    steps: Steps
    odds: Odds
    decisions: dict[Key, Decision] | None = None


@dataclass
class Result:
    """The end of a run."""

    schedule: Schedule
    error: str | None
    points: int
    log: list[str] = field(default_factory=list)


def make_schedule(seed: int) -> Schedule:
    """Return the schedule of a seed."""
    draw = random.Random(f"steps {seed}")
    tables = ["a", "b"][: draw.randint(1, 2)]
    steps: Steps = {}
    for number in range(draw.randint(1, 2)):
        steps[f"publisher{number}"] = [
            (draw.choice(tables), draw.randint(1, 3), draw.random() < 0.6)
            for _ in range(draw.randint(1, 4))
        ]
    if draw.random() < 0.25:
        steps["original"] = [("o", draw.randint(1, 2), False) for _ in range(draw.randint(1, 4))]
    for number in range(draw.choice((0, 0, 0, 0, 1, 2))):
        steps[f"server{number}"] = [
            (draw.choice(tables), *[1] * draw.randint(1, 2)) for _ in range(draw.randint(1, 3))
        ]
    loaded = draw.choice((0, 0, 2))  # two readers of a source can't load a table at the same time
    for number in range(draw.choice((0, 0, 0, 0, 1, 1 if loaded else 2))):
        steps[f"source{number}"] = [("s", n + loaded, loaded) for n in range(1, 5, 2)]
    if draw.random() < 0.4:
        steps["operator"] = [
            (draw.choice(ACTIONS), draw.choice(tables), draw.randint(1, 4), draw.uniform(0, 4))
            for _ in range(draw.randint(1, 3))
        ]
    parts = draw.choice(([None], [None], [None, None], ["1/2", "2/2"], [None, "1/2", "2/2"]))
    patience = draw.choice((None, 5, 30))
    if "operator" in steps:
        patience = patience or 5  # operations need mirrors that take a lease
    for number, shard in enumerate(parts):
        steps[f"mirror{number}"] = [("cycle", shard, patience) for _ in range(draw.randint(1, 4))]
    odds = Odds(
        draw.choice((0.01, 0.05, 0.2)),
        draw.choice((0.0, 0.003, 0.01, 0.03)),
        tuple(draw.sample(KINDS, draw.randint(2, len(KINDS)))),
        draw.randint(0, 3),
    )
    return Schedule(seed, steps, odds)


ACTORS: dict[str, type[Actor]] = {
    "publisher": OurPublisher,
    "original": OriginalPublisher,
    "server": Server,
    "source": SourceReader,
    "operator": Operator,
    "mirror": Mirror,
}


def make_actor(lake: SimulatedLake, name: str, steps: list[tuple[Any, ...]]) -> Actor:
    """Return the actor of a name."""
    actor = ACTORS[name.rstrip("0123456789")](lake, name, steps)
    if isinstance(actor, Mirror):
        _, shard, patience = steps[0]
        actor.options = {
            "shard": shard, "patience": patience, "batch_files": 2, "keep_processed_days": 1,
        }  # fmt: skip
    return actor


def run(schedule: Schedule, *, detailed: bool = False) -> Result:
    """Run a schedule, then mirror without faults until nothing changes, and check the lake."""
    log: list[str] = []
    scheduler = Scheduler(
        schedule.seed, schedule.odds, schedule.decisions, trace=log.append, detailed=detailed
    )
    lake = SimulatedLake(scheduler)
    error = None
    scratch = TemporaryDirectory()
    Server.scratch = Path(scratch.name)
    try:
        for name, steps in schedule.steps.items():
            make_actor(lake, name, steps).start()
        scheduler.run()
        scheduler.quiet = True
        scheduler.now += 100_000  # leases expire
        lake.resume()
        Mirror(lake, "last", [("cycle",)] * 8).start()
        scheduler.run()
        lake.check_end()
    except Violation as violation:
        error = str(violation)
    except Exception as unexpected:
        error = f"{type(unexpected).__name__}: {unexpected}"
        log += traceback.format_exception(unexpected)
    finally:
        end(scheduler)
        scratch.cleanup()
    made = schedule.decisions if schedule.decisions is not None else scheduler.made
    return Result(replace(schedule, decisions=dict(made)), error, scheduler.points, log)


def end(scheduler: Scheduler) -> None:
    """Unwind all tasks that are left."""
    for task in list(scheduler.tasks):
        task.process.dead = True
    scheduler._bury()


def shrink(result: Result, runs: int = 300) -> Result:
    """Return a failure of the same kind with fewer steps and decisions."""
    best = result

    def fails(steps: Steps, decisions: dict[Key, Decision]) -> bool:
        nonlocal best, runs
        runs -= 1
        found = run(replace(result.schedule, steps=steps, decisions=decisions))
        if found.error is None or kind_of(found.error) != kind_of(result.error):
            return False
        best = found
        return True

    def smaller() -> bool:
        steps, decisions = best.schedule.steps, best.schedule.decisions or {}
        keys = list(decisions)
        size = max(1, len(keys) // 2)
        while size and keys and runs > 0:
            for start in range(0, len(keys), size):
                rest = {k: decisions[k] for k in keys[:start] + keys[start + size :]}
                if fails(steps, rest):
                    return True
            size //= 2
        for name, some in steps.items():
            for place in range(len(some)):
                if runs > 0:
                    less = {**steps, name: some[:place] + some[place + 1 :]}
                    if fails({n: s for n, s in less.items() if s}, decisions):
                        return True
        return False

    while runs > 0 and smaller():
        pass
    return best


def kind_of(error: str | None) -> str:
    """Return an error without numbers and ids, which differ between runs."""
    return re.sub(r"\d+|[0-9a-f]{8,}|'[^']*'", "", error or "")


def report(result: Result) -> str:
    """Describe a failure: the seed, the schedule, and what happened."""
    schedule = result.schedule
    steps = "\n".join(f"  {name}: {some}" for name, some in schedule.steps.items())
    decisions = "\n".join(
        f"  {task} at its point {point}: {kind} {place}"
        for (task, point), (kind, place) in (schedule.decisions or {}).items()
    )
    return (
        f"seed {schedule.seed}: {result.error}\nsteps:\n{steps}\ndecisions:\n{decisions}\n"
        + "\n".join(result.log)
    )
