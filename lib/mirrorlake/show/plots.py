"""Plots of numbers and texts, each returned as a `Chart`, and plots to choose from."""

from __future__ import annotations

import base64
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.dates import ConciseDateFormatter
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import FuncFormatter, StrMethodFormatter
from numpy.typing import NDArray

from mirrorlake.errors import UsageError
from mirrorlake.results import TextTable
from mirrorlake.show.chart import (
    COLOURS,
    ROW_INCHES,
    WITH_SEPARATORS,
    Chart,
    count_ticks,
    finish_chart,
    in_words,
    listed,
    stack_bars,
    start_chart,
    start_panels,
    whole_ticks,
)

if TYPE_CHECKING:
    import ipywidgets

_log = logging.getLogger(__name__)
_BANDS = 24
_ROWS = 400
_NO_PLOT = (
    "No plot was drawn: it needs at least two rows whose values in the first column differ, and a"
    " further column that has only numbers and a name of its own."
)
_MOST_BARS = 40
_MOST_LINES = 4
_SAME, _CHANGED = "#DCE9F3", "#F6CF93"  # light tints of the first and the fourth colour


def plot_bars(
    values: Mapping[str, float], *, title: str, label: str = "", fmt: str = "{x:,.0f}"
) -> Chart:
    """Draw horizontal bars, the first entry on top, with the value at the end of each bar.

    Args:
        values: length by name, in order; NaN has no bar.
        title: the chart's title.
        label: the values, with their unit.
        fmt: a format of `x` for the values.
    """
    return plot_spans(
        {name: (0, value) for name, value in values.items()}, title=title, label=label, fmt=fmt
    )


def plot_spans(
    spans: Mapping[str, tuple[float, float]], *, title: str, label: str = "", fmt: str = "{x:,.1f}"
) -> Chart:
    """Draw horizontal bars from a start to an end, the first entry on top, with their lengths.

    Args:
        spans: start and end by name, in order.
        title: the chart's title.
        label: the axis, with its unit.
        fmt: a format of `x` for the lengths.
    """
    with start_chart(title, 1.1 + ROW_INCHES * (len(spans) or 2)) as (chart, axes):
        begins = [begin for begin, _ in spans.values()]
        lengths = [end - begin for begin, end in spans.values()]
        # `bar_label` writes nothing at NaN; a bar of length 0 is not visible either.
        bars = axes.barh(list(spans), np.nan_to_num(lengths), height=0.7, left=begins)
        ends = ["no number" if math.isnan(x) else fmt.format(x=x) for x in lengths]
        axes.bar_label(bars, ends, padding=4, color="#444444")
        axes.invert_yaxis()
        axes.margins(x=0.1)
        axes.grid(visible=False, axis="y")
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel(label)
        whole_ticks(axes.xaxis, [place for span in spans.values() for place in span])
        axes.xaxis.set_major_formatter(StrMethodFormatter(WITH_SEPARATORS))
    return chart


def plot_stacks(
    labels: Sequence[str], series: Mapping[str, Sequence[float]], *, title: str, label: str = ""
) -> Chart:
    """Draw vertical bars, one per label, with the series stacked.

    Args:
        labels: one per bar.
        series: heights by series, as long as `labels`; NaN is a gap.
        title: the chart's title.
        label: the heights, with their unit.
    """
    with start_chart(title) as (chart, axes):
        stack_bars(axes, labels, series, 0.7)
        axes.grid(visible=False, axis="x")
        whole_ticks(axes.yaxis, [value for values in series.values() for value in values])
        finish_chart(chart, axes, label, len(series))
    return chart


