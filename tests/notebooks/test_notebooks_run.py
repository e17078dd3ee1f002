"""The lessons, executed by papermill and by nbval."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from helpers.notebooks import run_nbval
from helpers.project import NOTEBOOKS
from mirrorlake.spark.session import SharedJvm
from mirrorlake_lab import open_sample
from mirrorlake_runs import run_plan

MARKER = "Files/_mirrorlake/sample.json"

TASK = re.compile(r"\d\d-\d")


@pytest.mark.promise("LZ-01", "LZ-02")
@pytest.mark.usefixtures("one_spark")
def test_papermill_runs_them_with_other_parameters(jvm: SharedJvm, tmp_path: Path) -> None:
    """Papermill runs the first three lessons with small parameters."""
    plan = tmp_path / "plan.yaml"
    few = "every: 60, months: 2, until: 4"
    plan.write_text(
        "steps:\n"
        "  - {notebook: learn/01_publish, parameters: {every: 60}}\n"
        f"  - {{notebook: learn/02_mirror, parameters: {{{few}}}}}\n"
        f"  - {{notebook: learn/03_query, parameters: {{{few}}}}}\n"
    )
    root = {"root": str(tmp_path / "lake")}
    tour = run_plan(plan, tmp_path / "out", overrides=root, on_step=lambda *_: jvm.clear())
    assert [(step.notebook, step.status) for step in tour.steps] == [
        ("learn/01_publish", "done"),
        ("learn/02_mirror", "done"),
        ("learn/03_query", "done"),
    ], tour.failed
    summary = json.loads((Path(tour.folder) / "summary.json").read_text())
    assert [step["status"] for step in summary["steps"]] == ["done"] * 3
    answers = tour.steps[-1].records
    tasks = {name for name in answers if TASK.fullmatch(name)}
    assert tasks == {"03-1", "03-2", "03-3", "03-4"}
    assert all(
        step.records[task] for step in tour.steps for task in step.records if TASK.match(task)
    )
    assert set(answers) - tasks == {
        "flights in the table",
        "flights cancelled",
        "airline with the longest average delay",
        "busiest route",
    }


@pytest.mark.long  # the test above runs 01 to 03, and tests of tools cover the others
def test_nbval_finds_the_committed_outputs(jvm: SharedJvm, tmp_path: Path) -> None:
    """The lessons run in order, because some continue with the lake of the previous one."""
    lessons = sorted((NOTEBOOKS / "learn").glob("*.ipynb"))
    lessons = [path for path in lessons if path.stem != "16_a_database_mirrored"]  # test_database
    done = run_nbval(lessons, tmp_path, jvm)
    assert done.returncode == 0, done.stdout[-6000:]
    made = sorted((tmp_path / "lakes").iterdir())
    assert len(made) == 10
    for lake in made:  # the next run can open the lake
        assert json.loads((lake / MARKER).read_text())["state"] == "sealed"
        open_sample(str(lake), tables=[])
