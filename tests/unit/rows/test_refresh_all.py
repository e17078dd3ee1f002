"""The order in which views are refreshed, and the result of refreshing all."""

from __future__ import annotations

import pytest

from mirrorlake.errors import QueryError
from mirrorlake.names import TableName
from mirrorlake.views import definition, refresh


def view(name: str, *sources: str) -> definition.Definition:
    columns = {TableName.parse(source): ("x",) for source in sources}
    return definition.Definition(TableName.parse(name), name, "SELECT 1", columns)


def status(name: str) -> definition.ViewStatus:
    sources = (
        definition.SourceStatus("t", 3, 5),
        definition.SourceStatus("u", None, 2),
        definition.SourceStatus("w", 1, 1),
    )
    return definition.ViewStatus(name, "behind", None, 4, sources, 61.5)


def refreshed(mode: str, changed: int | None, differences: int | None = None) -> refresh.Refresh:
    return refresh.Refresh(
        "v", mode, None, 5, {}, changed, {"inserted": 2}, 1.5, differences=differences
    )


def test_views_come_after_those_that_they_read() -> None:
    views = [view("a", "c"), view("b", "t"), view("c", "b", "t")]
    assert [str(one.name) for one in refresh.in_order_of_sources(views)] == ["b", "c", "a"]


def test_views_that_read_each_other_are_all_there() -> None:
    views = [view("a", "b"), view("b", "a")]
    assert {str(one.name) for one in refresh.in_order_of_sources(views)} == {"a", "b"}


def test_rows_read_against_a_full_refresh() -> None:
    runs = refresh.ViewRuns(
        (
            refresh.ViewRun(status("v"), refreshed("incremental", 7), 100),
            refresh.ViewRun(status("w"), refreshed("full", None), 50),
            refresh.ViewRun(status("x"), refreshed("nothing", 0), None),
        )
    )
    assert [run.rows_read for run in runs.runs] == [7, 50, 0]
    assert runs.rows_read() == {
        "v: read": 7, "v: a full refresh reads": 100,
        "w: read": 50, "w: a full refresh reads": 50,
    }  # fmt: skip
    assert runs.stale().rows[0] == ("v", "behind", "t 3 → 5, u ? → 2, w 1", "61.5 s", None)
    assert runs.shown().rows[0] == ("v", "incremental", "", 7, 100, "2 inserted", "1.5 s", None)
    runs.check()


def test_a_failed_view_is_an_error_at_the_end() -> None:
    runs = refresh.ViewRuns((refresh.ViewRun(status("v"), None, 10, "no such column"),))
    assert runs.shown().rows[0][:3] == ("v", "failed", "no such column")
    assert runs.rows_read() == {}
    with pytest.raises(QueryError, match="no such column"):
        runs.check()


def test_a_view_that_is_not_its_query_is_an_error_at_the_end() -> None:
    runs = refresh.ViewRuns((refresh.ViewRun(status("v"), refreshed("incremental", 7, 3), 10),))
    with pytest.raises(QueryError, match="3 rows"):
        runs.check()


def test_no_views() -> None:
    assert repr(refresh.ViewRuns(())) == "the lake has no views"
    refresh.ViewRuns(()).check()
