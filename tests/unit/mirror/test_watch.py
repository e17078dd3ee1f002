"""Watching: pauses between cycles, stopping, and the monitoring files."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from threading import Event, Timer
from typing import Any

import pytest

from mirrorlake import MirrorOptions
from mirrorlake.errors import TableNotFoundError
from mirrorlake.mirror import status
from mirrorlake.mirror.engine import Engine, watch
from mirrorlake.mirror.options import Step, concurrent_tables
from mirrorlake.mirror.state import Shard, TableState, load_states, mirror_lease, save_states
from mirrorlake.names import TableName
from mirrorlake.storage.files import Storage

REPLICATOR = "Files/Monitoring/replicator.json"


def report(last: int, backlog: int = 0) -> status.MirrorReport:
    state = TableState(None, "t", last_file=last)
    line = status.MirroredTable.since(status.status_of(state, None), None)
    return status.MirrorReport((replace(line, backlog_files=backlog),))


class ScriptedEngine(Engine):
    """An engine whose cycles return prepared reports."""

    def __init__(self, storage: Storage, script: list[status.MirrorReport | Exception]) -> None:
        super().__init__(storage, lambda: pytest.fail("Spark was asked for"))
        self.script = script

    def run_cycle(self, only: TableName | None = None) -> status.MirrorReport:
        """Return the next report of the script."""
        step = self.script.pop(0)
        if isinstance(step, Exception):
            raise step
        return step


class CountedPauses(Event):
    """An event that is set after a number of pauses and does not wait."""

    def __init__(self, pauses: int) -> None:
        super().__init__()
        self.left = pauses
        self.waited: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        """Record the pause."""
        assert timeout is not None
        self.waited.append(timeout)
        self.left -= 1
        return self.left == 0


def pauses(storage: Storage, script: list[status.MirrorReport], **options: Any) -> list[float]:
    stop, heard = CountedPauses(len(script)), []
    engine = ScriptedEngine(storage, list(script))
    last = watch(engine, stop, on_report=heard.append, **options)
    assert (heard, last) == (script, script[-1])
    assert storage.read_json(REPLICATOR)["status"] == "Stopped"
    return stop.waited


def test_pauses_grow_while_nothing_happens_and_shrink_when_something_does(storage: Storage):
    quiet, busy = report(1), report(2)
    waited = pauses(storage, [quiet] * 4 + [busy] * 3, interval=10)
    assert waited == [10, 15, 22.5, 33.75, 10, 15, 22.5]
    backlog = [
        report(1),
        report(1, backlog=1),
        report(1, backlog=1),
        status.MirrorReport((), ("t",)),
    ]
    assert pauses(storage, backlog, interval=10) == [10, 10, 15, 10]


def test_no_pause_is_longer_than_the_longest_or_the_interval(storage: Storage):
    assert pauses(storage, [report(1)] * 5, interval=30) == [30, 45, 60, 60, 60]
    assert pauses(storage, [report(1)] * 3, interval=90) == [90, 90, 90]


def test_a_stop_that_came_before_still_lets_one_cycle_end(storage: Storage):
    stop = Event()
    stop.set()
    assert watch(ScriptedEngine(storage, [report(3)]), stop) == report(3)


def test_a_failed_cycle_ends_the_watch_and_is_recorded(storage: Storage):
    engine = ScriptedEngine(storage, [report(1), TableNotFoundError("gone")])
    stop = CountedPauses(9)
    with pytest.raises(TableNotFoundError, match="gone"):
        watch(engine, stop)
    assert stop.waited == [5]
    assert storage.read_json(REPLICATOR)["status"] == "Stopped"


@pytest.mark.parametrize("held", [None, "1/2"])
def test_a_stop_ends_the_wait_for_another_mirror(storage: Storage, held: str | None) -> None:
    """SIGTERM must not wait for up to ten minutes, and the other mirror keeps running."""
    stop = Event()
    engine = Engine(storage, lambda: pytest.fail("Spark was asked for"), stop=stop)
    engine.run_cycle()
    with mirror_lease(storage, 0, Shard.parse(held)):
        Timer(0.2, stop.set).start()
        began = time.monotonic()
        assert watch(engine, stop).tables == ()
        assert time.monotonic() - began < 30
        assert storage.read_json(REPLICATOR)["status"] == "Running"


def test_a_new_cycle_sets_the_status_to_running(any_storage: Storage):
    state = {"x": TableState(None, "x", rows=3)}
    save_states(any_storage, state)
    engine = Engine(any_storage, lambda: pytest.fail("Spark was asked for"))
    engine.close()
    assert load_states(any_storage) == state
    assert any_storage.read_json(REPLICATOR)["status"] == "Stopped"
    assert any_storage.exists("Files/Monitoring/tables.json")
    engine.run_cycle()
    engine.close()
    engine.run_cycle()  # nothing changed, but a mirror is running
    assert any_storage.read_json(REPLICATOR)["status"] == "Running"


def test_no_table_is_begun_after_the_stop(storage: Storage):
    for name in "abc":
        storage.write(f"Files/LandingZone/{name}/{1:020d}.parquet", b"not looked at")
    stop = Event()
    stop.set()
    found = Engine(storage, lambda: pytest.fail("Spark was asked for"), stop=stop).run_cycle()
    assert [(t.name, t.state, t.backlog_files) for t in found.tables] == [
        (name, "Initialized", 1) for name in "abc"
    ]
    assert found.failed == ()


def test_as_many_tables_at_once_as_there_are_cores_here_or_in_the_cluster() -> None:
    options = MirrorOptions()
    assert concurrent_tables(options) == min(8, (os.cpu_count() or 1) + 1)
    assert [concurrent_tables(options, cores) for cores in (2, 9, 31, 400)] == [3, 10, 32, 32]
    assert concurrent_tables(MirrorOptions(tables_at_once=5), 400) == 5


@pytest.mark.parametrize("others_after", [0.05, None])
def test_a_slow_table_does_not_hold_up_the_others(
    any_storage: Storage, others_after: float | None
) -> None:
    looked: list[str] = []
    again = Event()
    quick = "Files/LandingZone/quick"

    def declare(folder: str, key: str) -> None:
        any_storage.write_json(f"{folder}/_metadata.json", {"keyColumns": [key]})

    def on_step(table: TableName, _step: Step) -> None:
        looked.append(table.name)
        if table.name == "quick" and looked.count("quick") > 2:  # two steps of a cycle
            again.set()
        elif table.name == "slow" and looked.count("slow") == 1:
            for _ in range(400 if others_after else 4):
                known = (load_states(any_storage) or {}).get(quick)
                if known not in (None, TableState(None, "quick")):
                    declare(quick, "another")  # it has finished and now has new work
                    break
                again.wait(0.05)
            assert again.wait(20 if others_after else 0.1) is (others_after is not None)

    declare("Files/LandingZone/slow", "id")
    declare(quick, "id")
    engine = Engine(
        any_storage,
        lambda: pytest.fail("Spark was asked for"),
        MirrorOptions(tables_at_once=2),
        on_step,
        others_after=others_after,
    )
    report = engine.run_cycle()
    assert not report.failed
    assert [line.name for line in report.tables] == ["quick", "slow"]
    assert set(load_states(any_storage) or {}) == {quick, "Files/LandingZone/slow"}
