"""Test the versions of a table: the inventory's story, readable range, differences, restore."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections import Counter
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from helpers.tables import bag_by_spark, describe_history
from mirrorlake import Lake, Table
from mirrorlake.errors import InvalidNameError, UsageError, VersionError
from mirrorlake.history import diff
from mirrorlake.spark.jvm import ENFORCED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS = ["ProductID", "StockOnHand"]


def rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in frame.collect())


def log_file(lake: Lake, table: str, version: int) -> Path:
    return Path(lake.storage.root) / "Tables" / table / "_delta_log" / f"{version:020d}.json"


def live_files(lake: Lake, table: str, version: int) -> set[str]:
    """Return the data files of a version, by a slow walk over all commits."""
    found: set[str] = set()
    for number in range(version + 1):
        for line in log_file(lake, table, number).read_text().splitlines():
            action = json.loads(line)
            if "add" in action:
                found.add(action["add"]["path"])
        for line in log_file(lake, table, number).read_text().splitlines():
            action = json.loads(line)
            if "remove" in action and not any(
                action["remove"]["path"] == json.loads(other).get("add", {}).get("path")
                for other in log_file(lake, table, number).read_text().splitlines()
            ):
                found.discard(action["remove"]["path"])
    return found


@pytest.fixture(scope="module")
def inventory(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Lake:
    """Write the original story: insert A, B, C; insert D; set C to 10; delete B; in one file."""
    lake = Lake(tmp_path_factory.mktemp("inventory"), spark=spark)
    first = spark.createDataFrame([("A", 1), ("B", 2), ("C", 3)], COLUMNS).coalesce(1)
    table = lake.write("Inventory", first, properties={"delta.enableDeletionVectors": "true"})
    lake.write("Inventory", spark.createDataFrame([("D", 4)], COLUMNS).coalesce(1))
    spark.sql(f"UPDATE {table.sql_name} SET StockOnHand = 10 WHERE ProductID = 'C'")
    spark.sql(f"DELETE FROM {table.sql_name} WHERE ProductID = 'B'")
    spark.sql(f"OPTIMIZE {table.sql_name}")
    return lake


@pytest.mark.promise("DL-01")
def test_the_inventory_story(inventory: Lake) -> None:
    table = inventory.table("Inventory")
    told = [
        [],
        [("A", 1), ("B", 2), ("C", 3)],
        [("A", 1), ("B", 2), ("C", 3), ("D", 4)],
        [("A", 1), ("B", 2), ("C", 10), ("D", 4)],
        [("A", 1), ("C", 10), ("D", 4)],
        [("A", 1), ("C", 10), ("D", 4)],
    ]
    for version, expected in enumerate(told):
        assert rows(table.read(version=version)) == expected
        assert log_file(inventory, "Inventory", version).is_file()
    sizes = [len(live_files(inventory, "Inventory", version)) for version in range(6)]
    assert sizes == [0, 1, 2, 3, 3, 1]
    import pyarrow.parquet as pq

    folder = Path(inventory.storage.root) / "Tables" / "Inventory"
    (third,) = live_files(inventory, "Inventory", 3) - live_files(inventory, "Inventory", 2)
    (fourth,) = live_files(inventory, "Inventory", 5)
    read = [
        sorted(map(tuple, pq.read_table(folder / name, columns=COLUMNS).to_pandas().to_numpy()))
        for name in (third, fourth)
    ]
    assert read == [[("C", 10)], [("A", 1), ("C", 10), ("D", 4)]]


@pytest.mark.long
def test_sql_knows_every_way_to_say_when(inventory: Lake) -> None:
    readable = inventory.table("Inventory").readable_range()
    assert (readable.earliest, readable.newest, readable.limits) == (0, 5, ())
    compact = readable.until.strftime("%Y%m%d%H%M%S%f")[:17]
    iso = readable.until.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    stock = "SELECT sum(StockOnHand) AS n FROM"
    queries = {
        f"{stock} Inventory": 15,
        f"{stock} Inventory@v1": 6,
        f"{stock} `Inventory`@v2 AS i": 10,
        f"{stock} Inventory@{compact}": 15,
        f"{stock} Inventory AS OF VERSION 3": 17,
        f"{stock} Inventory VERSION AS OF 3 i": 17,
        f"{stock} Inventory FOR VERSION AS OF 2": 10,
        f"{stock} Inventory TIMESTAMP AS OF '{iso}'": 15,
        f"{stock} Inventory AS OF TIMESTAMP '{iso}' x": 15,
        f"{stock} Inventory@29990101000000000": 15,
        f"{stock} Inventory TIMESTAMP AS OF '2999-01-01'": 15,
        f"{stock} Inventory TIMESTAMP AS OF current_date() + INTERVAL 1 DAY x": 15,
        f"{stock} Inventory TIMESTAMP AS OF timestamp_seconds({readable.until.timestamp()})": 15,
        f"{stock} (SELECT * FROM Inventory@v1) WHERE 'Inventory@v1' <> '' -- Inventory@v9": 6,
        f"{stock} Inventory@v1 /* Inventory AS OF VERSION 9 */ WHERE Inventory.ProductID < 'C'": 3,
        f"WITH Inventory AS (SELECT * FROM Inventory@v1) {stock} Inventory": 6,
        "WITH old AS (SELECT * FROM Inventory@v2), Inventory AS (SELECT 1 AS StockOnHand)"
        f" {stock} Inventory": 1,
        "SELECT sum(a.StockOnHand - b.StockOnHand) AS n"
        " FROM Inventory@v4 a JOIN Inventory@v3 b USING (ProductID)": 0,
        "SELECT count(*) AS n FROM Inventory@v2 WHERE ProductID NOT IN"
        " (SELECT ProductID FROM Inventory)": 1,
        f"SELECT min(n) AS n FROM ({stock} Inventory@v1 UNION ALL {stock} Inventory@v2)": 6,
    }
    for query, expected in queries.items():
        assert [row.n for row in inventory.sql(query).collect()] == [expected], query


def test_out_of_range_is_told_with_the_range(inventory: Lake) -> None:
    table = inventory.table("Inventory")
    cases = [
        lambda: table.read(version=9),
        lambda: inventory.sql("SELECT * FROM Inventory@v9"),
        lambda: table.read(timestamp=datetime(1999, 1, 1)),
        lambda: inventory.sql("SELECT * FROM Inventory@19990101000000000"),
        lambda: table.diff(0, 7),
        lambda: table.restore(7),
    ]
    for case in cases:
        with pytest.raises(VersionError, match=r"versions 0 to 5, committed from 20"):
            case()
    with pytest.raises(UsageError, match="is not a timestamp"):
        table.read(timestamp="yesterday")


def copy_aged(lake: Lake, table: str, copy: str, ages: list[int]) -> Table:
    """Copy a table whose versions, removals and files are as old as `ages`, in days by version."""
    path = Path(lake.storage.path(f"Tables/{copy}"))
    shutil.copytree(lake.table(table).path, path, ignore=shutil.ignore_patterns("*.crc"))
    for version, age in enumerate(ages):
        log = log_file(lake, copy, version)
        text = re.sub(
            r'"(timestamp|deletionTimestamp|modificationTime)":(\d+)',
            lambda found, age=age: f'"{found[1]}":{int(found[2]) - age * 86_400_000}',
            log.read_text(),
        )
        log.write_text(text)
        moment = time.time() - age * 86_400 + version
        added = [json.loads(line)["add"]["path"] for line in text.splitlines() if '{"add"' in line]
        for file in (log, *(path / name for name in added)):
            os.utime(file, (moment, moment))
    return lake.table(copy)


@pytest.mark.promise("DL-06")
def test_the_reachable_past_ends_where_log_and_files_end(
    lake: Lake, spark: SparkSession, pytestconfig: pytest.Config
) -> None:
    for number in range(1, 5):
        lake.write("t", spark.createDataFrame([(number,)], ["n"]).coalesce(1), mode="overwrite")
    ages = [20, 12, 8, 6, 0]  # version 1 was replaced 8 days ago, version 2 6 days ago
    table = copy_aged(lake, "t", "old", ages)
    now = datetime.now(timezone.utc)

    def check(readable: Table, *readable_versions: int) -> None:
        for version in readable_versions:
            expected = [(version,)] if version else []
            assert rows(readable.read(version=version)) == expected
            assert rows(lake.sql(f"SELECT * FROM {readable.name}@v{version}")) == expected
            at = now - timedelta(days=ages[version] - 0.5)
            assert rows(readable.read(timestamp=at)) == expected

    # Without VACUUM, everything can be read, and restored.
    assert (table.readable_range().earliest, table.readable_range().limits) == (0, ())
    check(table, 0, 1)
    assert rows(table.diff(1, 4)) == [(1, "delete"), (4, "insert")]
    assert table.compare(1, 4).counts == {"added": 1, "removed": 1, "changed": 0}
    if pytestconfig.getoption("--long"):
        restored = copy_aged(lake, "t", "restored", ages)
        assert restored.restore(1, apply=True).applied
        assert rows(restored.read()) == [(1,)]

    # A plain session refuses what the note says; the lake reads it even with such a session.
    plain = spark.newSession()
    plain.conf.set(ENFORCED, "true")
    note = table.readable_range().plain_session
    assert note is not None
    assert note.version == 3
    assert "interval 7 days" in note.why
    for version in (note.version - 1, note.version):
        query = f"SELECT * FROM {table.sql_name} VERSION AS OF {version}"
        if version < note.version:
            with pytest.raises(Exception, match="deletedFileRetentionDuration"):
                plain.sql(query).collect()
        else:
            assert rows(plain.sql(query)) == [(version,)]
    with_plain = Lake(lake.storage.root, spark=plain).table("old")
    check(with_plain, 1)

    # With the defaults, VACUUM leaves seven days: what was current then can be read.
    done = table.vacuum(apply=True)
    assert (done.delete_files, done.unreadable) == (1, (0, 1))
    (gone,) = live_files(lake, "t", 1)
    readable = table.readable_range()
    assert [(limit.what, limit.version) for limit in readable.limits] == [("vacuumed files", 2)]
    assert readable.earliest == 2
    assert gone in repr(readable)
    check(table, 0, 2)  # version 0 has no files
    assert rows(table.read(timestamp=now - timedelta(days=7))) == [(2,)]
    cases = [
        lambda: table.read(version=1),
        lambda: table.read(timestamp=now - timedelta(days=9)),
        lambda: lake.sql("SELECT * FROM old@v1"),
        lambda: table.diff(1),
        lambda: table.restore(1),
    ]
    for case in cases:
        with pytest.raises(VersionError, match=r"1 of old was vacuumed: .*versions 2 to") as told:
            case()
        assert told.value.file == gone


@pytest.mark.long
def test_a_log_that_is_cut_off_bounds_the_past(lake: Lake, spark: SparkSession) -> None:
    properties = {"delta.checkpointInterval": "2"}
    for number in range(1, 5):
        frame = spark.createDataFrame([(number,)], ["n"]).coalesce(1)
        lake.write("t", frame, properties=properties)
    for version in range(2):
        log_file(lake, "t", version).unlink()
    table = lake.table("t")
    readable = table.readable_range()
    assert (readable.earliest, [limit.what for limit in readable.limits]) == (
        2,
        ["log retention"],
    )
    with pytest.raises(
        VersionError, match=r"older commits are no longer in the log.*interval 30 days"
    ):
        table.read(version=1)
    assert rows(table.read(version=2)) == [(1,), (2,)]


def test_clocks_that_went_back(lake: Lake, spark: SparkSession) -> None:
    from mirrorlake.delta.commits import CommitLog

    for number in range(2):
        lake.write("t", spark.createDataFrame([(number,)], ["n"]).coalesce(1))
    now = time.time()
    for version, ago in ((0, 100), (1, 20), (2, 50)):
        os.utime(log_file(lake, "t", version), (now - ago, now - ago))
    found = CommitLog(lake.storage, "Tables/t").read(2, 10)
    moments = {commit.version: commit.timestamp for commit in found.commits}
    assert moments[0] < moments[1] < moments[2]
    table = lake.table("t")
    delta = {row.version: row.timestamp for row in describe_history(table).collect()}
    assert {v: m.timestamp() for v, m in moments.items()} == pytest.approx(
        {v: m.replace(tzinfo=timezone.utc).timestamp() for v, m in delta.items()}, abs=0.0011
    )
    assert len(rows(table.read(timestamp=moments[1]))) == 1


def reference_diff(before: Counter, after: Counter, key: int | None) -> Counter:
    """Return a difference in plain Python: bags of rows, and leftovers of a key are paired."""
    removed, added = list((before - after).elements()), list((after - before).elements())
    if key is None:
        return Counter([("delete", r) for r in removed] + [("insert", r) for r in added])
    found: Counter = Counter()
    for value in {row[key] for row in removed + added}:
        old = sorted((r for r in removed if r[key] == value), key=repr)
        new = sorted((r for r in added if r[key] == value), key=repr)
        pairs = min(len(old), len(new))
        kinds = ["update_preimage"] * pairs + ["delete"] * (len(old) - pairs)
        found.update(Counter(kind for kind in kinds))
        kinds = ["update_postimage"] * pairs + ["insert"] * (len(new) - pairs)
        found.update(Counter(kind for kind in kinds))
    return found


def test_differences_equal_a_slow_reference(
    spark: SparkSession, pytestconfig: pytest.Config
) -> None:
    import random

    dice = random.Random(7)
    schema = "`a key` int, `v.1` double, m map<string,int>, `ta``g` string"

    def some() -> list[tuple[Any, ...]]:
        return [
            (
                dice.choice([1, 2, 3, None]),
                dice.choice([0.5, float("nan"), None]),
                dice.choice([None, {"x": 1}, {"x": 1, "y": None}]),
                dice.choice(["u", "w"]),
            )
            for _ in range(dice.randrange(12))
        ]

    def plain(row: Any) -> tuple[Any, ...]:
        return tuple(repr(value) for value in row)

    for _ in range(6 if pytestconfig.getoption("--long") else 2):
        old, new = some(), some()
        frames = [spark.createDataFrame(data, schema).coalesce(1) for data in (old, new)]
        bags = [Counter(map(plain, data)) for data in (old, new)]
        found = diff.diff_rows(*frames, match=diff.Match.ROW).collect()
        assert Counter((row[-1], plain(row[:-1])) for row in found) == reference_diff(*bags, None)
        found = diff.diff_rows(*frames, match=diff.Match.KEY, keys=["a key"]).collect()
        assert Counter(row[-1] for row in found) == reference_diff(*bags, 0)
        applied = bags[0].copy()
        for row in found:
            sign = -1 if row[-1] in ("delete", "update_preimage") else 1
            applied[plain(row[:-1])] += sign
        assert +applied == bags[1]
        assert all(count >= 0 for count in applied.values())


def test_the_order_of_a_maps_entries_is_no_difference(spark: SparkSession) -> None:
    one, other = "map('x', 1, 'y', 2)", "map('y', 2, 'x', 1)"
    for shape in (
        "{}",
        "array({})",
        "named_struct('a b', {})",
        "map('k', {})",
        "map('k', array({}))",
    ):
        old, new, changed = (
            spark.sql(f"SELECT 1 AS id, {shape.format(text)} AS m UNION ALL SELECT 2, NULL")
            for text in (one, other, "map('x', 1, 'y', NULL)")
        )
        assert diff.diff_rows(old, new, diff.Match.ROW).collect() == [], shape
        kinds = [row[-1] for row in diff.diff_rows(old, changed, diff.Match.ROW).collect()]
        assert sorted(kinds) == ["delete", "insert"], shape


def test_differences_by_row_id_key_and_row(inventory: Lake) -> None:
    table = inventory.table("Inventory")
    changed = table.diff(2, 4)
    assert rows(changed) == [
        ("B", 2, "delete"),
        ("C", 3, "update_preimage"),
        ("C", 10, "update_postimage"),
    ]
    assert diff.count_changes(changed) == {"added": 0, "removed": 1, "changed": 1}
    assert rows(table.diff(4)) == []  # compaction changes no row
    assert rows(table.diff(2, 4, keys=["productid"])) == rows(changed)
    assert rows(table.diff(4, 2, match="row")) == [
        ("B", 2, "insert"),
        ("C", 3, "insert"),
        ("C", 10, "delete"),
    ]
    with pytest.raises(UsageError, match="matched by 'colour'"):
        table.diff(1, match="colour")
    with pytest.raises(UsageError, match="can't be matched by the columns"):
        table.diff(1, keys=["colour"])


def test_how_two_versions_are_compared() -> None:
    tracked = {"delta.enableRowTracking": "true", "mirrorlake.keys": '["id"]'}
    keyed = {"mirrorlake.keys": '["id"]'}
    assert diff.choose_match(tracked, tracked) == (diff.Match.ROW_ID, ())
    assert diff.choose_match(tracked, tracked, recreated=True) == (diff.Match.KEY, ("id",))
    assert diff.choose_match(keyed, tracked) == (diff.Match.KEY, ("id",))
    assert diff.choose_match({"mirrorlake.keys": "[]"}, keyed) == (diff.Match.KEY, ("id",))
    assert diff.choose_match({"mirrorlake.keys": '["other"]'}, keyed) == (diff.Match.ROW, ())
    assert diff.choose_match({}, {}) == (diff.Match.ROW, ())


def test_restore_says_what_it_means_and_does_it(lake: Lake) -> None:
    publisher = lake.publisher("t", keys=["id"])
    publisher.write([{"id": 1, "v": "a"}, {"id": 2, "v": "b"}])
    lake.mirror()
    publisher.upsert([{"id": 2, "v": "c"}])
    lake.mirror()
    table = lake.table("t")
    planned = table.restore(1)
    assert not planned.applied
    assert table.snapshot().version == 2
    assert "are not applied again" in planned.warnings[0]
    done = table.restore(1, apply=True)
    assert (done.applied, done.returned_files, done.dropped_files) == (
        True,
        planned.returned_files,
        2,  # the file with the new row, and the old file with its deletion vector
    )
    assert bag_by_spark(lake, "t", ["id", "v"]) == {(1, "a"): 1, (2, "b"): 1}
    lake.mirror()  # nothing is applied again
    assert bag_by_spark(lake, "t", ["id", "v"]) == {(1, "a"): 1, (2, "b"): 1}
    same = table.restore(3, apply=True)
    assert (same.applied, same.returned_files, same.dropped_files) == (True, 0, 0)
    assert table.snapshot().version == 3
    with pytest.raises(UsageError, match="A publisher feeds t"):
        lake.write("t", [{"id": 3, "v": "x"}])

    # The folder is recreated: all rows have new ids, so they are matched by key.
    shutil.rmtree(Path(lake.landing_zone) / "t")
    lake.publisher("t", keys=["id"]).write([{"id": 1, "v": "a"}, {"id": 2, "v": "d"}])
    lake.mirror()
    assert diff.count_changes(table.diff(1)) == {"added": 0, "removed": 0, "changed": 1}
    assert any("was recreated" in warning for warning in table.restore(1).warnings)
    assert not any("was recreated" in warning for warning in planned.warnings)


def test_write_makes_tables_of_ones_own(lake: Lake, spark: SparkSession) -> None:
    import pandas as pd
    import pyarrow as pa

    lake.write("s.a b", [{"x y": 1, "p": "u"}], partition_by=["p"])
    lake.write("s.a b", pa.table({"x y": [2], "p": ["w"], "more": [1.5]}))
    table = lake.write("s.A B", pd.DataFrame({"x y": [3], "p": ["u"]}))
    assert str(table.name) == "s.a b"
    assert bag_by_spark(lake, "s.a b", ["x y", "p", "more"]) == {
        (1, "u", None): 1,
        (2, "w", 1.5): 1,
        (3, "u", None): 1,
    }
    properties = table.snapshot().properties
    assert properties["delta.enableRowTracking"] == properties["delta.enableChangeDataFeed"]
    with pytest.raises(InvalidNameError, match="s can't be both a table and a schema"):
        lake.write("s", [{"x": 1}])
    lake.write("s.a b", [{"x y": 9, "p": "u", "more": 0.5}], mode="overwrite")
    assert bag_by_spark(lake, "s.a b", ["x y", "p"]) == {(9, "u"): 1}
    lake.write("plain", spark.range(2), mode="overwrite")
    with pytest.raises(InvalidNameError, match="plain can't be"):
        lake.write("plain.inner", [{"x": 1}])
    with pytest.raises(UsageError, match="no mode 'merge'"):
        lake.write("plain", spark.range(2), mode="merge")
