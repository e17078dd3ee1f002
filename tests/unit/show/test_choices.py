"""Pictures to choose from."""

from __future__ import annotations

from typing import Any

import pytest

from mirrorlake.errors import UsageError
from mirrorlake.show.chart import Chart
from mirrorlake.show.plots import plot_bars, plot_choices


def draw(count: Any) -> Chart:
    return plot_bars({"n": float(len(str(count)))}, title=f"<{count}>")


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
    with pytest.raises(UsageError, match=r"no choice 3.*choose one of"):
        plot_choices(draw, [1, 2], chosen=3)
    with pytest.raises(UsageError, match=r"no choice 3.*choose one of"):
        plot_choices(draw, [1, 2]).choose(3)
