"""Schedules of bugs that the simulation found."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from helpers.places import STATE
from mirrorlake.storage.lease import Lease, LeaseHeldError
from simulation.scheduler import (
    KILL,
    KILL_AFTER,
    LATER,
    LOST,
    SUSPEND,
    SWITCH,
    Decision,
    Key,
    Odds,
    Pool,
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


def test_a_suspended_mirror_deletes_no_file_of_a_new_folder() -> None:
    """It had copied the applied files, and deleted those that were published meanwhile."""
    steps = {
        "publisher0": [("a", 1, False), ("a", 1, False), ("a", 3, False), ("a", 2, True)],
        "publisher1": [("a", 2, True), ("a", 1, False), ("a", 2, False), ("a", 1, True)],
        "operator": [("drop", "a", 1, 2.85)],
        "mirror0": [("cycle", None, 5), ("cycle", None, 5)],
    }
    decisions = {("mirror0#1.8", 36): (SUSPEND, 17), ("publisher1#1", 38): (SUSPEND, 46)}
    result = run(Schedule(3721, steps, Odds(), decisions), detailed=True)
    assert result.error is None, report(result)


def test_a_reseed_moves_the_files_back_that_a_suspended_mirror_has_applied() -> None:
    """A suspended mirror applied and moved files during the reseed, so file 1 was missing."""
    steps = {
        "publisher0": [("a", 1, True)],
        "publisher1": [("a", 2, True)],
        "operator": [("reseed", "a", 1, 0.47)],
        "mirror0": [("cycle", None, 30)],
        "mirror1": [("cycle", None, 30)],
    }
    decisions: dict[Key, Decision] = {
        ("hub", 1): (SWITCH, 4),
        ("hub", 9): (SWITCH, 1),
        ("mirror0#1.8", 22): (LATER, 26),
        ("operator#1", 35): (SWITCH, 45),
        ("hub", 10): (SWITCH, 1),
    }
    result = run(Schedule(5720, steps, Odds(), decisions), detailed=True)
    assert result.error is None, report(result)


def test_a_suspended_mirror_notices_a_reseed_in_its_next_cycle() -> None:
    """It compared the time of the new identity, which it had not read, so the table was idle."""
    steps = {
        "publisher0": [("a", 1, True)],
        "operator": [("reseed", "a", 1, 0.6)],
        "mirror0": [("cycle", None, 5), ("cycle", None, 5)],
    }
    check(steps, {("mirror0#1.5", 10): (SUSPEND, 1)})


def test_a_mirror_whose_lease_expired_keeps_the_states_of_others() -> None:
    """It was suspended, and its old states replaced those of mirrors that had run meanwhile."""
    steps = {
        "publisher0": [("b", 2, False), ("b", 3, True)],
        "original": [("o", 2, False)],
        "source0": [("s", 3, 0)],
        "source1": [("s", 3, 0)],
        "operator": [("rename", "b", 4, 3.0496603168024623)],
        "mirror0": [("cycle", None, 5)],
        "mirror1": [("cycle", "1/2", 5), ("cycle", "1/2", 5)],
        "mirror2": [("cycle", "2/2", 5)],
    }
    decisions: dict[Key, Decision] = {
        ("hub", 1): (SWITCH, 1),
        ("hub", 2): (SWITCH, 5),
        ("hub", 3): (SWITCH, 1),
        ("hub", 4): (SWITCH, 3),
        ("publisher0#1", 15): (LATER, 51),
        ("mirror0#1.13", 31): (SUSPEND, 1),
    }
    result = run(Schedule(1764, steps, Odds(), decisions), detailed=True)
    assert result.error is None, report(result)


def test_a_fault_of_the_store_stops_no_table_of_a_source() -> None:
    """The check for conditional writes failed, and its error stopped the table."""
    steps = {"source0": [("s", 1, 0)]}
    result = run(Schedule(250, steps, Odds(), {("source0#1", 13): (LOST, 0)}), detailed=True)
    assert any("can't be written to" in line for line in result.log)
    assert result.error is None, report(result)


PUBLISHED = [("b", 1, False), ("b", 3, True)]
CYCLE = [("cycle", None, 5)]
FILE = ("a", 1, False)
_POINT = re.compile(r" *[0-9.]+ (\S+) (\d+): .* (kill|kill after|suspend)$")


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
    """No state document had the table yet, so no mirror dropped or renamed it."""
    steps = {
        "mirror0": CYCLE, "publisher0": PUBLISHED, "mirror1": CYCLE, "operator": operations,
    }  # fmt: skip
    decisions = {("mirror1#1", 1): (SUSPEND, 0), ("mirror1#1.7", 50): (KILL, 0)}
    result = run(Schedule(81, steps, Odds(), decisions), detailed=True)
    assert any(line.endswith(" kill") for line in result.log)
    assert result.error is None, report(result)


def check(steps: dict[str, list[tuple[Any, ...]]], decisions: dict[Key, Decision]) -> None:
    """Run a schedule that has failed."""
    result = run(Schedule(1, steps, Odds(), decisions), detailed=True)
    assert set(decisions) <= {(one[1], int(one[2])) for one in map(_POINT.match, result.log) if one}
    assert result.error is None, report(result)


@pytest.mark.parametrize(
    "operations",
    [[("rename", "a", 0, 5)], [("drop", "a", 0, 5), ("rename", "a", 0, 15)]],
    ids=["rename", "drop"],
)
def test_a_folder_that_is_renamed_or_deleted_during_a_cycle_keeps_its_table(
    operations: list[tuple[str, str, int, float]],
) -> None:
    """The cycle wrote a new identity, so the folder existed again and replaced the table."""
    steps = {"publisher0": [FILE] * 3, "mirror0": CYCLE * 2, "operator": operations}
    check(steps, {("mirror0#1.7", 4): (SUSPEND, 0)})  # before it reads the identity


def test_undrop_leaves_a_folder_that_was_published_again() -> None:
    """The folder's new files got the identity of the old ones, so that the table stopped."""
    steps = {
        "publisher0": [FILE], "mirror0": CYCLE, "mirror1": CYCLE, "publisher1": [FILE],
        "operator": [("drop", "a", 0, 5), ("undrop", "a", 0, 50)],
    }  # fmt: skip
    check(steps, {("mirror1#1", 1): (SUSPEND, 0), ("publisher1#1", 1): (SUSPEND, 1)})


