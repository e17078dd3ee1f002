"""Test optimize, reorg, vacuum and policies: a dry run reports exactly what a run does."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.delta_files import data_files, files_on_disk, log_file, needed_files
from helpers.examples import under_long
from helpers.project import PARAMETERS
from helpers.tables import describe_history
from mirrorlake import Lake, MaintenancePolicy, Table
from mirrorlake.delta import log_files
from mirrorlake.delta.actions import live_files
from mirrorlake.errors import (
    RetentionError,
    TableNotFoundError,
    UsageError,
    VersionError,
)
from mirrorlake.layout import maintenance

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


VECTORS = {"delta.enableDeletionVectors": "true"}


def folder(lake: Lake, table: str) -> Path:
    return Path(lake.storage.root) / "Tables" / table


def rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in frame.collect())


def some(spark: SparkSession, first: int, count: int, parts: int = 1) -> DataFrame:
    return spark.range(first, first + count, 1, parts).selectExpr("id", "id % 2 AS `a day`")


@pytest.mark.promise("DL-11")
def test_optimize_by_partition(lake: Lake, spark: SparkSession) -> None:
    properties = VECTORS | {"delta.columnMapping.mode": "none"}
    plain = some(spark, 0, 8, 2).withColumnRenamed("a day", "day")
    table = lake.write("t", plain, partition_by=["day"], properties=properties)
    folders = {path.name for path in folder(lake, "t").iterdir()}
    assert folders >= {"day=0", "day=1"}
    lake.write("t", spark.sql("SELECT 9L AS id, 7L AS day"))
    assert (folder(lake, "t") / "day=7").is_dir()
    before = data_files(folder(lake, "t"))

    # Without the other folders, a query and a change of one partition work, others do not.
    others = [folder(lake, "t") / "day=0", folder(lake, "t") / "day=1"]
    for path in others:
        path.rename(lake.storage.path(path.name))
    assert rows(table.read(where="day = 7")) == rows(table.read().where("day > 1")) == [(9, 7)]
    with pytest.raises(Exception, match=r"day(=|%3D)[01]"):
        table.read().collect()
    spark.sql(f"UPDATE {table.sql_name} SET id = id + 100 WHERE day = 7")
    assert rows(table.read(where="day = 7")) == [(109, 7)]
    for path in others:
        Path(lake.storage.path(path.name)).rename(path)
    assert {name.split("/")[0] for name in data_files(folder(lake, "t")) ^ before} == {"day=7"}

    found = table.optimize.compact(where="day = 1", dry_run=True)
    inside = {name for name in before if name.startswith("day=1/")}
    assert (found.applied, found.files) == (False, len(inside))
    assert data_files(folder(lake, "t")) >= inside
    told = rows(table.read())
    done = table.optimize.compact(where="day = 1")
    assert (done.applied, done.files, done.files_added) == (True, len(inside), 1)
    after = data_files(folder(lake, "t"))
    assert {n for n in after if n.startswith("day=0/")} == {n for n in before if "day=0/" in n}
    assert rows(table.read()) == told
    assert table.optimize.compact(where="day = 1", dry_run=True).files == 0
    ordered = table.optimize.z_order(columns=["id"])
    assert ordered.files_added
    for wrong, says in (
        ("id = 1", "id is not a partition column"),
        ("day =", "not a SQL predicate"),
    ):
        with pytest.raises(UsageError, match=says):
            table.optimize.compact(where=wrong, dry_run=True)
    with pytest.raises(UsageError, match=r"can't be sorted by 'nothing'.*choose one of id"):
        table.optimize.z_order(columns=["nothing"])


def delete_during(table: Table, operation: Callable[[], object]) -> str:
    """Run an operation, and delete one of the table's files as soon as it has written a new file.

    The commit is written directly, because a statement would take longer than the operation.
    """
    path = Path(table.path)
    before, version = files_on_disk(path), table.snapshot().version
    files = live_files(table.storage, table.name.table_path, version)
    action = min(files, key=lambda add: ("deletionVector" not in add, add["path"]))
    kept = {name: action[name] for name in ("path", "deletionVector") if name in action}
    now = int(time.time() * 1000)
    removed = {**kept, "deletionTimestamp": now, "dataChange": True}
    info = {"timestamp": now, "operation": "DELETE", "operationParameters": {}}
    commit = path / "commit"
    commit.write_bytes(log_files.encode_actions([{"commitInfo": info}, {"remove": removed}]))
    ended = threading.Event()

    def disturb() -> None:
        while not ended.is_set():
            if any(name.endswith(".parquet") for name in files_on_disk(path) - before):
                commit.rename(log_file(path, version + 1))
                return
            ended.wait(0.002)  # there is no event for a new file

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(disturb)
        try:
            operation()
        finally:
            ended.set()
        done.result()
    return Path(action["path"]).name


@pytest.mark.parametrize("operation", ["compact", *under_long("purge", "z_order")])
def test_layout_operations_start_again_after_a_conflict(
    lake: Lake, spark: SparkSession, operation: str
) -> None:
    table = lake.write("t", some(spark, 0, 30, 3), properties=VECTORS)
    if operation == "purge":
        spark.sql(f"DELETE FROM {table.sql_name} WHERE id % 10 = 1")
    placed = rows(table.read().selectExpr("id", "_metadata.file_name"))
    version = table.snapshot().version
    arguments = {"columns": ["id"]} if operation == "z_order" else {}
    gone = delete_during(table, lambda: getattr(table.optimize, operation)(**arguments))
    assert table.snapshot().version == version + 2
    left = [number for number, file in placed if file != gone]
    assert 0 < len(left) < len(placed)
    assert [number for number, _ in rows(table.read())] == left


def test_optimize_by_size_and_by_clustering(lake: Lake, spark: SparkSession) -> None:
    place = f"delta.`{lake.storage.path('Tables/c')}`"
    spark.sql(f"CREATE TABLE {place} (id BIGINT) USING delta CLUSTER BY (id)")
    for first, count in ((0, 3), (0, 3), (0, 5000)):
        table = lake.write("c", spark.range(first, first + count, 1, 1))
    assert [
        table.optimize.compact(target_bytes=size, dry_run=True).files for size in (1, 5_000, 10**6)
    ] == [0, 2, 3]
    with pytest.raises(UsageError, match="target size is -1 bytes"):
        table.optimize.compact(target_bytes=-1, dry_run=True)
    done = table.optimize.compact()
    assert (done.files, done.files_added) == (3, 1)
    newest = log_file(folder(lake, "c"), table.snapshot().version).read_text()
    assert '"clusteringProvider":"liquid"' in newest


@pytest.mark.promise("DL-24", "DL-23")
def test_reorg_then_vacuum_leaves_nothing_of_what_was_deleted(
    lake: Lake, spark: SparkSession
) -> None:
    properties = VECTORS | {"delta.columnMapping.mode": "name"}
    data = some(spark, 0, 10).selectExpr("*", "'secret' AS `who is`")
    table = lake.write("s.t", data, properties=properties)
    path = folder(lake, "s/t")
    spark.sql(f"DELETE FROM {table.sql_name} WHERE id < 3")
    spark.sql(f"ALTER TABLE {table.sql_name} DROP COLUMN `who is`")
    (old,) = data_files(path)
    assert pq.read_metadata(path / old).num_rows == 10
    found = table.optimize.purge(dry_run=True)
    assert (found.files, found.masked_rows, found.applied) == (1, 3, False)
    done = table.optimize.purge()
    assert (done.files, done.files_added) == (1, 1)
    (new,) = data_files(path)
    assert pq.read_metadata(path / new).num_rows == 7
    assert b"secret" not in (path / new).read_bytes()
    assert b"secret" in (path / old).read_bytes()

    with pytest.raises(RetentionError, match=r"of 1 h is shorter than the 168 h.*set allow_short"):
        table.vacuum(retention_hours=1)
    with pytest.raises(RetentionError, match="nan h "):
        table.vacuum(retention_hours=float("nan"))
    for name, age in (("forgotten.parquet", 6 * 86_400), ("older.parquet", 8 * 86_400)):
        (path / name).touch()
        os.utime(path / name, (time.time() - age, time.time() - age))
    kept = table.vacuum()
    assert (kept.delete_files, kept.unreadable) == (1, None)  # the default is seven days
    assert {share.why: share.files for share in kept.kept} == {
        "newest version": 1,
        "removed within the retention": 2,  # the old file and its deletion vector
        "written within the retention": 1,
    }
    planned = table.vacuum(retention_hours=0, allow_short=True)
    assert files_on_disk(path) > needed_files(path)
    assert (planned.delete_files, planned.unreadable) == (4, (0, 3))
    done_too = table.vacuum(retention_hours=0, allow_short=True, apply=True)
    assert (done_too.delete_files, done_too.applied) == (4, True)
    assert files_on_disk(path) == needed_files(path) == {new}
    assert rows(table.read()) == [(n, n % 2) for n in range(3, 10)]
    with pytest.raises(VersionError, match="was vacuumed"):
        table.read(version=2)
    assert table.readable_range().earliest == 4
    assert table.vacuum(retention_hours=0, allow_short=True, apply=True).delete_files == 0


NESTED = (
    "id",
    "'gone' AS `s.x`",
    "named_struct('a', id, 'b', array(named_struct('c', 'c', 'd', 'gone')),"
    " 'm', map('k', named_struct('e', 1, 'f', 'gone'))) AS deep",
    "id % 2 AS part",
)
STEPS = (
    "ALTER TABLE {t} DROP COLUMN `s.x`",
    "ALTER TABLE {t} ADD COLUMN `S.X` STRING",
    "ALTER TABLE {t} DROP COLUMN deep.b.element.d",
    "ALTER TABLE {t} DROP COLUMN deep.m.value.f",
    "ALTER TABLE {t} DROP COLUMN deep",
    "ALTER TABLE {t} RENAME COLUMN id TO number",
    "INSERT INTO {t} SELECT * FROM {t} LIMIT 3",
    "DELETE FROM {t} WHERE part = 0",
    "REORG TABLE {t} APPLY (PURGE)",
    "RESTORE TABLE {t} TO VERSION AS OF 1",
)


def check_purge(lake: Lake, spark: SparkSession, steps: list[str]) -> list[int]:
    """Check after each step that the plan is what Delta rewrites in a copy of the table.

    Return the number of files, before the first step and after each.
    """
    counts = []
    lake.write(
        "t",
        some(spark, 0, 6).selectExpr(*NESTED).repartition(2),
        partition_by=["part"],
        properties=VECTORS
        | {"delta.columnMapping.mode": "none", "delta.enableRowTracking": "true"},
    )
    table = lake.table("t")
    mapping = "'delta.columnMapping.mode' = 'name'"
    spark.sql(f"ALTER TABLE {table.sql_name} SET TBLPROPERTIES ({mapping})")
    for turn, step in enumerate(["", *steps]):
        if step:
            with contextlib.suppress(Exception):  # a column that an earlier step has dropped
                spark.sql(step.format(t=table.sql_name)).collect()
        shutil.copytree(folder(lake, "t"), folder(lake, f"copy_{turn}"))
        copy = lake.table(f"copy_{turn}")
        planned = copy.optimize.purge(dry_run=True)
        done = copy.optimize.purge()
        told = (turn, step)
        assert (planned.files, planned.bytes) == (done.files, done.bytes), told
        assert copy.optimize.purge(dry_run=True).files == 0, told
        counts.append(planned.files)
    return counts


@pytest.mark.long  # the tests before and after it compare the plan of a purge with its result
@pytest.mark.promise("DL-24")
def test_a_dry_run_of_purge_counts_the_files_with_dropped_columns(
    lake: Lake, spark: SparkSession
) -> None:
    before, *after = check_purge(lake, spark, [STEPS[n] for n in (2, 6)])
    assert before == 0
    assert all(after)


@pytest.mark.long
@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=st.lists(st.sampled_from(STEPS), min_size=3, max_size=7))
def test_a_dry_run_of_purge_counts_what_delta_rewrites(
    tmp_path_factory: pytest.TempPathFactory, spark: SparkSession, steps: list[str]
) -> None:
    check_purge(Lake(tmp_path_factory.mktemp("lake")), spark, steps)


@pytest.mark.promise("DL-24", "DL-25")
def test_maintenance_purges_dropped_columns_once(lake: Lake, spark: SparkSession) -> None:
    properties = {"delta.columnMapping.mode": "name"}
    data = some(spark, 0, 10).selectExpr("id", "'secret' AS s")
    table = lake.write("t", data, properties=properties)
    path = folder(lake, "t")
    policy = MaintenancePolicy(apply=True)
    (line,) = lake.maintain(policy).tables
    assert line.reorg is None  # no feature is dropped
    spark.sql(f"ALTER TABLE {table.sql_name} DROP COLUMN s")
    (line,) = lake.maintain(replace(policy, apply=False)).tables
    assert line.reorg is not None
    assert (line.reorg.files, line.reorg.applied) == (1, False)
    (line,) = lake.maintain(policy).tables
    assert line.reorg is not None
    assert (line.reorg.files, line.reorg.files_added) == (1, 1)
    (new,) = data_files(path)
    assert b"secret" not in (path / new).read_bytes()
    version = table.snapshot().version
    (line,) = lake.maintain(policy).tables
    assert (line.reorg, table.snapshot().version) == (None, version)
    # VACUUM deletes the old file later, after the policy's retention.
    assert any(b"secret" in (path / name).read_bytes() for name in files_on_disk(path))
    assert line.vacuum is not None
    assert {share.why for share in line.vacuum.kept} >= {"removed within the retention"}


def test_vacuum_keeps_what_the_change_feed_needs_and_says_what_breaks(
    lake: Lake, spark: SparkSession
) -> None:
    table = lake.write("t", some(spark, 0, 4), properties=VECTORS)
    lake.frames.create("m", ["t"])
    spark.sql(f"UPDATE {table.sql_name} SET id = id + 100 WHERE id = 1")
    spark.sql(f"DELETE FROM {table.sql_name} WHERE id = 2")
    lake.write("t", some(spark, 50, 2), mode="overwrite")
    query = spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", 0)
    before = query.load(table.path).count()
    assert before
    every = files_on_disk(folder(lake, "t"))
    fed = table.vacuum(retention_hours=0, feed_hours=24, allow_short=True, apply=True)
    assert fed.delete_files == 0
    assert files_on_disk(folder(lake, "t")) == every
    assert query.load(table.path).count() == before
    spark.sql(
        f"ALTER TABLE {table.sql_name} SET TBLPROPERTIES ('mirrorlake.feedRetentionHours' = '24')"
    )
    assert table.vacuum(retention_hours=0, allow_short=True).delete_files == 0

    planned = table.vacuum(retention_hours=0, feed_hours=0, allow_short=True)
    assert {share.why for share in planned.kept} == {"newest version", "frame 1 of m"}
    assert planned.unreadable == (0, 3)
    assert planned.broken_frames == ()
    lake.frames.release("m")
    planned = table.vacuum(retention_hours=0, feed_hours=0, allow_short=True)
    assert planned.broken_frames == ("frame 1 of m",)
    assert "no longer readable: frame 1 of m" in repr(planned.shown())

    inner = lake.storage.path("Tables/t/inner")
    spark.range(1).write.format("delta").save(inner)
    with pytest.raises(RetentionError, match="folder of t contains another table, inner"):
        table.vacuum()


@pytest.mark.promise("DL-25")
def test_a_policy_for_a_whole_lake(lake: Lake, spark: SparkSession, tmp_path: Path) -> None:
    lake.write("a", some(spark, 0, 4, 4), properties=VECTORS)
    lake.write("s.b", some(spark, 0, 3), properties=VECTORS)
    spark.sql(f"DELETE FROM {lake.table('s.b').sql_name} WHERE id = 1")
    (marked,) = data_files(folder(lake, "s/b"))
    assert pq.read_metadata(folder(lake, "s/b") / marked).num_rows == 3
    policy = maintenance.load_policy(PARAMETERS / "learn/07_maintain.yaml")
    assert not policy.apply
    said = lake.maintain(policy)
    assert [(str(line.table), line.error) for line in said.tables] == [("a", None), ("s.b", None)]
    first, second = said.tables
    assert first.optimize is not None
    assert (first.optimize.files, first.optimize.applied, first.reorg) == (4, False, None)
    assert second.reorg is not None
    assert (second.reorg.files, second.reorg.applied) == (1, False)
    assert len(data_files(folder(lake, "a"))) == 4
    assert data_files(folder(lake, "s/b")) == {marked}
    file = tmp_path / "policy.yaml"
    file.write_text("tables: a\napply: true\nvacuum: false\n")
    done = lake.maintain(maintenance.load_policy(file))
    assert [str(line.table) for line in done.tables] == ["a"]
    assert len(data_files(folder(lake, "a"))) == 1
    assert data_files(folder(lake, "s/b")) == {marked}
    file.write_text("apply: true\nvacuum: false\n")
    lake.maintain(maintenance.load_policy(file))
    (purged,) = data_files(folder(lake, "s/b"))
    assert pq.read_metadata(folder(lake, "s/b") / purged).num_rows == 2
    then = time.time() - 9 * 86_400
    for path in folder(lake, "a").glob("*.parquet"):
        os.utime(path, (then, then))
    done = lake.maintain(MaintenancePolicy(tables="a", apply=True))
    assert done.tables[0].vacuum is not None
    assert done.tables[0].vacuum.delete_files == 0  # just removed, so kept for seven days
    with pytest.raises(TableNotFoundError, match="There is no table nowhere"):
        lake.maintain(MaintenancePolicy(tables="nowhere"))
    for wrong in (
        {"colour": 1},
        {"zorder": ["id"]},
        {"apply": "yes"},
        {"target_mib": 1.5},
        {"retention_hours": True},
    ):
        with pytest.raises(UsageError, match=next(iter(wrong))):
            maintenance.make_policy(wrong)


@pytest.mark.promise("DL-22", "DL-25")
def test_a_policy_keeps_and_writes_vorder(lake: Lake, spark: SparkSession) -> None:
    """Files that are in V-Order, or whose table or policy asks for it, are compacted to such."""
    frame = spark.range(0, 4_000, 1, 2).selectExpr("hash(id) % 50 AS a", "hash(id, 1) % 9 AS b")
    kept = lake.write("kept", frame, vorder=True)
    lake.operations.defaults(vorder=True)
    asks = lake.write("asks", frame)
    assert (asks.version, asks.snapshot().wants_vorder) == (1, True)
    lake.operations.defaults(vorder=False)
    plain = lake.write("plain", frame)

    def in_order() -> list[tuple[int, int]]:
        found = (lake.inspect(table.name).files for table in (asks, kept, plain))
        return [(len(files), sum(file.ordered for file in files)) for files in found]

    assert in_order() == [(2, 2), (2, 2), (2, 0)]  # the table asked when it was written
    # Delta writes rows that add a column; maintenance orders their file.
    lake.write("asks", spark.range(0, 9, 1, 1).selectExpr("id AS other"))
    policy = MaintenancePolicy(min_files=2, vacuum=False, apply=True)
    lines = lake.maintain(replace(policy, apply=False)).tables
    planned = [line.optimize for line in lines]
    assert [one and (one.files, one.files_ordered) for one in planned] == [
        (3, 3),
        (2, 2),
        (2, None),
    ]
    lake.maintain(policy)
    assert in_order() == [(1, 1), (1, 1), (1, 0)]
    # Too few small files to compact: they are only ordered.
    (line,) = lake.maintain(replace(policy, tables="plain", vorder=True)).tables
    assert line.optimize is not None
    assert (line.optimize.files, line.optimize.files_ordered) == (0, 1)
    assert in_order() == [(1, 1), (1, 1), (1, 1)]
    assert [one.optimize for one in lake.maintain(policy).tables] == [None] * 3
    lake.write("plain", frame)
    lake.maintain(replace(policy, tables="plain", zorder="b, a"))
    last = {row.operation: row for row in describe_history(plain).limit(2).collect()}
    assert json.loads(last["OPTIMIZE"].operationParameters["zOrderBy"]) == ["b", "a"]
    assert in_order()[2] == (1, 1)
    assert plain.read().count() == 8_000
