"""Publishers of one table at once: eight processes, three of them killed on the way; threads."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from mirrorlake.landing.publisher import Publisher
from mirrorlake.names import TableName
from mirrorlake.storage import Storage

WRITERS = 8
BATCHES = 25
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
    # They are killed when they have come so far, wherever they are just then.
    doomed = {writer: chance.randrange(1, BATCHES - 5) for writer in chance.sample(range(8), 3)}
    processes = [
        subprocess.Popen(
            [sys.executable, str(PROGRAM), storage.root, str(writer), str(BATCHES), str(log)]
        )
        for writer, log in enumerate(logs)
    ]
    try:
        while any(process.poll() is None for process in processes):
            meanwhile()
            for writer, limit in doomed.items():
                if len(finished(logs[writer])) >= limit:
                    processes[writer].kill()
    finally:
        for process in processes:
            process.kill()
            process.wait()
    codes = {writer: process.returncode for writer, process in enumerate(processes)}
    killed = {writer for writer, code in codes.items() if code == -signal.SIGKILL}
    assert killed <= set(doomed)
    assert all(code == 0 for writer, code in codes.items() if writer not in killed)
    return {batch: name for log in logs for batch, name in finished(log).items()}, killed


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
