"""The base of all charts: one style, titles and labels that fit, and a description in words.

pyplot is not used, because its global state shows each figure twice and keeps it in memory. The
colours are those of Okabe and Ito, which people with colour vision deficiency can distinguish. The
description is the alternative text for screen readers; it is made from what is drawn.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from io import BytesIO
from itertools import pairwise
from typing import Any, Final

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.container import BarContainer
from matplotlib.figure import Figure
from matplotlib.rcsetup import cycler
from matplotlib.text import Text
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from mirrorlake.results import float_text

_WIDTH, _HEIGHT = 7.5, 3.6  # inches
COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#E69F00", "#CC79A7", "#56B4E9", "#000000")
STYLE: Final[Mapping[str, Any]] = {
    "figure.figsize": (_WIDTH, _HEIGHT),
    "figure.dpi": 110,
    "figure.facecolor": "white",
    "figure.constrained_layout.use": True,
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "text.parse_math": False,  # names of tables and columns may contain a $
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
_SHARP = 2  # pixels of the image per pixel on the screen
_ROOM = 6  # pixels between a title and the edge, and between two labels
_MOST_VALUES = 12
_MOST_LETTERS = 600


class Chart(Figure):
    """A figure that a notebook shows without pyplot; its image is made when it is displayed.

    Attributes:
        words: its description; empty to make it from what is drawn.
    """

    words: str = ""

    def to_png(self) -> bytes:
        """Return the image as PNG, with twice the displayed resolution for sharp screens."""
        with styled():
            fit_figure(self)
            buffer = BytesIO()
            self.savefig(buffer, format="png", dpi=_SHARP * self.dpi)
        return buffer.getvalue()

    def describe(self) -> str:
        """Return the description, the alternative text for screen readers."""
        if self.words:
            return self.words
        with styled():
            fit_figure(self)
        return alt_text(self)

    def _repr_png_(self) -> tuple[bytes, dict[str, Any]]:
        width, height = (round(inches * self.dpi) for inches in self.get_size_inches())
        return self.to_png(), {"alt": self.describe(), "width": width, "height": height}


def styled() -> AbstractContextManager[None]:
    """Apply the style of all charts within the context."""
    settings: Any = dict(STYLE)  # its keys are typed as the literal names of all settings
    return mpl.rc_context(settings)


@contextmanager
def start_chart(title: str, height: float = _HEIGHT) -> Iterator[tuple[Chart, Axes]]:
    """Create a chart with a title and a height in inches, and apply the style within the block."""
    with styled():
        chart = Chart(figsize=(_WIDTH, height))
        axes = chart.add_subplot()
        axes.set_title(title)
        yield chart, axes


def say(chart: Chart, text: str) -> Chart:
    """Write a text into an empty chart, and return the chart."""
    axes = chart.axes[0]
    axes.text(0.5, 0.5, text, ha="center", va="center", transform=axes.transAxes, color="#444444")
    axes.set_xticks([])
    axes.set_yticks([])
    return chart


@contextmanager
def start_panels(title: str, height: float, count: int) -> Iterator[tuple[Chart, list[Axes]]]:
    """Create a chart with a title above several panels side by side; see `start_chart`."""
    with styled():
        chart = Chart(figsize=(_WIDTH, height))
        chart.suptitle(title, x=0.01, ha="left", fontweight="bold")
        yield chart, list(chart.subplots(1, count, squeeze=False)[0])


def stack_bars(
    axes: Axes, places: Sequence[Any], series: Mapping[str, Sequence[float]], width: float
) -> list[float]:
    """Draw vertical bars with the series stacked, NaN as a gap, and return each bar's height."""
    tops = [0.0] * len(places)
    for name, heights in series.items():
        axes.bar(places, heights, width=width, bottom=tops, label=name)
        tops = [
            low if math.isnan(height) else low + height
            for low, height in zip(tops, heights, strict=True)
        ]
    return tops


def finish_chart(chart: Chart, axes: Axes, label: str, count: int) -> None:
    """Label the values, and add a legend if there are several series."""
    axes.set_ylabel(label)
    axes.yaxis.set_major_formatter(StrMethodFormatter(WITH_SEPARATORS))
    if count > 1:
        chart.legend(loc="outside right upper")


def fit_figure(figure: Figure) -> None:
    """Wrap titles and hide tick labels until everything fits.

    Args:
        figure: a figure with a layout that makes room for the lines of a title.
    """
    canvas: Any = figure.canvas  # its methods have no types
    if not isinstance(canvas, FigureCanvasAgg):
        canvas = FigureCanvasAgg(figure)
    renderer = canvas.get_renderer()
    figure.draw_without_rendering()
    titles = [title for axes in figure.axes for title in _titles(axes)]
    wrapped = [_wrap(title, figure, renderer) for title in titles]
    if any(wrapped):
        figure.draw_without_rendering()
    for axes in figure.axes:
        _thin(axes.xaxis, renderer)


