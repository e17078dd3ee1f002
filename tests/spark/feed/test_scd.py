"""Test dimensions against their model: any changes, in any order and batches, also repeated.

Many examples share one table, each with its own key prefix, because a MERGE takes a second and a
row almost no time.
"""

from __future__ import annotations

import importlib
import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from helpers.dimensions import HOW, as_rows, events_of, type_1, type_2
from helpers.feed_model import RESERVED, Event, type_1_model, type_2_model
from helpers.quiet import commit_quietly
from mirrorlake import Lake, Table
from mirrorlake.errors import UsageError
from mirrorlake.feed import scd
from mirrorlake.spark.jvm import DeltaTransaction
from mirrorlake.spark.sql import delta_name

VALUES = st.tuples(st.none() | st.integers(0, 2), st.none() | st.sampled_from(["p", "q"]))
CHANGE = st.tuples(
    st.sampled_from([None, "a", "`b'"]), st.integers(1, 9), st.none() | VALUES, st.integers(0, 2)
)
EXAMPLES = st.lists(st.lists(CHANGE, max_size=9), min_size=50, max_size=50)


def how(stored_as: Any, **more: Any) -> scd.Dimension:
    return scd.Dimension(**HOW, stored_as=stored_as, **more)


def to_batches(examples: list[list[Any]]) -> list[list[Event]]:
    """Return three batches; a key's changes have different sequences, some changes come twice."""
    batches: list[list[Event]] = [[], [], []]
    for number, example in enumerate(examples):
        unique = {(key, at): (row, batch) for key, at, row, batch in example}
        for place, ((key, at), (row, batch)) in enumerate(unique.items()):
            event = Event((number, key), at, row)
            batches[batch].append(event)
            if place % 3 == 0:
                batches[(batch + place) % 3].append(event)
    return batches


TRACKED: list[dict[str, Any]] = [
    {"track_history_columns": ("v",)},
    {"track_history_except_columns": ("W.X",)},
]


# Properties of a type 2 table that decide how changes are committed. Without one of them, files are
# rewritten.
PROPERTIES = {
    "vectors": "delta.enableDeletionVectors = true",
    "merge": "delta.feature.allowColumnDefaults = 'supported'",  # MERGE computes the defaults
}


def events_table(lake: Lake) -> Table:
    """Create an empty table whose rows will be changes of a dimension."""
    columns = {
        field.name: field.dataType.simpleString() for field in as_rows(lake.spark, []).schema
    }
    return lake.create_table("events", columns)


def take(table: Table, events: list[Event], **how: Any) -> None:
    """Append changes to the table and bring its dimension `dim` up to date."""
    as_rows(table.spark, events).write.format("delta").mode("append").save(table.path)
    table.dimension("dim", **HOW, **how)


@pytest.mark.parametrize(
    ("stored_as", "ignore_nulls", "tracked", "way"),
    [
        (2, True, TRACKED[0], "rewrite"),
        pytest.param(1, False, {}, "merge", marks=pytest.mark.long),
        pytest.param(1, True, {}, "merge", marks=pytest.mark.long),
        pytest.param(2, False, {}, "rewrite", marks=pytest.mark.long),
        pytest.param(2, False, {}, "merge", marks=pytest.mark.long),
        pytest.param(2, True, {}, "vectors", marks=pytest.mark.long),
        pytest.param(2, False, TRACKED[1], "merge", marks=pytest.mark.long),
    ],
)
@settings(
    max_examples=1,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate],  # a failing batch of examples is enough; shrinking would take minutes
)
@given(examples=EXAMPLES)
def test_any_batches_end_as_the_model_does(
    spark: SparkSession,
    lake: Lake,
    stored_as: Any,
    ignore_nulls: bool,
    tracked: dict[str, Any],
    way: str,
    examples: list[list[Any]],
) -> None:
    events = events_table(lake)
    path = lake.storage.path("Tables/dim")
    batches = to_batches(examples)
    seen: list[Event] = []
    for batch in [*batches, [], batches[1]]:  # a version without changes, and a repeated batch
        random.Random(len(seen)).shuffle(batch)
        take(events, batch, stored_as=stored_as, ignore_null_updates=ignore_nulls, **tracked)
        if not seen and way != "rewrite":
            spark.sql(f"ALTER TABLE {delta_name(path)} SET TBLPROPERTIES ({PROPERTIES[way]})")
        seen += batch
        if stored_as == 1:
            assert type_1(spark, path) == type_1_model(seen, ignore_nulls=ignore_nulls)
        else:
            model = type_2_model(seen, ignore_nulls=ignore_nulls, tracked=1 if tracked else None)
            assert type_2(spark, path) == model


