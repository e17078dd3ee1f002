from __future__ import annotations

import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from mirrorlake.landing.zone import list_folder
from mirrorlake.names import PROCESSED, TableName, file_name, file_number
from mirrorlake.storage import Storage

WRITERS = 8
BATCHES = 50
TABLE = TableName(None, "t")
PROGRAM = Path(__file__).with_name("publisher_process.py")


def move_processed(storage: Storage) -> None:
    """The part of the mirror that can disturb publishers: all but the last file go away."""
    numbered = list_folder(storage, TABLE).numbered
    for number in sorted(numbered)[:-1]:
        name = numbered[number].name
        # Never overwrites: a number that a slow writer has for a moment stays where it is.
        try:
            storage.rename(f"{TABLE.folder}/{name}", f"{TABLE.folder}/{PROCESSED}/{name}")
        except FileNotFoundError:
            continue  # that writer has taken it back


def finished(log: Path) -> dict[int, str]:
    """Batch to file, of the lines that a writer has written whole."""
    if not log.exists():
        return {}
    lines = log.read_bytes().split(b"\n")[:-1]
    return {int(batch): name.decode() for batch, name in (line.split() for line in lines)}


@pytest.mark.promise("LZ-13")
@pytest.mark.promise("LZ-14")
def test_many_writers_lose_nothing_and_dead_ones_block_nobody(tmp_path: Path):
    storage = Storage(tmp_path / "lake")
    logs = [tmp_path / f"{writer}.log" for writer in range(WRITERS)]
    chance = random.Random(7)
    # Three of the writers are killed when they have come so far, wherever they are just then.
    doomed = {writer: chance.randrange(1, BATCHES - 5) for writer in chance.sample(range(8), 3)}
    processes = [
        subprocess.Popen(
            [sys.executable, str(PROGRAM), storage.root, str(writer), str(BATCHES), str(log)]
        )
        for writer, log in enumerate(logs)
    ]
    try:
        while any(process.poll() is None for process in processes):
            move_processed(storage)
            for writer, limit in doomed.items():
                if len(finished(logs[writer])) >= limit:
                    processes[writer].kill()
    finally:
        for process in processes:
            process.kill()
            process.wait()
    codes = {writer: process.returncode for writer, process in enumerate(processes)}
    assert {writer for writer, code in codes.items() if code == -signal.SIGKILL} == set(doomed)
    assert all(code == 0 for writer, code in codes.items() if writer not in doomed)

    here = {e.name for e in storage.list(TABLE.folder).files if file_number(e.name)}
    away = {e.name for e in storage.list(f"{TABLE.folder}/{PROCESSED}").files}
    done = {batch: name for log in logs for batch, name in finished(log).items()}
    # A writer killed in the moment of taking a used number back leaves it there for the mirror to
    # report; nothing that a writer saw finished may be such a file.
    published = {name: f"{PROCESSED}/{name}" for name in away}
    published |= {name: name for name in here - away}
    assert len(here & away) <= len(doomed)

    numbers = sorted(file_number(name) or 0 for name in published)
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(set(done.values())) == len(done)

    batches: dict[str, int] = {}
    for name, path in published.items():
        rows = pq.ParquetFile(Path(storage.root, TABLE.folder, path)).read().to_pylist()
        assert len(rows) == 1
        batches[name] = rows[0]["id"]
    times = Counter(batches.values())
    assert max(times.values()) == 1
    assert {batch: batches[name] for batch, name in done.items()} == {b: b for b in done}
    unfinished = set(times) - set(done)
    assert len(unfinished) <= len(doomed)
    assert {batch // 1000 for batch in unfinished} <= set(doomed)
    assert len(done) >= (WRITERS - len(doomed)) * BATCHES
    assert file_name(len(numbers)) in here