def count_ticks(*along: Axis) -> None:
    """Put ticks at integers only."""
    for axis in along:
        axis.set_major_locator(MaxNLocator(integer=True))


def whole_ticks(axis: Axis, values: Iterable[object]) -> None:
    """Put ticks at integers only, if all values along the axis are integers."""
    found = [value for value in values if value == value]  # without NaN
    if found and all(isinstance(v, (int, float)) and float(v).is_integer() for v in found):
        count_ticks(axis)


def _titles(axes: Axes) -> list[Text]:
    wanted = {axes.get_title(loc="left"), axes.get_title(), axes.get_title(loc="right")} - {""}
    return [
        one for one in axes.get_children() if isinstance(one, Text) and one.get_text() in wanted
    ]


def _wrap(title: Text, figure: Figure, renderer: Any) -> bool:
    """Wrap a title that is too long; return whether it was."""
    box = title.get_window_extent(renderer)
    room = figure.bbox.width - box.x0 - _ROOM
    if box.width <= room or room <= 0:
        return False
    text = " ".join(title.get_text().split())
    letters = max(8, int(len(text) * room / box.width))
    title.set_text(textwrap.fill(text, letters))
    return True


def _thin(axis: Axis, renderer: Any) -> None:
    """Show every n-th tick label only, with the smallest n at which no two labels overlap."""
    labels = [one.label1 for one in axis.get_major_ticks() if one.label1.get_text()]
    boxes = [label.get_window_extent(renderer) for label in labels]
    slanted = any(label.get_rotation() for label in labels)
    for step in range(1, len(labels) + 1):
        kept = boxes[::step]
        pairs = pairwise(kept)
        if slanted or all(a.x1 + _ROOM <= b.x0 for a, b in pairs):
            for place, label in enumerate(labels):
                label.set_visible(place % step == 0)
            return


def alt_text(figure: Figure) -> str:
    """Describe the title, the axes, the series and the first values in sentences.

    Args:
        figure: a figure that was drawn, so that its ticks have labels.

    Returns:
        At most 600 characters; `A figure.` for an empty figure.

    Example:
        >>> from mirrorlake.show.plots import plot_bars
        >>> plot_bars({"bolt": 3, "nut": 4}, title="Stock", label="pieces").describe()
        'Stock. pieces. bolt 3, nut 4.'
    """
    found = [figure.get_suptitle()]
    for axes in figure.axes:
        found += _sentences(axes)
    names = [text for legend in figure.legends for text in _texts(legend.get_texts())]
    found.append(f"Shown are {', '.join(names)}" if names else "")
    return in_words(*found)


def in_words(*sentences: str) -> str:
    """Join sentences, given without full stops, to at most 600 characters; skip empty ones.

    Example:
        >>> in_words("Stock", "", "bolt: 3")
        'Stock. bolt: 3.'
    """
    words = ". ".join(" ".join(part.split()) for part in sentences if part.strip())
    if len(words) >= _MOST_LETTERS:
        words = words[: _MOST_LETTERS - 2] + "…"
    return f"{words or 'A figure'}."


def _sentences(axes: Axes) -> Iterator[str]:
    yield next(filter(None, (axes.get_title(loc=side) for side in ("left", "center"))), "")
    across, up = axes.get_xlabel(), axes.get_ylabel()
    yield f"{up} by {across}" if across and up else across or up
    names = _texts(axes.get_yticklabels())
    values = _texts(axes.texts)
    if names and len(names) == len(values):  # bars with a value at each end
        yield listed(f"{name} {value}" for name, value in zip(names, values, strict=True))
        return
    for bars in axes.containers:
        if isinstance(bars, BarContainer) and not str(bars.get_label()).startswith("_"):
            heights = listed(_figure(bar.get_height()) for bar in bars)
            yield f"{bars.get_label()}: {heights}" if heights else ""
    for line in axes.lines:
        points = np.asarray(line.get_ydata(), dtype=float)
        gaps = int(np.isnan(points).sum())
        points = points[~np.isnan(points)]
        if points.size and not str(line.get_label()).startswith("_"):
            ends = f"{_figure(points[0])} to {_figure(points[-1])}"
            most = f"at most {_figure(points.max())}"
            without = f", {gaps} without a number" if gaps else ""
            yield f"{line.get_label()} from {ends}, {most}{without}"


def _texts(found: Iterable[Text]) -> list[str]:
    return [one.get_text() for one in found if one.get_text().strip()]


def listed(found: Iterable[str]) -> str:
    """Join the first twelve texts by commas."""
    parts = list(found)
    more = ["and so on"] if len(parts) > _MOST_VALUES else []
    return ", ".join([*parts[:_MOST_VALUES], *more])


def _figure(value: float) -> str:
    return "no number" if math.isnan(value) else float_text(value, ",")
