"""Pictures of what a query found: bars or lines where its rows can be drawn at all."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from mirrorlake.results import TextTable
from mirrorlake.show.plots import Chart, plot_bars, plot_lines

_MOST = 40
_MOST_LINES = 4


def plot_rows(shown: TextTable, *, title: str = "") -> Chart | None:
    """A query's rows as a picture; None where they have none.

    The first column names the rows, each further column of numbers is drawn: one as bars, several
    as lines. A first column of numbers makes lines, too.

    Args:
        shown: the rows; at most 40 are drawn.
        title: what the figure says; by default the columns' names.

    Returns:
        None for a single row, for no column of numbers beside the first, or for texts that name
        two rows alike.

    Example:
        >>> plot_rows(TextTable(("item", "n"), (("bolt", 3), ("nut", 4)))) is None
        False
        >>> plot_rows(TextTable(("item",), (("bolt",), ("nut",)))) is None
        True
    """
    rows = [row for row in shown.rows[:_MOST] if row[0] is not None]
    numbers = [
        index
        for index in range(1, len(shown.columns))
        if any(_is_number(row[index]) for row in rows)
        and all(row[index] is None or _is_number(row[index]) for row in rows)
    ][:_MOST_LINES]
    if len(rows) < 2 or not numbers:
        return None
    names = [shown.columns[index] for index in numbers]
    title = title or f"{', '.join(names)} by {shown.columns[0]}"
    by_number = all(_is_number(row[0]) for row in rows)
    if len({_short(row[0]) for row in rows}) < len(rows) or len(set(names)) < len(names):
        return None
    if len(numbers) == 1 and not by_number:
        heights = {_short(row[0]): _height(row[numbers[0]]) for row in rows}
        fmt = "{x:,.0f}" if all(h == int(h) for h in heights.values()) else "{x:,.4g}"
        return plot_bars(heights, title=title, label=names[0], fmt=fmt)
    if by_number:
        rows.sort(key=lambda row: float(row[0]))
    x = [float(row[0]) if by_number else _short(row[0]) for row in rows]
    series = {
        name: [_height(row[i]) for row in rows] for name, i in zip(names, numbers, strict=True)
    }
    label = names[0] if len(names) == 1 else ""
    return plot_lines(x, series, title=title, label=label, x_label=shown.columns[0])


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, Decimal)) and not isinstance(value, bool)


def _height(value: Any) -> float:
    height = float("nan") if value is None else float(value)
    return 0.0 if height != height or height in (float("inf"), float("-inf")) else height


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 30 else f"{text[:29]}…"
