"""Reads of partitioned tables: by tags, by a stored bucket, by task, and of a view's table."""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any

import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from helpers.partition_tables import (
    PAST,
    START,
    everything,
    hand_made,
    hashed,
    ranged,
    small_table,
    some_rows,
)
from helpers.partitions import bucket, check_homogeneous, live_files
from mirrorlake import Lake
from mirrorlake.errors import QueryError, UsageError


@pytest.mark.promise("PP-19")
def test_reads_touch_only_their_partitions(lake: Lake) -> None:
    """An equality, an IN, and ranges of time."""
    folder = hand_made(lake, [some_rows(0, 1000, keys=300), some_rows(1000, 1000, keys=300)])
    model, table = everything(lake), lake.table("t")
    policy = table.partitioning.set({"PartitionKeys": [hashed(8), ranged()], **PAST})
    whole = table.scan("k = 'k1é'")
    assert len(whole.read) == whole.files == 2  # before: random text can't be pruned
    lake.partitioning.run()
    new = some_rows(2000, 50, keys=300)
    lake.spark.createDataFrame(new).coalesce(1).write.format("delta").mode("append").save(
        str(folder)
    )
    model += Counter(
        (r["id"], r["k"], r["at"].replace(tzinfo=None) if r["at"] else None)
        for r in new.to_pylist()
    )
    files = live_files(folder)
    for where, keep in (
        ("k = 'k1é'", lambda k: k == "k1é"),
        ("k IN ('k1é', 'k2é', 'nobody') AND id >= 0", lambda k: k in ("k1é", "k2é")),
        ("k IS NULL", lambda k: k is None),
        ("(k = 'k1é' OR k = '') AND k <> 'x'", lambda k: k in ("k1é", "")),
    ):
        scan = table.scan(where)
        found = Counter((row.id, row.k, row.at) for row in scan.rows.collect())
        assert found == Counter({row: n for row, n in model.items() if keep(row[1])}), where
        values = {row[1] for row in model if keep(row[1])} | (
            {"nobody"} if "nobody" in where else set()
        )
        at_most = 3 * len({bucket(value, policy) for value in values}) + 1
        assert (scan.unpartitioned, scan.files) == (1, len(files))
        assert len(scan.read) <= at_most < len(files)
        assert scan.bytes_read < scan.size
    # A moment alone, and both: Delta's own statistics do that once bins are apart.
    day = f"at >= '{START:%Y-%m-%d}' AND at < '{START:%Y-%m-%d}' + INTERVAL 1 DAY"
    assert len(table.scan(day).read) <= 8 + 1
    assert len(table.scan(f"k = 'k1é' AND {day}").read) <= 2
    assert table.read("k = 'k1é' AND id < 0").count() == 0
    with pytest.raises(Exception, match="nothing_here"):
        table.read("nothing_here = 1")


@pytest.mark.promise("PP-06", "PP-19")
def test_the_mode_decides_whether_keys_are_shuffled(
    lake: Lake, pytestconfig: pytest.Config
) -> None:
    folder = hand_made(lake, [some_rows(0, 600, keys=90), some_rows(600, 600, keys=90)])
    small_table(lake, "names", [300])
    table, names = lake.table("t"), lake.table("names")
    mode = hashed(8, PartitionAssignmentMode="ByPartition")
    table.partitioning.set({"PartitionKeys": [mode, ranged()], **PAST})
    names.partitioning.set({"PartitionKeys": [mode], **PAST})
    lake.partitioning.run()

    def exchanges(*, compared: bool = True) -> list[int]:
        """Compare an aggregation and joins with those of `Table.read`; count their exchanges."""

        def results(rows: DataFrame, others: DataFrame) -> list[DataFrame]:
            return [
                rows.groupBy("k").count(),
                rows.join(others, "k", "full"),
                rows.alias("a").join(rows.alias("b"), "k").select("a.id", "b.at"),
                rows.join(names.read().hint("merge"), ["id", "k"], "left"),
            ]

        found = results(table.partitioning.read(), names.partitioning.read())
        counts = [plan_of(result).count("Exchange") for result in found]
        expected = results(table.read(), names.read())
        for result, plain in zip(found, expected, strict=True) if compared else ():
            assert Counter(map(tuple, result.collect())) == Counter(map(tuple, plain.collect()))
        return counts

    def most_tasks() -> int:
        """Return the number of tasks that read rows of the same key, for the key with most."""
        rows = table.partitioning.read().select("k", F.spark_partition_id().alias("task"))
        return max(Counter(row.k for row in rows.distinct().collect()).values())

    only_the_other_side = [0, 0, 0, 1]  # a join with rows that no rule has placed shuffles them
    assert exchanges() == only_the_other_side
    assert most_tasks() == 1
    # Only rows that are not partitioned yet are shuffled, before the query.
    new = lake.spark.createDataFrame(some_rows(1200, 50, keys=90)).coalesce(1)
    new.write.format("delta").mode("append").save(str(folder))
    assert exchanges() == only_the_other_side
    assert most_tasks() == 1
    found = table.partitioning.read("k = 'k1é' AND id > 5", columns=["id"])
    assert found.columns == ["id"]
    assert {row.id for row in found.collect()} == {
        row[0] for row in everything(lake) if row[1] == "k1é" and row[0] > 5
    }
    with pytest.raises(QueryError, match="nothing_here"):
        table.partitioning.read(columns=["nothing_here"])
    if pytestconfig.getoption("--long"):
        # Equal keys of different policies are in different tasks.
        seeded = hashed(8, PartitionAssignmentMode="ByPartition", Seed=2)
        names.partitioning.set({"PartitionKeys": [seeded], **PAST})
        assert exchanges() == [0, 1, 0, 1]
    # Uniform ignores the partitions.
    keys = [hashed(8, PartitionAssignmentMode="uniform"), ranged()]
    table.partitioning.alter_merge({"PartitionKeys": keys})
    assert 0 not in exchanges(compared=bool(pytestconfig.getoption("--long")))


