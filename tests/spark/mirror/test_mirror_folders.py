"""Tables whose folders change: recreated, renamed, refilled, or with only NULLs at first."""

from __future__ import annotations

import os
import shutil
import time
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers.places import PROCESSED, READY_TO_DELETE
from helpers.tables import bag
from mirrorlake import Lake, MirrorOptions
from mirrorlake.delta.actions import live_files
from mirrorlake.delta.snapshot import OPEN_TAG
from mirrorlake.errors import SequenceError, TableNotFoundError
from mirrorlake.layout import api
from mirrorlake.mirror.options import Step
from mirrorlake.names import TableName, file_name
from mirrorlake.spark.jvm import DeltaTransaction


@pytest.mark.long  # test_format.py has such a folder
def test_a_folder_recreated_between_cycles_replaces_the_table(lake: Lake) -> None:
    publisher = lake.publisher("t", keys=["id"])
    publisher.write([{"id": 1, "v": "old"}])
    publisher.upsert([{"id": 2, "v": "old"}])
    assert not lake.mirror().failed
    shutil.rmtree(Path(lake.landing_zone) / "t")
    publisher = lake.publisher("t", keys=["code"])
    publisher.write([{"code": "x", "v": 1.5}, {"code": "y", "v": 2.5}])  # the same numbers again
    publisher.delete([{"code": "y"}])
    assert not lake.mirror().failed
    assert bag(lake, "t", ["code", "v"]) == {("x", 1.5): 1}
    snapshot = lake.table("t").snapshot()
    assert list(snapshot.schema) == ["code", "v"]
    assert snapshot.properties["mirrorlake.keys"] == '["code"]'
    before = lake.table("t").read(version=1)  # history is kept, and frames of it
    assert sorted(tuple(row) for row in before.collect()) == [(1, "old"), (2, "old")]


def publish_and_rename(lake: Lake, *, processed: bool = True) -> Path:
    """Mirror two files, then rename the folder to `new` without its data files."""
    publisher = lake.publisher("t", keys=["id"])
    for number in (1, 2):
        publisher.upsert([{"id": number, "v": "old"}])
        assert not lake.mirror().failed
    zone = Path(lake.landing_zone)
    (zone / "t").rename(zone / "new")
    (zone / "new" / file_name(2)).unlink()
    if not processed:
        shutil.rmtree(zone / "new" / PROCESSED)
    return zone / "new"


def refill(folder: Path, first: int, last: int) -> None:
    for number in range(first, last + 1):
        rows = {"id": [10 + number], "v": ["new"], "__rowMarker__": pa.array([4], pa.int32())}
        pq.write_table(pa.table(rows), folder / file_name(number))


NEW = {(11, "new"): 1, (12, "new"): 1, (13, "new"): 1}


def test_a_renamed_and_refilled_folder_replaces_the_table(lake: Lake) -> None:
    refill(publish_and_rename(lake, processed=False), 1, 3)
    report = lake.mirror()
    assert (report.failed, report.dropped) == ((), ())
    assert bag(lake, "new", ["id", "v"]) == NEW
    before = lake.table("new").read(version=2)  # history is kept
    assert sorted(row.id for row in before.collect()) == [1, 2]
    (line,) = report.tables
    assert (line.last_file, line.backlog_files) == (3, 0)
    lake.publisher("new", keys=["id"]).upsert([{"id": 14, "v": "next"}])
    assert not lake.mirror().failed
    assert bag(lake, "new", ["id", "v"]) == NEW | {(14, "next"): 1}


@pytest.mark.long  # test_last_file.py has such folders without Spark
def test_a_refilled_folder_with_applied_files_stops_and_each_fix_works(
    lake: Lake, tmp_path: Path
) -> None:
    folder = publish_and_rename(lake)
    old = {(1, "old"): 1, (2, "old"): 1}
    refill(folder, 1, 3)
    for _ in range(2):
        (failed,) = lake.mirror().failed
        assert failed.error is not None
        assert failed.error["file"] == file_name(2)
        assert bag(lake, "new", ["id", "v"]) == old
    files = [shutil.copy(folder / file_name(n), tmp_path) for n in (1, 2, 3)]
    for number in (1, 2, 3):
        (folder / file_name(number)).unlink()
    refill(folder, 3, 3)
    assert not lake.mirror().failed
    assert bag(lake, "new", ["id", "v"]) == old | {(13, "new"): 1}
    refill(folder, 3, 3)  # the same rows, written again
    lake.operations.reseed("new", files, apply=True)
    assert not lake.mirror().failed
    assert bag(lake, "new", ["id", "v"]) == NEW


