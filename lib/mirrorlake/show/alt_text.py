"""What a figure says in words, for those who do not see it: made from what is drawn in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from matplotlib.axes import Axes
from matplotlib.container import BarContainer
from matplotlib.figure import Figure
from matplotlib.text import Text

_MOST_VALUES = 12
_MOST_LETTERS = 600


def alt_text(figure: Figure) -> str:
    """Title, axes, series and the first values, in sentences.

    Args:
        figure: drawn once, so that its ticks have their texts.

    Returns:
        At most 600 letters; `A figure.` for an empty one.

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
    """Sentences without their full stops as a text of at most 600 letters; empty ones are left out.

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
    if names and len(names) == len(values):  # bars, each with its value at its end
        yield listed(f"{name} {value}" for name, value in zip(names, values, strict=True))
        return
    for bars in axes.containers:
        if isinstance(bars, BarContainer) and not str(bars.get_label()).startswith("_"):
            heights = listed(_figure(bar.get_height()) for bar in bars)
            yield f"{bars.get_label()}: {heights}" if heights else ""
    for line in axes.lines:
        points = np.asarray(line.get_ydata(), dtype=float)
        if points.size and not str(line.get_label()).startswith("_"):
            ends = f"{_figure(points[0])} to {_figure(points[-1])}"
            yield f"{line.get_label()} from {ends}, at most {_figure(points.max())}"


def _texts(found: Iterable[Text]) -> list[str]:
    return [one.get_text() for one in found if one.get_text().strip()]


def listed(found: Iterable[str]) -> str:
    """Texts one after the other, the first twelve."""
    parts = list(found)
    more = ["and so on"] if len(parts) > _MOST_VALUES else []
    return ", ".join([*parts[:_MOST_VALUES], *more])


def _figure(value: float) -> str:
    return f"{value:,.10g}"
