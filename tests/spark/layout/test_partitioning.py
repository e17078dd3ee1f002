"""Operations on whole tables: homogeneous files, limits, dates, outliers, age; no row changes."""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers.delta_by_hand import HandMade
from helpers.partition_tables import (
    PAST,
    SCHEMA,
    done,
    everything,
    hand_made,
    hashed,
    ranged,
    rows_of,
    some_rows,
)
from helpers.partitions import LiveFile, bin_start, check_homogeneous, live_files
from mirrorlake import Lake
from mirrorlake.errors import RewriteError, UsageError
from mirrorlake.mirror.options import KEYS_PROPERTY
from mirrorlake.spark.jvm import DeltaTransaction
from mirrorlake.spark.rewrite import as_pair


@pytest.mark.promise("PP-01", "PP-02", "PP-05", "PP-09")
def test_mixed_files_become_homogeneous_ones(lake: Lake, pytestconfig: pytest.Config) -> None:
    """Row ids, odd names, deleted rows, the feed are kept; without a policy nothing runs."""
    path = lake.storage.path("Tables/t")
    lake.spark.sql(
        f"CREATE TABLE delta.`{path}` (id BIGINT, `k. ,``y` STRING, at TIMESTAMP) USING delta"
        " TBLPROPERTIES ('delta.enableRowTracking' = 'true', 'delta.columnMapping.mode' = 'name',"
        " 'delta.enableChangeDataFeed' = 'true', 'delta.enableDeletionVectors' = 'true')"
    )
    rows = lake.spark.createDataFrame(some_rows(0, 900)).withColumnRenamed("k", "k. ,`y")
    for part in (rows.where("id < 600"), rows.where("id >= 600")):
        part.coalesce(1).write.format("delta").mode("append").save(path)
    lake.spark.sql(f"DELETE FROM delta.`{path}` WHERE id % 100 = 7")
    hidden = ", _metadata.row_id, _metadata.row_commit_version"
    query = f"SELECT *{hidden} FROM delta.`{path}`"
    before = Counter(map(repr, lake.spark.sql(query).collect()))
    table, version = lake.table("t"), lake.table("t").snapshot().version
    assert lake.partitioning.run().operations == 0
    assert table.partitioning.operate() is None
    assert table.snapshot().version == version
    assert table.partitioning.show().rows[0][2] is None
    key = hashed(3) | {"ColumnName": "k. ,`y"}
    by_both = table.partitioning.set({"PartitionKeys": [key, ranged()], **PAST})
    report = lake.partitioning.run()
    ((receipt,),) = [line.receipts for line in report.tables]
    assert table.snapshot().version == version + 1 == receipt.version
    assert Counter(map(repr, lake.spark.sql(query).collect())) == before
    physical = json.loads(table.snapshot().metadata["schemaString"])["fields"]
    names = {f["metadata"]["delta.columnMapping.physicalName"]: f["name"] for f in physical}
    assert by_both.hash is not None
    plain = replace(by_both, hash=replace(by_both.hash, column="k"))
    files = [
        LiveFile(
            f.path,
            f.size,
            f.tags,
            f.rows.rename_columns(
                [names.get(c, c).replace("k. ,`y", "k") for c in f.rows.column_names]
            ),
            f.modified,
        )
        for f in live_files(path)
    ]
    assert all(file.is_done for file in files)
    assert check_homogeneous(files, plain) == len(receipt.files_out)
    # MaxPartitionCount is per time range: every bin has its own buckets, all of them here.
    per_bin = Counter(file.tag("bin") for file in files)
    assert len(per_bin) == 3
    assert max(per_bin.values()) == 3
    assert receipt.rows == sum(before.values()) == rows_of(files)
    start = table.snapshot().version
    feed = lake.spark.read.format("delta").option("readChangeFeed", "true")
    assert feed.option("startingVersion", start).load(path).count() == 0
    if not pytestconfig.getoption("--long"):
        return
    # In V-Order a file is still sorted by its key, and keeps its tags.
    ordered = table.optimize.vorder(again=True)
    assert all(
        one.columns[:1] == (files[0].tags["mirrorlake.partition.sorted"],)
        for one in ordered.outcomes
        if not one.reason
    )
    assert all(file.is_done for file in live_files(path))
    with pytest.raises(UsageError, match="would mix its partitions"):
        table.optimize.compact(dry_run=True)
    # A renamed column is no longer the policy's: reads work, and nothing is partitioned.
    lake.spark.sql(f"ALTER TABLE delta.`{path}` RENAME COLUMN `k. ,``y` TO renamed")
    at_one_key = sum(row == "k1é" for row in table.read().toPandas()["renamed"])
    assert table.read("renamed = 'k1é'").count() == at_one_key > 0
    (line,) = lake.partitioning.run().failed
    assert "no column 'k. ,`y'" in str(line.error)
    assert lake.partitioning.diagnostics().shown().rows[0][2] == 0
    assert table.partitioning.advise().findings[0].rule == "misfit"
    # Its name in the files has not changed, so no file is rewritten under the new name.
    table.partitioning.alter_merge({"PartitionKeys": [key | {"ColumnName": "renamed"}, ranged()]})
    assert lake.partitioning.run().operations == 0
    assert table.partitioning.stats().percentage == 100
    scan = table.scan("renamed = 'k1é'")
    assert (scan.unpartitioned, scan.rows.count()) == (0, at_one_key)
    assert len(scan.read) == 3
    policy = table.partitioning.policy
    assert policy is not None
    assert table.partitioning.delete(dry_run=True) == policy == table.partitioning.policy
    assert table.partitioning.delete() == policy
    assert table.partitioning.policy is None
    kept = [row[1] for row in table.partitioning.history().rows]
    assert kept == ["set", "altered", "deleted"]


