"""Schedules of bugs that the simulation found."""

from __future__ import annotations

import pytest

from helpers.places import STATE
from mirrorlake.storage.lease import Lease, LeaseHeldError
from simulation.scheduler import (
    KILL,
    LOST,
    SUSPEND,
    SWITCH,
    Odds,
    Process,
    Scheduler,
    SimulatedTime,
)  # fmt: skip
from simulation.schedules import Schedule, report, run
from simulation.world import SimulatedLake


def test_a_lease_that_is_renewed_meanwhile_is_not_taken_over() -> None:
    """A store's ETag can be a hash of the content, which a renewal must therefore change."""
    path = f"{STATE}/x.lock"
    # The holder is suspended before it renews. It continues before the other process, which has
    # found the lease too old, writes to it.
    scheduler = Scheduler(1, replayed={("holder", 2): (SUSPEND, 1), ("other", 6): (SWITCH, 0)})
    lake = SimulatedLake(scheduler)
    done: list[str] = []

    def hold() -> None:
        with Lease(lake.storage, path, "it") as lease:
            lease.confirm()
            done.append("renewed")
            SimulatedTime.sleep(1)
            lease.confirm()

    def take() -> None:
        SimulatedTime.sleep(44.97)
        with pytest.raises(LeaseHeldError):
            Lease(lake.storage, path, "it").__enter__()
        done.append("refused")

    scheduler.start(Process("one"), hold, "holder")
    scheduler.start(Process("two"), take, "other")
    scheduler.run()
    assert done == ["renewed", "refused"]


def test_a_reseed_during_a_cycle_keeps_the_files_of_the_folder() -> None:
    """The cycle committed after the reseed and moved its files, so that file 1 was missing."""
    steps = {
        "publisher0": [("a", 1, False), ("a", 3, True)],
        "mirror0": [("cycle", None, 5)],
        "operator": [("reseed", "a")],
    }
    decisions = {("operator#1", 1): (SUSPEND, 0), ("mirror0#1.5", 27): (SUSPEND, 1)}
    result = run(Schedule(55, steps, Odds(), decisions), detailed=True)
    assert result.error is None, report(result)


def test_a_fault_of_the_store_stops_no_table_of_a_source() -> None:
    """The first write, of the check of conditions, failed: the error counted as the table's."""
    steps = {"source0": [("s", 1, 0)]}
    result = run(Schedule(250, steps, Odds(), {("source0#1", 13): (LOST, 0)}), detailed=True)
    assert any("can't be written to" in line for line in result.log)
    assert result.error is None, report(result)


PUBLISHED = [("b", 1, False), ("b", 3, True)]
CYCLE = [("cycle", None, 5)]


@pytest.mark.parametrize(
    "operations",
    [
        [("drop", "b", 0, 16)],
        [("rename", "b", 0, 16)],
        [("reseed", "b", 0, 14), ("rename", "b", 0, 2)],
    ],
    ids=["drop", "rename", "reseed and rename"],
)
def test_a_new_table_is_followed_though_its_mirror_was_killed(
    operations: list[tuple[str, str, int, float]],
) -> None:
    """No state document had the table yet, so that nobody dropped or renamed it."""
    steps = {
        "mirror0": CYCLE, "publisher0": PUBLISHED, "mirror1": CYCLE, "operator": operations,
    }  # fmt: skip
    decisions = {("mirror1#1", 1): (SUSPEND, 0), ("mirror1#1.7", 50): (KILL, 0)}
    result = run(Schedule(81, steps, Odds(), decisions), detailed=True)
    assert any(line.endswith(" kill") for line in result.log)
    assert result.error is None, report(result)
