"""Eight writers, three of them killed, and a running mirror: rows arrive exactly once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from helpers.places import PROCESSED
from helpers.tables import bag
from helpers.writers import BATCHES, TABLE, WRITERS, run_writers
from mirrorlake import Lake
from mirrorlake.names import file_number


@pytest.mark.promise("LZ-02", "LZ-13", "LZ-14")
@pytest.mark.complaint("lost-writers")
def test_writers_beside_a_running_mirror(lake: Lake, tmp_path: Path) -> None:
    cycles = []

    def mirror() -> None:
        cycles.append(lake.mirror())

    done, killed = run_writers(lake.storage, tmp_path, mirror)
    mirror()
    (line,) = cycles[-1].tables
    late = line.error["file"] if line.error else None
    found = Counter(id_ for (id_,), n in bag(lake, "t", ["id"]).items() for _ in range(n))
    assert set(done) <= set(found)
    assert max(found.values()) == 1
    assert {batch // 1000 for batch in set(found) - set(done)} <= killed
    assert len(done) >= (WRITERS - len(killed)) * BATCHES
    # Only a writer that is killed while it releases a used number leaves a reported file.
    assert late is None or late not in done.values()

    folder = lake.storage.list(TABLE.folder)
    here = {file_number(e.name) for e in folder.files if e.name != late} - {None}
    away = {file_number(e.name) for e in lake.storage.list(f"{TABLE.folder}/{PROCESSED}").files}
    assert here == {line.last_file}
    assert sorted(here | away) == list(range(1, line.last_file + 1))
    versions = lake.table("t").snapshot().version
    assert versions <= len(cycles)
