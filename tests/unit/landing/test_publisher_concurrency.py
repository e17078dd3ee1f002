"""Concurrent writers lose no batch, and a killed writer blocks no other."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from helpers.places import PROCESSED
from helpers.writers import BATCHES, TABLE, WRITERS, run_writers
from mirrorlake.landing import zone
from mirrorlake.names import file_name, file_number
from mirrorlake.storage.files import Storage


def move_processed(storage: Storage) -> None:
    """Move all files but the last one, as the mirror does beside publishers."""
    numbered = zone.list_folder(storage, TABLE).numbered
    for number in sorted(numbered)[:-1]:
        name = numbered[number].name
        # Never overwrites: a number that a slow writer holds for a short time is kept.
        try:
            storage.rename(f"{TABLE.folder}/{name}", f"{TABLE.folder}/{PROCESSED}/{name}")
        except FileNotFoundError:
            continue  # that writer has released the number


@pytest.mark.promise("LZ-13", "LZ-14")
def test_many_writers_lose_nothing_and_dead_ones_block_nobody(tmp_path: Path):
    storage = Storage(tmp_path / "lake")
    done, doomed = run_writers(storage, tmp_path, lambda: move_processed(storage))
    assert len(doomed) == 3

    here = {e.name for e in storage.list(TABLE.folder).files if file_number(e.name)}
    away = {e.name for e in storage.list(f"{TABLE.folder}/{PROCESSED}").files}
    # A writer that is killed while it releases a used number leaves the file, which the mirror
    # reports. No completed batch may be such a file.
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
    assert {batch // 1000 for batch in unfinished} <= doomed
    assert len(done) >= (WRITERS - len(doomed)) * BATCHES
    assert file_name(len(numbers)) in here