def test_truncates(spark: SparkSession, lake: Lake, pytestconfig: pytest.Config) -> None:
    events, path = events_table(lake), lake.storage.path("Tables/dim")
    seen: list[Event] = []
    texts = ["a1=1p b2=1p c9=1p", "!5 d6=1p a3=2p b7=2q", "d4=9q !2 a8=3p a6-"]
    for text in texts if pytestconfig.getoption("--long") else texts[:2]:
        seen += events_of(text)
        take(events, events_of(text), apply_as_truncates="op = 'T'")
        assert type_1(spark, path) == type_1_model(seen), text


@pytest.mark.parametrize("way", ["rewrite", pytest.param("vectors", marks=pytest.mark.long)])
def test_feed_and_row_ids_are_those_of_merge(spark: SparkSession, lake: Lake, way: str) -> None:
    rows, feeds = [], []
    for made in (way, "merge"):
        path = lake.storage.path(f"Tables/{made}")
        scd.apply_changes(as_rows(spark, events_of("a1=1p b1=1p c1=1p d1=1p")), path, how(2))
        kept = ", ".join(["delta.enableRowTracking = true", *filter(None, [PROPERTIES.get(made)])])
        spark.sql(f"ALTER TABLE {delta_name(path)} SET TBLPROPERTIES ({kept})")
        spark.sql(f"ALTER TABLE {delta_name(path)} ADD COLUMNS (note STRING)")
        spark.sql(f"UPDATE {delta_name(path)} SET note = 'of a person'")
        before = spark.read.format("delta").load(path).select("*", "_metadata.row_id").collect()
        ids, start = {row["row_id"]: row["the key"] for row in before}, lake.table(made).version
        for text in ("a3=2p b2- e5=1p", "a2=3p c0=2p f1- b2=4q"):
            scd.apply_changes(as_rows(spark, events_of(text)), path, how(2))
        after = spark.read.format("delta").load(path).select("*", "_metadata.row_id").collect()
        assert len({row["row_id"] for row in after}) == len(after)
        assert not [row for row in after if ids.get(row["row_id"]) not in (None, row["the key"])]
        rows.append({(*row[:-1], row["row_id"] in ids) for row in after})
        feed = spark.read.format("delta").option("readChangeFeed", "true")
        changed = feed.option("startingVersion", start + 1).load(path).drop("_commit_timestamp")
        changed = changed.withColumn("_commit_version", changed["_commit_version"] - start)
        feeds.append(Counter(map(tuple, changed.collect())))
        (last,) = spark.sql(f"DESCRIBE HISTORY {delta_name(path)} LIMIT 1").collect()
        assert (last["operationParameters"]["predicate"] != "[]") == (made == "merge")
    assert rows[0] == rows[1]
    assert feeds[0] == feeds[1]


def test_changes_without_effect_are_not_committed(spark: SparkSession, lake: Lake) -> None:
    path = lake.storage.path("Tables/dim")
    batch = as_rows(spark, events_of("a1=1p b1=1p b2-"))
    scd.apply_changes(batch, path, how(2))
    before = lake.table("dim").version
    scd.apply_changes(batch, path, how(2))
    assert lake.table("dim").version == before


def test_several_rows_of_a_period_are_refused(spark: SparkSession, lake: Lake) -> None:
    path = lake.storage.path("Tables/dim")
    scd.apply_changes(as_rows(spark, events_of("a1=1p")), path, how(2))
    spark.sql(f"INSERT INTO {delta_name(path)} SELECT * FROM {delta_name(path)}")
    with pytest.raises(Exception, match="several rows of one key"):
        scd.apply_changes(as_rows(spark, events_of("a2=2p")), path, how(2))


@pytest.mark.parametrize("tracked", TRACKED, ids=["columns", "except"])
@pytest.mark.long
def test_tracked_columns(spark: SparkSession, lake: Lake, tracked: dict[str, Any]) -> None:
    events, path = events_table(lake), lake.storage.path("Tables/dim")
    seen: list[Event] = []
    for text in ("a1=1p a2=1q b1=1p", "a4=1p b2=2p a5=2p", "b5- a6=2q b7=2p b8=2q", "a3=3q"):
        seen += events_of(text)
        take(events, events_of(text), stored_as=2, **tracked)
        assert type_2(spark, path) == type_2_model(seen, tracked=1), text


