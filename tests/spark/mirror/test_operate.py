"""Operating a mirror: skipping bad rows and files, pausing, replaying and reseeding tables."""

from __future__ import annotations

import json
import os
import threading
import time
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers.markers import MARKER
from helpers.tables import bag
from mirrorlake import Lake, MirrorOptions
from mirrorlake.errors import BusyError, SequenceError, UsageError
from mirrorlake.mirror import ledger
from mirrorlake.mirror.options import Step
from mirrorlake.names import file_name
from mirrorlake.spark.sql import delta_name


def put(lake: Lake, number: int, rows: list[dict], table: str = "t") -> None:
    folder = Path(lake.landing_zone) / table
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "_metadata.json").write_text('{"keyColumns": ["id"]}')
    pq.write_table(pa.Table.from_pylist(rows), folder / file_name(number))


def kept(lake: Lake, table: str | None = None) -> list[tuple]:
    rows = lake.operations.quarantine(table).collect()
    return [(row["file"][-9:-8], row["row"], row["column"], row["reason"]) for row in rows]


@pytest.mark.complaint("no-ledger", "hidden-error")
def test_bad_rows_are_skipped_and_reported(lake: Lake) -> None:
    put(lake, 1, [{"id": 1, "v": "a", MARKER: 0}, {"id": 2, "v": "b", MARKER: 0}])
    bad = [
        {"id": 1, "v": "new", MARKER: 1},
        {"id": None, "v": "no key", MARKER: 4},
        {"id": 2, "v": "what?", MARKER: 3},
        {"id": 3, "v": "c", MARKER: 4},
    ]
    put(lake, 2, bad)
    put(lake, 3, [{"id": 4, "v": "d", MARKER: 0}])
    (line,) = lake.mirror().tables
    assert line.error is not None
    assert (line.last_file, line.error["file"], line.error["row"]) == (1, file_name(2), 3)
    options = MirrorOptions(on_error="skip-row")
    assert not lake.mirror(options=options).failed
    expected = {(1, "new"): 1, (2, "b"): 1, (3, "c"): 1, (4, "d"): 1}
    assert bag(lake, "t", ["id", "v"]) == expected
    found = kept(lake, "t")
    assert [(f, r, c) for f, r, c, _ in found] == [("2", 2, "id"), ("2", 3, MARKER)]
    assert "NULL" in found[0][3]
    contents = [json.loads(row["content"]) for row in lake.operations.quarantine().collect()]
    assert contents == [bad[1], bad[2]]
    assert ledger.count_quarantined(lake.storage) == {"t": 2}
    quarantine = delta_name(lake.storage.path("Files/_mirrorlake/quarantine"))
    vectors = "SET TBLPROPERTIES (delta.enableDeletionVectors = true)"
    lake.spark.sql(f"ALTER TABLE {quarantine} {vectors}")
    lake.spark.sql(f"DELETE FROM {quarantine} WHERE row = 3")  # the handled rows
    assert ledger.count_quarantined(lake.storage) == {"t": 1}
    entries = lake.operations.ledger("t").entries
    assert [(e.number, e.rejected, e.rows, e.version) for e in entries] == [
        (1, 0, {"insert": 2}, 1),
        (2, 2, {"update": 1, "upsert": 1}, 2),
        (3, 0, {"insert": 1}, 2),
    ]
    assert all(e.lag_seconds is not None and len(e.sha256) == 64 for e in entries)


def test_bad_files_and_missing_numbers_are_passed_over(lake: Lake) -> None:
    put(lake, 1, [{"id": 1, "v": "a"}])
    (Path(lake.landing_zone) / "t" / file_name(2)).write_bytes(b"")
    put(lake, 3, [{"id": "text", "v": "type changed"}])
    put(lake, 4, [{"id": 4, "v": "d"}])
    assert lake.mirror(options=MirrorOptions(on_error="skip-row")).failed  # a file is not a row
    assert not lake.mirror(options=MirrorOptions(on_error="skip-file")).failed
    assert bag(lake, "t", ["id", "v"]) == {(1, "a"): 1, (4, "d"): 1}
    assert [(f, r) for f, r, _, _ in kept(lake)] == [("2", None), ("3", None)]
    put(lake, 6, [{"id": 6, "v": "f"}])
    (line,) = lake.mirror().tables
    assert (line.waiting_for, line.error) == (5, None)
    assert line.waiting_since is not None
    assert not lake.operations.skip("t", 5).applied
    assert lake.status().tables[0].waiting_for == 5
    assert lake.operations.skip("t", 5, apply=True).applied
    assert lake.status().tables[0].waiting_for is None
    assert not lake.mirror().failed
    assert bag(lake, "t", ["id"]) == {(1,): 1, (4,): 1, (6,): 1}
    assert [e.skipped for e in lake.operations.ledger("t").entries if e.number == 5] == [
        "An operator skipped the file. [file 00000000000000000005.parquet]"
    ]
    lake.operations.reseed("t", apply=True)
    assert (lake.status().tables[0].last_file, lake.status().tables[0].backlog_files) == (0, 5)
    assert not lake.mirror(options=MirrorOptions(on_error="skip-file")).failed
    assert bag(lake, "t", ["id"]) == {(1,): 1, (4,): 1, (6,): 1}


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(Step.PLANNED, marks=pytest.mark.long),
        Step.QUARANTINED,  # the quarantine is written, the commit is not
        pytest.param(Step.COMMITTED, marks=pytest.mark.long),
    ],
)
def test_the_quarantine_has_each_row_once_whenever_the_mirror_dies(lake: Lake, step: Step) -> None:
    put(lake, 1, [{"id": 1, MARKER: 0}, {"id": None, MARKER: 0}])

    def die(_table, done):
        if done is step:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        lake.mirror(options=MirrorOptions(on_error="skip-row"), on_step=die)
    put(lake, 2, [{"id": 2, MARKER: 0}])
    assert not lake.mirror().failed  # the plan has its own error handling
    assert bag(lake, "t", ["id"]) == {(1,): 1, (2,): 1}
    assert len(kept(lake)) == 1


