"""Pictures of feeds and periods, from reports put together by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mirrorlake.feed.cursor import FollowReport
from mirrorlake.feed.doctor import Diagnosis
from mirrorlake.feed.report import FeedReport
from mirrorlake.results import TextTable
from mirrorlake.show.versions import plot_changes, plot_periods

PNG = b"\x89PNG\r\n"
COLUMNS = ("version", "made (UTC)", "operation", "inserted", "updated", "deleted")


def report(versions: int) -> FeedReport:
    rows = tuple((v, "2024-05-01 10:00:00", "MERGE", v, 1, 2) for v in range(versions))
    return FeedReport(
        "odd $t$ name",
        0,
        versions,
        0,
        versions,
        Diagnosis("t", 0, versions, (), ()),
        TextTable(COLUMNS, rows),
        {"inserted": 1, "updated": 1, "deleted": 2},
        {},
        (),
        "",
        TextTable((), ()),
    )


@pytest.mark.parametrize("versions", [0, 1, 40, 5000])
def test_changes_of_any_number_of_versions(versions: int) -> None:
    chart = plot_changes(report(versions))
    assert chart.to_png().startswith(PNG)
    assert "odd $t$ name" in chart.axes[0].get_title(loc="left")
    assert len(chart.axes[0].patches) <= 3 * 60


def test_bars_keep_every_change() -> None:
    chart = plot_changes(report(5000))
    total = sum(patch.get_height() for patch in chart.axes[0].patches)
    assert total == sum(v + 3 for v in range(5000))


def test_periods_are_bars_from_version_to_version() -> None:
    follow = FollowReport(
        "t", "dim_t", "versions 0 to 8", "", {}, TextTable((), ()),
        {"a": ((1, 4), (4, None)), "a very long key that goes on and on": ((2, 3),)}, 8,
    )  # fmt: skip
    chart = plot_periods(follow)
    spans = [(patch.get_x(), patch.get_width()) for patch in chart.axes[0].patches]
    assert spans == [(1, 3), (4, 5), (2, 1)]
    assert chart.to_png().startswith(PNG)
    empty = plot_periods(replace(follow, periods={}))
    assert [text.get_text() for text in empty.axes[0].texts] == ["there are no periods to show"]
