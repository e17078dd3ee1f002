"""Unusual rows and files: outliers, and files that other writers mixed or wrote oddly."""

from __future__ import annotations

import time
from collections import Counter
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from helpers.delta_by_hand import HandMade
from helpers.partition_tables import (
    PAST,
    SCHEMA,
    START,
    done,
    everything,
    hand_made,
    hashed,
    ranged,
    rows_of,
    some_rows,
)
from helpers.partitions import bin_start, bucket, check_homogeneous, live_files
from mirrorlake import Lake

PREFIX = "mirrorlake.partition"


def test_outliers_get_files_of_their_own(lake: Lake) -> None:
    """NULL and 'N/A' would make two buckets huge; dates from 1950 on would make a file each."""
    rows = []
    for n in range(2000):
        key = None if n % 4 == 0 else "N/A" if n % 4 == 1 else f"k{n}"
        at = (
            START + timedelta(hours=n % 48)
            if n >= 12
            else datetime(1950 + n, 1, 1, tzinfo=timezone.utc)
        )
        rows.append({"id": n, "k": key, "at": at})
    folder = hand_made(lake, [pa.Table.from_pylist(rows, SCHEMA)])
    before, partitioning = everything(lake), lake.table("t").partitioning
    policy = partitioning.set({"PartitionKeys": [hashed(16), ranged()], **PAST})
    receipt = partitioning.operate()
    assert receipt is not None
    files = done(folder)
    assert check_homogeneous(files, policy) == len(files)
    far = [file for file in files if file.tag("outlier") == "far"]
    assert [file.rows.num_rows for file in far] == [12]
    own = [file for file in files if file.tag("outlier") == "value"]
    assert Counter(file.tag("value") for file in own) == {"null": 2, '"N/A"': 2}
    assert receipt.outlier_rows == rows_of(own) + 12 == partitioning.stats().outlier_rows
    assert len(files) == 2 * 16 + 4 + 1
    assert everything(lake) == before
    # An equality also skips the outliers' files of its own bucket.
    key = next(
        r["k"]
        for r in rows
        if r["k"] and r["k"] != "N/A" and bucket(r["k"], policy) == bucket(None, policy)
    )
    scan = lake.table("t").scan(f"k = '{key}'")
    assert len(scan.read) <= 3  # its bucket in two bins, and the far file
    assert scan.rows.count() == 1
    assert lake.table("t").scan("k IS NULL").rows.count() == sum(row[1] is None for row in before)
    start = bin_start(datetime(1955, 1, 1, tzinfo=timezone.utc), policy)
    assert lake.table("t").read(f"at = timestamp_micros({start})").count() == 1


def check_limit(lake: Lake, folder: Path, policy: Any, most: int) -> None:
    """Assert that operations with a limit of groups write homogeneous files, no far rows."""
    before, partitioning = everything(lake), lake.table("t").partitioning
    rows = sum(before.values())
    first = partitioning.operate()
    assert first is not None
    assert check_homogeneous(live_files(folder), policy) == most
    stats = partitioning.stats()
    assert stats.partitioned_rows + stats.pending_rows == rows
    assert 0 < stats.pending_rows < rows
    assert not lake.partitioning.run().failed
    files = live_files(folder)
    assert check_homogeneous(files, policy) == len(files) > most
    assert {file.tag("outlier") for file in files} <= {None, "value"}
    assert everything(lake) == before
    assert partitioning.stats().percentage == 100
    assert partitioning.operate() is None