@pytest.mark.long  # test_last_file.py has such a folder without Spark
def test_a_publisher_continues_in_a_renamed_folder_without_files(lake: Lake) -> None:
    publish_and_rename(lake, processed=False)
    assert lake.publisher("new", keys=["id"]).upsert([{"id": 3, "v": "x"}]).file == file_name(3)
    assert not lake.mirror().failed
    assert bag(lake, "new", ["id", "v"]) == {(1, "old"): 1, (2, "old"): 1, (3, "x"): 1}


@pytest.mark.long  # test_last_file.py has such a file without Spark
def test_a_replaced_last_file_is_never_stored_as_the_applied_one(lake: Lake) -> None:
    publisher = lake.publisher("t", keys=["id"])
    for number in (1, 2):
        publisher.upsert([{"id": number, "v": "old"}])
        assert not lake.mirror().failed
    folder = Path(lake.landing_zone) / "t"
    applied = (folder / file_name(2)).read_bytes()
    refill(folder, 2, 3)
    (failed,) = lake.mirror().failed
    assert failed.error is not None
    assert failed.error["file"] == file_name(2)
    assert processed(lake, PROCESSED) == [file_name(1)]
    with pytest.raises(SequenceError, match="not the content that was applied"):
        lake.operations.replay("t", 1)
    (folder / file_name(2)).write_bytes(applied)
    assert not lake.mirror().failed
    assert bag(lake, "t", ["id", "v"]) == {(1, "old"): 1, (2, "old"): 1, (13, "new"): 1}
    assert (folder / PROCESSED / file_name(2)).read_bytes() == applied


def test_a_last_file_replaced_beside_an_unfinished_plan_stops_the_table(lake: Lake) -> None:
    publisher = lake.publisher("t", keys=["id"])
    publisher.upsert([{"id": 1, "v": "old"}])
    assert not lake.mirror().failed
    publisher.upsert([{"id": 2, "v": "old"}])

    def kill(_table: TableName, done: Step) -> None:
        if done is Step.PLANNED:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        lake.mirror(on_step=kill)
    folder = Path(lake.landing_zone) / "t"
    replaced: list[bool] = []

    def replace(_table: TableName, done: Step) -> None:
        if done is Step.COMMITTED and not replaced:
            refill(folder, 2, 3)  # the plan's own file: its rows are committed already
            replaced.append(True)

    (failed,) = lake.mirror(on_step=replace).failed
    assert failed.error is not None
    assert (failed.last_file, failed.error["file"]) == (2, file_name(2))
    assert bag(lake, "t", ["id", "v"]) == {(1, "old"): 1, (2, "old"): 1}


def test_columns_of_nothing_but_null_wait_for_their_type(lake: Lake) -> None:
    folder = Path(lake.landing_zone) / "t"
    folder.mkdir(parents=True)
    pq.write_table(pa.table({"a": pa.nulls(2), "b": pa.nulls(2)}), folder / file_name(1))
    (line,) = lake.mirror().tables
    assert line.error is not None
    assert "no column has a type" in line.error["message"]
    pq.write_table(pa.table({"a": [1], "b": pa.nulls(1)}), folder / file_name(2))
    assert not lake.mirror().failed
    assert bag(lake, "t", ["a"]) == {(None,): 2, (1,): 1}
    pq.write_table(pa.table({"a": [2], "b": ["now"]}), folder / file_name(3))
    assert not lake.mirror().failed
    assert bag(lake, "t", ["a", "b"]) == {(None, None): 2, (1, None): 1, (2, "now"): 1}


def processed(lake: Lake, folder: str) -> list[str]:
    return sorted(p.name for p in (Path(lake.landing_zone) / "t" / folder).glob("*"))


@pytest.mark.promise("LZ-29", "LZ-14")
def test_applied_files_move_through_two_folders_and_are_deleted_after_7_days(lake: Lake) -> None:
    publisher = lake.publisher("t", keys=["id"])
    for number in range(3):
        publisher.upsert([{"id": number}])
    lake.mirror()
    names = [file_name(n) for n in (1, 2, 3)]
    assert processed(lake, PROCESSED) == names[:2]
    zone, now = Path(lake.landing_zone) / "t", time.time()
    for name in names[:2]:
        os.utime(zone / PROCESSED / name, (now - 1.2 * 86_400,) * 2)
    (lake.storage.local / "Files/_mirrorlake/state.json").unlink()  # otherwise the check is daily
    (zone / PROCESSED / "00000000000000000009.parquet").write_bytes(b"nobody applied this")
    os.utime(zone / PROCESSED / "00000000000000000009.parquet", (now - 9e6,) * 2)
    lake.mirror()
    assert processed(lake, READY_TO_DELETE) == names[:2]
    assert processed(lake, PROCESSED) == ["00000000000000000009.parquet"]
    for name, days in zip(names[:2], (7.1, 6.9), strict=True):
        os.utime(zone / READY_TO_DELETE / name, (now - days * 86_400,) * 2)
    (lake.storage.local / "Files/_mirrorlake/state.json").unlink()
    (line,) = lake.mirror().tables
    assert (line.error, line.rows, line.last_file) == (None, 3, 3)
    assert processed(lake, READY_TO_DELETE) == names[1:2]
    assert (zone / names[2]).exists()  # the last file stays