def test_a_paused_table_waits(lake: Lake) -> None:
    put(lake, 1, [{"id": 1}])
    put(lake, 1, [{"id": 1}], "other")
    lake.mirror()
    lake.operations.pause("t")
    put(lake, 2, [{"id": 2}])
    put(lake, 2, [{"id": 2}], "other")
    report = {line.name: line for line in lake.mirror().tables}
    assert (report["t"].state, report["t"].backlog_files) == ("Stopped", 1)
    assert report["other"].last_file == 2
    assert {line.name: line.state for line in lake.status().tables}["t"] == "Stopped"
    lake.operations.resume("t")
    assert {line.name: line.state for line in lake.status().tables}["t"] == "Replicating"
    report = {line.name: line for line in lake.mirror().tables}
    assert (report["t"].state, report["t"].last_file) == ("Replicating", 2)


def test_replayed_files_bring_back_what_a_restore_took(lake: Lake) -> None:
    put(lake, 1, [{"id": 1, "v": "a"}])
    lake.mirror()
    put(lake, 2, [{"id": 2, "v": "b", MARKER: 0}, {"id": 1, "v": "new", MARKER: 1}])
    put(lake, 3, [{"id": 3, "v": "c", MARKER: 0}])
    lake.mirror()
    lake.spark.sql(f"RESTORE {lake.table('t').sql_name} TO VERSION AS OF 1")
    asked = lake.operations.replay("t", 2, dry_run=True)
    assert (asked.applied, asked.files) == (False, (file_name(2), file_name(3)))
    assert lake.operations.replay("t", 2).files == (file_name(4), file_name(5))
    assert not lake.mirror().failed
    expected = {(1, "new"): 1, (2, "b"): 1, (3, "c"): 1}
    assert bag(lake, "t", ["id", "v"]) == expected
    lake.operations.replay("t", 1, 3)
    assert not lake.mirror().failed
    assert bag(lake, "t", ["id", "v"]) == expected  # a second replay changes nothing
    with pytest.raises(SequenceError, match="was not applied"):
        lake.operations.replay("t", 99)
    lake.publisher("log").write([{"line": "a"}])
    lake.mirror()
    with pytest.raises(UsageError, match="no keys"):
        lake.operations.replay("log", 1)


def test_a_reseed_rebuilds_the_table_in_one_commit(lake: Lake, tmp_path: Path) -> None:
    for number in range(1, 4):
        put(lake, number, [{"id": number, "v": "x", MARKER: 4}])
        lake.mirror(options=MirrorOptions(compact_after=0))
    lake.spark.sql(f"DELETE FROM {lake.table('t').sql_name} WHERE id = 2")  # an accidental delete
    before = lake.table("t").snapshot().version
    assert "the rows of 3 kept files" in repr(lake.operations.reseed("t"))
    assert lake.status().tables[0].last_file == 3
    lake.operations.reseed("t", apply=True)
    assert not lake.mirror(options=MirrorOptions(batch_files=1)).failed
    assert bag(lake, "t", ["id", "v"]) == {(n, "x"): 1 for n in (1, 2, 3)}
    assert lake.table("t").snapshot().version == before + 1
    assert lake.table("t").read(version=before).count() == 2
    load = tmp_path / "load.parquet"
    pq.write_table(pa.table({"id": [7], "w": ["new column"]}), load)
    broken = tmp_path / "broken.parquet"
    broken.write_bytes(b"no")
    with pytest.raises(Exception, match="is not a readable"):
        lake.operations.reseed("t", [load, broken], apply=True)
    assert lake.status().tables[0].state == "Replicating"
    lake.operations.reseed("t", [load], apply=True)
    assert not lake.mirror().failed
    assert bag(lake, "t", ["id", "w"]) == {(7, "new column"): 1}
    lake.publisher("t", keys=["id"]).upsert([{"id": 8, "w": "next"}])
    assert not lake.mirror().failed
    assert bag(lake, "t", ["id", "w"]) == {(7, "new column"): 1, (8, "next"): 1}


