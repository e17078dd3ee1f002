"""The first task in Lab: the copy of lesson 01, one answer, and the verdicts of the checks."""

from __future__ import annotations

from typing import Any

import pytest

NAME = "notebooks/learn/01_publish.ipynb"
OPENED = """name => [...window.jupyterapp.shell.widgets('main')].some(
    one => one.context?.path === name && one.context.isReady
        && one.sessionContext?.session?.kernel?.status === 'idle')"""
ANSWER = """([name, text]) => {
    const panel = [...window.jupyterapp.shell.widgets('main')].find(
        one => one.context?.path === name);
    const cells = [...Array(panel.content.model.cells.length).keys()].map(
        index => panel.content.model.cells.get(index));
    cells.find(one => one.sharedModel.getSource().endsWith('answer = None'))
        .sharedModel.setSource(text);
    window.jupyterapp.commands.execute('notebook:run-all-cells');
}"""


@pytest.mark.long
def test_the_first_task_is_solved_in_lab(visit: Any) -> None:
    visit.evaluate("path => window.jupyterapp.commands.execute('docmanager:open', {path})", NAME)
    visit.wait_for_function(OPENED, arg=NAME)
    visit.evaluate(ANSWER, [NAME, 'answer = "b"'])
    visit.wait_for_selector("text=/✓ 01-1: Correct. /", state="attached")
    visit.wait_for_selector("text=/✗ 01-4: No answer yet/", state="attached")