def plot_lines(
    x: Sequence[float | str],
    series: Mapping[str, Sequence[float]],
    *,
    title: str,
    label: str = "",
    x_label: str = "",
    joined: bool = True,
) -> Chart:
    """Draw lines over a common x axis.

    Args:
        x: the positions on the x axis.
        series: values by line, as long as `x`; NaN is a gap.
        title: the chart's title.
        label: the values, with their unit.
        x_label: the x axis, with its unit.
        joined: join the points of a series; False for categories.
    """
    with start_chart(title) as (chart, axes):
        for name, values in series.items():
            axes.plot(x, values, label=name, linestyle="-" if joined else "")
        axes.set_ylim(bottom=min(0, axes.get_ylim()[0]))
        axes.set_xlabel(x_label)
        whole_ticks(axes.yaxis, [value for values in series.values() for value in values])
        whole_ticks(axes.xaxis, x)
        if not any(isinstance(place, str) for place in x):  # neither 3.862e4 nor, for years, 2,013
            axes.ticklabel_format(axis="x", style="plain", useOffset=False)
        finish_chart(chart, axes, label, len(series))
    return chart


def plot_matrix(
    labels: Sequence[str], rows: Mapping[str, Sequence[str]], *, title: str, x_label: str = ""
) -> Chart:
    """Draw a grid of short texts over time, and highlight the texts that changed.

    Args:
        labels: one per column, in the order of time.
        rows: texts by row, the first on top, as long as `labels`; the cell of an empty text is
            white.
        title: the chart's title.
        x_label: the columns.
    """
    with start_chart(title, 1.5 + 1.3 * ROW_INCHES * len(rows)) as (chart, axes):
        for y, texts in enumerate(rows.values()):
            for x, (before, text) in enumerate(zip(["", *texts], texts, strict=False)):
                if text:
                    colour = _SAME if text == before else _CHANGED
                    axes.add_patch(Rectangle((x - 0.47, y - 0.42), 0.94, 0.84, color=colour, lw=0))
                    axes.text(x, y, text, ha="center", va="center", color="#222222")
        _name_cells(axes, list(rows), labels, x_label, 0.5)
        for side in ("left", "bottom"):
            axes.spines[side].set_visible(False)
        keys = [
            Patch(color=_CHANGED, label="new or changed"),
            Patch(color=_SAME, label="as before"),
        ]
        chart.legend(handles=keys, loc="outside right upper")
    across = f"{x_label}: {listed(labels)}" if x_label else listed(labels)
    lines = [
        f"{name}: {listed(text or 'nothing' for text in texts)}" for name, texts in rows.items()
    ]
    chart.words = in_words(title, across, *lines)
    return chart


def plot_presence(
    rows: Sequence[str],
    columns: Sequence[str],
    cells: Mapping[tuple[str, str], str],
    *,
    title: str,
    label: str = "",
) -> Chart:
    """Draw a box for each pair of a row and a column that exists, coloured by its kind.

    Args:
        rows: names down the side, the first on top.
        columns: names along the bottom.
        cells: the kind of each box, by row and column.
        title: the chart's title.
        label: the columns.
    """
    with start_chart(title, 1.5 + 1.4 * ROW_INCHES * len(rows)) as (chart, axes):
        for number, kind in enumerate(dict.fromkeys(cells.values())):
            where = [place for place, found in cells.items() if found == kind]
            axes.barh(
                [rows.index(row) for row, _ in where],
                [0.9] * len(where),
                left=[columns.index(column) - 0.45 for _, column in where],
                height=0.7,
                color=COLOURS[number],
                label=kind,
            )
        _name_cells(axes, rows, columns, label, 0.6)
        chart.legend(loc="outside right upper")
    found = {row: [(c, cells[row, c]) for c in columns if (row, c) in cells] for row in rows}
    lines = [f"{row}: {listed(f'{c} {kind}' for c, kind in some)}" for row, some in found.items()]
    chart.words = in_words(title, label, *lines)
    return chart


def _name_cells(
    axes: Axes, rows: Sequence[str], columns: Sequence[str], label: str, room: float
) -> None:
    """Label the rows and columns of a grid, with a margin around the cells."""
    axes.set_xticks(range(len(columns)), columns)
    axes.set_yticks(range(len(rows)), rows)
    axes.set_xlim(-room, len(columns) - 1 + room)
    axes.set_ylim(len(rows) - 1 + room, -room)
    axes.grid(visible=False)
    axes.tick_params(length=0)
    axes.set_xlabel(label)