def test_every_file_is_homogeneous_however_many_groups_there_are(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The actual limit yields 10,000 files; that case runs under --long.
    monkeypatch.setattr("mirrorlake.partitioning.groups.MOST_GROUPS", 9)
    folder = hand_made(lake, [some_rows(150 * n, 150, days=4) for n in range(2)])
    policy = lake.table("t").partitioning.set({"PartitionKeys": [hashed(5), ranged()], **PAST})
    check_limit(lake, folder, policy, 9)


@pytest.mark.long
def test_more_groups_than_one_operation_writes(lake: Lake) -> None:
    days = [
        pa.Table.from_pydict(
            {
                "id": range(day * 20_000, (day + 1) * 20_000),
                "k": [f"key {n}" for n in range(20_000)],
                "at": [START + timedelta(days=day)] * 20_000,
            },
            SCHEMA,
        )
        for day in range(6)
    ]
    folder = hand_made(lake, [pa.concat_tables(days)])
    policy = lake.table("t").partitioning.set({"PartitionKeys": [hashed(2048), ranged()], **PAST})
    check_limit(lake, folder, policy, 10_000)
    assert len(live_files(folder)) == 6 * 2048


def test_mixed_files_of_older_versions_are_partitioned_again(lake: Lake) -> None:
    """They put the groups beyond the limit among the far rows, tagged as partitioned."""
    folder = hand_made(lake, [some_rows(0, 300, days=4)])
    table = lake.table("t")
    policy = table.partitioning.set({"PartitionKeys": [hashed(), ranged()], **PAST})
    assert not lake.partitioning.run().failed
    named = next(file.tags for file in live_files(folder))
    old = {name: named[name] for name in (f"{PREFIX}.policy", f"{PREFIX}.sorted")}
    mixed = some_rows(300, 100, days=4)
    distant = [
        {"id": 400 + n, "k": f"k{n}", "at": datetime(1950 + n, 1, 1, tzinfo=timezone.utc)}
        for n in range(9)
    ]
    rows = pa.concat_tables([mixed, pa.Table.from_pylist(distant, SCHEMA)])
    log = HandMade(folder, version=table.snapshot().version + 1)
    arrived = f"{time.time_ns() // 1000 - 5}/{time.time_ns() // 1000}"
    far = old | {f"{PREFIX}.outlier": "far", f"{PREFIX}.arrived": arrived}
    log.commit("OPTIMIZE", add=[log.file("far", rows, tags=far)])
    before, version = everything(lake), table.snapshot().version
    idle = {"format": 1, "version": version, "policy": 1, "files": 1, "due": None}
    lake.storage.write_json("Files/_mirrorlake/partitioning/t/idle.json", idle)
    stats = table.partitioning.stats()
    assert (stats.rows, stats.partitioned_rows, stats.pending_rows) == (409, 300, 109)
    (line,) = lake.partitioning.run().tables
    assert len(line.receipts) == 1
    files = live_files(folder)
    assert check_homogeneous(files, policy) == len(files)
    outside = [file for file in files if file.tag("outlier") == "far"]
    assert [file.rows.num_rows for file in outside] == [9]
    assert rows_of([file for file in files if file.tag("arrived") == arrived]) == 109
    assert everything(lake) == before
    assert table.partitioning.stats().percentage == 100
    assert lake.partitioning.run().operations == 0  # files of far rows only are done


@pytest.mark.long
def test_files_mixed_by_others_are_partitioned_again(lake: Lake) -> None:
    """OPTIMIZE by others removes tags: such files are partitioned again; a guard prevents it."""
    folder = hand_made(lake, [some_rows(0, 200), some_rows(200, 200)])
    before, table = everything(lake), lake.table("t")
    policy = table.partitioning.set({"PartitionKeys": [hashed()], **PAST})
    table.partitioning.operate()
    optimize = f"OPTIMIZE {table.sql_name}"
    lake.spark.sql(optimize).collect()
    assert not done(folder)
    assert table.partitioning.stats().pending_rows == 400
    table.partitioning.operate()
    assert check_homogeneous(live_files(folder), policy) == 4
    table.partitioning.set({"PartitionKeys": [hashed(5)], **PAST}, guard=True)
    policy = table.partitioning.policy
    assert policy is not None
    table.partitioning.operate()
    paths = {file.path for file in live_files(folder)}
    lake.spark.sql(optimize).collect()
    assert {file.path for file in live_files(folder)} == paths
    assert check_homogeneous(live_files(folder), policy) == 5
    assert everything(lake) == before
    # A deletion vector does not change the bucket of the remaining rows.
    props = "SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
    lake.spark.sql(f"ALTER TABLE {table.sql_name} {props}")
    lake.spark.sql(f"DELETE FROM {table.sql_name} WHERE id % 3 = 0")
    assert check_homogeneous(live_files(folder), policy) == 5
    assert table.partitioning.stats().partitioned_rows == table.read().count() == 266


@pytest.mark.long
def test_files_that_others_wrote_oddly(lake: Lake) -> None:
    """A file without statistics is partitioned; a file without rows is not rewritten."""
    folder = hand_made(lake, [])
    table = HandMade(folder, version=1)
    files = [table.file("a", some_rows(0, 0)), table.file("b", some_rows(0, 60))]
    table.adds["b"].pop("stats")
    table.commit("WRITE", add=files)
    partitioning = lake.table("t").partitioning
    bounds = {"MaxOriginalSizePerOperation": 1}  # a file at a time, the empty one first
    policy = partitioning.set({"PartitionKeys": [hashed()], **bounds, **PAST})
    (line,) = lake.partitioning.run().tables
    assert (line.error, [receipt.rows for receipt in line.receipts]) == (None, [60])
    assert check_homogeneous(live_files(folder), policy) == 4
    assert (partitioning.stats().percentage, partitioning.stats().pending_files) == (
        100,
        0,
    )
