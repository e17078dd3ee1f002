"""Layout of charts: nothing touches the edge, labels do not overlap, counts have integer ticks."""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from itertools import pairwise

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.image import imread

from mirrorlake.show import chart as charts
from mirrorlake.show import plots

LONG = "What the frame of the model reads again after the night's load, version by version, in MiB"


DAYS = [f"2026-11-{day:02d}" for day in range(1, 31)]
CHARTS: dict[str, Callable[[str], charts.Chart]] = {
    "bars": lambda title: plots.plot_bars(
        {"a rather long name of a table": 2, "b": 1}, title=title
    ),
    "stacks": lambda title: plots.plot_stacks(DAYS, {"rows": [1] * 30}, title=title, label="rows"),
    "lines": lambda title: plots.plot_lines(DAYS, {"x": [1.5] * 30}, title=title),
    "matrix": lambda title: plots.plot_matrix(DAYS[:12], {"a": ["int"] * 12}, title=title),
}


@pytest.mark.parametrize("kind", CHARTS)
@pytest.mark.parametrize("title", ["Short", LONG], ids=["short", "long"])
def test_nothing_touches_the_edge_or_its_neighbour(kind: str, title: str) -> None:
    chart = CHARTS[kind](title)
    pixels = imread(BytesIO(chart.to_png()))[:, :, :3]
    border = np.concatenate([pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]])
    assert border.min() == 1.0
    assert isinstance(chart.canvas, FigureCanvasAgg)
    renderer = chart.canvas.get_renderer()
    axes = chart.axes[0]
    ticks = [tick.label1 for tick in axes.xaxis.get_major_ticks()]
    boxes = [t.get_window_extent(renderer) for t in ticks if t.get_visible() and t.get_text()]
    assert all(a.x1 < b.x0 for a, b in pairwise(boxes))
    assert len(boxes) >= 2
    assert axes.get_title(loc="left").replace("\n", " ") == title


def test_counts_have_whole_ticks_and_measures_do_not() -> None:
    counts = plots.plot_stacks(["a"], {"files": [1]}, title="t").axes[0]
    assert all(float(tick).is_integer() for tick in counts.get_yticks())
    operations = plots.plot_lines([1, 2], {"files": [3, 4]}, title="t").axes[0]
    assert all(float(tick).is_integer() for tick in operations.get_xticks())
    measures = plots.plot_stacks(["a"], {"seconds": [0.5]}, title="t").axes[0]
    assert not all(float(tick).is_integer() for tick in measures.get_yticks())
