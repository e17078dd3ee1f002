"""The charts of the pages under `docs/explain`.

`PYTHONPATH=docs/_ext python -m mirrorlake_docs.figures` draws them into `docs/pictures`. Measured
values come from the table in `docs/views.md`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mirrorlake.storage.paths import PROJECT

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#888888"
_SHARES = (0.1, 1.0, 10.0)
_STEPS = (
    ("plan", "which files,\ntheir hashes"),
    ("staged files", "Parquet that\nno log names"),
    ("commit", "rows, and txn:\nlast number"),
    ("tidied", "applied files\nmoved away"),
)
_AFTER_A_KILL = (
    "nothing has begun:\na new plan",
    "the same plan\nis carried out",
    "the same plan; unused\nfiles are vacuumed",
    "nothing is applied;\nfiles are moved",
)


def exactly_once() -> Figure:
    """Draw the steps of a cycle, and the next cycle's action after a kill before each step."""
    axes = _axes(9.2, 2.7)
    axes.set_xlim(-0.9, 7.4)
    axes.set_ylim(-1.35, 1.35)
    axes.axis("off")
    for index, (name, said) in enumerate(_STEPS):
        x = 2 * index + 0.6
        colour = ORANGE if name == "commit" else BLUE
        box = {"boxstyle": "round,pad=0.5", "facecolor": "white", "edgecolor": colour, "lw": 2}
        axes.text(x, 0.75, f"{name}\n{said}", ha="center", va="center", fontsize=10, bbox=box)
        if index:
            arrow = {"arrowstyle": "->", "color": GREY}
            axes.annotate("", xy=(x - 0.6, 0.75), xytext=(x - 1.4, 0.75), arrowprops=arrow)
        axes.annotate(
            _AFTER_A_KILL[index],
            xy=(x - 1.0, 0.72),
            xytext=(x - 1.0, -0.65),
            ha="center",
            va="center",
            fontsize=8.5,
            color="#333333",
            arrowprops={"arrowstyle": "<-", "color": GREY, "linestyle": "--"},
        )
    axes.text(
        3.2, -1.3, "killed at a dashed line: what the next cycle does", ha="center", color=GREY
    )
    return _figure(axes)


def row_orders() -> Figure:
    """Draw the number of runs of three columns in three orders, counted in random rows."""
    axes = _axes(8.2, 3.4)
    generator = np.random.default_rng(7)
    sizes = {"origin (3)": 3, "carrier (16)": 16, "flight (2,000)": 2000}
    columns = {name: generator.integers(0, size, 50_000) for name, size in sizes.items()}
    names = list(columns)
    orders = {
        "as they came": np.arange(50_000),
        "most values first": np.lexsort([columns[name] for name in names]),
        "fewest values first": np.lexsort([columns[name] for name in reversed(names)]),
    }
    for index, (order, colour) in enumerate(zip(orders, (GREY, ORANGE, BLUE), strict=True)):
        runs = [count_runs(columns[name][orders[order]]) for name in names]
        places = np.arange(3) + 0.27 * (index - 1)
        bars = axes.bar(places, runs, 0.25, color=colour, label=order)
        axes.bar_label(bars, labels=[f"{count:,}" for count in runs], fontsize=8)
    axes.set_yscale("log")
    axes.set_xticks(range(3), names)
    axes.set_ylabel("runs (fewer is better)")
    axes.legend(frameon=False, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1))
    return _figure(axes)


def count_runs(values: np.ndarray) -> int:
    """Return the number of runs, which are sequences of equal values.

    Example:
        >>> count_runs(np.array([1, 1, 2, 1]))
        3
    """
    return int(1 + np.count_nonzero(values[1:] != values[:-1]))


def view_refreshes() -> Figure:
    """Draw the seconds of incremental and full refreshes by the share of changed rows."""
    axes = _axes(8.2, 3.4)
    found = measured_refreshes()
    for (name, seconds), colour in zip(found.items(), (BLUE, GREEN, ORANGE), strict=False):
        axes.plot(_SHARES, [one for one, _ in seconds], "o-", color=colour, label=name)
        axes.plot(_SHARES, [full for _, full in seconds], "o--", color=colour, alpha=0.5)
    axes.set_xscale("log")
    axes.set_xticks(_SHARES, [f"{share:g} %" for share in _SHARES])
    axes.set_xlabel("changed rows")
    axes.set_ylabel("seconds")
    axes.set_ylim(0)
    axes.set_title("solid: incremental; dashed: full", fontsize=10, loc="left")
    axes.legend(frameon=False, ncols=3, loc="lower right", bbox_to_anchor=(1, 1))
    return _figure(axes)


def measured_refreshes() -> dict[str, list[tuple[float, float]]]:
    """Return the incremental and full seconds of each view in `docs/views.md`."""
    text = (PROJECT / "docs" / "views.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\|([^|]*)\| [\d.]+ % \| ([\d.]+) s \| ([\d.]+) s \|", text, re.M)
    found: dict[str, list[tuple[float, float]]] = {}
    name = ""
    for first, incremental, full in rows:
        if "`" in first:
            name = first.partition(",")[0].strip()
        found.setdefault(name, []).append((float(incremental), float(full)))
    return found


def files_touched() -> Figure:
    """Draw the share of files that a delete of random rows affects, by the rows per file."""
    axes = _axes(8.2, 3.2)
    deleted = np.logspace(-6, -1, 200)
    for rows, colour in zip((1_000, 100_000, 10_000_000), (GREEN, BLUE, ORANGE), strict=True):
        axes.plot(100 * deleted, 100 * part_touched(deleted, rows), color=colour, label=f"{rows:,}")
    axes.set_xscale("log")
    axes.set_xticks([1e-4, 1e-3, 1e-2, 0.1, 1, 10])
    axes.set_xticklabels(["0.0001 %", "0.001 %", "0.01 %", "0.1 %", "1 %", "10 %"])
    axes.set_xlabel("deleted rows, at random")
    axes.set_ylabel("percent of the files")
    axes.set_title("files with a deleted row", fontsize=10, loc="left")
    axes.legend(
        title="rows per file", frameon=False, ncols=3, loc="lower right", bbox_to_anchor=(1, 1)
    )
    return _figure(axes)


def part_touched(deleted: np.ndarray, rows: int) -> np.ndarray:
    """Return the expected share of files with at least one deleted row.

    Args:
        deleted: the share of rows that is deleted, between 0 and 1.
        rows: the number of rows per file.

    Example:
        >>> float(part_touched(np.array([0.5]), 2)[0])
        0.75
    """
    return np.asarray(1 - (1 - deleted) ** rows)


FIGURES: dict[str, Callable[[], Figure]] = {
    "explain-exactly-once": exactly_once,
    "explain-row-orders": row_orders,
    "explain-view-refreshes": view_refreshes,
    "explain-files-touched": files_touched,
}


def draw_figures(folder: Path) -> None:
    """Draw all charts into a folder."""
    folder.mkdir(exist_ok=True)
    for name, draw in FIGURES.items():
        draw().savefig(folder / f"{name}.png", dpi=120, metadata={"Software": None})


def _axes(width: float, height: float) -> Axes:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    return axes


def _figure(axes: Axes) -> Figure:
    figure = axes.get_figure(root=True)
    assert figure is not None
    return figure


if __name__ == "__main__":
    draw_figures(PROJECT / "docs" / "pictures")
