"""Test net changes against their model, and against the difference of two versions."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from typing import Any

import pytest
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from helpers.examples import listed
from helpers.feed_model import net_model
from helpers.quiet import commit_quietly
from helpers.tables import bag, describe_history
from mirrorlake import Lake
from mirrorlake.feed import ranges

KEYS = st.sampled_from([None, "a", "`"])
VALUES = st.none() | st.sampled_from([0.0, 1.5, float("inf")])
STEPS = st.lists(
    st.tuples(st.sampled_from(["insert", "update", "delete", "rekey", "same"]), KEYS, VALUES),
    max_size=8,
)
SCHEMA = (
    "example INT, k STRING, v DOUBLE, _change_type STRING, _commit_version BIGINT,"
    " _commit_timestamp TIMESTAMP"
)


def feed_of(example: int, rows: list[tuple[Any, ...]], steps: list[Any]) -> list[tuple[Any, ...]]:
    """Return the changes that a feed records for these steps, one version each."""
    table = list(rows)
    feed: list[tuple[Any, ...]] = []
    for version, (step, key, value) in enumerate(steps, 1):
        hit = [row for row in table if row[1] == key]
        if step == "insert":
            table.append((example, key, value))
            feed.append((version, "insert", table[-1]))
            continue
        for row in hit:
            table.remove(row)
            new = {"update": (example, key, value), "rekey": (example, "new", row[2]), "same": row}
            if step == "delete":
                feed.append((version, "delete", row))
                continue
            table.append(new[step])
            feed += [(version, "update_preimage", row), (version, "update_postimage", new[step])]
    return feed


def test_random_feeds_come_to_what_the_model_says(spark: SparkSession) -> None:
    """Run all examples in one query; a failing one is identified by its number."""
    examples = listed(st.tuples(st.lists(st.tuples(KEYS, VALUES), max_size=3), STEPS), 180)
    crowded = {n for n, (rows, steps) in enumerate(examples) if has_crowd(rows, steps)}
    feed = [
        change
        for number, (rows, steps) in enumerate(examples)
        for change in feed_of(number, [(number, *row) for row in rows], steps)
    ]
    for unique in (None, range(1, 9)):
        changes = [change for change in feed if change[2][0] not in crowded] if unique else feed
        frame = spark.createDataFrame([(*row, kind, n, None) for n, kind, row in changes], SCHEMA)
        found = ranges.net_changes(frame, ["example", "k"], unique=unique).collect()
        expected = Counter(net_model(changes, 2))
        assert Counter((r[4], r[3], tuple(r)[:3]) for r in found) == expected
    assert len(crowded) < len(examples) - 30


def has_crowd(rows: list[tuple[Any, ...]], steps: list[Any]) -> bool:
    """Return whether a key has two rows at any time."""
    counts = Counter(key for key, _ in rows)
    crowds = [max(counts.values(), default=0)]
    for step, key, _ in steps:
        if step == "insert":
            counts[key] += 1
        elif step == "delete":
            counts[key] = 0
        elif step == "rekey":
            counts["new"] += counts.pop(key, 0)
        crowds.append(max(counts.values(), default=0))
    return max(crowds) > 1


SEVERAL = [
    [(1, "insert", "a"), (2, "insert", "a")],
    [(1, "insert", "a"), (1, "insert", "a"), (1, "insert", "a")],
    [(1, "insert", "a"), (2, "insert", "b"), (3, "delete", "b")],
    [(1, "delete", "a"), (1, "delete", "b"), (1, "insert", "a"), (1, "insert", "b")],
    [(1, "delete", "a"), (1, "delete", "a"), (1, "insert", "b"), (1, "insert", "b")],
    [(1, "delete", "a"), (1, "insert", "b"), (2, "delete", "x"), (2, "insert", "c")],
]


def test_a_key_with_several_rows_is_refused_where_keys_are_relied_on(spark: SparkSession) -> None:
    """Test each case alone, and all of them in one query without unique keys."""
    schema = "key STRING, v STRING, _change_type STRING, _commit_version BIGINT,"
    schema += " _commit_timestamp TIMESTAMP"
    every = []
    for number, feed in enumerate(SEVERAL):
        rows = [(f"k{number}", value, kind, version, None) for version, kind, value in feed]
        with pytest.raises(Exception, match=r"several rows of one key \(key\)"):
            ranges.net_changes(
                spark.createDataFrame(rows, schema), ["key"], unique=range(1, 4)
            ).collect()
        every += rows
    found = ranges.net_changes(spark.createDataFrame(every, schema), ["key"]).collect()
    expected = net_model([(row[3], row[2], row[:2]) for row in every], 1)
    assert Counter((r[3], r[2], tuple(r)[:2]) for r in found) == Counter(expected)


def test_a_range_with_more_versions_than_a_mark_has_places_for_is_summed_up(
    spark: SparkSession,
) -> None:
    last = 2**22
    schema = "key STRING, v STRING, _change_type STRING, _commit_version BIGINT,"
    rows = [("k", "a", "insert", 1, None), ("k", "b", "insert", last, None)]
    changes = spark.createDataFrame(rows, f"{schema} _commit_timestamp TIMESTAMP")
    with pytest.raises(Exception, match="several rows of one key"):
        ranges.net_changes(changes, ["key"], unique=range(1, last + 1)).collect()
    longer = ranges.net_changes(changes, ["key"], unique=range(1, last + 2)).collect()
    assert {tuple(row)[:4] for row in longer} == {
        ("k", "a", "insert", last),
        ("k", "b", "insert", last),
    }


@pytest.mark.parametrize("unique", [None, range(1, 4)])
def test_an_outcome_is_of_its_keys_last_change(spark: SparkSession, unique: range | None) -> None:
    schema = "key STRING, v STRING, _change_type STRING, _commit_version BIGINT,"
    moments = {version: datetime(2026, 1, version) for version in (1, 2, 3)}
    rows = [
        *[("again", "a", kind, n) for n, kind in ((1, "insert"), (2, "delete"), (3, "insert"))],
        ("other", "a", "delete", 1), ("other", "b", "insert", 1),
        ("other", "b", "delete", 2), ("other", "c", "insert", 2),
    ]  # fmt: skip
    changes = spark.createDataFrame(
        [(*row, moments[row[3]]) for row in rows], f"{schema} _commit_timestamp TIMESTAMP"
    )
    assert {
        tuple(row) for row in ranges.net_changes(changes, ["key"], unique=unique).collect()
    } == {
        ("again", "a", "insert", 3, moments[3]),
        ("other", "a", "update_preimage", 2, moments[2]),
        ("other", "c", "update_postimage", 2, moments[2]),
    }


@pytest.mark.parametrize(
    ("schema", "before", "after"),
    [
        ("k INT, a BIGINT, b BIGINT", (1, 5, None), (1, None, 5)),
        ("k INT, a ARRAY<INT>, b INT", (1, [1, None], 2), (1, [None, 1], 2)),
        ("k INT, a STRUCT<x: INT, y: INT>, b INT", (1, (1, None), 2), (1, (None, 1), 2)),
    ],
)
def test_a_value_that_moves_where_null_was_is_a_change(
    spark: SparkSession, schema: str, before: tuple[Any, ...], after: tuple[Any, ...]
) -> None:
    schema += ", _change_type STRING, _commit_version BIGINT, _commit_timestamp TIMESTAMP"
    rows = [(*before, "update_preimage", 1, None), (*after, "update_postimage", 1, None)]
    changes = spark.createDataFrame(rows, schema)
    found = ranges.net_changes(changes, ["k"], unique=range(1, 2)).collect()
    assert sorted(map(str, found)) == sorted(map(str, changes.collect()))


def test_a_mirrored_table(lake: Lake, pytestconfig: pytest.Config) -> None:
    """Test that net changes equal the difference of any two versions."""
    publisher = lake.publisher("t", keys=["id"])
    start = [{"id": n, "v": "old", "w": None} for n in range(6)]
    publisher.write(start)
    lake.mirror()  # 1
    table = lake.table("t")
    commit_quietly(table, "column")  # 2
    publisher.update([{"id": 0, "v": "once", "w": 1}, {"id": 1, "v": "back", "w": 1}])
    publisher.delete([{"id": 2}, {"id": 3}])
    publisher.upsert([{"id": 7, "v": "short-lived", "w": 1}, {"id": 8, "v": "new", "w": 1}])
    publisher.update([{"id": 5, "v": "old", "w": None}])  # unchanged, but written again
    lake.mirror()  # 3
    publisher.delete([{"id": 99}])
    lake.mirror()  # 4
    commit_quietly(table, "vorder")  # 5
    assert table.changes.net(4).count() == 0
    publisher.update([{"id": 0, "v": "twice", "w": 2}, {"id": 1, "v": "old", "w": None}])
    publisher.upsert([{"id": 3, "v": "again", "w": 3}])
    publisher.delete([{"id": 7}])
    assert not lake.mirror().failed  # 6
    raw = table.changes.read(2).count()
    net = table.changes.net(2)
    assert net.columns == table.changes.read(2).columns
    found = sorted((r.id, r._change_type, r.v, r._commit_version) for r in net.collect())
    assert found == [
        (0, "update_postimage", "twice", 6),
        (0, "update_preimage", "old", 6),
        (2, "delete", "old", 3),
        (3, "update_postimage", "again", 6),
        (3, "update_preimage", "old", 6),
        (8, "insert", "new", 3),
    ]
    assert raw > len(found)
    if not pytestconfig.getoption("--long"):
        return
    overwritten = f"INSERT OVERWRITE {table.sql_name} SELECT * FROM {table.sql_name}"
    lake.spark.sql(overwritten)  # 7
    lake.spark.sql(f"RESTORE TABLE {table.sql_name} TO VERSION AS OF 3")  # 8
    commit_quietly(table, "compact")  # 9
    lake.spark.sql(f"RESTORE TABLE {table.sql_name} TO VERSION AS OF 7")  # 10
    assert table.changes.read(7).count() > 0
    assert table.changes.net(7).count() == 0
    assert bag(lake, "t", ["id", "v"]) == {
        (0, "twice"): 1,
        (1, "old"): 1,
        (3, "again"): 1,
        (4, "old"): 1,
        (5, "old"): 1,
        (8, "new"): 1,
    }


@pytest.mark.promise("CF-10")
def test_table_changes_in_sql(lake: Lake) -> None:
    from mirrorlake.errors import FeedError, UsageError

    publisher = lake.publisher("dbo.`dotted.name`", keys=["id"])
    for number in range(1, 4):
        publisher.write([{"id": number, "v": "table_changes('x', 1)"}])
        lake.mirror()

    def ids(query: str) -> list[int]:
        return sorted(row[0] for row in lake.sql(query).collect())

    name = "dbo.`dotted.name`"
    history = describe_history(lake.table(name)).selectExpr(
        "version", "CAST(timestamp AS STRING) AS at"
    )
    at = {row["version"]: row["at"] for row in history.toArrow().to_pylist()}
    for arguments, expected in (
        ("0, 2", [1, 2]),
        ("2", [2, 3]),
        ("1 + 1, 1 + 1", [2]),
        (f"'{at[2]}'", [2, 3]),
        (f"'{at[1]}', '{at[2]}'", [1, 2]),
        (f"TIMESTAMP '{at[1]}', 1", [1]),
        (f"TIMESTAMP '{at[2]}' + INTERVAL 1 MICROSECOND - INTERVAL '1' DAY, '{at[2]}'", [1, 2]),
    ):
        assert ids(f"SELECT id FROM table_changes('{name}', {arguments})") == expected, arguments
    joined = f"""
        WITH latest AS (SELECT * FROM TABLE_CHANGES('DBO.`Dotted.Name`', 3) WHERE id > 0)
        -- table_changes('nothing', 1)
        SELECT c.id FROM latest c JOIN {name}@v3 t USING (id) WHERE t.v = "table_changes('x', 1)"
        UNION ALL SELECT id FROM table_changes("{name}", 1, 1) AS one
    """
    assert ids(joined) == [1, 3]
    with pytest.raises(FeedError, match="beyond the newest version, 3"):
        ids(f"SELECT id FROM table_changes('{name}', 4)")
    with pytest.raises(UsageError, match="has 3 arguments"):
        ids(f"SELECT id FROM table_changes('{name}', 1, 2, 3)")
    lake.spark.conf.set("spark.databricks.delta.changeDataFeed.timestampOutOfRange.enabled", "true")
    try:
        assert ids(f"SELECT id FROM table_changes('{name}', 4)") == []
        assert ids(f"SELECT id FROM table_changes('{name}', 3, 9)") == [3]
        assert ids(f"SELECT id FROM table_changes('{name}', 3, current_timestamp())") == [3]
    finally:
        lake.spark.conf.unset("spark.databricks.delta.changeDataFeed.timestampOutOfRange.enabled")