@pytest.mark.promise("DL-24")
@pytest.mark.parametrize("guard", [pytest.param(False, marks=pytest.mark.long), True])
def test_a_purge_rewrites_each_partitioned_file_by_itself(lake: Lake, guard: bool) -> None:
    """REORG skips the files of a guarded table, and would merge those of several partitions."""
    mapping, vectors = "delta.columnMapping.mode", {"delta.enableDeletionVectors": "true"}
    rows = lake.spark.createDataFrame(some_rows(0, 300)).selectExpr("*", "'hush' AS secret")
    table = lake.write("t", rows, properties=vectors | {mapping: "none", KEYS_PROPERTY: '["id"]'})
    policy = table.partitioning.set({"PartitionKeys": [hashed(3)], **PAST}, guard=guard)
    lake.partitioning.run()
    before = live_files(table.path)
    lake.spark.sql(f"ALTER TABLE {table.sql_name} SET TBLPROPERTIES ('{mapping}' = 'name')")
    lake.spark.sql(f"DELETE FROM {table.sql_name} WHERE id % 10 = 7")
    lake.spark.sql(f"ALTER TABLE {table.sql_name} DROP COLUMN secret")
    query = f"SELECT *, _metadata.row_id, _metadata.row_commit_version FROM {table.sql_name}"
    told = Counter(map(repr, lake.spark.sql(query).collect()))
    planned = table.optimize.purge(dry_run=True)
    purged = table.optimize.purge()
    assert planned.files == purged.files == purged.files_added == len(before) == 3
    files = live_files(table.path)
    assert check_homogeneous(files, policy) == len(files) == 3
    assert rows_of(files) == sum(told.values()) == 270
    assert not [file.path for file in files if "secret" in file.rows.column_names]
    assert {file.modified for file in files} == {file.modified for file in before}
    for file in files:  # a point query needs few row groups only if the rows are still sorted
        keys = file.rows["k"].to_pylist()
        assert keys == sorted(keys, key=lambda key: (key is not None, key or ""))
    assert Counter(map(repr, lake.spark.sql(query).collect())) == told
    assert table.optimize.purge(dry_run=True).files == 0
    newest = Path(table.path, "_delta_log", f"{table.version:020d}.json").read_text()
    assert ('"clusteringProvider":"mirrorlake"' in newest) == guard
    assert lake.partitioning.run().operations == 0
    lake.forget("t", {"id": 5}, apply=True)
    on_disk = Path(table.path).rglob("part-*.parquet")
    left = [pq.ParquetFile(file).read(["id"])["id"].to_pylist() for file in on_disk]
    assert (len(left), sum(map(len, left))) == (3, 269)
    assert not [ids for ids in left if 5 in ids]


