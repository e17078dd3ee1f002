"""Publishers of one table at once: eight processes, three of them killed on the way; threads."""

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
ENDLESS = 1000  # the writers count in thousands
TABLE = TableName(None, "t")
PROGRAM = Path(__file__).with_name("publisher_process.py")


def run_writers(
    storage: Storage, folder: Path, meanwhile: Callable[[], None]
) -> tuple[dict[int, str], set[int]]:
    """Runs the writers to their ends.

    Args:
        storage: the lake's files.
        folder: for the writers' logs.
        meanwhile: what goes on beside them, again and again.

    Returns:
        Batch to file, of all that was finished; and the writers that were killed.
    """
    logs = [folder / f"{writer}.log" for writer in range(WRITERS)]
    chance = random.Random(7)
    # They are killed when they have come so far, wherever they are just then. They have no end of
    # their own: what looks at them may be late.
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
    """Kills each writer that has come to its limit, until all have."""
    while victims and starter.poll() is None:
        for victim in [v for v in victims if len(finished(v[0])) >= v[1]]:
            os.kill(victim[2], signal.SIGKILL)
            victims.remove(victim)
        time.sleep(0.005)  # another process's file is no event to wait for


def _ended(process: subprocess.Popen[str]) -> bool:
    """Waits a moment for a process; to ask all the time would take the time of others."""
    with suppress(subprocess.TimeoutExpired):
        process.wait(0.01)
    return process.returncode is not None


def finished(log: Path) -> dict[int, str]:
    """Batch to file, of the lines that a writer has written whole."""
    if not log.exists():
        return {}
    lines = log.read_bytes().split(b"\n")[:-1]
    return {int(batch): name.decode() for batch, name in (line.split() for line in lines)}


def publish_side_by_side(root: str) -> list[int]:
    """Three threads with a publisher each, a row a file; the rows' keys, in order."""

    def publish(writer: int) -> list[int]:
        publisher = Publisher(Storage(root), TABLE, keys=["id"])
        ids = [writer * 100 + number for number in range(8)]
        for one in ids:
            publisher.insert([{"id": one}])
        return ids

    with ThreadPoolExecutor(3) as pool:
        return [one for ids in pool.map(publish, range(3)) for one in ids]
