"""Makes a figure fit: titles wrapped to its width, no labels that touch, whole ticks of counts.

Called when a picture is made, for only then it is known how wide a text is.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import MaxNLocator

_ROOM = 6  # pixels between a title and the edge, and between two labels


def fit_figure(figure: Figure) -> None:
    """Wraps titles and hides tick labels until everything fits; a figure that fits stays as it is.

    Args:
        figure: with a layout of its own, which makes room for the lines of a title.
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


def whole_ticks(axis: Axis, values: Iterable[object]) -> None:
    """Lets an axis have ticks at whole numbers only, where all that is drawn along it is whole."""
    found = list(values)
    if found and all(isinstance(v, (int, float)) and float(v).is_integer() for v in found):
        axis.set_major_locator(MaxNLocator(integer=True))


def _titles(axes: Axes) -> list[Text]:
    wanted = {axes.get_title(loc="left"), axes.get_title(), axes.get_title(loc="right")} - {""}
    return [
        one for one in axes.get_children() if isinstance(one, Text) and one.get_text() in wanted
    ]


def _wrap(title: Text, figure: Figure, renderer: Any) -> bool:
    """Puts a title on several lines where one is too long; whether it had to."""
    box = title.get_window_extent(renderer)
    room = figure.bbox.width - box.x0 - _ROOM
    if box.width <= room or room <= 0:
        return False
    text = " ".join(title.get_text().split())
    letters = max(8, int(len(text) * room / box.width))
    title.set_text(textwrap.fill(text, letters))
    return True


def _thin(axis: Axis, renderer: Any) -> None:
    """Hides labels of ticks until no two touch: every second one stays, or every third."""
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
