"""Pictures that tools show of any lake: None where there is nothing to draw.

Of a query's rows, of a table's versions, of the mirror's lag and backlog.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from itertools import accumulate
from typing import Any

from matplotlib.dates import ConciseDateFormatter

from mirrorlake.history.maintenance import Maintenance
from mirrorlake.mirror.ledger import Ledger
from mirrorlake.results import TextTable
from mirrorlake.show.chart import Chart, count_ticks, finish_chart, start_chart
from mirrorlake.show.plots import plot_bars, plot_lines

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


def plot_kept(done: Maintenance) -> Chart | None:
    """Why files stay, and how many; None if the policy does not vacuum, or no file is spare."""
    counts: Counter[str] = Counter()
    for line in done.tables:
        for share in line.vacuum.kept if line.vacuum else ():
            counts[share.why] += share.files
    if not counts:
        return None
    return plot_bars(dict(counts.most_common()), title="Why files stay", label="files")


def plot_lag(ledgers: Sequence[Ledger]) -> Chart | None:
    """How long each published file waited until it was applied, over the time of its commit.

    Args:
        ledgers: of some tables; one line each.

    Returns:
        None if no file's lag is known.
    """
    found = {
        ledger.table: sorted(
            (datetime.fromisoformat(entry.applied), entry.lag_seconds)
            for entry in ledger.entries
            if entry.applied and entry.lag_seconds is not None
        )
        for ledger in ledgers
    }
    return _over_time(found, title="Lag: from publication to commit", label="seconds")


def plot_backlog(ledgers: Sequence[Ledger]) -> Chart | None:
    """How many published files waited at each moment, from the ledgers; None if none is known."""
    found = {}
    for ledger in ledgers:
        steps = sorted(
            (datetime.fromisoformat(moment), change)
            for entry in ledger.entries
            if entry.published and entry.applied
            for moment, change in ((entry.published, 1), (entry.applied, -1))
        )
        counts = accumulate(change for _, change in steps)
        found[ledger.table] = [(at, max(0, n)) for (at, _), n in zip(steps, counts, strict=True)]
    return _over_time(found, title="Backlog: files that wait", label="files", steps=True)


def _over_time(
    found: Mapping[str, Sequence[tuple[datetime, float]]],
    *,
    title: str,
    label: str,
    steps: bool = False,
) -> Chart | None:
    found = {name: points for name, points in found.items() if points}
    if not found:
        return None
    with start_chart(title) as (chart, axes):
        for name, points in found.items():
            times: Any = [moment for moment, _ in points]
            style: Any = {"drawstyle": "steps-post", "marker": ""} if steps else {}
            axes.plot(times, [value for _, value in points], label=name, **style)
        axes.set_ylim(bottom=0)
        if steps:  # a count has no halves
            count_ticks(axes.yaxis)
        formatter: Any = ConciseDateFormatter  # it has no types
        axes.xaxis.set_major_formatter(formatter(axes.xaxis.get_major_locator()))
        axes.set_xlabel("UTC")
        finish_chart(chart, axes, label, len(found))
    return chart