def test_undrop_restores_a_table_that_was_renamed_before() -> None:
    """The restored identity lacked the folder's first name, so the mirror dropped the table."""
    steps = {
        "publisher0": [FILE], "mirror0": CYCLE, "mirror1": CYCLE, "mirror2": CYCLE,
        "operator": [("rename", "a", 0, 5), ("drop", "a2", 0, 15), ("undrop", "a2", 0, 60)],
    }  # fmt: skip
    check(steps, {("mirror1#1", 1): (SUSPEND, 0), ("mirror2#1", 1): (SUSPEND, 1)})


def test_a_skipped_first_file_waits_for_a_file_with_columns() -> None:
    """The skipped file was planned alone, so that the plan could never be committed."""
    steps = {"publisher0": [FILE] * 2, "operator": [("skip", "a", 1)], "mirror0": CYCLE}
    check(steps, {("publisher0#1", 26): (SUSPEND, 0)})  # after its first file


def test_two_processes_of_a_source_can_begin_at_the_same_time() -> None:
    """One process found files without a position, which the other had just written."""
    steps = {"source0": [("s", 1, 0)], "source1": [("s", 1, 0)]}
    check(steps, {("source0#1", 4): (SUSPEND, 0)})  # between the position and the files


@pytest.mark.parametrize("document_first", [False, True], ids=["data first", "document first"])
def test_a_source_completes_a_first_load_that_was_moved_in_part(
    document_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The complete copy was deleted, because the table's folder existed.

    Files are copied concurrently. If the position was copied before the rows, the rows were lost.
    """

    def backwards(do: Callable[..., Any], *items: Any) -> Any:
        if len(items) > 1:
            return forwards(do, *items)
        return iter([do(one) for one in reversed(list(items[0]))][::-1])

    forwards = Pool.map
    if document_first:
        monkeypatch.setattr(Pool, "map", staticmethod(backwards))
    check({"source0": [("s", 3, 2)]}, {("source0#1", 56): (KILL_AFTER, 0)})


def test_a_killed_rename_of_a_server_is_no_receipt() -> None:
    """The folder was renamed with the upload, and a retry counted as a completed rename."""
    steps = {"publisher0": [FILE], "server0": [("a", 1)], "operator": [("rename", "a", 0, 5)]}
    check(steps, {("server0#1.4", 16): (SUSPEND, 0), ("server0#1.4", 17): (KILL, 0)})


def test_a_server_does_not_take_back_a_file_that_the_mirror_is_moving() -> None:
    """The file was applied and then refused, so the client published its rows again."""
    steps = {"server0": [("a", 1)], "publisher0": [FILE], "mirror0": CYCLE}
    decisions = {
        ("server0#1.4", 1): (SUSPEND, 0), ("server0#1.4", 23): (SUSPEND, 1),  # number 1
        ("publisher0#1", 1): (SUSPEND, 0), ("publisher0#1", 2): (SUSPEND, 0),  # number 2
        ("mirror0#1", 1): (SUSPEND, 1), ("mirror0#1.6", 47): (SUSPEND, 1),  # copied
    }  # fmt: skip
    check(steps, decisions)


def test_a_server_recognises_a_file_that_the_mirror_has_moved_since_its_listing() -> None:
    """A client's retry after a restart of the server was refused, so it published rows again."""
    steps = {"server0": [("a", 1)], "publisher0": [FILE], "mirror0": CYCLE}
    decisions = {
        ("server0#1.4", 1): (SUSPEND, 0), ("server0#1.4", 23): (KILL, 0),  # number 1
        ("publisher0#1", 1): (SUSPEND, 0), ("publisher0#1", 2): (SUSPEND, 0),  # number 2
        ("mirror0#1", 1): (SUSPEND, 1), ("server0#2.6", 17): (SUSPEND, 1),  # listed
    }  # fmt: skip
    check(steps, decisions)
