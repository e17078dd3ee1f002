"""Figures in one style. Each function returns a `Chart`, and nothing is drawn behind one's back.

No pyplot: its global state shows a figure twice and keeps every one of them alive. The colours are
Okabe and Ito's, which people with any colour vision can tell apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from io import BytesIO
from typing import Any, Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from matplotlib.rcsetup import cycler
from matplotlib.ticker import StrMethodFormatter

from mirrorlake.show.alt_text import alt_text, in_words, listed
from mirrorlake.show.fitting import fit_figure, whole_ticks

_WIDTH, _HEIGHT = 7.5, 3.6  # inches
COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#E69F00", "#CC79A7", "#56B4E9", "#000000")
STYLE: Final[Mapping[str, Any]] = {
    "figure.figsize": (_WIDTH, _HEIGHT),
    "figure.dpi": 110,
    "figure.facecolor": "white",
    "figure.constrained_layout.use": True,
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "text.parse_math": False,  # names of tables and columns may hold a $
    "axes.titlesize": 11.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 12,
    "axes.labelcolor": "#444444",
    "axes.edgecolor": "#999999",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.prop_cycle": cycler(color=COLOURS),
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "#E6E6E6",
    "xtick.color": "#444444",
    "ytick.color": "#444444",
    "lines.linewidth": 2,
    "lines.marker": "o",
    "lines.markersize": 4,
    "legend.frameon": False,
}
ROW_INCHES: Final = 0.27
WITH_SEPARATORS: Final = "{x:,.10g}"  # `g` alone writes a million as 1e+06
_SHARP = 2  # pixels of the picture for one on the screen
_SAME, _CHANGED = "#DCE9F3", "#F6CF93"  # light tints of the first and the fourth colour


class Chart(Figure):
    """A figure that a notebook shows without pyplot; its picture is made when it is looked at.

    Attributes:
        words: what it says, for those who do not see it; empty to make them from what is drawn.
    """

    words: str = ""

    def to_png(self) -> bytes:
        """The picture, with twice the pixels that it is shown in: sharp on any screen."""
        with styled():
            fit_figure(self)
            buffer = BytesIO()
            self.savefig(buffer, format="png", dpi=_SHARP * self.dpi)
        return buffer.getvalue()

    def describe(self) -> str:
        """What it says in words, as screen readers are told."""
        if self.words:
            return self.words
        with styled():
            fit_figure(self)
        return alt_text(self)

    def _repr_png_(self) -> tuple[bytes, dict[str, Any]]:
        width, height = (round(inches * self.dpi) for inches in self.get_size_inches())
        return self.to_png(), {"alt": self.describe(), "width": width, "height": height}


def plot_bars(
    values: Mapping[str, float], *, title: str, label: str = "", fmt: str = "{x:,.0f}"
) -> Chart:
    """Horizontal bars, the first entry on top, each with its value at its end.

    Args:
        values: length by name, in the order to show.
        title: what the figure says.
        label: what the values are, with their unit.
        fmt: a format of `x` for the values.
    """
    return plot_spans(
        {name: (0, value) for name, value in values.items()}, title=title, label=label, fmt=fmt
    )


def plot_spans(
    spans: Mapping[str, tuple[float, float]], *, title: str, label: str = "", fmt: str = "{x:,.1f}"
) -> Chart:
    """Horizontal bars from a beginning to an end, the first entry on top, each with its length.

    Args:
        spans: beginning and end by name, in the order to show.
        title: what the figure says.
        label: what the axis is, with its unit.
        fmt: a format of `x` for the lengths.
    """
    with styled():
        chart, axes = start_chart(title, 1.1 + ROW_INCHES * (len(spans) or 2))
        begins = [begin for begin, _ in spans.values()]
        lengths = [end - begin for begin, end in spans.values()]
        bars = axes.barh(list(spans), lengths, height=0.7, left=begins)
        axes.bar_label(bars, [fmt.format(x=x) for x in lengths], padding=4, color="#444444")
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
    """Upright bars, one a label, with the series on top of each other.

    Args:
        labels: one a bar.
        series: heights by the series' name, as long as `labels`.
        title: what the figure says.
        label: what the heights are, with their unit.
    """
    with styled():
        chart, axes = start_chart(title)
        bottom = [0.0] * len(labels)
        for name, heights in series.items():
            axes.bar(labels, heights, width=0.7, bottom=bottom, label=name)
            bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
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
) -> Chart:
    """Lines over a common axis.

    Args:
        x: the places on the axis.
        series: values by the line's name, as long as `x`.
        title: what the figure says.
        label: what the values are, with their unit.
        x_label: what the axis is, with its unit.
    """
    with styled():
        chart, axes = start_chart(title)
        for name, values in series.items():
            axes.plot(x, values, label=name)
        axes.set_ylim(bottom=min(0, axes.get_ylim()[0]))
        axes.set_xlabel(x_label)
        whole_ticks(axes.yaxis, [value for values in series.values() for value in values])
        whole_ticks(axes.xaxis, x)
        finish_chart(chart, axes, label, len(series))
    return chart


def plot_matrix(
    labels: Sequence[str], rows: Mapping[str, Sequence[str]], *, title: str, x_label: str = ""
) -> Chart:
    """A grid of short texts, a row a thing and a column a moment; what changed stands out.

    Args:
        labels: one a column, in the order of time.
        rows: texts by the row's name, the first on top, as long as `labels`; an empty one leaves
            its cell white.
        title: what the figure says.
        x_label: what the columns are.
    """
    with styled():
        chart, axes = start_chart(title, 1.5 + 1.3 * ROW_INCHES * len(rows))
        for y, texts in enumerate(rows.values()):
            for x, (before, text) in enumerate(zip(["", *texts], texts, strict=False)):
                if text:
                    colour = _SAME if text == before else _CHANGED
                    axes.add_patch(Rectangle((x - 0.47, y - 0.42), 0.94, 0.84, color=colour, lw=0))
                    axes.text(x, y, text, ha="center", va="center", color="#222222")
        axes.set_xticks(range(len(labels)), labels)
        axes.set_yticks(range(len(rows)), list(rows))
        axes.set_xlim(-0.5, len(labels) - 0.5)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.grid(visible=False)
        axes.tick_params(length=0)
        for side in ("left", "bottom"):
            axes.spines[side].set_visible(False)
        axes.set_xlabel(x_label)
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
    """What is there when: a box wherever a row has a column, coloured by its kind.

    Args:
        rows: names down the side, the first on top.
        columns: names along the bottom.
        cells: the kind of each box, by row and column.
        title: what the figure says.
        label: what the columns are.
    """
    with styled():
        chart, axes = start_chart(title, 1.5 + 1.4 * ROW_INCHES * len(rows))
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
        axes.set_yticks(range(len(rows)), rows)
        axes.set_xticks(range(len(columns)), columns)
        axes.set_xlim(-0.6, len(columns) - 0.4)
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.tick_params(length=0)
        axes.grid(visible=False)
        axes.set_xlabel(label)
        chart.legend(loc="outside right upper")
    found = {row: [(c, cells[row, c]) for c in columns if (row, c) in cells] for row in rows}
    lines = [f"{row}: {listed(f'{c} {kind}' for c, kind in some)}" for row, some in found.items()]
    chart.words = in_words(title, label, *lines)
    return chart


def styled() -> AbstractContextManager[None]:
    """The style of all figures, for as long as the context lasts."""
    settings: Any = dict(STYLE)  # its keys are typed as the literal names of all settings
    return mpl.rc_context(settings)


def start_chart(title: str, height: float = _HEIGHT) -> tuple[Chart, Axes]:
    """A figure with its title, as high as so many inches; for a block that is `styled`."""
    chart = Chart(figsize=(_WIDTH, height))
    axes = chart.add_subplot()
    axes.set_title(title)
    return chart, axes


def finish_chart(chart: Chart, axes: Axes, label: str, count: int) -> None:
    """Says what the values are, and where there are several series of them, which is which."""
    axes.set_ylabel(label)
    axes.yaxis.set_major_formatter(StrMethodFormatter(WITH_SEPARATORS))
    if count > 1:
        chart.legend(loc="outside right upper")
