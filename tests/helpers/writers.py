"""Concurrent publishers of one table: eight processes, three of which are killed; threads."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from mirrorlake import Publisher
from mirrorlake.names import TableName
from mirrorlake.storage.files import Storage

WRITERS = 8
BATCHES = 12
ENDLESS = 1000  # the writers number their batches in thousands
TABLE = TableName(None, "t")
PROGRAM = Path(__file__).with_name("publisher_process.py")


def run_writers(
    storage: Storage, folder: Path, meanwhile: Callable[[], None]
) -> tuple[dict[int, str], set[int]]:
    """Run the writers until they end.

    Args:
        storage: the lake's files.
        folder: the folder for the logs of the writers.
        meanwhile: called repeatedly while they run.

    Returns:
        The file of each completed batch, and the killed writers.
    """
    logs = [folder / f"{writer}.log" for writer in range(WRITERS)]
    chance = random.Random(7)
    # They are killed at a random place after this number of batches. They never end by themselves,
    # because the observer may be late.
    doomed = {writer: chance.randrange(1, BATCHES - 5) for writer in chance.sample(range(8), 3)}
    batches = [str(ENDLESS if writer in doomed else BATCHES) for writer in range(WRITERS)]
    starter = subprocess.Popen(
        [sys.executable, str(PROGRAM), storage.root, ",".join(batches), *map(str, logs)],
        stdout=subprocess.PIPE,
        start_new_session=True,
        text=True,
    )
    try:
        assert starter.stdout is not None
        pids = [int(pid) for pid in starter.stdout.readline().split()]
        victims = [(logs[writer], limit, pids[writer]) for writer, limit in doomed.items()]
        with ThreadPoolExecutor(1) as beside:
            killed_all = beside.submit(_kill, victims, starter)
            while not _ended(starter):
                meanwhile()
            killed_all.result()
        codes = dict(enumerate(map(int, starter.stdout.readline().split())))
    finally:
        with suppress(ProcessLookupError):
            os.killpg(starter.pid, signal.SIGKILL)
        starter.communicate()
    killed = {writer for writer, code in codes.items() if code == -signal.SIGKILL}
    assert killed <= set(doomed)
    assert all(code == 0 for writer, code in codes.items() if writer not in killed)
    return {batch: name for log in logs for batch, name in finished(log).items()}, killed


def _kill(victims: list[tuple[Path, int, int]], starter: subprocess.Popen[str]) -> None:
    """Kill each writer that has reached its limit, until all have."""
    while victims and starter.poll() is None:
        for victim in [v for v in victims if len(finished(v[0])) >= v[1]]:
            os.kill(victim[2], signal.SIGKILL)
            victims.remove(victim)
        time.sleep(0.005)  # the file of another process raises no event


def _ended(process: subprocess.Popen[str]) -> bool:
    """Wait briefly for a process, without taking its time by polling."""
    with suppress(subprocess.TimeoutExpired):
        process.wait(0.01)
    return process.returncode is not None


def finished(log: Path) -> dict[int, str]:
    """Return the file of each batch from the complete lines of a writer's log."""
    if not log.exists():
        return {}
    lines = log.read_bytes().split(b"\n")[:-1]
    return {int(batch): name.decode() for batch, name in (line.split() for line in lines)}


def publish_side_by_side(root: str) -> list[int]:
    """Publish from three threads, one row per file; return the keys of the rows in order."""

    def publish(writer: int) -> list[int]:
        publisher = Publisher(Storage(root), TABLE, keys=["id"])
        ids = [writer * 100 + number for number in range(8)]
        for one in ids:
            publisher.insert([{"id": one}])
        return ids

    with ThreadPoolExecutor(3) as pool:
        return [one for ids in pool.map(publish, range(3)) for one in ids]
