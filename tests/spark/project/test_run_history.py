"""Runs and Spark: rows of `history: true` in the lake, and a timeout that comes in a JVM call."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.left_over import processes_of, wait_until_gone
from helpers.small_notebooks import RECORD, put_notebook, put_plan
from mirrorlake import Lake
from mirrorlake.errors import UsageError
from mirrorlake_runs import run_plan


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


def test_history_without_a_root_is_refused_before_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MIRRORLAKE_HOME", str(tmp_path / "home"))
    put_notebook(tmp_path, "n", RECORD)
    plan = put_plan(tmp_path, "name: kept\nhistory: true\nsteps: [{notebook: n.ipynb}]")
    with pytest.raises(UsageError, match="history, but no step has a root"):
        run_plan(plan)
    assert not (tmp_path / "home").exists()


@pytest.mark.long
def test_a_timeout_comes_in_a_call_of_the_jvm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel waits for an answer and hears nothing else; it ends with its JVM all the same."""
    monkeypatch.setenv("MIRRORLAKE_HOME", str(tmp_path / "home"))
    sleeps = (
        "import pathlib\nfrom mirrorlake.spark.session import get_spark\nspark = get_spark()\n"
        "pathlib.Path(word).touch()\nspark._jvm.java.lang.Thread.sleep(4_000_000)"
    )
    put_notebook(tmp_path, "sleeps", sleeps)
    put_notebook(tmp_path, "next", RECORD)
    steps = "[{notebook: sleeps.ipynb, timeout: 90}, {notebook: next.ipynb, needs: []}]"
    plan = put_plan(tmp_path, f"name: p\nparallel: 1\nsteps: {steps}")
    summary = run_plan(plan, overrides={"word": str(tmp_path / "flag")})
    assert (tmp_path / "flag").exists(), "Spark did not start in time"
    sleeping, after = summary.steps
    assert (sleeping.status, after.status) == ("failed", "done")
    assert sleeping.error is not None
    assert (sleeping.error["name"], sleeping.error["cell"]) == ("TimeoutError", 3)
    assert [line for line in wait_until_gone(tmp_path / "home") if "java" in line] == []
    assert processes_of(tmp_path / "home") == []
