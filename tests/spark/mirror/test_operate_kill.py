"""Every operator's command, killed before each of its changes on disk and run again.

A real SIGKILL in a process of its own; after the second run and a cycle the table is what it would
be without the kill.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers.tables import bag
from mirrorlake import Lake
from mirrorlake.mirror.options import MirrorOptions

pytestmark = pytest.mark.long

KILLER = """
import os, signal, sys
from mirrorlake import Lake
from mirrorlake.storage import Storage
left = int(sys.argv[2])
def deadly(method):
    def counted(*args, **kwargs):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return method(*args, **kwargs)
    return counted
for name in ("write", "create", "rename", "delete", "touch", "move_folder", "delete_folder"):
    setattr(Storage, name, deadly(getattr(Storage, name)))
lake = Lake(sys.argv[1])
"""
MOST = 40  # changes on disk; no command makes so many here


def make(lake: Lake) -> None:
    publisher = lake.publisher("t", keys=["id"])
    for number in range(3):
        publisher.upsert([{"id": number, "v": "first"}])
        lake.mirror(options=MirrorOptions(compact_after=0))


def drop(lake: Lake) -> None:
    make(lake)
    lake.storage.delete_folder("Files/LandingZone/t")
    assert lake.mirror().dropped == ("t",)


def restore(lake: Lake) -> None:
    make(lake)
    lake.spark.sql(f"RESTORE {lake.table('t').sql_name} TO VERSION AS OF 1")


ROWS = {(n, "first"): 1 for n in range(3)}
WITHOUT_0 = {row: 1 for row in ROWS if row[0] != 0}
COMMANDS: dict[str, tuple[Callable[[Lake], None], str, dict[tuple[int, str], int]]] = {
    "replay": (restore, "lake.operations.replay('t', 1)", ROWS),
    "reseed": (restore, "lake.operations.reseed('t', apply=True)", ROWS),
    "reseed from a load": (
        make,
        "lake.operations.reseed('t', [sys.argv[3]], apply=True)",
        {(9, "load"): 1},
    ),
    "undrop": (drop, "lake.operations.undrop('t')", ROWS),
    "pause and resume": (make, "lake.operations.pause('t'); lake.operations.resume('t')", ROWS),
    "skip": (make, "lake.operations.skip('t', 4, apply=True)", ROWS),
    "forget": (make, "lake.forget('t', {'id': 0}, apply=True)", WITHOUT_0),
}


@pytest.mark.parametrize("command", list(COMMANDS))
def test_a_killed_command_is_run_again(tmp_path: Path, command: str) -> None:
    prepare, call, expected = COMMANDS[command]
    load = tmp_path / "load.parquet"
    pq.write_table(pa.table({"id": [9], "v": ["load"]}), load)
    for change in range(1, MOST):
        lake = Lake(tmp_path / f"lake {change}")
        prepare(lake)
        arguments = [sys.executable, "-c", KILLER + call, lake.storage.root, str(change), str(load)]
        done = subprocess.run(arguments, capture_output=True, check=False)
        if done.returncode == 0:
            assert change > 1, "nothing was killed"
            return
        assert done.returncode == -signal.SIGKILL, done.stderr.decode()[-2000:]
        assert not lake.mirror().failed or command.startswith("reseed")
        again = subprocess.run(
            [*arguments[:4], "-1", str(load)], capture_output=True, text=True, check=False
        )
        told = again.stderr.splitlines()[-1:] or [""]
        # A mirror may have ended what the killed command began.
        assert again.returncode == 0 or "is a table t again" in told[0] or "No dropped" in told[0]
        lake.operations.resume("t")
        assert not lake.mirror().failed
        assert bag(lake, "t", ["id", "v"]) == Counter(expected)
    pytest.fail(f"{command} makes more than {MOST} changes")