def test_late_files_stop_a_zone_that_goes_by_time(lake: Lake, run: Any) -> None:
    folder = Path(lake.landing_zone) / "t"
    folder.mkdir(parents=True)
    document = {"keyColumns": ["id"], "fileDetectionStrategy": "LastUpdateTimeFileDetection"}
    (folder / "_metadata.json").write_text(json.dumps(document))

    def write(name: str, value: str, age: float) -> None:
        pq.write_table(pa.table({"id": [1], "v": [value], MARKER: [4]}), folder / name)
        os.utime(folder / name, (time.time() - age,) * 2)

    write("one.parquet", "new", 10)
    lake.mirror()
    write("late.parquet", "old", 100)
    (line,) = lake.mirror().tables
    assert line.error is not None
    assert (line.error["file"], bag(lake, "t", ["v"])) == ("late.parquet", {("new",): 1})
    run("mirror", lake.storage.root, "--late-files")
    assert bag(lake, "t", ["v"]) == {("old",): 1}


def test_files_ordered_by_time_are_reseeded_and_replayed_in_their_order(lake: Lake) -> None:
    folder = Path(lake.landing_zone) / "t"
    folder.mkdir(parents=True)
    document = {"keyColumns": ["id"], "fileDetectionStrategy": "LastUpdateTimeFileDetection"}
    (folder / "_metadata.json").write_text(json.dumps(document))

    def write(name: str, age: float) -> None:
        pq.write_table(pa.table({"id": [1, age], "v": [name] * 2, MARKER: [4, 4]}), folder / name)
        os.utime(folder / name, (time.time() - age,) * 2)

    for name, age in (("z.parquet", 400), ("y.parquet", 300), ("x.parquet", 200)):
        write(name, age)
        assert not lake.mirror().failed
    applied = {(1, "x.parquet"), (400, "z.parquet"), (300, "y.parquet"), (200, "x.parquet")}
    write("w.parquet", 100)
    lake.operations.reseed("t", apply=True)
    assert not lake.mirror().failed
    assert lake.status().tables[0].last_file == 4
    expected = {(1, "w.parquet"), (100, "w.parquet"), *applied} - {(1, "x.parquet")}
    assert bag(lake, "t", ["id", "v"]) == dict.fromkeys(expected, 1)
    lake.operations.replay("t", 2, 3)
    assert not lake.mirror().failed
    expected = {(1, "x.parquet"), *expected} - {(1, "w.parquet")}
    assert bag(lake, "t", ["id", "v"]) == dict.fromkeys(expected, 1)
    assert lake.status().tables[0].backlog_files == 0


def test_the_kept_state_is_rebuilt_from_the_logs(lake: Lake) -> None:
    put(lake, 1, [{"id": 1}, {"id": 2}])
    lake.mirror()
    before = lake.status()
    (lake.storage.local / "Files/_mirrorlake/state.json").unlink()
    assert lake.status().tables[0].rows == 2  # from the table's log
    assert not (lake.storage.local / "Files/_mirrorlake/state.json").exists()
    assert lake.status(rebuild=True).as_dict() == before.as_dict()
    assert (lake.storage.local / "Files/_mirrorlake/state.json").exists()
    assert lake.status().as_dict() == before.as_dict()


def test_a_second_mirror_waits_and_names_the_first(lake: Lake) -> None:
    put(lake, 1, [{"id": 1}])
    inside, go_on = threading.Event(), threading.Event()

    def hold(_table, done):
        if done is Step.LISTED:
            inside.set()
            go_on.wait(60)

    first = threading.Thread(target=lambda: lake.mirror(on_step=hold))
    first.start()
    assert inside.wait(60)
    with pytest.raises(BusyError, match=f"process {os.getpid()} on"):
        Lake(lake.storage.root).mirror(options=MirrorOptions(patience=0))
    go_on.set()
    assert not Lake(lake.storage.root).mirror().failed
    first.join()
    assert bag(lake, "t", ["id"]) == {(1,): 1}


@pytest.mark.complaint("ghost-rows")
def test_reconcile_finds_the_range_that_differs(lake: Lake) -> None:
    source = [
        {"id": n, "v": f"row {n}", "x": n / 7, "at": datetime(2026, 1, 1, 0, 0, n), "d": Decimal(n)}
        for n in range(50)
    ]
    publisher = lake.publisher("t", keys=["id"])
    publisher.write(source)
    manifest = publisher.manifest(source, ranges=5)
    assert sum(found.rows for found in manifest.ranges) == 50
    lake.mirror()
    assert lake.reconcile("t").findings == ()
    publisher.update([source[3] | {"v": "other"}])
    publisher.delete([{"id": 44}])
    publisher.manifest(source, ranges=5)
    assert [f.rule for f in lake.reconcile("t").findings] == ["not-applied-yet"]
    lake.mirror()
    found = lake.reconcile("t")
    assert sorted(f.rule for f in found.findings) == ["rows-differ", "values-differ"]
    (fewer,) = (f.message for f in found.findings if f.rule == "rows-differ")
    assert "the source has 10 rows, the table has 9" in fewer
    assert found.compared == 49
    changed = [row | {"v": "other"} if row["id"] == 3 else row for row in source if row["id"] != 44]
    publisher.manifest(changed)
    assert lake.reconcile().findings == ()
