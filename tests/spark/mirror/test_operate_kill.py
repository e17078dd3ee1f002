"""Every operator's command, killed before each of its changes on disk and run again.

SIGKILL is sent to a separate process. After the second run and a cycle, the table must be equal to
one without the kill.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers.tables import bag
from mirrorlake import Lake, MirrorOptions
from mirrorlake.errors import MirrorlakeError

pytestmark = pytest.mark.long

Call = tuple[str, list[Any], dict[str, Any]]  # a method of the lake, its arguments and its options

KILLER = """
import json, os, signal, sys
from operator import attrgetter
from mirrorlake import Lake
from mirrorlake.storage.files import Storage
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
for name, arguments, options in json.loads(sys.argv[3]):
    attrgetter(name)(lake)(*arguments, **options)
"""
MOST = 40  # changes on disk; no command makes that many
LOAD = "the file of a load"
# Errors of a repeated command whose work the mirror has already completed.
ENDED = ("A table t exists again", "no dropped table")


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
APPLY = {"apply": True}
COMMANDS: dict[str, tuple[Callable[[Lake], None], list[Call], dict[tuple[int, str], int]]] = {
    "replay": (restore, [("operations.replay", ["t", 1], {})], ROWS),
    "reseed": (restore, [("operations.reseed", ["t"], APPLY)], ROWS),
    "reseed from a load": (
        make,
        [("operations.reseed", ["t", [LOAD]], APPLY)],
        {(9, "load"): 1},
    ),
    "undrop": (drop, [("operations.undrop", ["t"], {})], ROWS),
    "pause and resume": (
        make,
        [("operations.pause", ["t"], {}), ("operations.resume", ["t"], {})],
        ROWS,
    ),
    "skip": (make, [("operations.skip", ["t", 4], APPLY)], ROWS),
    "forget": (make, [("forget", ["t", {"id": 0}], APPLY)], WITHOUT_0),
}


@pytest.mark.parametrize("command", list(COMMANDS))
def test_a_killed_command_is_run_again(tmp_path: Path, command: str) -> None:
    prepare, calls, expected = COMMANDS[command]
    load = tmp_path / "load.parquet"
    pq.write_table(pa.table({"id": [9], "v": ["load"]}), load)
    text = json.dumps(calls).replace(LOAD, str(load))
    prepare(Lake(tmp_path / "prepared"))
    for change in range(1, MOST):
        root = tmp_path / f"lake {change}"
        shutil.copytree(tmp_path / "prepared", root)
        program = [sys.executable, "-c", KILLER, str(root), str(change), text]
        done = subprocess.run(program, capture_output=True, check=False)
        if done.returncode == 0:
            assert change > 1, "nothing was killed"
            return
        assert done.returncode == -signal.SIGKILL, done.stderr.decode()[-2000:]
        lake = Lake(root)
        assert not lake.mirror().failed or command.startswith("reseed")
        try:
            for name, arguments, options in json.loads(text):
                attrgetter(name)(lake)(*arguments, **options)
        except MirrorlakeError as error:
            if not any(words in str(error) for words in ENDED):
                raise
        lake.operations.resume("t")
        assert not lake.mirror().failed
        assert bag(lake, "t", ["id", "v"]) == Counter(expected)
    pytest.fail(f"{command} makes more than {MOST} changes")