@pytest.mark.long
def test_a_stored_bucket_prunes_for_every_engine(lake: Lake) -> None:
    folder = hand_made(lake, [some_rows(0, 200)])
    before, table = everything(lake), lake.table("t")
    plain = {"PartitionKeys": [hashed(8)], **PAST}
    for name in ("", " ", "_metadata", "__mirrorlake_b"):
        with pytest.raises(UsageError, match="can't be the name"):
            table.partitioning.set(plain, bucket_column=name)
    version = table.snapshot().version
    table.partitioning.set(plain, bucket_column="bucket", guard=True, dry_run=True)
    assert (table.partitioning.policy, table.snapshot().version) == (None, version)
    table.partitioning.set(plain)
    assert table.partitioning.operate()
    policy = table.partitioning.set(plain, bucket_column="bucket")
    # Files partitioned before are read by their tags until their buckets are stored.
    assert table.scan("k = 'k1é'").unpartitioned == 0
    assert table.partitioning.operate()
    assert table.partitioning.operate() is None
    assert everything(lake) == before
    rows = table.read().select("k", "bucket").distinct().collect()
    assert all(row.bucket == bucket(row.k, policy) for row in rows)
    new = lake.spark.createDataFrame(some_rows(200, 10)).withColumn(
        "bucket", F.lit(None).cast("int")
    )
    new.coalesce(1).write.format("delta").mode("append").save(str(folder))
    number = bucket("k1é", policy)
    wanted = (pc.field("bucket") == number) | pc.field("bucket").is_null()
    data = DeltaTable(str(folder)).to_pyarrow_dataset()  # delta-rs ignores tags
    assert (len(list(data.get_fragments())), len(list(data.get_fragments(wanted)))) == (9, 2)
    # A changed key with the old bucket is refused; another policy needs another column.
    with pytest.raises(Exception, match=r"(?i)check constraint"):
        lake.spark.sql(f"UPDATE {table.sql_name} SET k = 'other' WHERE k = 'k1é'")
    lake.spark.sql(f"UPDATE {table.sql_name} SET k = 'other', bucket = NULL WHERE k = 'k1é'")
    assert table.partitioning.operate()
    assert table.read("bucket IS NULL").count() == 0
    with pytest.raises(UsageError, match="choose another name"):
        table.partitioning.set({"PartitionKeys": [hashed(9)], **PAST}, bucket_column="bucket")


def test_a_views_table(lake: Lake, pytestconfig: pytest.Config) -> None:
    """Its files are partitioned like any others, and refreshes remain incremental."""
    source = lake.create_table("t", {"id": "INT", "k": "STRING"}, keys=["id"])
    insert = f"INSERT INTO {source.sql_name} SELECT id, concat('k', id % 9) FROM"
    lake.spark.sql(f"{insert} range(0, 50)")
    lake.views.create("v", "SELECT k, count(*) AS n FROM t GROUP BY k")
    partitioning = lake.table("v").partitioning
    policy = partitioning.set({"PartitionKeys": [hashed(4)], **PAST})
    assert partitioning.operate()
    lake.spark.sql(f"{insert} range(50, 54)")
    done = lake.views.refresh("v", how="incremental", check=True)
    assert (done.mode, done.differences) == ("incremental", 0)
    assert {row.n for row in lake.table("v").read("k = 'k5'").collect()} == {6}
    if not pytestconfig.getoption("--long"):
        return
    assert partitioning.operate()
    files = live_files(lake.storage.path("Tables/v"))
    assert check_homogeneous(files, policy) == len(files) >= 4
    assert {row.n for row in lake.table("v").read("k = 'k5'").collect()} == {6}
    assert "view" in [finding.rule for finding in partitioning.advise().findings]


def plan_of(frame: Any) -> str:
    lines: list[str] = []
    old, sys.stdout = (
        sys.stdout,
        type("Out", (), {"write": lambda _, t: lines.append(t), "flush": lambda _: None})(),
    )
    try:
        frame.explain()
    finally:
        sys.stdout = old
    return "".join(lines)
