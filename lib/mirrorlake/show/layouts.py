"""Figures of a table's files: guardrails, runs of values, rows by file and bucket."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
from matplotlib.colors import PowerNorm
from matplotlib.ticker import FuncFormatter

from mirrorlake.layout.guardrails import GuardrailReport, Limit
from mirrorlake.layout.vorder_file import column_codes
from mirrorlake.partitioning.statistics import Spread
from mirrorlake.show.chart import Chart, count_ticks, in_words, listed, start_chart, start_panels

_BANDS = 24
_ROWS = 400


def plot_gauge(report: GuardrailReport) -> Chart:
    """How much of each guardrail is used, now and after OPTIMIZE; beyond the line is too much.

    The scale is logarithmic: a small table uses a thousandth of one guardrail and a millionth of
    another, and one that is near to a limit must be seen beside them.
    """
    limited = [one for one in report.limits if one.limit is not None]
    title = f"Guardrails of {report.sku}: part that is used"
    with start_chart(title, 1.4 + 0.6 * len(limited)) as (chart, axes):
        places = np.arange(len(limited))
        now = np.array([one.used for one in limited])
        then = np.array([one.after_optimize / (one.limit or 1) for one in limited])
        used = np.concatenate([now, then])
        lowest = 10.0 ** np.floor(np.log10(min([0.01, *used[used > 0]])) - 0.5)
        # Dots, not bars: on such a scale a bar's length says nothing.
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
        axes.set_ylim(len(limited) - 0.5, -0.7)
        axes.set_yticks(places, [_used(one) for one in limited])
        axes.xaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:,.7g} %"))
        axes.grid(visible=False, axis="y")
        chart.legend(loc="outside lower right", ncols=2)
    return chart


def _used(one: Limit) -> str:
    value = f"{one.value:,.4g}" if isinstance(one.value, float) else f"{one.value:,}"
    return f"{one.guardrail}\n{value} of {one.limit:,}"


def plot_runs(
    files: Mapping[str, pa.Table], columns: Sequence[str], *, title: str, rows: int = _ROWS
) -> Chart:
    """Neighbouring rows as coloured strips, a strip a column: long bands are long runs.

    Args:
        files: rows by the name of what they are, such as before and after.
        columns: the strips, from left to right.
        title: what the figure says.
        rows: how many rows to show, from each table's middle.
    """
    with start_panels(title, 4.2, len(files)) as (chart, panels):
        said: list[str] = []
        for axes, (name, table) in zip(panels, files.items(), strict=True):
            start = max(0, (table.num_rows - rows) // 2)
            codes = [column_codes(table.column(c)) for c in columns]
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


def plot_spread(spreads: Mapping[str, Spread], *, title: str) -> Chart:
    """Files against buckets: the darker a cell, the more of the file's rows are in that bucket.

    Args:
        spreads: by the name of what they are, such as before and after.
        title: what the figure says.
    """
    with start_panels(title, 3.6, len(spreads)) as (chart, panels):
        for axes, (name, spread) in zip(panels, spreads.items(), strict=True):
            counts = np.array(spread.counts, dtype=float)
            shares = counts / np.maximum(1, counts.sum(axis=1, keepdims=True))
            # By the root: a file with a little of each of many buckets must not look empty.
            axes.imshow(shares, aspect="auto", cmap="Blues", norm=PowerNorm(0.5, 0, 1))
            axes.set_title(f"{name}: {len(counts)} files")
            axes.set_xlabel("bucket")
            axes.set_ylabel("file")
            count_ticks(axes.xaxis, axes.yaxis)
            axes.yaxis.set_major_formatter(FuncFormatter(lambda row, _: f"{row + 1:.0f}"))
            axes.grid(visible=False)
    chart.words = in_words(title, *(f"{name}: {spread!r}" for name, spread in spreads.items()))
    return chart