@pytest.mark.promise("PP-10", "PP-12", "PP-13")
def test_dates_decide_which_files_are_rewritten(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of 50, 30, 10 and 1 hours ago: new ones first, then older ones, only hot ones."""
    ages = [50.0, 30.0, 10.0, 1.0]
    folder = hand_made(lake, [some_rows(100 * n, 100) for n in range(4)], ages_hours=ages)
    before, partitioning = everything(lake), lake.table("t").partitioning
    policy = partitioning.set({"PartitionKeys": [hashed()]})
    assert abs((policy.effective or 0) - time.time_ns() // 1000) < 60_000_000  # now by default
    assert partitioning.operate() is None
    statistics = partitioning.stats()
    assert (statistics.rows, statistics.partitioned_rows, statistics.unpartitioned_rows) == (
        400,
        0,
        400,
    )
    assert statistics.pending_rows == 0

    def since(hours: float) -> dict[str, str]:
        since = datetime.now(timezone.utc) - timedelta(hours=hours)
        return {"EffectiveDateTime": since.isoformat()}

    partitioning.alter_merge(since(20))
    assert partitioning.operate()
    assert rows_of(done(folder)) == 200
    assert lake.table("t").read("k = 'k1é'").count() == sum(row[1] == "k1é" for row in before)
    # Cold files are not rewritten, whatever the effective date is.
    partitioning.alter_merge(PAST, hot="45h")
    assert partitioning.operate()
    assert partitioning.operate() is None
    assert rows_of(done(folder)) == 300
    partitioning.alter_merge({}, hot="60h")
    assert partitioning.operate()
    assert rows_of(done(folder)) == 400
    check_homogeneous(done(folder), policy)
    # New rows are unpartitioned: readable at once, and counted.
    lake.spark.createDataFrame(some_rows(400, 41)).write.format("delta").mode("append").save(
        str(folder)
    )
    scan = lake.table("t").scan("k = 'k1é'")
    assert scan.unpartitioned >= 1
    assert {row.id for row in scan.rows.collect() if row.id >= 400} == {
        row["id"] for row in some_rows(400, 41).to_pylist() if row["k"] == "k1é"
    }
    statistics = partitioning.stats()
    assert (statistics.unpartitioned_rows, statistics.pending_rows) == (41, 41)
    assert statistics.percentage == pytest.approx(100 * 400 / 441)
    # Under Spark Connect the log yields the same.
    with monkeypatch.context() as patch:
        patch.setattr("mirrorlake.partitioning.statistics.has_gateway", lambda _: False)
        assert partitioning.stats() == statistics
    assert sum(everything(lake).values()) == 441
    assert not before - everything(lake)


@pytest.mark.promise("PP-11")
def test_an_operation_is_bounded(lake: Lake) -> None:
    folder = hand_made(
        lake, [some_rows(100 * n, 100) for n in range(5)], ages_hours=[5, 4, 3, 2, 1]
    )
    sizes = {file.path: file.size for file in live_files(folder)}
    footers = {path: pq.read_metadata(folder / path) for path in sizes}
    original = {path: one.row_group(0).total_byte_size for path, one in footers.items()}
    limit = original["f2.parquet"] + original["f3.parquet"]
    assert limit < sizes["f2.parquet"] + sizes["f3.parquet"]  # small files are mostly footers
    partitioning = lake.table("t").partitioning
    policy = partitioning.set({"PartitionKeys": [hashed()], **PAST})
    assert (policy.min_rows, policy.row_limit, policy.size_limit) == (0, 5_000_000, 5 * 2**30)
    bounds = {"MaxRowCountPerOperation": 250, "MinRowCountPerOperation": 101}
    assert partitioning.alter_merge(bounds, dry_run=True).max_rows == 250
    assert partitioning.policy == policy
    partitioning.alter_merge(bounds)
    planned = partitioning.run(dry_run=True)
    assert [(one.kind, one.files, one.rows) for one in planned] == [("partition", 2, 200)] * 2
    assert planned[0].size == sizes["f0.parquet"] + sizes["f1.parquet"]
    partitioning.alter_merge({"MinRowCountPerOperation": 0})
    assert [one.files for one in partitioning.run(dry_run=True)] == [2, 2, 1]
    assert not partitioning.receipts()
    first = partitioning.operate()
    assert first is not None
    assert set(first.files_in) == {"f0.parquet", "f1.parquet"}  # the oldest files
    # Uncompressed bytes count, not the stored ones.
    partitioning.alter_merge({"MaxRowCountPerOperation": 0, "MaxOriginalSizePerOperation": limit})
    assert [one.files for one in partitioning.run(dry_run=True)] == [2, 1]
    partitioning.alter_merge({"MaxOriginalSizePerOperation": limit - 1})
    assert partitioning.run(dry_run=True)[0].files == 1
    partitioning.alter_merge({"MaxOriginalSizePerOperation": limit})
    second = partitioning.operate()
    assert second is not None
    assert set(second.files_in) == {"f2.parquet", "f3.parquet"}
    partitioning.alter_merge({"MinRowCountPerOperation": 101, "MaxOriginalSizePerOperation": 0})
    assert partitioning.operate() is None
    partitioning.alter_merge({"MinRowCountPerOperation": 100})
    third = partitioning.operate()
    assert third is not None
    assert (third.rows, len(third.files_in)) == (100, 1)
    assert partitioning.operate() is None
    # Four files of one partition and size are merged, files of different partitions never.
    partitioning.alter_merge({"MinRowCountPerOperation": 0})
    lake.spark.createDataFrame(some_rows(500, 100)).coalesce(1).write.format("delta").mode(
        "append"
    ).save(str(folder))
    last = partitioning.operate()
    assert last is not None
    # No two of these fit into one operation: rewriting a single file would never end.
    partitioning.alter_merge({"MaxRowCountPerOperation": 30})
    assert partitioning.operate(merge=True) is None
    partitioning.alter_merge({"MaxRowCountPerOperation": 0})
    (would,) = partitioning.run(dry_run=True)
    (merged,) = partitioning.run()
    assert (would.kind, would.files, would.rows) == ("merge", len(merged.files_in), merged.rows)
    assert partitioning.run(dry_run=True) == ()
    assert (last.kind, merged.kind) == ("partition", "merge")
    assert len(merged.files_in) == 4 * len(merged.files_out)
    files = live_files(folder)
    assert check_homogeneous(files, policy) == len(files) == 4
    assert rows_of(files) == 600
    assert [r.version for r in partitioning.receipts()] == [2, 3, 4, 6, 7]
    group = pq.ParquetFile(folder / files[0].path).metadata.row_group(0)
    columns = [group.column(at) for at in range(group.num_columns)]
    assert {column.compression for column in columns} == {"ZSTD"}
    assert [column.physical_type for column in columns] == ["INT64", "BYTE_ARRAY", "INT64"]


@pytest.mark.long
def test_sums_observed_while_writing_are_only_accepted_as_proof(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark counts the rows of a repeated task twice, or loses a result; lost rows are found."""
    folder = hand_made(lake, [some_rows(0, 100)])
    partitioning = lake.table("t").partitioning
    before = everything(lake)
    partitioning.set({"PartitionKeys": [hashed()], **PAST})
    watched = DeltaTransaction.watched
    answers: list[Any] = []

    def answer(self: DeltaTransaction, rows: Any, sums: Any) -> Any:
        frame, tell = watched(self, rows, sums)
        return frame, lambda: answers.append(tell()) or [2 * n for n in answers[-1]]

    monkeypatch.setattr(DeltaTransaction, "watched", answer)
    twice = partitioning.operate()
    assert twice is not None
    assert as_pair(answers[0]) == (100, twice.checksum)
    assert everything(lake) == before
    monkeypatch.setattr(DeltaTransaction, "watched", lambda _, rows, sums: (rows, lambda: None))
    partitioning.alter_merge({"PartitionKeys": [hashed(3)]})
    silent = partitioning.operate()
    assert silent is not None
    assert silent.checksum == twice.checksum
    monkeypatch.setattr(
        DeltaTransaction, "watched", lambda self, rows, sums: watched(self, rows.limit(99), sums)
    )
    partitioning.alter_merge({"PartitionKeys": [hashed(2)]})
    paths = {file.path for file in live_files(folder)}
    with pytest.raises(RewriteError, match="99 rows"):
        partitioning.operate()
    assert {file.path for file in live_files(folder)} == paths


@pytest.mark.promise("PP-08")
def test_creation_time_follows_the_key_and_retention_follows_it(lake: Lake) -> None:
    now = datetime.now(timezone.utc).replace(microsecond=0)
    rows = [
        {"id": n, "k": f"k{n}", "at": now - timedelta(days=days, minutes=n)}
        for n, days in enumerate([400, 400, 30, 30, 1, 1])
    ]
    folder = hand_made(lake, [pa.Table.from_pylist(rows, SCHEMA)])
    partitioning = lake.table("t").partitioning
    partitioning.set({"PartitionKeys": [ranged("7d", OverrideCreationTime=True)], **PAST})
    assert partitioning.operate()
    for file in done(folder):
        moments = file.rows["at"].to_pylist()
        ends = [f"{int(m.timestamp()) * 1_000_000}" for m in (min(moments), max(moments))]
        assert file.tag("created") == "/".join(ends)
    assert repr(partitioning.drop_older_than("365d")).startswith("t: would drop 1 file with 2 rows")
    assert lake.table("t").read().count() == 6
    dropped = partitioning.drop_older_than("365d", apply=True)
    assert (dropped.rows, dropped.version) == (2, 3)
    assert {row.id for row in lake.table("t").read().collect()} == {2, 3, 4, 5}
    assert partitioning.drop_older_than("29d", apply=True).rows == 2
    # Without the override a file is as old as the files it was made of.
    partitioning.alter_merge({"PartitionKeys": [ranged("7d")]})
    assert partitioning.operate()
    assert partitioning.drop_older_than("12h").files == 0
    assert partitioning.drop_older_than("0.00:00:00").rows == 2


def test_cold_files_are_merged_once_the_hot_timespan_includes_them(
    lake: Lake,
) -> None:
    """OverrideCreationTime makes new files old; hot or Lookback decides which are merged."""
    folder = hand_made(lake, [])
    partitioning = lake.table("t").partitioning
    key = ranged("7d", OverrideCreationTime=True)
    policy = partitioning.set({"PartitionKeys": [key], **PAST}, hot="30d")
    old = datetime.now(timezone.utc).replace(microsecond=0) - timedelta(days=400)
    start, moment = bin_start(old, policy), int(old.timestamp()) * 1_000_000
    named = {
        "mirrorlake.partition.policy": policy.fingerprint({"at": "at"}),
        "mirrorlake.partition.sorted": "at",
        "mirrorlake.partition.bin": str(start),
        "mirrorlake.partition.created": f"{moment}/{moment}",
    }
    rows = [pa.Table.from_pylist([{"id": n, "k": "k", "at": old}], SCHEMA) for n in range(4)]
    table = HandMade(folder, version=1)
    files = [table.file(f"f{n}", some, tags=named) for n, some in enumerate(rows)]
    table.commit("WRITE", add=files)
    assert partitioning.stats().partitioned_rows == 4
    assert partitioning.operate(merge=True) is None
    custom = [{"Kind": "Custom", "CustomPeriod": age} for age in ("399d", "401d")]
    for lookback, merges in zip(("HotCache", "All", *custom), (0, 1, 0, 1), strict=True):
        partitioning.alter_merge({"Lookback": lookback})
        assert len(partitioning.run(dry_run=True)) == merges, lookback
    partitioning.alter_merge({"Lookback": None}, hot="500d")
    merged = partitioning.operate(merge=True)
    assert merged is not None
    assert (len(merged.files_in), merged.rows) == (4, 4)
    (file,) = live_files(folder)
    assert file.tag("created") == f"{moment}/{moment}"
    assert check_homogeneous([file], policy) == 1