class Choices:
    """Charts to choose from; each is drawn when it is chosen.

    Attributes:
        label: the name of the choice.
        choices: the values to choose from.
        chosen: the value whose chart is shown.
    """

    def __init__(
        self, draw: Callable[[Any], Chart], choices: Sequence[Any], chosen: Any, label: str
    ) -> None:
        self.label = label
        self.choices = list(choices)
        self._draw = draw
        self._widget: ipywidgets.VBox | None = None
        self.choose(chosen)

    def __repr__(self) -> str:
        return f"{self.label}: {self.chosen}, one of {len(self.choices)}"

    def choose(self, chosen: Any) -> Chart:
        """Draw the chart of a value, show it in the widget, and return it.

        Raises:
            UsageError: the value is not one of the choices.
        """
        if chosen not in self.choices:
            raise UsageError(
                f"There is no choice {chosen!r}.",
                hint=f"choose one of {', '.join(map(repr, self.choices))}.",
            )
        self.chosen, self._chart = chosen, self._draw(chosen)
        if self._widget is not None:
            self._widget.children[1].value = self._picture()
        return self._chart

    @property
    def widget(self) -> ipywidgets.VBox:
        """A control above the chart: a slider for integers, a list for texts."""
        if self._widget is None:
            import ipywidgets as widgets

            options: dict[str, Any] = {"options": self.choices, "value": self.chosen}
            if all(isinstance(choice, int) for choice in self.choices):
                control = widgets.SelectionSlider(continuous_update=False, **options)
            else:
                control = widgets.Dropdown(**options)
            control.description = self.label
            control.observe(lambda change: self.choose(change["new"]), names="value")
            self._widget = widgets.VBox([control, widgets.HTML(self._picture())])
        return self._widget

    def _picture(self) -> str:
        data, facts = self._chart._repr_png_()
        return (
            f'<img class="mirrorlake-figure" alt="{escape(facts["alt"])}" width="{facts["width"]}"'
            f' src="data:image/png;base64,{base64.b64encode(data).decode()}">'
        )

    def _repr_mimebundle_(self, **options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the widget, and the chosen chart for notebooks without a kernel."""
        data, facts = self._chart._repr_png_()
        bundle: dict[str, Any] = {"text/plain": repr(self), "image/png": data}
        try:
            live = self.widget._repr_mimebundle_(**options)
        except ImportError:
            live = None
        return {**(live or {}), **bundle}, {"image/png": facts}


def plot_choices(
    draw: Callable[[Any], Chart], choices: Sequence[Any], *, chosen: Any = None, label: str = ""
) -> Choices:
    """Show one chart of several, chosen by a slider for integers or by a list for texts.

    Args:
        draw: returns the chart of a value.
        choices: texts or integers, at least one.
        chosen: the value to start with; by default the first one.
        label: the name of the choice.

    Raises:
        UsageError: there are no choices, or `chosen` is not one of them.

    Example:
        >>> from mirrorlake.show.plots import plot_bars
        >>> plot_choices(lambda n: plot_bars({"n": n}, title="n"), [1, 2, 3], label="n")
        n: 1, one of 3
    """
    if not choices:
        raise UsageError("There is nothing to choose from.", hint="give at least one choice.")
    return Choices(draw, choices, choices[0] if chosen is None else chosen, label)


def plot_gauge(parts: Mapping[str, tuple[float, float]], *, title: str) -> Chart:
    """Draw the share of each limit that is used, now and after OPTIMIZE, and the limit as a line.

    The scale is logarithmic, because a table can use a millionth of one guardrail and almost all
    of another one.

    Args:
        parts: the shares that are used now and after OPTIMIZE, by limit.
        title: the chart's title.
    """
    with start_chart(title, 1.4 + 0.6 * len(parts)) as (chart, axes):
        places = np.arange(len(parts))
        now, then = (np.array([pair[i] for pair in parts.values()]) for i in (0, 1))
        used = np.concatenate([now, then])
        lowest = 10.0 ** np.floor(np.log10(min([0.01, *used[used > 0]])) - 0.5)
        # Dots, not bars: the length of a bar has no meaning on a logarithmic scale.
        axes.hlines(places, lowest, 1, color="0.85", linewidth=6, zorder=1)
        axes.plot(np.maximum(now, lowest), places, "o", markersize=9, label="now")
        axes.plot(
            np.maximum(then, lowest), places, "o", markersize=9, fillstyle="none",
            markeredgewidth=2, label="after OPTIMIZE",
        )  # fmt: skip
        axes.axvline(1.0, color="0.25", linewidth=2, marker="")
        for place, share in zip(places, now, strict=True):
            axes.annotate(
                f"{100 * share:.2g} %" if share < 1 else f"{100 * share:,.0f} %",
                (max(share, lowest), place), xytext=(0, 9), textcoords="offset points", ha="center",
            )  # fmt: skip
        axes.set_xscale("log")
        axes.set_xlim(lowest, 3 * max(1.0, *used))
        axes.set_ylim(len(parts) - 0.5, -0.7)
        axes.set_yticks(places, list(parts))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:,.7g} %"))
        axes.grid(visible=False, axis="y")
        chart.legend(loc="outside lower right", ncols=2)
    return chart


def plot_runs(
    files: Mapping[str, pa.Table], columns: Sequence[str], *, title: str, rows: int = _ROWS
) -> Chart:
    """Draw consecutive rows as one coloured strip per column: long bands are long runs.

    Args:
        files: rows by name, such as `before` and `after`.
        columns: the columns of the strips, from left to right.
        title: the chart's title.
        rows: the number of rows to show, from the middle of each table.
    """
    with start_panels(title, 4.2, len(files)) as (chart, panels):
        said: list[str] = []
        for axes, (name, table) in zip(panels, files.items(), strict=True):
            start = max(0, (table.num_rows - rows) // 2)
            codes = [_codes(table.column(c)) for c in columns]
            strips = np.stack([some[start : start + rows] % _BANDS for some in codes], axis=1)
            axes.imshow(strips, aspect="auto", cmap="twilight", interpolation="nearest")
            axes.set_title(name)
            axes.set_xticks(range(len(columns)), columns, rotation=60, ha="right")
            axes.set_yticks([])
            axes.grid(visible=False)
            runs = 1 + np.count_nonzero(strips[1:] != strips[:-1], axis=0)
            counts = listed(f"{c} {n}" for c, n in zip(columns, runs, strict=True))
            said.append(f"{name}, runs in {len(strips)} rows: {counts}")
    chart.words = in_words(title, *said)
    return chart


def _codes(values: pa.ChunkedArray) -> NDArray[np.int64]:
    """Return each value's rank among the column's distinct values; NULL is the last."""
    ranks = pc.rank(values, sort_keys="ascending", tiebreaker="dense")
    return np.asarray(ranks).astype(np.int64) - 1


def plot_spread(spreads: Mapping[str, Sequence[Sequence[int]]], *, title: str) -> Chart:
    """Draw files against buckets: a darker cell has a larger share of the file's rows.

    Args:
        spreads: the rows of each file by bucket; by name, such as `before` and `after`.
        title: the chart's title.
    """
    with start_panels(title, 3.6, len(spreads)) as (chart, panels):
        said: list[str] = []
        for axes, (name, files) in zip(panels, spreads.items(), strict=True):
            counts = np.array(files, dtype=float)
            shares = counts / np.maximum(1, counts.sum(axis=1, keepdims=True))
            # The square root: a file with few rows in each of many buckets must not look empty.
            axes.imshow(shares, aspect="auto", cmap="Blues", norm=PowerNorm(0.5, 0, 1))
            axes.set_title(f"{name}: {len(counts)} files")
            axes.set_xlabel("bucket")
            axes.set_ylabel("file")
            count_ticks(axes.xaxis, axes.yaxis)
            axes.yaxis.set_major_formatter(FuncFormatter(lambda row, _: f"{row + 1:.0f}"))
            axes.grid(visible=False)
            alone = np.count_nonzero(np.count_nonzero(counts, axis=1) == 1)
            said.append(f"{name}: {alone} of {len(counts)} files hold one bucket only")
    chart.words = in_words(title, *said)
    return chart


def plot_rows(shown: TextTable, *, title: str = "") -> Chart | None:
    """Draw the rows of a query; arguments and result are those of `ShownRows.plot`.

    Example:
        >>> plot_rows(TextTable(("item", "n"), (("bolt", 3), ("nut", 4)))) is None
        False
        >>> plot_rows(TextTable(("item",), (("bolt",), ("nut",)))) is None
        True
    """
    count = len(shown.rows)
    rows = list(shown.rows[:_MOST_BARS])
    numbers = [
        index
        for index in range(1, len(shown.columns))
        if all(row[index] is None or _is_number(row[index]) for row in rows)
        and not all(math.isnan(_height(row[index])) for row in rows)
    ][:_MOST_LINES]
    names = [shown.columns[index] for index in numbers]
    distinct = len({_short(row[0]) for row in rows}) == len(rows) and len(set(names)) == len(names)
    if len(rows) < 2 or not numbers or not distinct:
        _log.warning(_NO_PLOT)
        return None
    title = title or f"{', '.join(names)} by {shown.columns[0]}"
    if count > _MOST_BARS:
        title += f" (first {_MOST_BARS} of {'more than ' * shown.more}{count:,} rows)"
    by_number = all(_is_number(row[0]) for row in rows)
    if len(numbers) == 1 and not by_number:
        heights = {_short(row[0]): _height(row[numbers[0]]) for row in rows}
        known = [h for h in heights.values() if not math.isnan(h)]
        whole = all(h == int(h) for h in known)
        long = max(map(abs, known)) >= 1000  # `g` would write 38620.5 as 3.862e+04
        fmt = "{x:,.0f}" if whole else "{x:,.2f}" if long else "{x:,.4g}"
        return plot_bars(heights, title=title, label=names[0], fmt=fmt)
    if by_number:
        rows.sort(key=lambda row: float(row[0]))
    x = [float(row[0]) if by_number else _short(row[0]) for row in rows]
    series = {
        name: [_height(row[i]) for row in rows] for name, i in zip(names, numbers, strict=True)
    }
    label = names[0] if len(names) == 1 else ""
    # Timestamps are strings, too; they and other numbered texts are in an order.
    ordered = (not isinstance(row[0], str) or row[0][:1].isdigit() for row in rows)
    joined = all(ordered) and all(row[0] is not None for row in rows)
    return plot_lines(x, series, title=title, label=label, x_label=shown.columns[0], joined=joined)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, Decimal)) and not isinstance(value, bool)


def _height(value: Any) -> float:
    """Return a number to draw; NaN, which leaves a gap, for NULL and infinity."""
    height = math.nan if value is None else float(value)
    return height if math.isfinite(height) else math.nan


def _short(value: Any) -> str:
    text = "NULL" if value is None else str(value)
    return text if len(text) <= 30 else f"{text[:29]}…"


def plot_times(
    series: Mapping[str, Sequence[tuple[datetime, float]]],
    *,
    title: str,
    label: str,
    steps: bool = False,
) -> Chart | None:
    """Draw lines over time.

    Args:
        series: timestamps (UTC) with their values, in order, by the line's name.
        title: the chart's title.
        label: the values, with their unit.
        steps: hold each value until the next timestamp, as for a count.

    Returns:
        None if no line has a point.
    """
    found = {name: points for name, points in series.items() if points}
    if not found:
        return None
    with start_chart(title) as (chart, axes):
        for name, points in found.items():
            times: Any = [moment for moment, _ in points]
            style: Any = {"drawstyle": "steps-post", "marker": ""} if steps else {}
            axes.plot(times, [value for _, value in points], label=name, **style)
        axes.set_ylim(bottom=0)
        if steps:  # a count is an integer
            count_ticks(axes.yaxis)
        formatter: Any = ConciseDateFormatter  # it has no types
        axes.xaxis.set_major_formatter(formatter(axes.xaxis.get_major_locator()))
        axes.set_xlabel("UTC")
        finish_chart(chart, axes, label, len(found))
    return chart
