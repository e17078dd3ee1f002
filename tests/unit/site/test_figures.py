"""The charts of the explanations: they show the values that the pages state."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from helpers.project import PROJECT
from mirrorlake_docs import figures


def test_every_figure_is_drawn_and_shown(tmp_path: Path) -> None:
    figures.draw_figures(tmp_path)
    assert {path.stem for path in tmp_path.iterdir()} == set(figures.FIGURES)
    text = "".join(page.read_text("utf-8") for page in (PROJECT / "docs" / "explain").glob("*.md"))
    for name in figures.FIGURES:
        assert f"(../pictures/{name}.png)" in text
        assert (PROJECT / "docs" / "pictures" / f"{name}.png").is_file()


def test_runs_are_counted() -> None:
    assert figures.count_runs(np.array([1])) == 1
    assert figures.count_runs(np.array([1, 1, 2, 2, 1])) == 3
    (axes,) = figures.row_orders().axes
    heights = [round(bar.get_height()) for bar in axes.patches]
    assert heights[6:8] == [3, 48]  # fewest values first, as the page states


def test_files_with_a_deleted_row() -> None:
    one_in = figures.part_touched(np.array([1e-5, 1e-4]), 100_000)
    assert one_in == pytest.approx([0.632, 0.99995], abs=1e-3)  # as the page states


def test_measured_figures_are_those_of_the_page() -> None:
    found = figures.measured_refreshes()
    assert {len(pairs) for pairs in found.values()} == {3}
    assert found["join"][0] == pytest.approx((5.39, 18.8))
