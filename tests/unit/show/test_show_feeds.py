"""Test plots of change feeds, archives and periods, from reports that are built by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mirrorlake import results
from mirrorlake.errors import CheckError
from mirrorlake.feed import archive, changes, cursor, dimension, doctor

PNG = b"\x89PNG\r\n"
COLUMNS = ("version", "made (UTC)", "operation", "inserted", "updated", "deleted")


def report(versions: int) -> changes.FeedReport:
    rows = tuple((v, "2024-05-01 10:00:00", "MERGE", v, 1, 2) for v in range(versions))
    return changes.FeedReport(
        "odd $t$ name",
        0,
        versions,
        0,
        versions,
        doctor.Diagnosis("t", 0, versions, (), ()),
        results.TextTable(COLUMNS, rows),
        {"inserted": 1, "updated": 1, "deleted": 2},
        {},
        (),
        "",
        results.TextTable((), ()),
    )


@pytest.mark.parametrize("versions", [0, 1, 40, 5000])
def test_changes_of_any_number_of_versions(versions: int) -> None:
    chart = report(versions).plot()
    assert chart.to_png().startswith(PNG)
    assert "odd $t$ name" in chart.axes[0].get_title(loc="left")
    assert len(chart.axes[0].patches) <= 3 * 60


def test_bars_keep_every_change() -> None:
    chart = report(5000).plot()
    total = sum(patch.get_height() for patch in chart.axes[0].patches)
    assert total == sum(v + 3 for v in range(5000))


def test_periods_are_bars_from_version_to_version() -> None:
    periods = {"a": ((1, 4), (4, None)), "a very long key that goes on and on": ((2, 3),)}
    done = dimension.DimensionReport(
        table="t",
        into="dim_t",
        start=0,
        end=8,
        newest=8,
        read_figures=lambda: cursor.Figures(periods=periods),
    )
    chart = done.plot()
    spans = [(patch.get_x(), patch.get_width()) for patch in chart.axes[0].patches]
    assert spans == [(1, 3), (4, 5), (2, 1)]
    assert chart.to_png().startswith(PNG)
    empty = replace(done, read_figures=cursor.Figures).plot()
    assert [text.get_text() for text in empty.axes[0].texts] == ["there are no periods to show"]


def test_raw_and_net_counts_are_bars() -> None:
    chart = replace(report(3), net={"inserted": 1, "updated": 0, "deleted": 0}).plot(by="kind")
    assert [round(patch.get_width()) for patch in chart.axes[0].patches] == [1, 1, 2, 1, 0, 0]


def test_an_archives_versions_are_stacked_oldest_first() -> None:
    newest = results.TextTable(COLUMNS[:2] + COLUMNS[3:], ((7, "", 1, 2, 3), (6, "", 4, 0, 0)))
    done = archive.ArchiveReport(
        table="t",
        into="kept",
        start=6,
        end=7,
        lag=cursor.Lag(0, 0.0),
        read_figures=lambda: cursor.Figures(details=newest),
    )
    chart = done.plot()
    assert [patch.get_height() for patch in chart.axes[0].patches] == [4, 1, 0, 2, 0, 3]
    assert [text.get_text() for text in chart.axes[0].get_xticklabels()] == ["6", "7"]


def test_a_run_that_could_do_nothing_fails_its_check() -> None:
    done = cursor.FollowReport("t", "kept", did="archived up to 3")
    done.check()
    with pytest.raises(CheckError, match="The feed is off"):
        replace(done, did="", why_not="The feed is off.").check()


def test_figures_are_read_once_and_only_when_asked_for() -> None:
    asked: list[int] = []

    def read_figures() -> cursor.Figures:
        asked.append(1)
        return cursor.Figures({"rows": 1200})

    done = dimension.DimensionReport(
        table="t", into="dim_t", did="x", start=0, end=1, newest=1, read_figures=read_figures
    )
    assert (repr(done), asked) == ("t → dim_t: x", [])
    assert [done.shown().rows[-1], done.facts] == [("rows", "1,200"), {"rows": 1200}]
    assert asked == [1]