@pytest.mark.promise("LZ-22")
def test_a_folder_deleted_while_it_is_read_breaks_nothing(lake: Lake) -> None:
    steps = [step for step in Step if step not in (Step.COMPACTED, Step.QUARANTINED)]
    for step in steps:
        publisher = lake.publisher(f"in {step.value}", keys=["id"])
        publisher.write([{"id": 1}])
        publisher.upsert([{"id": 2}])
    lake.publisher("beside").write([{"id": 1}])

    def delete(table: TableName, done: Step) -> None:
        if table.name == f"in {done.value}":
            shutil.rmtree(Path(lake.landing_zone) / table.name)

    report = lake.mirror(on_step=delete)
    assert [line.name for line in report.failed] == []
    assert bag(lake, "beside", ["id"]) == {(1,): 1}
    report = lake.mirror()
    assert [line.name for line in report.tables] == ["beside"]
    assert [str(table) for table in lake.tables()] == ["beside"]


def test_a_drop_can_be_undone_and_publishers_continue(lake: Lake) -> None:
    lake.publisher("t", keys=["id"]).write([{"id": 1, "v": "a"}])
    lake.mirror()
    shutil.rmtree(Path(lake.landing_zone) / "t")
    assert lake.mirror().dropped == ("t",)
    with pytest.raises(TableNotFoundError):
        lake.table("t")
    lake.operations.undrop("t")
    with pytest.raises(TableNotFoundError, match="no dropped table"):
        lake.operations.undrop("other")
    lake.publisher("t", keys=["id"]).upsert([{"id": 1, "v": "b"}, {"id": 2, "v": "c"}])
    report = lake.mirror()
    assert (report.failed, report.dropped) == ((), ())
    assert (report.files, report.rows) == (1, 2)  # not those before the drop
    assert bag(lake, "t", ["id", "v"]) == {(1, "b"): 1, (2, "c"): 1}
    shutil.rmtree(Path(lake.landing_zone) / "t")
    lake.mirror(options=MirrorOptions(keep_dropped_days=0))
    with pytest.raises(TableNotFoundError, match="no dropped table"):
        lake.operations.undrop("t")


def test_a_copied_folder_lives_on_its_own_and_lost_states_are_rebuilt(lake: Lake) -> None:
    publisher = lake.publisher("t", keys=["id"])
    publisher.write([{"id": 1}])
    lake.publisher("gone").write([{"id": 1}])
    lake.mirror()
    zone = Path(lake.landing_zone)
    shutil.copytree(zone / "t", zone / "copy")
    publisher.upsert([{"id": 2}])
    assert not lake.mirror().failed
    assert bag(lake, "t", ["id"]) == {(1,): 1, (2,): 1}
    assert bag(lake, "copy", ["id"]) == {(1,): 1}
    shutil.rmtree(zone / "gone")
    (lake.storage.local / "Files/_mirrorlake/state.json").unlink()
    assert lake.mirror().dropped == ("gone",)
    assert [str(table) for table in lake.tables()] == ["copy", "t"]


@pytest.mark.long  # the next test widens by the switch, and test_mirror_types.py has all types
def test_types_widen_by_a_switch(lake: Lake) -> None:
    folder = Path(lake.landing_zone) / "t"
    folder.mkdir(parents=True)
    (folder / "_metadata.json").write_text('{"keyColumns": ["id"]}')

    def put(number: int, marker: int, **types: pa.DataType) -> None:
        columns = {name: pa.array([number], kind) for name, kind in types.items()}
        columns["__rowMarker__"] = pa.array([marker], pa.int32())
        pq.write_table(pa.table(columns), folder / file_name(number))

    narrow = {"id": pa.int32(), "n": pa.int16(), "f": pa.float32(), "d": pa.decimal128(5, 1)}
    wide = {"id": pa.int64(), "n": pa.int32(), "f": pa.float64(), "d": pa.decimal128(9, 3)}
    put(1, 0, **narrow)
    lake.mirror()
    put(2, 4, **wide)
    (line,) = lake.mirror().tables
    assert line.error is not None
    assert line.error["column"] == "id"
    assert "--widen" in line.error["message"]
    assert not lake.mirror(options=MirrorOptions(widen=True)).failed
    types = lake.table("t").snapshot().schema
    assert types == {"id": "long", "n": "integer", "f": "double", "d": "decimal(9,3)"}
    put(3, 4, **narrow)
    assert not lake.mirror().failed
    assert sorted(int(row.d) for row in lake.table("t").read().collect()) == [1, 2, 3]


