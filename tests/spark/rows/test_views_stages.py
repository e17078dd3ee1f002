"""Views with stages: changes of several sources, interrupted refreshes, and their hidden tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import strategies as st

from helpers.examples import listed
from helpers.staged_queries import S_ROWS, SHAPES, T_ROWS, TABLES, limited
from mirrorlake import Lake
from mirrorlake.errors import ConflictError, UsageError
from mirrorlake.names import TableName, stages_folder
from mirrorlake.views.explain import Explanation
from mirrorlake.views.refresh import Refresh, ViewStep

QUICK = ["scalar_or_null", "limit"]
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
    "except": ["extremes", "extremes", "full", "full"],
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


def follow(lake: Lake, name: str = "v") -> None:
    done = lake.views.refresh(name, how="incremental", check=True)
    assert (done.mode, done.differences) == ("incremental", 0), lake.views.get(name)


@pytest.mark.parametrize(
    "names",
    [QUICK, pytest.param([name for name in SHAPES if name not in QUICK], marks=pytest.mark.long)],
    ids=["quick", "rest"],
)
def test_each_shape_follows_changes_of_all_sources(lake: Lake, names: list[str]) -> None:
    run = tables(lake)
    for name in names:
        assert lake.views.create(name, SHAPES[name][0]).mode == "full"
        methods = [stage.method for stage in lake.views.explain(name).stages]
        assert methods == METHODS.get(name, methods)
        assert len(methods) == SHAPES[name][1]
    for some in (CHANGES[:2] + CHANGES[5:7], CHANGES[2:4] + CHANGES[7:]):
        for change in some:
            run(change)
        for name in names:
            follow(lake, name)


@pytest.mark.long
def test_random_queries_equal_their_recomputation(lake: Lake) -> None:
    run = tables(lake)
    changes = listed(st.lists(st.sampled_from(CHANGES), min_size=2, max_size=4), 4)[1:]
    names = []
    for number, query in enumerate(dict.fromkeys(listed(limited(), 24)[1:])):
        lake.views.create(f"v{number}", query)
        if lake.views.get(f"v{number}").stages:
            names.append(f"v{number}")
    assert len(names) > 6
    for some in changes:
        for change in some:
            run(change)
        for name in names:
            done = lake.views.refresh(name, how="incremental", check=True)
            assert done.differences == 0, lake.views.get(name)


def test_a_killed_refresh_is_continued_and_stages_are_hidden(lake: Lake) -> None:
    run, sql = tables(lake), SHAPES["scalar_count"][0]
    for step in (ViewStep.CREATED, ViewStep.COMMITTED):
        with pytest.raises(Killed):
            lake.views.create("v", sql, on_step=kill_at(step))
        assert rows(lake) == []
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
    explained = lake.views.explain("v")
    assert (explained.mode, explained.sql) == ("incremental", sql)
    assert [(s.table, s.shown, s.newest) for s in explained.sources] == [("s", 1, 2), ("t", 1, 2)]
    assert [one["method"] for one in explained.as_dict()["stages"]] == ["sums", "rows"]
    assert dict(explained.shown().rows)["stage v/1"] == "sums"
    done = lake.views.refresh("v", how="incremental", check=True)
    assert (done.mode, done.differences, len(done.stages)) == ("incremental", 0, 1)
    assert done.sources == {"s": (1, 2), "t": (1, 2)}
    assert rows(lake) == [("a", 2)] * 3 + [("b", 2)] * 2 + [("c", 1)] * 2 + [(None, 0)] * 2
    assert lake.views.refresh("v").mode == "nothing"


def test_another_refresh_during_a_stage_and_a_drop(lake: Lake) -> None:
    run = tables(lake)
    lake.views.create("v", SHAPES["scalar_count"][0])
    run("DELETE FROM {s} WHERE g = 'z'")
    others = []

    def meanwhile(step: ViewStep) -> None:
        if step is ViewStep.READ and not others:
            run("DELETE FROM {s} WHERE g = 'b'")
            others.append(lake.views.refresh("v", how="incremental"))

    with pytest.raises(ConflictError, match="stage v/1"):
        lake.views.refresh("v", how="incremental", on_step=meanwhile)
    assert lake.views.check("v").differences == 0
    assert lake.views.refresh("v").mode == "nothing"
    assert code(lake.views.refresh("v", how="full")) == "ASKED"
    folder = stages_folder(TableName(None, "v"))
    before = data_files(lake, folder)
    lake.table("v").vacuum(retention_hours=0, allow_short=True, apply=True)
    assert data_files(lake, folder) < before
    lake.views.drop("v", apply=True)
    assert lake.storage.files_below(folder) == ()
    assert lake.storage.files_below("Files/_mirrorlake/views") == ()
