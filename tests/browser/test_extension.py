"""The JupyterLab extension: cards, alternative texts and a dark theme for charts, progress."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from helpers.project import NOTEBOOKS

Look = Callable[..., Any]
FIGURE = """
from mirrorlake.show.plots import plot_bars
plot_bars({"<img src=x>": 3, "nut": 4}, title="Stock", label="pieces")
"""
SLOW = """
import threading
from mirrorlake.notices import watch_cells
watch_cells()
_ = threading.Event().wait(6)
"""


def test_there_is_a_card_for_each_notebook(visit: Any) -> None:
    visit.evaluate("window.jupyterapp.commands.execute('launcher:create')")
    visit.wait_for_selector(".jp-Launcher .jp-LauncherCard")
    for title, folder in (("Tools", NOTEBOOKS), ("Lessons", NOTEBOOKS / "learn")):
        part = visit.locator(".jp-Launcher-section", has_text=title)
        assert part.locator(".jp-LauncherCard").count() == len(list(folder.glob("*.ipynb")))
    visit.locator(".jp-LauncherCard", has_text="1. Publish changes").click()
    visit.wait_for_selector(".jp-NotebookPanel .jp-Cell")


def test_a_figure_has_words_twice_the_pixels_and_a_dark_theme(look: Look) -> None:
    page = look("figure", FIGURE, theme="Dark")
    picture = page.locator(".jp-OutputArea img").first
    picture.wait_for()
    page.wait_for_function("() => document.querySelector('.jp-OutputArea img').naturalWidth > 0")
    assert picture.get_attribute("alt") == "Stock. pieces. <img src=x> 3, nut 4."
    assert picture.evaluate("one => one.naturalWidth / one.width") == 2
    assert "invert" in picture.evaluate("one => getComputedStyle(one).filter")
    assert page.locator("img[src='x']").count() == 0


def test_a_slow_cell_says_so_and_keeps_no_trace(look: Look) -> None:
    page = look("slow", SLOW)
    line = page.locator(".mirrorlake-progress[role=status]")
    line.wait_for()
    assert line.inner_text().endswith(" s")
    line.wait_for(state="detached")
    cells = "window.jupyterapp.shell.currentWidget.content.widgets"
    assert page.evaluate(f"{cells}.map(one => one.model.outputs.length)") == [0]
