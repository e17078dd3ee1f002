"""The picture of the system: every part that a lesson names, one of them in colour."""

from __future__ import annotations

from typing import Any

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.patches import FancyBboxPatch

from mirrorlake.errors import UsageError
from mirrorlake_lab import lessons, plot_system
from mirrorlake_lab.course.system import SYSTEM

BLUE = "#0072B2"


def test_it_has_the_parts_that_lessons_name() -> None:
    assert {lesson.part for lesson in lessons().values()} <= set(SYSTEM)


@pytest.mark.parametrize("part", list(SYSTEM))
def test_one_part_is_in_colour_and_named(part: str) -> None:
    chart = plot_system(part)
    (axes,) = chart.axes
    boxes = [patch for patch in axes.patches if isinstance(patch, FancyBboxPatch)]
    coloured = [box for box in boxes if to_rgb(box.get_facecolor()) == to_rgb(BLUE)]
    assert [list(SYSTEM)[boxes.index(box)] for box in coloured] == [part]
    assert chart.describe().startswith(f"Where we are: {part} (")
    assert "mirror to tables" in chart.describe()
    renderer: Any = FigureCanvasAgg(chart).get_renderer()
    chart.draw_without_rendering()
    wide = {text.get_text(): text.get_window_extent(renderer).width for text in axes.texts}
    inside = min(box.get_window_extent(renderer).width for box in boxes)
    assert max(wide[name] for name in SYSTEM) < inside


def test_an_unknown_part_is_refused() -> None:
    with pytest.raises(UsageError, match="no part 'cloud'"):
        plot_system("cloud")
