"""The notebooks as production and as a reader run them: papermill, then nbval."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from helpers.notebooks import run_nbval
from mirrorlake.paths import NOTEBOOKS
from mirrorlake.runs.results import RunSummary
from mirrorlake.runs.run import run_plan
from mirrorlake.samples.lake import MARKER, open_sample
from mirrorlake.spark.shared import SharedJvm

TASK = re.compile(r"\d\d-\d")


@pytest.fixture(scope="module")
def tour(tmp_path_factory: pytest.TempPathFactory) -> RunSummary:
    """The three notebooks by papermill, cut small by parameters."""
    folder = tmp_path_factory.mktemp("tour")
    plan = folder / "plan.yaml"
    plan.write_text(
        "one_spark: true\nsteps:\n"
        "  - {notebook: learn/01_publish, parameters: {every: 60}}\n"
        "  - {notebook: learn/02_mirror, parameters: {every: 60, months: 2}}\n"
        "  - {notebook: learn/03_query, parameters: {every: 60, months: 2}}\n"
    )
    return run_plan(plan, folder / "out", overrides={"root": str(folder / "lake")})


@pytest.mark.promise("LZ-01", "LZ-02")
def test_papermill_runs_them_with_other_parameters(tour: RunSummary) -> None:
    assert [(step.notebook, step.status) for step in tour.steps] == [
        ("learn/01_publish", "done"),
        ("learn/02_mirror", "done"),
        ("learn/03_query", "done"),
    ], tour.failed
    summary = json.loads((Path(tour.folder) / "summary.json").read_text())
    assert [step["status"] for step in summary["steps"]] == ["done"] * 3
    answers = tour.steps[-1].records
    tasks = {name for name in answers if TASK.fullmatch(name)}
    assert tasks == {"03-1", "03-2", "03-3"}
    assert all(answers[task] for task in tasks)
    assert set(answers) - tasks == {
        "flights in the table",
        "flights cancelled",
        "latest airline",
        "busiest route",
    }


@pytest.mark.long  # 01 to 03 run by papermill above, and what the others tell, a tool does
def test_nbval_finds_the_committed_outputs(jvm: SharedJvm, tmp_path: Path) -> None:
    """In the order of their numbers, for some go on with the lake of the one before."""
    lessons = sorted((NOTEBOOKS / "learn").glob("*.ipynb"))
    lessons = [path for path in lessons if path.stem != "16_a_database_mirrored"]  # test_database
    done = run_nbval(lessons, tmp_path, jvm)
    assert done.returncode == 0, done.stdout[-6000:]
    made = sorted((tmp_path / "lakes").iterdir())
    assert len(made) == 9
    for lake in made:  # the next run is not refused
        assert json.loads((lake / MARKER).read_text())["state"] == "sealed"
        open_sample(str(lake), tables=[])
