"""Pictures of a table's layout: guardrails, runs of equal values in a file, files and buckets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
from matplotlib.ticker import PercentFormatter

from mirrorlake.layout.guardrails import GuardrailReport
from mirrorlake.layout.ordering import column_codes
from mirrorlake.layout.partitioning.spread import Spread
from mirrorlake.show.plots import COLOURS, Chart, styled

_BANDS = 24
_ROWS = 400


def plot_gauge(report: GuardrailReport) -> Chart:
    """How much of each guardrail is used, now and after OPTIMIZE; beyond the line is too much."""
    limited = [one for one in report.limits if one.limit is not None]
    with styled():
        chart = Chart(figsize=(7.5, 1.2 + 0.55 * len(limited)))
        axes = chart.add_subplot()
        axes.set_title(f"Guardrails of {report.sku}: part that is used")
        places = np.arange(len(limited))
        now = [one.value / (one.limit or 1) for one in limited]
        then = [one.after_optimize / (one.limit or 1) for one in limited]
        axes.barh(places - 0.2, now, height=0.36, label="now")
        axes.barh(places + 0.2, then, height=0.36, label="after OPTIMIZE")
        axes.axvline(1.0, color=COLOURS[1], linewidth=1.5)
        axes.set_yticks(places, [f"{o.guardrail}\n{o.value:,.4g} of {o.limit:,}" for o in limited])
        axes.invert_yaxis()
        axes.set_xlim(0, max(1.1, *now, *then))
        axes.xaxis.set_major_formatter(PercentFormatter(1.0))
        axes.grid(visible=False, axis="y")
        chart.legend(loc="outside right upper")
    return chart


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
    with styled():
        chart = Chart(figsize=(7.5, 4.2))
        chart.suptitle(title, x=0.01, ha="left", fontweight="bold")
        for axes, (name, table) in zip(chart.subplots(1, len(files)), files.items(), strict=True):
            start = max(0, (table.num_rows - rows) // 2)
            codes = [column_codes(table.column(c)) for c in columns]
            strips = np.stack([some[start : start + rows] % _BANDS for some in codes], axis=1)
            axes.imshow(strips, aspect="auto", cmap="twilight", interpolation="nearest")
            axes.set_title(name)
            axes.set_xticks(range(len(columns)), columns, rotation=60, ha="right")
            axes.set_yticks([])
            axes.grid(visible=False)
    return chart


def plot_spread(spreads: Mapping[str, Spread], *, title: str) -> Chart:
    """Files against buckets: the darker a cell, the more of the file's rows are in that bucket.

    Args:
        spreads: by the name of what they are, such as before and after.
        title: what the figure says.
    """
    with styled():
        chart = Chart(figsize=(7.5, 3.6))
        chart.suptitle(title, x=0.01, ha="left", fontweight="bold")
        places = chart.subplots(1, len(spreads), squeeze=False)[0]
        for axes, (name, spread) in zip(places, spreads.items(), strict=True):
            counts = np.array(spread.counts, dtype=float)
            shares = counts / np.maximum(1, counts.sum(axis=1, keepdims=True))
            axes.imshow(shares, aspect="auto", cmap="Blues", vmin=0, vmax=1)
            axes.set_title(f"{name}: {len(counts)} files")
            axes.set_xlabel("bucket")
            axes.set_ylabel("file")
            axes.set_yticks([])
            axes.grid(visible=False)
    return chart
