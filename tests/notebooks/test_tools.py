"""The tools, executed by nbval on the sample lake and by papermill on tables of other writers."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from helpers.foreign_lake import LONG, TABLES
from helpers.notebooks import TOOLS, lake_state, run_nbval, tool_parameters
from helpers.project import NOTEBOOKS
from mirrorlake.spark.session import SharedJvm
from mirrorlake_runs import run_plan
from mirrorlake_runs.records import StepResult

EXAMINE = {
    "change_feed", "file_diagnostics", "maintain", "monitor", "partitioning", "query",
    "row_tracking", "time_travel", "vorder",
}  # fmt: skip
# Without --long: the most used tools by nbval on the sample, and each other tool on one table of
# another writer. With --long: each tool by nbval, and on every table.
FIRST = ("mirror", "monitor", "operate", "publish", "query", "time_travel")
QUICK = {
    "archive": "by_spark",
    "change_feed": "wide and empty",
    "dimension": "by_delta_rs",
    "file_diagnostics": "by_delta_rs",
    "frames": "by_delta_rs",
    "maintain": "by_spark",
    "partitioning": "by_delta_rs",
    "row_tracking": "parted",
    "source_postgres": "by_spark",
    "views": "by_spark",
    "vorder": "by_delta_rs",
}
# Of the tables of other writers, only `often` has a feed, and none declares keys.
REFUSED = {"archive": "The change feed of {} is off", "dimension": "The table {} declares no keys"}
ON_TABLES = [
    pytest.param(tool, table, marks=[] if QUICK.get(tool) == table else pytest.mark.long)
    for tool in TOOLS
    for table in (*TABLES, *LONG)
]


@pytest.fixture
def home(
    tmp_path: Path, foreign_lake: Path, one_spark: None, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A home with a lake of other writers at `lake`, and a file to publish."""
    shutil.copytree(foreign_lake, tmp_path / "lake")
    (tmp_path / "incoming").mkdir()
    (tmp_path / "incoming" / "a.csv").write_text("id,n\n1,2\n")
    monkeypatch.setenv("MIRRORLAKE_HOME", str(tmp_path))
    return tmp_path


def run_tool(home: Path, tool: str, **parameters: Any) -> StepResult:
    """Run one tool by papermill with parameters that override its own."""
    plan = home / "plan.yaml"
    plan.write_text(yaml.safe_dump({"steps": [{"notebook": tool, "parameters": parameters}]}))
    (step,) = run_plan(plan, home / "out").steps
    return step


def test_every_tool_runs_without_long() -> None:
    assert {*FIRST, *QUICK} == set(TOOLS)


@pytest.mark.parametrize(
    "tools",
    [FIRST, pytest.param([t for t in TOOLS if t not in FIRST], marks=pytest.mark.long)],
    ids=["first", "others"],
)
def test_nbval_finds_the_committed_outputs(
    tools: Sequence[str], sample_home: Path, jvm: SharedJvm, tmp_path: Path
) -> None:
    """Each tool runs on its own copy; tools that only read change no byte."""
    done = run_nbval(
        [NOTEBOOKS / f"{tool}.ipynb" for tool in tools],
        tmp_path,
        jvm,
        *("-p", "helpers.nbval_homes"),
        NBVAL_ORIGINAL=str(sample_home),
        NBVAL_HOMES=str(tmp_path),
    )
    assert done.returncode == 0, done.stdout[-6000:]
    before = lake_state(sample_home / "lakes")
    for tool in EXAMINE & set(tools):
        assert lake_state(tmp_path / tool / "lakes") == before, tool


@pytest.mark.parametrize(("tool", "table"), ON_TABLES)
def test_it_ends_well_on_tables_of_others(tool: str, table: str, home: Path) -> None:
    before = lake_state(home / "lake")
    step = run_tool(home, tool, **tool_parameters(tool, "lake", table))
    if tool in REFUSED and (tool, table) != ("archive", "often"):
        assert step.error is not None
        assert REFUSED[tool].format(table) in step.error["message"]
    else:
        assert step.status == "done", step.error
    assert step.records
    if tool in EXAMINE:
        assert lake_state(home / "lake") == before


PARTED = {"table": "parted"}
BAD = [
    ("time_travel", {"table": "partde"}, "no table partde", "Hint: did you mean parted?"),
    ("publish", {"source": "nowhere"}, "There is no file to publish", "Hint: check the path"),
]
MORE_BAD = [
    ("query", {"sql": "DROP TABLE parted"}, "could change a table", "Hint: begin with SELECT"),
    ("time_travel", PARTED | {"to_version": 9}, "no version 9", "Hint: it has versions 0 to 0"),
    ("time_travel", {"table": "by_spark", "from_version": 3, "to_version": 1}, "after", "Hint: "),
    ("time_travel", PARTED | {"to_version": 0, "to_time": "2024-05-01"}, "both given", "Hint: "),
    ("maintain", {"policy": "{"}, "The policy is not valid JSON", "Hint: write it like"),
    ("query", {"sql": "SELECT nothing FROM parted"}, "cannot be resolved", ""),
    ("operate", PARTED | {"action": "pause"}, "No publisher feeds parted", "Hint: choose a table"),
    ("frames", {"action": "create"}, "create needs a model", "Hint: set the parameter model"),
]


@pytest.mark.parametrize(
    ("tool", "parameters", "error", "hint"),
    [
        pytest.param(*bad, id=f"{bad[0]}: {bad[2]}", marks=marks)
        for some, marks in ((BAD, []), (MORE_BAD, [pytest.mark.long]))
        for bad in some
    ],
)
def test_bad_input_is_refused_with_a_hint(
    tool: str, parameters: dict[str, Any], error: str, hint: str, home: Path
) -> None:
    before = lake_state(home / "lake")
    step = run_tool(home, tool, **{"root": "lake", **parameters})
    assert step.status == "failed"
    assert step.error is not None
    assert error in step.error["message"], step.error
    assert hint in step.error["message"], step.error
    assert lake_state(home / "lake") == before
    assert step.output is not None
    assert error in Path(step.output).read_text(encoding="utf-8")
    assert os.listdir(home / "incoming") == ["a.csv"]
