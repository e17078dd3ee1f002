"""The picture of the system, with one part highlighted, which each lesson starts with."""

from __future__ import annotations

from typing import Final

from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch, Rectangle

from mirrorlake.errors import UsageError
from mirrorlake.show.chart import COLOURS, Chart, start_chart

# The column and row of each part, from the top left, and its description.
SYSTEM: Final[dict[str, tuple[float, float, str]]] = {
    "applications": (0, 0, "rows, files,\ndatabases"),
    "landing zone": (1, 0, "numbered\nParquet files"),
    "mirror": (2, 0, "one commit per\ntable and cycle"),
    "tables": (3, 0, "Delta, all\nold versions"),
    "feed": (3, 1, "every change\nof a row"),
    "views": (4, 1, "updated from\nchanges"),
    "queries": (4, 0, "SQL, at any\nversion"),
    "people": (5, 0, "notebooks,\nreports, models"),
}
_FLOWS: Final = (
    ("applications", "landing zone"), ("landing zone", "mirror"), ("mirror", "tables"),
    ("tables", "queries"), ("queries", "people"), ("tables", "feed"), ("feed", "views"),
    ("views", "queries"),
)  # fmt: skip
_LAKE: Final = ("landing zone", "tables", "feed", "views")
_WIDE, _HIGH = 0.8, 0.66
_LINE, _QUIET = "#888888", "#F1F3F5"


def plot_system(part: str) -> Chart:
    """Draw the data flow from applications to people, with one part highlighted.

    Args:
        part: a part of the system, such as `mirror`.

    Raises:
        UsageError: there is no such part.

    Example:
        >>> plot_system("mirror").describe()[:47]
        'Where we are: mirror (one commit per table and '
    """
    if part not in SYSTEM:
        raise UsageError(f"There is no part {part!r}.", hint=f"choose one of {', '.join(SYSTEM)}.")
    with start_chart(f"Where we are: {part}", 2.5) as (chart, axes):
        axes.set_xlim(-0.5, 5.5)
        axes.set_ylim(1.5, -0.5)
        axes.axis("off")
        _draw_lake(axes)
        for begin, end in _FLOWS:
            _draw_arrow(axes, begin, end)
        for name in SYSTEM:
            _draw_part(axes, name, chosen=name == part)
    said = " ".join(SYSTEM[part][2].split())
    ways = "; ".join(f"{begin} to {end}" for begin, end in _FLOWS)
    chart.words = f"Where we are: {part} ({said}). The data flow: {ways}."
    return chart


def _draw_lake(axes: Axes) -> None:
    """Draw a labelled frame around the parts that are in the lake."""
    places = [SYSTEM[name] for name in _LAKE]
    left, right = (pick(place[0] for place in places) for pick in (min, max))
    x, y = left - _WIDE / 2 - 0.07, -_HIGH / 2 - 0.08
    size = (right - left + _WIDE + 0.14, 1 + _HIGH + 0.16)
    frame = Rectangle((x, y), *size, fill=False, edgecolor=_LINE, linestyle="--", linewidth=1)
    axes.add_patch(frame)
    axes.text(
        x + 0.08,
        y + size[1] - 0.09,
        "the lake: a folder or a bucket",
        color="#555555",
        fontsize=8.5,
    )


def _draw_arrow(axes: Axes, begin: str, end: str) -> None:
    (x, y, _), (to_x, to_y, _) = SYSTEM[begin], SYSTEM[end]
    across, down = to_x - x, to_y - y
    gaps = (across * _WIDE / 2, down * _HIGH / 2)
    axes.annotate(
        "",
        xy=(to_x - gaps[0], to_y - gaps[1]),
        xytext=(x + gaps[0], y + gaps[1]),
        arrowprops={"arrowstyle": "-|>", "color": _LINE, "shrinkA": 1, "shrinkB": 1},
    )


def _draw_part(axes: Axes, name: str, *, chosen: bool) -> None:
    x, y, said = SYSTEM[name]
    axes.add_patch(
        FancyBboxPatch(
            (x - _WIDE / 2 + 0.04, y - _HIGH / 2 + 0.04),
            _WIDE - 0.08,
            _HIGH - 0.08,
            boxstyle="round,pad=0.04",
            facecolor=COLOURS[0] if chosen else _QUIET,
            edgecolor=COLOURS[0] if chosen else _LINE,
            linewidth=2 if chosen else 1,
        )
    )
    colour = "white" if chosen else "#222222"
    axes.text(
        x, y - 0.18, name, ha="center", va="center", color=colour, fontsize=8.6, fontweight="bold"
    )
    axes.text(x, y + 0.1, said, ha="center", va="center", color=colour, fontsize=7.5)