def test_events_that_are_removed_from_the_table_are_no_changes(
    spark: SparkSession, lake: Lake
) -> None:
    """Test a table that loses old events; a dimension that starts later applies the others."""
    events = events_table(lake)
    take(events, events_of("a1=1p b2=1p"))
    take(events, events_of("a3=2p b4-"))
    spark.sql(f"DELETE FROM {events.sql_name} WHERE at < 3")
    assert events.dimension("dim", **HOW).did == "versions 3 to 3"
    seen = events_of("a1=1p b2=1p a3=2p b4-")
    assert type_1(spark, lake.storage.path("Tables/dim")) == type_1_model(seen)
    spark.sql(
        f"ALTER TABLE {events.sql_name} SET TBLPROPERTIES (delta.enableChangeDataFeed = false)"
    )
    events.changes.enable()
    done = events.dimension("late", **HOW, stored_as=2)
    assert "does not reach back" in done.did
    assert type_2(spark, lake.storage.path("Tables/late")) == type_2_model(events_of("a3=2p b4-"))
    assert done.facts["periods"] == 2
    assert done.details.columns[-1] == "sequence, the last six"
    assert done.periods == {}


def test_soft_deletes_of_a_table_with_a_feed(lake: Lake) -> None:
    """Test that, without a sequence column, deletes of the feed and the condition both count."""
    table = lake.create_table("stock", {"id": "int", "v": "string", "gone": "boolean"}, keys=["id"])
    lake.sql("INSERT INTO stock VALUES (1, 'a', false), (2, 'b', false), (3, 'c', NULL)")
    how: dict[str, Any] = {"apply_as_deletes": "gone", "except_columns": ["GONE"]}
    table.dimension(**how)
    lake.spark.sql(f"UPDATE {table.sql_name} SET gone = true WHERE id = 1")
    lake.spark.sql(f"DELETE FROM {table.sql_name} WHERE id = 2")
    assert table.dimension(**how).facts == {"rows": 1}
    assert [tuple(row)[:2] for row in lake.table("dim_stock").read().collect()] == [(3, "c")]


@pytest.mark.long  # test_snapshots below, and test_feed_cli.py has a table without a feed
def test_snapshots_of_a_table_without_a_feed(lake: Lake) -> None:
    table = lake.create_table("stock", {"id": "int", "v": "string", "n": "int"}, feed=False)
    how: dict[str, Any] = {"stored_as": 2, "keys": ["id"], "from_snapshot": True}
    how["track_history_except_columns"] = ["n"]
    lake.sql("INSERT INTO stock VALUES (1, 'a', 1), (2, 'b', 1)")
    assert table.dimension(**how, dry_run=True).did == "would take the rows of version 1"
    assert [str(name) for name in lake.tables()] == ["stock"]
    assert table.dimension(**how).did == "the rows of version 1"
    assert table.dimension(**how).did == "nothing new"
    lake.spark.sql(f"UPDATE {table.sql_name} SET n = 2")
    lake.spark.sql(f"UPDATE {table.sql_name} SET v = 'c' WHERE id = 1")
    lake.spark.sql(f"DELETE FROM {table.sql_name} WHERE id = 2")
    done = table.dimension(**how)
    assert (done.start, done.end) == (2, 4)
    assert done.periods == {"1": ((1, 4), (4, None)), "2": ((1, 4),)}
    found = lake.table("dim_stock").read().select("id", "v", "n", "__START_AT", "__END_AT")
    assert {tuple(row) for row in found.collect()} == {
        (1, "a", 1, 1, 4),
        (1, "c", 2, 4, None),
        (2, "b", 1, 1, 4),
    }
    for option in ({"sequence_by": "n"}, {"ignore_null_updates": True}):
        with pytest.raises(UsageError, match=f"not changes, so {next(iter(option))}"):
            table.dimension(**how, **option)


def test_a_dimension_keeps_the_options_of_its_first_run(lake: Lake) -> None:
    table = lake.create_table("stock", {"id": "int", "v": "string"}, keys=["id"])
    table.dimension(stored_as=2)
    with pytest.raises(UsageError, match="created with other options"):
        table.dimension(stored_as=2, track_history_columns=["v"])
    with pytest.raises(UsageError, match="of the other type"):
        table.dimension()


