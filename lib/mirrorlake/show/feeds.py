"""Pictures of change feeds: what changed version by version, and the periods of a dimension."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.ticker import MaxNLocator

from mirrorlake.feed.cursor import FollowReport
from mirrorlake.feed.report import KINDS, FeedReport
from mirrorlake.show.plots import COLOURS, ROW_INCHES, Chart, finish_chart, start_chart, styled

_MOST_BARS = 60
_LETTERS = 32


def plot_changes(report: FeedReport) -> Chart:
    """Rows inserted, updated and deleted, a bar a version; many versions share a bar.

    Args:
        report: of a range of a feed; an empty one gives an empty picture that says so.
    """
    lines = report.by_version.rows
    step = max(1, -(-len(lines) // _MOST_BARS))
    groups = [lines[at : at + step] for at in range(0, len(lines), step)]
    with styled():
        chart, axes = start_chart(f"Changes of {report.table} by version")
        if not groups:
            return _say(chart, "no version's changes can be read")
        begins = [group[0][0] for group in groups]
        bottom = [0.0] * len(groups)
        places = [begin + (step - 1) / 2 for begin in begins]
        for number, kind in enumerate(KINDS):
            heights = [float(sum(line[3 + number] for line in group)) for group in groups]
            axes.bar(places, heights, width=0.8 * step, bottom=bottom, label=kind)
            bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
        axes.set_xlim(begins[0] - 0.6, begins[-1] + step - 0.4)
        axes.set_ylim(0, max(1.0, 1.05 * max(bottom)))
        axes.set_xlabel("version" if step == 1 else f"version, {step} in each bar")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(visible=False, axis="x")
        finish_chart(chart, axes, "rows", len(KINDS))
    return chart


def plot_periods(report: FollowReport) -> Chart:
    """The periods of a type 2 dimension's keys: a line a key, a bar a period.

    Args:
        report: of a dimension; without periods it gives an empty picture that says so.
    """
    periods = report.periods
    with styled():
        rows = max(4, len(periods))
        chart, axes = start_chart(f"Periods of {report.into}", 1.3 + 1.3 * ROW_INCHES * rows)
        if not periods:
            return _say(chart, "there are no periods to show")
        end = report.newest + 1
        for place, some in enumerate(periods.values()):
            for number, (start, stop) in enumerate(some):
                axes.barh(
                    place,
                    (end if stop is None else stop) - start,
                    left=start,
                    height=0.7,
                    color=COLOURS[number % 2 * 5],
                    edgecolor="white",
                    hatch="" if stop is not None else "//",
                )
        axes.set_yticks(range(len(periods)), _cut(list(periods)))
        axes.set_xlim(min(some[0][0] for some in periods.values()), end)
        axes.invert_yaxis()
        axes.tick_params(axis="y", length=0)
        axes.grid(visible=False, axis="y")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel(f"version of {report.table}; hatched: goes on")
    return chart


def _say(chart: Chart, text: str) -> Chart:
    axes = chart.axes[0]
    axes.text(0.5, 0.5, text, ha="center", va="center", transform=axes.transAxes, color="#444444")
    axes.set_xticks([])
    axes.set_yticks([])
    return chart


def _cut(names: Sequence[str]) -> list[str]:
    return [name if len(name) <= _LETTERS else name[: _LETTERS - 1] + "…" for name in names]
