"""The system's picture, and pictures to choose from."""

from __future__ import annotations

from typing import Any

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.patches import FancyBboxPatch

from mirrorlake.errors import UsageError
from mirrorlake.show.chart import COLOURS, Chart
from mirrorlake.show.plots import plot_bars, plot_choices
from mirrorlake.show.system import SYSTEM, plot_system
from mirrorlake_lab.course.tasks import lessons


def draw(count: Any) -> Chart:
    return plot_bars({"n": float(len(str(count)))}, title=f"<{count}>")


def test_it_has_the_parts_that_lessons_name() -> None:
    assert {lesson.part for lesson in lessons().values()} <= set(SYSTEM)


@pytest.mark.parametrize("part", list(SYSTEM))
def test_one_part_is_in_colour_and_named(part: str) -> None:
    chart = plot_system(part)
    (axes,) = chart.axes
    boxes = [patch for patch in axes.patches if isinstance(patch, FancyBboxPatch)]
    coloured = [box for box in boxes if to_rgb(box.get_facecolor()) == to_rgb(COLOURS[0])]
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


def test_choices_show_one_picture_and_draw_another_when_asked() -> None:
    some = plot_choices(draw, ["a", "bb"], chosen="bb", label="name")
    assert repr(some) == "name: bb, one of 2"
    bundle, facts = some._repr_mimebundle_()
    assert bundle["image/png"].startswith(b"\x89PNG")
    assert facts["image/png"]["alt"] == "<bb>. n 2."
    assert "application/vnd.jupyter.widget-view+json" in bundle
    control, shown = some.widget.children
    assert "&lt;bb&gt;" in shown.value  # its words are text in the page
    control.value = "a"
    assert (some.chosen, some.choose("a").describe()) == ("a", "<a>. n 1.")
    assert "&lt;a&gt;" in shown.value


def test_numbers_get_a_slider_that_draws_when_it_is_let_go() -> None:
    control = plot_choices(draw, [2, 4, 8]).widget.children[0]
    assert type(control).__name__ == "SelectionSlider"
    assert control.continuous_update is False


def test_what_is_no_choice_is_refused() -> None:
    with pytest.raises(UsageError, match="nothing to choose"):
        plot_choices(draw, [])
    with pytest.raises(UsageError, match="3 is none of"):
        plot_choices(draw, [1, 2], chosen=3)
    with pytest.raises(UsageError, match="3 is none of"):
        plot_choices(draw, [1, 2]).choose(3)