def test_snapshots(lake: Lake) -> None:
    """Test that NULL keys match, and that an unchanged snapshot adds no period."""
    table = lake.create_table("stock", {"id": "int", "v": "string"})
    for rows in (
        "(1, 'a'), (2, 'b'), (NULL, 'n')",
        "(1, 'a'), (2, 'c'), (3, 'd')",
        "(1, 'a'), (2, 'c'), (3, 'd')",
    ):
        lake.spark.sql(f"INSERT OVERWRITE {table.sql_name} VALUES {rows}")
        table.dimension("dim", stored_as=2, keys=["ID"], from_snapshot=True)
    found = {tuple(row) for row in lake.table("dim").read().collect()}
    assert found == {
        (1, "a", 1, None),
        (2, "b", 1, 2),
        (2, "c", 2, None),
        (3, "d", 2, None),
        (None, "n", 1, 2),
    }


def test_ignored_nulls_need_the_whole_feed(lake: Lake) -> None:
    table = lake.create_table("late", {"id": "int", "v": "string"}, keys=["id"], feed=False)
    table.changes.enable()
    with pytest.raises(UsageError, match=r"NULL in it is a value.*ignore_null_updates"):
        table.dimension(ignore_null_updates=True)


@pytest.mark.long
def test_snapshots_and_tracked_columns(lake: Lake) -> None:
    """Test that only tracked columns start a period; others show the period's last value."""
    table = lake.create_table("stock", {"id": "int", "v": "string", "n": "int"})
    for row in ("(1, 'a', 10)", "(1, 'a', 20)", "(1, 'b', 20)", "(1, 'b', 30)"):
        lake.spark.sql(f"INSERT OVERWRITE {table.sql_name} VALUES {row}")
        table.dimension(
            "tracked", stored_as=2, keys=["ID"], from_snapshot=True, track_history_columns=["V"]
        )
    periods = lake.table("tracked").read().select("id", "v", "n", "__START_AT", "__END_AT")
    assert {tuple(row) for row in periods.collect()} == {(1, "a", 20, 1, 3), (1, "b", 30, 3, None)}


class Killed(BaseException):
    """A kill, which is not an Exception, so that no handler takes it for a failure."""


POINTS = [
    (1, "ready_table", 1),
    (1, "ready_table", 2),
    (1, "merge_into", 1),
    (1, "_apply_truncates", 1),
    (1, "merge_into", 2),
    (2, "ready_table", 1),
    (2, "update_any", 1),
    (2, "DeltaTransaction.commit_exchange", 1),
]
QUICK = {(2, "DeltaTransaction.commit_exchange", 1)}  # test_scd_kill.py has a case of type 1


@pytest.mark.parametrize(
    ("stored_as", "step", "times"),
    [pytest.param(*p, marks=[] if p in QUICK else [pytest.mark.long]) for p in POINTS],
)
def test_stopped_after_any_step_and_run_again(
    spark: SparkSession,
    lake: Lake,
    monkeypatch: pytest.MonkeyPatch,
    stored_as: Any,
    step: str,
    times: int,
) -> None:
    """Stop after each step, which is a real commit, and run again."""
    path = lake.storage.path("Tables/dim")
    empties = {"apply_as_truncates": "op = 'T'"} if stored_as == 1 else {}
    dimension = how(stored_as, **empties)
    texts = ("a1=1p b2=1p", "!3 c4=1p a5=2p c6-" if stored_as == 1 else "c4=1p a5=2p c6- b3-")
    model = type_1_model if stored_as == 1 else type_2_model
    found = type_1 if stored_as == 1 else type_2
    scd.apply_changes(as_rows(spark, events_of(texts[0])), path, dimension)
    kind, _, name = step.rpartition(".")
    place: Any = DeltaTransaction if kind else importlib.import_module("mirrorlake.feed.scd")
    real = getattr(place, name)
    done = []

    def stop(*arguments: Any, **named: Any) -> Any:
        result = real(*arguments, **named)
        done.append(step)
        if len(done) == times:
            raise Killed
        return result

    seen = events_of(texts[0]) + events_of(texts[1])
    batch = as_rows(spark, events_of(texts[1]))
    with monkeypatch.context() as patched:
        patched.setattr(place, name, stop)
        with pytest.raises(Killed):
            scd.apply_changes(batch, path, dimension)
    for _ in range(2):
        scd.apply_changes(batch, path, dimension)
        assert found(spark, path) == model(seen)


