"""`mirror --watch` in a separate process, stopped by a signal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from helpers.places import PROCESSED
from helpers.project import PROJECT
from helpers.tables import bag
from mirrorlake import Lake
from mirrorlake.names import file_name

DEADLINE = 240  # seconds; on a busy machine Spark alone takes a while to start


def wait_for(what: Callable[[], Any], process: subprocess.Popen[bytes]) -> None:
    """Wait for a condition; fail if the process ends first."""
    end = time.monotonic() + DEADLINE
    while not what():
        assert process.poll() is None, process.communicate()[1].decode()[-2000:]
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.05)


def monitoring(lake: Lake, name: str) -> Any:
    return lake.storage.read_json(f"Files/Monitoring/{name}.json")


def rows_told(lake: Lake) -> dict[str, int]:
    tables = (monitoring(lake, "tables") or {"tables": []})["tables"]
    return {line["sourceTableName"]: line["metrics"]["processedRowCount"] for line in tables}


def replicator(lake: Lake) -> str | None:
    return (monitoring(lake, "replicator") or {}).get("status")


@contextmanager
def watching(lake: Lake, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "mirrorlake.cli", "mirror", lake.storage.root, "--watch"]
    process = subprocess.Popen(
        [*command, "--interval", "0.2", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(PROJECT / "lib")},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def stop(process: subprocess.Popen[bytes], number: signal.Signals) -> dict[str, Any]:
    process.send_signal(number)
    out, err = process.communicate(timeout=DEADLINE)
    assert process.returncode == 0, err.decode()[-2000:]
    assert b"Traceback" not in err
    report: dict[str, Any] = json.loads(out)
    return report


@pytest.mark.promise("LZ-02")
def test_files_are_applied_as_they_come_until_sigterm(lake: Lake) -> None:
    publisher = lake.publisher("t", keys=["id"])
    publisher.write([{"id": 1, "v": "a"}])
    with watching(lake, "--json") as process:
        wait_for(lambda: rows_told(lake) == {"t": 1}, process)
        assert replicator(lake) == "Running"
        publisher.upsert([{"id": 1, "v": "b"}, {"id": 2, "v": "c"}])
        lake.publisher("late").write([{"id": 7}])  # a new folder
        wait_for(lambda: rows_told(lake) == {"late": 1, "t": 3}, process)
        # SIGTERM during a commit: the planned commit finishes.
        publisher.delete([{"id": 2}])
        plans = Path(lake.storage.path("Files/_mirrorlake/plans/t"))
        wait_for(lambda: len(list(plans.rglob("*.json"))) == 3, process)
        report = stop(process, signal.SIGTERM)
    assert replicator(lake) == "Stopped"
    lines = {line["name"]: line for line in report["tables"]}
    assert [lines[name]["error"] for name in ("late", "t")] == [None, None]
    assert (lines["t"]["rows"], lines["t"]["last_file"], lines["t"]["backlog_files"]) == (4, 3, 0)
    assert bag(lake, "t", ["id", "v"]) == {(1, "b"): 1}
    assert bag(lake, "late", ["id"]) == {(7,): 1}
    folder = Path(lake.landing_zone) / "t"
    assert sorted(p.name for p in folder.glob("0*")) == [file_name(3)]
    assert sorted(p.name for p in (folder / PROCESSED).iterdir()) == [file_name(1), file_name(2)]
    assert not lake.mirror().failed  # nothing is incomplete
    assert lake.table("t").snapshot().txns.popitem()[1] == 3


@pytest.mark.parametrize(
    "number",
    [pytest.param(signal.SIGTERM, marks=pytest.mark.long), signal.SIGINT],
    ids=lambda n: n.name,
)
def test_an_idle_watch_ends_at_once_and_without_spark(lake: Lake, number: signal.Signals) -> None:
    (Path(lake.landing_zone) / "empty").mkdir(parents=True)
    with watching(lake, "--json") as process:
        wait_for(lambda: replicator(lake) == "Running", process)
        (line,) = stop(process, number)["tables"]
    assert (line["name"], line["state"], line["error"]) == ("empty", "Initialized", None)
    assert replicator(lake) == "Stopped"


def test_a_failed_table_gives_exit_status_1_and_the_watch_continues(lake: Lake) -> None:
    folder = Path(lake.landing_zone) / "bad"
    folder.mkdir(parents=True)
    (folder / file_name(1)).touch()
    with watching(lake) as process:
        wait_for(lambda: "bad" in rows_told(lake), process)
        (folder.parent / "more").mkdir()
        wait_for(lambda: set(rows_told(lake)) == {"bad", "more"}, process)
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=DEADLINE)
    assert process.returncode == 1
    assert "zero bytes" in " ".join(out.decode().split())
    states = {
        line["sourceTableName"]: line["status"] for line in monitoring(lake, "tables")["tables"]
    }
    assert states == {"bad": "Failed", "more": "Initialized"}
