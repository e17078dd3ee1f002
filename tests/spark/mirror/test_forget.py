"""Forgetting a key: its rows are found everywhere, deleted, and not found afterwards."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers.markers import MARKER
from helpers.tables import bag
from mirrorlake import Lake, MirrorOptions
from mirrorlake.errors import SequenceError
from mirrorlake.names import file_name

ADA = "ada o'`\"\\ lovelace; =✓"
SECRET = "born on the tenth of december"
SMALL = MirrorOptions(compact_after=0, batch_files=1)


def contents(lake: Lake) -> dict[str, str]:
    """Return a digest of every file of the lake except the lock."""
    found = {}
    for path in Path(lake.storage.root).rglob("*"):
        if path.is_file() and path.name != "mirror.lock":
            found[str(path)] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def holding(lake: Lake, *texts: str) -> list[str]:
    """Return the files with one of the texts in their bytes or in a value of their rows."""
    found = []
    for path in Path(lake.storage.root).rglob("*"):
        if not path.is_file() or path.suffix == ".lock":
            continue
        data = path.read_bytes()
        forms = [t for text in texts for t in (text, json.dumps(text)[1:-1])]
        values = ""
        if data[:4] == data[-4:] == b"PAR1":
            values = "\n".join(
                str(value)
                for row in pq.ParquetFile(path).read().to_pylist()
                for value in _leaves(row)
            )
        if any(form.encode() in data or form in values for form in forms):
            found.append(str(path.relative_to(lake.storage.root)))
    return found


def _leaves(value):
    if isinstance(value, dict):
        for inner in value.values():
            yield from _leaves(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _leaves(inner)
    else:
        yield value


def put(lake: Lake, number: int, rows: list[dict]) -> None:
    pq.write_table(
        pa.Table.from_pylist(rows), Path(lake.landing_zone) / "my people" / file_name(number)
    )


def places(found) -> dict[str, tuple[int, int | None]]:
    return {trace.where: (trace.files, trace.rows) for trace in found.traces}


def test_a_person_is_found_everywhere_removed_and_found_nowhere(
    lake: Lake, pytestconfig: pytest.Config
) -> None:
    columns = ["the land", "who's", "note"]
    keys = columns[:2]

    def row(land: int, who: str, note: str, marker: int = 4) -> dict:
        return dict(zip(columns, (land, who, note), strict=True)) | {MARKER: marker}

    publisher = lake.publisher("my people", keys=keys)
    publisher.write([row(1, ADA, SECRET), row(2, ADA, "another one"), row(1, "bob", "b")])
    lake.mirror(options=SMALL)
    publisher.write([row(1, ADA, SECRET + " 1815"), row(3, "cem", "c")])
    lake.mirror(options=SMALL)
    put(lake, 3, [row(1, ADA, SECRET + " rejected", 3), row(9, "dan", "rejected", 3)])
    lake.mirror(options=MirrorOptions(on_error="skip-row", compact_after=0))
    lake.operations.reseed("my people", apply=True)
    lake.mirror(options=MirrorOptions(on_error="skip-row", compact_after=0))
    lake.publisher("other").write([{"who's": ADA, "the land": 1}])
    lake.mirror()
    other = bag(lake, "other", ["who's"])

    before = contents(lake)
    key = {"the land": 1, "WHO'S": ADA}
    told = lake.forget("my people", key)
    assert contents(lake) == before
    assert not told.applied
    where = places(told)
    assert where["table"] == (1, 1)
    assert where["history"][0] >= 1
    assert where["change feed"][0] >= 1
    assert where["log"][0] >= 1
    assert where["applied files"] == (2, 2)
    assert where["applied files in place"] == (1, 1)
    assert where["quarantine"] == (2, 2)
    last = lake.table("my people").snapshot().version
    assert told.unreadable == (0, last)

    put(lake, 4, [row(1, ADA, "pending", 1)])
    before = contents(lake)
    assert places(lake.forget("my people", key))["pending files"] == (1, 1)
    with pytest.raises(SequenceError, match="pending file"):
        lake.forget("my people", key, apply=True)
    assert contents(lake) == before
    (Path(lake.landing_zone) / "my people" / file_name(4)).unlink()

    assert holding(lake, SECRET)
    log = {"add": {"path": f"{lake.storage.path('Tables/my%20people')}/a.parquet", "stats": SECRET}}
    row_files = "Files/_mirrorlake/row-files/2026-01-01/a/_delta_log"  # of an earlier version
    lake.storage.write(f"{row_files}/{0:020}.json", json.dumps(log).encode())
    done = lake.forget("my people", key, apply=True)
    assert done.applied
    assert done.traces == told.traces
    assert holding(lake, SECRET) == []
    assert all("other" in p or "people" in p for p in holding(lake, ADA))  # rows of another key
    rows = {(2, ADA, "another one"): 1, (1, "bob", "b"): 1, (3, "cem", "c"): 1}
    assert bag(lake, "my people", columns) == rows
    assert bag(lake, "other", ["who's"]) == other
    left = [
        json.loads(r["content"])["who's"] for r in lake.operations.quarantine("my people").collect()
    ]
    assert set(left) == {"dan"}

    published = lake.publisher("my people").write([row(4, "eve", "e")])
    assert published.file == file_name(4)
    assert not lake.mirror().failed
    assert bag(lake, "my people", columns) == rows | {(4, "eve", "e"): 1}
    entries = lake.operations.ledger("my people").entries
    assert [entry.number for entry in entries] == [1, 2, 3, 4]
    before = lake.status()
    lake.status(rebuild=True)
    assert [t.last_file for t in lake.status().tables] == [t.last_file for t in before.tables]

    if pytestconfig.getoption("--long"):
        assert lake.forget("my people", key).traces == ()  # as the second search of `apply`
        # With unique text keys, no file contains the value either.
        lake.forget("my people", {"the land": 2, "who's": ADA}, apply=True)
        assert all("/other/" in p or p.startswith("Tables/other") for p in holding(lake, ADA))
        lake.operations.reseed("my people", apply=True)  # the kept files have all other rows
        assert not lake.mirror(options=MirrorOptions(on_error="skip-row")).failed
        del rows[2, ADA, "another one"]
        assert bag(lake, "my people", columns) == rows | {(4, "eve", "e"): 1}
