"""A plan with `history: true` leaves a row of each run in the lake."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.small_notebooks import RECORD, put_notebook, put_plan
from mirrorlake import Lake
from mirrorlake.runs.run import run_plan


def test_each_run_is_a_row(lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIRRORLAKE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("MIRRORLAKE_STATE", str(tmp_path / "state"))
    head = 'rows: int = 1\nword: str = ""\nroot: str = ""'
    put_notebook(tmp_path, "n", RECORD, head=head)
    plan = put_plan(tmp_path, "name: kept\nhistory: true\nsteps: [{notebook: n.ipynb}]")
    root = lake.storage.root
    found = [run_plan(plan, overrides={"root": root, "rows": n}).run for n in (1, 2)]
    rows = lake.sql("SELECT run, plan, status, steps FROM diagnostics.runs ORDER BY run").collect()
    assert [(row.run, row.plan, row.status) for row in rows] == [
        (run, "kept", "done") for run in found
    ]
    assert '"rows": 2' in rows[1].steps