@pytest.mark.promise("CF-19")
def test_a_mirrored_tables_dimensions(lake: Lake, pytestconfig: pytest.Config) -> None:
    """Test that type 1 equals the table, and type 2 the table at each of its versions."""
    publisher = lake.publisher("stock", keys=["id"])
    is_long = pytestconfig.getoption("--long")
    rounds: list[tuple[str, list[tuple[str, list[dict[str, Any]]]]]] = [
        ("column", [("write", [{"id": 1, "v": "a"}, {"id": 2, "v": "b"}])]),
        ("vorder", [("update", [{"id": 1, "v": "c"}]), ("delete", [{"id": 2}])]),
        ("property", [("upsert", [{"id": 2, "v": "d"}, {"id": 3, "v": None}])]),
        ("miss", [("delete", [{"id": 99}])]),
    ]
    for kind, step in rounds if is_long else rounds[:3]:
        for verb, rows in step:
            getattr(publisher, verb)(rows)
        assert not lake.mirror().failed
        last = commit_quietly(lake.table("stock"), kind)
        # By default, the second run of type 1 reads the versions of two rounds.
        for stored_as in (1, 2) if is_long or kind != "vorder" else (2,):
            report = lake.update_dimension("stock", into=f"dim{stored_as}", stored_as=stored_as)
        assert (report.is_empty, report.end) == (False, last)
    assert lake.update_dimension("stock", into="dim2", stored_as=2).is_empty
    now = {tuple(row)[:2] for row in lake.table("stock").read().collect()}
    assert {tuple(row)[:2] for row in lake.table("dim1").read().collect()} == now
    columns = ["id", "v", "__START_AT", "__END_AT"]
    periods = [tuple(row) for row in lake.table("dim2").read().select(columns).collect()]
    for version in range(1, last + 1):
        then = {(i, v) for i, v, a, b in periods if a <= version and (b is None or version < b)}
        stock = lake.table("stock").read(version=version).collect()
        assert then == {tuple(row)[:2] for row in stock}
    assert len(periods) == 5
    # A stream applies the same changes with foreachBatch, also when it runs again.
    path = lake.storage.path("Tables/streamed")
    dimension = scd.Dimension(
        ("id",),
        "_commit_version",
        stored_as=2,
        apply_as_deletes="_change_type = 'delete'",
        except_columns=RESERVED,
    )
    # A second checkpoint applies all changes again.
    for checkpoint in ("one", "two") if is_long else ("one",):
        stream = lake.table("stock").changes.stream(0, max_files=1 if is_long else 5).writeStream
        stream = stream.option("checkpointLocation", lake.storage.path(f"Files/cp/{checkpoint}"))
        stream.foreachBatch(lambda rows, _: scd.apply_changes(rows, path, dimension)).trigger(
            availableNow=True
        ).start().awaitTermination()
        streamed = lake.table("streamed").read().select(columns).collect()
        assert Counter(map(tuple, streamed)) == Counter(periods)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"keys": ()}, "needs keys"),
        ({"stored_as": 3}, "stored as type 3"),
        ({"track_history_columns": ("v",)}, "no history"),
        ({"stored_as": 2, "apply_as_truncates": "true"}, "can't be truncated"),
        ({"keys": ("nope",)}, "no column nope"),
        ({"columns": ("v",)}, "key column id is left out"),
        ({"except_columns": ("gone",)}, "no column gone"),
        (
            {"stored_as": 2, "columns": ("id",), "track_history_columns": ("v",)},
            "tracked column v is left out",
        ),
        (
            {
                "stored_as": 2,
                "track_history_columns": ("v",),
                "track_history_except_columns": ("v",),
            },
            "both given",
        ),
    ],
)
def test_wrong_use(spark: SparkSession, arguments: dict[str, Any], says: str) -> None:
    rows = spark.createDataFrame([(1, 2)], "id INT, v INT")
    with pytest.raises(UsageError, match=says):
        scd.Dimension(**{"keys": ("id",), "sequence_by": "v", **arguments}).data_columns(rows)


def test_a_change_without_sequence_is_refused(spark: SparkSession, lake: Lake) -> None:
    rows = spark.createDataFrame([(1, None)], "id INT, v INT")
    with pytest.raises(Exception, match="v is NULL in a change"):
        scd.apply_changes(rows, lake.storage.path("Tables/x"), scd.Dimension(("id",), "v"))
