"""The lessons, executed by papermill and by nbval."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from helpers.notebooks import run_nbval
from helpers.project import NOTEBOOKS
from mirrorlake.spark.session import SharedJvm
from mirrorlake_lab import lessons, open_sample
from mirrorlake_runs import run_plan

MARKER = "Files/_mirrorlake/sample.json"


@pytest.mark.promise("LZ-01", "LZ-02")
@pytest.mark.usefixtures("one_spark")
def test_papermill_runs_them_with_other_parameters(
    jvm: SharedJvm, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    """Papermill runs the first two lessons with small parameters, with `--long` the third, too."""
    names = ["learn/01_publish", "learn/02_mirror"]
    names += ["learn/03_query"] if pytestconfig.getoption("--long") else []
    plan = tmp_path / "plan.yaml"
    chosen: dict[str, int] = {"every": 60}
    steps = []
    for name in names:
        steps.append({"notebook": name, "parameters": chosen})
        chosen = chosen | {"months": 2, "until": 4}
    plan.write_text(json.dumps({"steps": steps}))
    root = {"root": str(tmp_path / "lake")}
    tour = run_plan(plan, tmp_path / "out", overrides=root, on_step=lambda *_: jvm.clear())
    found = [(step.notebook, step.status) for step in tour.steps]
    assert found == [(name, "done") for name in names], tour.failed
    summary = json.loads((Path(tour.folder) / "summary.json").read_text())
    assert [step["status"] for step in summary["steps"]] == ["done"] * len(names)
    records = {name: value for step in tour.steps for name, value in step.records.items()}
    tasks = [task.number for name in names for task in lessons()[name[6:8]].tasks]
    assert {name: records.pop(name) for name in tasks} == dict.fromkeys(tasks, True)
    if len(names) < 3:
        return
    assert set(records) == {
        "flights in the table",
        "flights cancelled",
        "airline with the longest average delay",
        "busiest route",
    }


@pytest.mark.long  # the test above runs 01 and 02, and tests of tools cover the others
def test_nbval_finds_the_committed_outputs(jvm: SharedJvm, tmp_path: Path) -> None:
    """The lessons run in order, because some continue with the lake of the previous one."""
    paths = sorted((NOTEBOOKS / "learn").glob("*.ipynb"))
    paths = [path for path in paths if path.stem != "16_a_database_mirrored"]  # test_database
    done = run_nbval(paths, tmp_path, jvm)
    assert done.returncode == 0, done.stdout[-6000:]
    made = sorted((tmp_path / "lakes").iterdir())
    assert len(made) == 10
    for lake in made:  # the next run can open the lake
        assert json.loads((lake / MARKER).read_text())["state"] == "sealed"
        open_sample(str(lake), tables=[])
