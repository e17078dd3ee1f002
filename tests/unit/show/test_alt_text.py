"""Descriptions of charts, and where they are used: outputs, cleaned notebooks, reports."""

from __future__ import annotations

import math
from base64 import b64encode
from pathlib import Path
from typing import Any

import nbformat
import pyarrow as pa
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

from helpers.html_tags import Tags
from mirrorlake.show import chart as charts
from mirrorlake.show import plots
from mirrorlake_runs import clean_notebook
from mirrorlake_runs.reporting import render_report

EVIL = '"><script>alert(1)</script>'


@pytest.mark.parametrize(
    ("chart", "said"),
    [
        (plots.plot_bars({"bolt": 1, "nut": 2_000_000}, title="Stock", label="pieces"),
         "Stock. pieces. bolt 1, nut 2,000,000."),
        (plots.plot_lines([1, 2, 3], {"files": [4, 9, 2]}, title="Files", label="files",
                          x_label="v"),
         "Files. files by v. files from 4 to 2, at most 9."),
        (plots.plot_stacks(["a", "b"], {"in": [1, 2], "out": [3, 4]}, title="Rows", label="rows"),
         "Rows. rows. in: 1, 2. out: 3, 4. Shown are in, out."),
        (plots.plot_stacks(["a", "b"], {"in": [math.nan, 2], "out": [3, 4]}, title="Rows"),
         "Rows. in: no number, 2. out: 3, 4. Shown are in, out."),
        (plots.plot_matrix(["v1", "v2"], {"n": ["", "int"]}, title="Types", x_label="version"),
         "Types. version: v1, v2. n: nothing, int."),
        (plots.plot_presence(["file 1"], ["0", "1"], {("file 1", "1"): "whole"}, title="Files"),
         "Files. file 1: 1 whole."),
        (plots.plot_spread({"now": ((2, 0), (1, 1))}, title="Buckets"),
         "Buckets. now: 1 of 2 files hold one bucket only."),
        (plots.plot_runs({"now": pa.table({"a": [1, 1, 2]})}, ["a"], title="Runs"),
         "Runs. now, runs in 3 rows: a 2."),
        (charts.Chart(), "A figure."),
    ],
)  # fmt: skip
def test_a_figure_says_what_is_drawn(chart: charts.Chart, said: str) -> None:
    assert chart.describe() == said


def test_long_words_are_cut() -> None:
    chart = plots.plot_bars({f"{'a name ' * 9}{n}": n for n in range(30)}, title="Many")
    assert len(chart.describe()) <= 600
    assert chart.describe().startswith("Many. ")


def picture(title: str) -> Any:
    data, facts = plots.plot_bars({"a": 1}, title=title)._repr_png_()
    shown = {"image/png": b64encode(data).decode(), "text/plain": "a chart"}
    return new_output("display_data", shown, metadata={"image/png": facts, "other": {"time": 1}})


def test_the_words_stay_in_a_cleaned_notebook() -> None:
    cell = new_code_cell("plot", outputs=[picture("Kept")])
    (cleaned,) = clean_notebook(new_notebook(cells=[cell])).cells
    (output,) = cleaned.outputs
    assert set(output.metadata) == {"image/png"}
    assert output.metadata["image/png"]["alt"].startswith("Kept")


def test_a_report_carries_the_words_as_text(tmp_path: Path) -> None:
    cells = [new_code_cell("plot", outputs=[picture(EVIL)])]
    nbformat.write(new_notebook(cells=cells), tmp_path / "a.ipynb")
    step = {"name": "a", "status": "done", "seconds": 1.0, "records": {}, "error": None}
    document = {
        "plan": "p", "status": "done", "run": "r", "started": "s", "ended": "e", "parameters": {},
        "steps": [step | {"output": str(tmp_path / "a.ipynb")}],
    }  # fmt: skip
    page = render_report(document, tmp_path)
    assert "script" not in Tags(page).tags
    assert "&gt;&lt;script&gt;alert(1)&lt;/script&gt;. a 1." in page
    assert 'width="825"' in page
