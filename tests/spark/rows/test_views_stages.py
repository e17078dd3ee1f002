"""Views with stages: changes of several sources, interrupted refreshes, and their hidden tables."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from helpers.staged_queries import S_ROWS, SHAPES, T_ROWS, TABLES, random_query
from mirrorlake import Lake
from mirrorlake.delta import key_search
from mirrorlake.delta.snapshot import FEED, open_snapshot
from mirrorlake.errors import ConflictError, TableNotFoundError, UsageError
from mirrorlake.names import TableName, stages_folder
from mirrorlake.views import reduction
from mirrorlake.views.explain import Cost, Explanation, save_cost
from mirrorlake.views.refresh import Refresh, ViewStep

METHODS = {
    "merged": ["rows"],
    "outer_joined": ["rows", "rows"],
    "not_in_with_null": ["sums", "rows"],
    "scalar_or_null": ["sums", "rows"],
    "limit": ["sums", "full"],
    "union_all": ["sums", "rows"],
    "groups_of_union": ["rows", "sums"],
    "with_twice": ["sums", "full", "rows"],
    "exists_join": ["sums", "rows"],
    "having": ["sums", "sums", "rows"],
    "in_groups": ["groups", "rows"],
    "window_of_groups": ["extremes", "partitions"],
    "union": ["sums", "rows", "sums"],
    "except": ["extremes", "extremes", "rows", "groups", "rows", "groups"],
    "except_all": ["sums", "full"],
    "limit_of_union": ["rows", "full"],
    "rollup": ["sums", "sums", "rows"],
    "cube": ["extremes", "extremes", "extremes", "full", "rows"],
    "limit_of_rollup": ["groups", "groups", "rows", "full"],
    "count_distinct": ["sums", "sums"],
    "count_distinct_beside": ["extremes", "full"],
}
CHANGES = [
    "INSERT INTO {t} VALUES ('a', 2), ('a', 2), ('d', NULL), (NULL, 3)",
    "UPDATE {t} SET n = n + 1 WHERE g = 'a'",
    "UPDATE {t} SET g = 'b' WHERE n = 2",
    "DELETE FROM {t} WHERE n IS NULL",
    "DELETE FROM {t}",
    "INSERT INTO {s} VALUES ('c', 1), ('d', 0), (NULL, 0)",
    "UPDATE {s} SET n = coalesce(n, 0) - 1",
    "DELETE FROM {s} WHERE n IS NULL OR g = 'b'",
]


class Killed(BaseException):
    """A simulated kill. It is no `Exception`, so no code handles it as a failure."""


def tables(lake: Lake) -> Callable[[str], Any]:
    """Create the tables t and s, and return a function that runs a statement on them."""
    made = {name: lake.create_table(name, {"g": "STRING", "n": "INT"}).sql_name for name in TABLES}

    def run(statement: str) -> Any:
        return lake.spark.sql(statement.format(**made))

    for name, some in (("t", T_ROWS), ("s", S_ROWS)):
        values = str(some)[1:-1].replace("None", "NULL")
        run(f"INSERT INTO {{{name}}} VALUES {values}")
    return run


def kill_at(step: ViewStep, times: int = 1) -> Callable[[ViewStep], None]:
    """Return a listener that raises `Killed` when a step has finished this many times."""
    seen: list[ViewStep] = []

    def kill(done: ViewStep) -> None:
        seen.append(done)
        if seen.count(step) == times:
            raise Killed

    return kill


def rows(lake: Lake) -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in lake.sql("SELECT * FROM v").collect()), key=str)


def data_files(lake: Lake, folder: str) -> set[str]:
    return {path for path in lake.storage.files_below(folder) if path.endswith(".parquet")}


def code(done: Refresh | Explanation) -> str:
    return done.reason.code if done.reason else ""


def batches(seeds: int) -> list[range]:
    """Return the seeds of random queries, as small batches. The first one has several cycles."""
    return [range(20), *(range(at, min(at + 40, seeds)) for at in range(20, seeds, 40))]


def follow(lake: Lake, name: str = "v") -> None:
    done = lake.views.refresh(name, how="incremental", check=True)
    assert (done.mode, done.differences) == ("incremental", 0), lake.views.get(name)


@pytest.mark.long
def test_each_shape_follows_changes_of_all_sources(lake: Lake) -> None:
    run = tables(lake)
    for name in SHAPES:
        assert lake.views.create(name, SHAPES[name][0]).mode == "full"
        methods = [stage.method for stage in lake.views.explain(name).stages]
        assert methods == METHODS.get(name, methods)
        assert len(methods) == SHAPES[name][1]
    for some in (CHANGES[:2] + CHANGES[5:7], CHANGES[2:4] + CHANGES[7:], CHANGES[4:6]):
        for change in some:
            run(change)
        for name in SHAPES:
            follow(lake, name)


@pytest.mark.long
@pytest.mark.parametrize("seeds", batches(2000), ids=repr)
def test_random_queries_equal_their_recomputation(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, seeds: range
) -> None:
    monkeypatch.setattr(reduction, "LARGE_BYTES", -1)  # as if all tables were large
    monkeypatch.setattr(key_search, "MANY_ROWS", 0)
    run = tables(lake)
    names = []
    for seed in seeds:
        lake.views.create(f"v{seed}", random_query(Random(seed)))
        if lake.views.get(f"v{seed}").stages:  # others may have ties before LIMIT
            names.append(f"v{seed}")
    assert len(names) > len(seeds) / 4
    random = Random(seeds.start)
    modes = []
    for _ in range(1 if seeds.start else 3):
        for change in random.sample(CHANGES, 3):
            run(change)
        for name in names:
            done = lake.views.refresh(name, how="incremental", check=True)
            assert done.differences == 0, lake.views.get(name)
            modes.append(done.mode)
    assert modes.count("incremental") > len(modes) / 2


def test_a_killed_refresh_is_continued_and_stages_are_hidden(lake: Lake) -> None:
    run, sql = tables(lake), SHAPES["scalar_count"][0]
    with pytest.raises(Killed):
        lake.views.create("v", sql, on_step=kill_at(ViewStep.CREATED))
    assert rows(lake) == []
    properties = open_snapshot(lake.storage, TableName(None, "v")).properties
    assert properties[FEED] == "false"  # the rule of the last stage is `rows`
    explained = lake.views.explain("v")
    assert (explained.mode, code(explained)) == ("full", "FIRST")
    assert code(lake.views.create("v", sql)) == "FIRST"
    old = [("a", 1)] * 3 + [("b", 2)] * 2 + [("c", 1)] + [(None, 0)] * 2
    assert rows(lake) == old
    assert [str(name) for name in lake.tables()] == ["s", "t", "v"]
    assert [repr(view) for view in lake.views.list()] == [f"v: {sql}"]
    with pytest.raises(UsageError, match="reads no table"):
        lake.views.create("w", "SELECT * FROM `v/1`")
    run("INSERT INTO {s} VALUES ('a', 9)")
    with pytest.raises(Killed):  # the first stage has the new row
        lake.views.refresh("v", how="incremental", on_step=kill_at(ViewStep.COMMITTED))
    assert rows(lake) == old
    assert [one.state for one in lake.views.status()] == ["behind"]
    run("INSERT INTO {t} VALUES ('c', 5)")
    planned = lake.views.refresh("v", how="full", dry_run=True)
    assert (planned.mode, code(planned), planned.applied) == ("full", "ASKED", False)
    explained = lake.views.explain("v")
    assert (explained.mode, explained.sql) == ("incremental", sql)
    assert [(s.table, s.shown, s.newest) for s in explained.sources] == [("s", 1, 2), ("t", 1, 2)]
    assert [one["method"] for one in explained.as_dict()["stages"]] == ["sums", "rows"]
    assert dict(explained.shown().rows)["stage v/1"] == "sums"
    done = lake.views.refresh("v", how="incremental", check=True)
    assert (done.mode, done.differences, len(done.stages)) == ("incremental", 0, 1)
    assert done.sources == {"s": (1, 2), "t": (1, 2)}
    assert dict(done.shown().rows)["source and stage rows inserted or deleted"] == f"{done.changed}"
    assert rows(lake) == [("a", 2)] * 3 + [("b", 2)] * 2 + [("c", 1)] * 2 + [(None, 0)] * 2
    assert lake.views.refresh("v").mode == "nothing"


def test_another_refresh_during_a_stage_and_a_drop(lake: Lake) -> None:
    run = tables(lake)
    lake.views.create("v", SHAPES["limit"][0])
    run("DELETE FROM {t} WHERE g = 'c'")
    others = []

    def meanwhile(step: ViewStep) -> None:
        if step is ViewStep.READ and not others:
            run("DELETE FROM {t} WHERE g = 'b'")
            others.append(lake.views.refresh("v", how="incremental"))

    with pytest.raises(ConflictError, match="stage v/1"):
        lake.views.refresh("v", how="incremental", on_step=meanwhile)
    run("INSERT INTO {t} VALUES ('a', 8)")
    first, last = lake.views.get("v").chain
    save_cost(lake.storage, last.name, "full", Cost(2.0, 10**6))
    for full, incremental, size, wanted in ((0.1, 1e3, 10**6, "COST"), (1e3, 0.1, 10**8, "")):
        save_cost(lake.storage, first.name, "full", Cost(full, size))
        save_cost(lake.storage, first.name, "incremental", Cost(incremental, size))
        explained = lake.views.explain("v")
        assert [code(one) for one in explained.stages] == [wanted, "LIMIT"]
    assert explained.expected == {"full": 1002.0, "incremental": None}
    assert ("stage v/1: expected, full", "1000.0 s") in explained.with_seconds().rows
    done = lake.views.refresh("v", check=True)
    assert [one.mode for one in done.stages] == ["incremental", "full"]
    assert (done.mode, done.differences) == ("incremental", 0)
    folder, optimize = stages_folder(TableName(None, "v")), lake.table("v").optimize
    assert optimize.purge(dry_run=True).masked_rows > 0  # of the stage; the view was overwritten
    assert optimize.compact().files > 1
    assert lake.views.refresh("v").mode == "nothing"
    before = data_files(lake, folder)
    lake.table("v").vacuum(retention_hours=0, allow_short=True, apply=True)
    assert data_files(lake, folder) < before
    with pytest.raises(TableNotFoundError):
        lake.views.refresh(
            "v", how="full", on_step=lambda step: drop(lake) if step is ViewStep.MEASURED else None
        )
    assert lake.storage.files_below(folder) == ()
    assert lake.storage.files_below("Files/_mirrorlake/views") == ()


def test_a_view_is_dropped_and_created_again(lake: Lake) -> None:
    run, sql = tables(lake), SHAPES["scalar_count"][0]
    for number in range(2):
        lake.views.create("v", sql)
        run(f"INSERT INTO {{s}} VALUES ('a', {number})")
        follow(lake)
        lake.views.drop("v", apply=True)


def drop(lake: Lake) -> None:
    assert lake.views.drop("v", apply=True).applied