def test_a_publisher_widens_what_the_mirror_then_widens(lake: Lake, tmp_path: Path) -> None:
    publisher = lake.publisher("t", keys=["id"], widen=True)
    types = {"n": pa.int32(), "d": pa.decimal128(1, 0), "w": pa.int64(), "p": pa.int64()}
    first = {name: pa.array([5], kind) for name, kind in types.items()}
    publisher.upsert(pa.table({"id": [1]} | first))
    assert not lake.mirror().failed
    living = lake.publisher("t")
    assert living.known_columns["n"] == "integer"
    publisher.upsert([{"id": 2, "n": 2**40, "d": Decimal("5.25"), "w": 6, "p": 7}])
    file = tmp_path / "rows.csv"
    file.write_text("id,n,d,w,p\n3,1,0.125,1.5,8\n")
    publisher.upsert(file)
    declared = lake.publisher("t", types={"p": "decimal(18,2)"}, widen=True)
    declared.upsert([{"id": 4, "p": 1.5}])
    (line,) = lake.mirror().tables
    assert "--widen" in line.error["message"]
    assert not lake.mirror(options=MirrorOptions(widen=True)).failed
    wide = {"n": "long", "d": "decimal(28,8)", "w": "decimal(28,8)", "p": "decimal(22,2)"}
    assert lake.table("t").snapshot().schema == {"id": "long"} | wide
    rows = lake.table("t").read().orderBy("id").collect()
    assert [tuple(row) for row in rows] == [
        (1, 5, 5, 5, 5),
        (2, 2**40, Decimal("5.25"), 6, 7),
        (3, 1, Decimal("0.125"), Decimal("1.5"), 8),
        (4, None, None, None, Decimal("1.5")),
    ]
    living.upsert([{"id": 5, "n": 2**40}])  # the publisher reads the widened type
    assert not lake.mirror().failed


def test_small_files_are_put_together_and_retention_is_a_parameter(lake: Lake) -> None:
    lake.operations.defaults(vorder=True)
    publisher = lake.publisher("t")
    options = MirrorOptions(compact_after=3, log_retention_days=12, feed_retention_days=3)
    for number in range(3):
        publisher.write([{"id": number}])
        assert not lake.mirror(options=options).failed
    table = lake.table("t")
    (file,) = live_files(lake.storage, "Tables/t", table.version)
    assert {OPEN_TAG, api.TRIED_TAG} & {
        *file["tags"]
    }  # no order may make a file of a few rows smaller
    properties = table.snapshot().properties
    assert properties["delta.logRetentionDuration"] == "interval 12 days"
    assert properties["delta.deletedFileRetentionDuration"] == "interval 3 days"
    before = table.snapshot().version
    lake.mirror(options=MirrorOptions(log_retention_days=20))  # without new files, no table changes
    assert table.snapshot().version == before
    publisher.write([{"id": 9}])
    lake.mirror(options=MirrorOptions(log_retention_days=20))
    assert lake.table("t").snapshot().properties["delta.logRetentionDuration"] == "interval 20 days"


def test_the_mirror_tries_again_when_a_layout_operation_was_quicker(lake: Lake) -> None:
    publisher = lake.publisher("t", keys=["id"])
    for number in range(3):
        publisher.write([{"id": number, "v": "old"}])
        lake.mirror()
    publisher.upsert([{"id": 1, "v": "new"}])
    path, spark = lake.table("t").sql_name, lake.spark
    commit, raced = DeltaTransaction.commit_exchange, []

    def racing(txn, *args, **kwargs):
        if not raced:
            raced.append(spark.sql(f"OPTIMIZE {path}").collect())
        return commit(txn, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DeltaTransaction, "commit_exchange", racing)
        assert not lake.mirror().failed
    assert raced
    assert bag(lake, "t", ["id", "v"]) == {(0, "old"): 1, (1, "new"): 1, (2, "old"): 1}


def test_partition_folders_stop_their_table_and_no_other(lake: Lake) -> None:
    folder = Path(lake.landing_zone) / "t"
    (folder / "Region=eu").mkdir(parents=True)
    (folder / "_metadata.json").write_text('{"keyColumns": ["id"], "isPartitionEnabled": true}')
    refill(folder / "Region=eu", 1, 1)
    lake.publisher("beside").write([{"id": 1}])
    (failed,) = lake.mirror().failed
    assert (failed.name, failed.state) == ("t", "Failed")
    assert failed.error is not None
    assert failed.error["file"] == "_metadata.json"
    assert "the table's own folder" in failed.error["message"]
    assert bag(lake, "beside", ["id"]) == {(1,): 1}
