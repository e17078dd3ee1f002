"""Pictures of a table over its versions: its changes, a dimension's periods, files and row ids."""

from __future__ import annotations

from functools import reduce

from pyspark.sql import functions as F

from mirrorlake.delta.actions import file_actions
from mirrorlake.delta.commits import CommitLog
from mirrorlake.delta.table import TableHandle
from mirrorlake.feed.cursor import FollowReport
from mirrorlake.feed.report import KINDS, FeedReport
from mirrorlake.rows.changes import ID_NAMES, read_with_ids
from mirrorlake.show.chart import (
    COLOURS,
    ROW_INCHES,
    Chart,
    count_ticks,
    finish_chart,
    stack_bars,
    start_chart,
)
from mirrorlake.show.plots import plot_matrix, plot_presence
from mirrorlake.spark.sql import quote

_MOST_BARS = 60
_MOST_ROWS = 200
_LETTERS = 32


def plot_changes(report: FeedReport) -> Chart:
    """Rows inserted, updated and deleted, a bar a version; many versions share a bar.

    Args:
        report: of a range of a feed; an empty one gives an empty picture that says so.
    """
    lines = report.by_version.rows
    step = max(1, -(-len(lines) // _MOST_BARS))
    groups = [lines[at : at + step] for at in range(0, len(lines), step)]
    with start_chart(f"Changes of {report.table} by version") as (chart, axes):
        if not groups:
            return _say(chart, "no version's changes can be read")
        begins = [group[0][0] for group in groups]
        places = [begin + (step - 1) / 2 for begin in begins]
        series = {
            kind: [float(sum(line[3 + number] for line in group)) for group in groups]
            for number, kind in enumerate(KINDS)
        }
        tops = stack_bars(axes, places, series, 0.8 * step)
        axes.set_xlim(begins[0] - 0.6, begins[-1] + step - 0.4)
        axes.set_ylim(0, max(1.0, 1.05 * max(tops)))
        axes.set_xlabel("version" if step == 1 else f"version, {step} in each bar")
        count_ticks(axes.xaxis, axes.yaxis)
        axes.grid(visible=False, axis="x")
        finish_chart(chart, axes, "rows", len(KINDS))
    return chart


def plot_periods(report: FollowReport) -> Chart:
    """The periods of a type 2 dimension's keys: a line a key, a bar a period.

    Args:
        report: of a dimension; without periods it gives an empty picture that says so.
    """
    periods = report.periods
    height = 1.3 + 1.3 * ROW_INCHES * max(4, len(periods))
    with start_chart(f"Periods of {report.into}", height) as (chart, axes):
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
        names = [n if len(n) <= _LETTERS else n[: _LETTERS - 1] + "…" for n in periods]
        axes.set_yticks(range(len(periods)), names)
        axes.set_xlim(min(some[0][0] for some in periods.values()), end)
        axes.invert_yaxis()
        axes.tick_params(axis="y", length=0)
        axes.grid(visible=False, axis="y")
        count_ticks(axes.xaxis)
        axes.set_xlabel(f"version of {report.table}; hatched: goes on")
    return chart


def _say(chart: Chart, text: str) -> Chart:
    axes = chart.axes[0]
    axes.text(0.5, 0.5, text, ha="center", va="center", transform=axes.transAxes, color="#444444")
    axes.set_xticks([])
    axes.set_yticks([])
    return chart


def plot_files(table: TableHandle, *, first: int = 0) -> Chart:
    """A picture of which Parquet file belongs to which version, and whether rows of it are deleted.

    Args:
        table: which table; all commits since `first` are read.
        first: the version to begin with.
    """
    numbers: dict[str, str] = {}  # the files in the order in which they came
    live: dict[str, str] = {}
    found: dict[tuple[str, str], str] = {}
    newest = table.snapshot().version
    for version in range(first, newest + 1):
        for _, kind, action in file_actions(table.storage, table.name.table_path, version, version):
            name = numbers.setdefault(action["path"], f"file {len(numbers) + 1}")
            live.pop(name, None)
            if kind == "add":
                live[name] = "some rows deleted" if action.get("deletionVector") else "all its rows"
        found |= {(name, str(version)): kind for name, kind in live.items()}
    seen = {name for name, _ in found}
    return plot_presence(
        [name for name in numbers.values() if name in seen],
        [str(version) for version in range(first, newest + 1)],
        found,
        title=f"The Parquet files of {table.name}, version by version",
        label="version",
    )


def plot_row_ids(table: TableHandle, *, name: str, first: int = 1) -> Chart:
    """A picture of a small table's ids: a line a row, a column a version.

    Args:
        table: which table; all versions from the first on have ids.
        name: the column that names the rows, unique in each version.
        first: the version to begin with.
    """
    newest = table.snapshot().version
    log = CommitLog(table.storage, table.name.table_path)
    parts = [
        read_with_ids(table, version=version).select(
            F.lit(version).alias("at"), F.col(quote(name)).cast("string").alias("row"), *ID_NAMES
        )
        for version in range(first, newest + 1)
    ]
    ordered = reduce(lambda a, b: a.unionAll(b), parts).orderBy("at", "_row_id").limit(_MOST_ROWS)
    texts: dict[str, list[str]] = {}
    for row in ordered.collect():
        line = texts.setdefault(row["row"], [""] * len(parts))
        line[row["at"] - first] = f"{row[ID_NAMES[0]]} · v{row[ID_NAMES[1]]}"
    labels = [
        f"{commit.version}\n{commit.operation.lower()}"
        for commit in reversed(log.read(newest, len(parts)).commits)
    ]
    title = f"Rows of {table.name}: id · version that changed it last"
    return plot_matrix(labels, texts, title=title, x_label="version")
