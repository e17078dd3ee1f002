"""Test reading the feed: ranges by version and timestamp, ends beyond it, and errors."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from helpers.feed_model import RESERVED
from mirrorlake import Lake
from mirrorlake.delta import timestamps
from mirrorlake.errors import FeedError, UsageError
from mirrorlake.names import TableName
from mirrorlake.spark.sql import delta_name

CLIPS = "spark.databricks.delta.changeDataFeed.timestampOutOfRange.enabled"
ODD = "it's `a` ünïcode table"
START = 1_600_000_000_000  # version n is committed n hours later


def age(path: str) -> None:
    """Set the commits' timestamps, which are their files' times without in-commit timestamps."""
    for commit in sorted((Path(path) / "_delta_log").glob("*.json")):
        moment = START / 1000 + int(commit.stem) * 3600
        os.utime(commit, (moment, moment))


def kinds(rows: Any, *columns: str) -> list[tuple[Any, ...]]:
    found = rows.select("_commit_version", "_change_type", *[f"`{c}`" for c in columns]).collect()
    return sorted(tuple(row) for row in found)


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """Return a lake: version 0 creates, 1 inserts two rows, 2 updates and deletes, 3 inserts."""
    lake = Lake(tmp_path_factory.mktemp("stock"))
    publisher = lake.publisher(f"s.`{ODD.replace('`', '``')}`", keys=["the id"])
    publisher.write([{"the id": 1, "n.x; ö": 10}, {"the id": 2, "n.x; ö": 20}])
    lake.mirror()
    publisher.update([{"the id": 1, "n.x; ö": 11}])
    publisher.delete([{"the id": 2}])
    lake.mirror()
    publisher.insert([{"the id": 3, "n.x; ö": 30}])
    assert not lake.mirror().failed
    table = lake.table(TableName("s", ODD))
    # Old commits can be read only while the retention allows it.
    lake.spark.sql(
        f"ALTER TABLE {table.sql_name} SET TBLPROPERTIES"
        " (delta.deletedFileRetentionDuration = 'interval 100000 days',"
        " delta.logRetentionDuration = 'interval 100000 days')"
    )
    age(table.path)
    return lake


ALL = [
    (1, "insert", 1, 10),
    (1, "insert", 2, 20),
    (2, "delete", 2, 20),
    (2, "update_postimage", 1, 11),
    (2, "update_preimage", 1, 10),
    (3, "insert", 3, 30),
]


@pytest.mark.promise("CF-09", "CF-12")
@pytest.mark.parametrize(
    ("start", "end", "versions"),
    [
        (0, None, {1, 2, 3}),
        pytest.param(1, 2, {1, 2}, marks=pytest.mark.long),
        ("2", "3", {2, 3}),
        pytest.param(3, 3, {3}, marks=pytest.mark.long),
        (4, 4, set()),
        pytest.param(timestamps.timestamp_text(START), None, {1, 2, 3}, marks=pytest.mark.long),
        ("2020-09-13 13:26:40", "2020-09-13 14:26:40", {1, 2}),
        ("2020-09-13 13:26:40.001", "2020-09-13 15:26:39.999", {2}),
        pytest.param("2020-09-13 13:30:00", "2020-09-13 13:40:00", set(), marks=pytest.mark.long),
        pytest.param("2020-09-13", "2020-09-13 13:26:40", {1}, marks=pytest.mark.long),
        pytest.param("2020-09-13T14:26:40Z", 3, {2, 3}, marks=pytest.mark.long),
        ("2020-09-13 16:26:40+02:00", 2, {2}),
    ],
)
def test_ranges(stock: Lake, start: Any, end: Any, versions: set[int]) -> None:
    rows = stock.table(TableName("s", ODD)).changes.read(start, end)
    assert rows.columns == ["the id", "n.x; ö", *RESERVED]
    assert [f.dataType.simpleString() for f in rows.schema][2:] == ["string", "bigint", "timestamp"]
    assert kinds(rows, "the id", "n.x; ö") == [row for row in ALL if row[0] in versions]


@pytest.mark.promise("CF-11")
def test_ends_beyond_the_latest(stock: Lake) -> None:
    table = stock.table(TableName("s", ODD))
    for start, end in ((1, 5), (5, None), (1, "2999-01-01"), ("2999-01-01", None), (9, 12)):
        with pytest.raises(
            FeedError,
            match=r"newest version, 4 of 2020.*Hint: .*SET",
        ):
            table.changes.read(start, end)
        clipped = kinds(table.changes.read(start, end, beyond_latest="clip"), "the id", "n.x; ö")
        assert clipped == (ALL if start == 1 else [])
        stock.spark.conf.set(CLIPS, "true")
        try:
            assert kinds(table.changes.read(start, end), "the id", "n.x; ö") == clipped
            with pytest.raises(FeedError, match="beyond"):
                table.changes.read(start, end, beyond_latest="error")
        finally:
            stock.spark.conf.unset(CLIPS)


@pytest.mark.parametrize(
    ("start", "end", "says"),
    [
        (3, 1, "starts at version 3, after its end 1"),
        (-1, None, "no version"),
        ("yesterday", None, "neither a version nor a timestamp.*yyyy-MM-dd"),
        ("2020-13-01", None, "nor a timestamp"),
        (0, "20200913", "beyond"),
    ],
)
def test_ends_that_make_no_sense(stock: Lake, start: Any, end: Any, says: str) -> None:
    with pytest.raises((UsageError, FeedError), match=says):
        stock.table(TableName("s", ODD)).changes.read(start, end)


def test_an_end_before_everything(stock: Lake) -> None:
    with pytest.raises(FeedError, match="before the oldest version, 0"):
        stock.table(TableName("s", ODD)).changes.read(0, "1999-01-01")


@pytest.mark.long
def test_a_feed_that_is_off_for_a_while(lake: Lake) -> None:
    path = lake.storage.path("Tables/t")
    spark, name = lake.spark, delta_name(path)
    spark.sql(f"CREATE TABLE {name} (id INT, v STRING) USING delta")
    spark.sql(f"INSERT INTO {name} VALUES (1, 'a'), (2, 'b')")  # 1
    on = "SET TBLPROPERTIES (delta.enableChangeDataFeed = %s)"
    spark.sql(f"ALTER TABLE {name} {on % 'true'}")  # 2
    spark.sql(f"UPDATE {name} SET v = 'c' WHERE id = 1")  # 3
    spark.sql(f"ALTER TABLE {name} {on % 'false'}")  # 4
    spark.sql(f"UPDATE {name} SET v = 'd' WHERE id = 2")  # 5
    spark.sql(f"ALTER TABLE {name} {on % 'true'}")  # 6
    spark.sql(f"DELETE FROM {name} WHERE id = 1")  # 7
    table = lake.table("t")
    with pytest.raises(
        FeedError, match=r"not enabled in versions 0 to 1.*1 more.*Readable: 2 to 3, 6 to 7"
    ):
        table.changes.read(0)
    assert kinds(table.changes.read(0, before_feed="clip"), "id", "v") == [(7, "delete", 1, "c")]
    assert kinds(table.changes.read(0, 3, before_feed="clip"), "id", "v") == [
        (3, "update_postimage", 1, "c"),
        (3, "update_preimage", 1, "a"),
    ]
    with pytest.raises(FeedError, match="not enabled in versions 4 to 5"):
        table.changes.read(3, 5, before_feed="clip")
    bridged = table.changes.read(0, across_gaps=True)
    assert kinds(bridged, "_change_origin", "id", "v") == [
        (1, "insert", "snapshots", 1, "a"),
        (1, "insert", "snapshots", 2, "b"),
        (3, "update_postimage", "feed", 1, "c"),
        (3, "update_preimage", "feed", 1, "a"),
        (5, "delete", "snapshots", 2, "b"),
        (5, "insert", "snapshots", 2, "d"),
        (7, "delete", "feed", 1, "c"),
    ]
    net = table.changes.net(0, across_gaps=True, keys=["ID"])
    assert kinds(net, "id", "v") == [(5, "insert", 2, "d")]
    with pytest.raises(UsageError, match=r"declares no keys"):
        table.changes.net(2, 3)
    with pytest.raises(UsageError, match=r"has no column x"):
        table.changes.net(2, 3, keys=["x"])
