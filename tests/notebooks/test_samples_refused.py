"""A notebook that creates or clears a sample refuses any other lake and changes no byte."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from deltalake import write_deltalake
from pyarrow import table as rows_of

from helpers.notebooks import lake_state
from helpers.project import NOTEBOOKS, PROJECT
from mirrorlake import Lake
from mirrorlake_lab import open_sample, seal_sample
from mirrorlake_runs import run_plan

# These notebooks once cleared or filled other lakes.
HARMED = {
    f"learn/{name}" for name in ("01_publish", "02_mirror", "04_operate", "12_partitioning_policy")
}
# Cases without --long, besides the command, which runs `learn/01_publish`.
QUICK = {("own", "learn/12_partitioning_policy"), ("published_into", "learn/02_mirror")}
MAKERS = [
    f"learn/{path.stem}"
    for path in sorted((NOTEBOOKS / "learn").glob("*.ipynb"))
    if "open_sample(" in path.read_text(encoding="utf-8")
]


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's lake with published files and Delta tables that have the notebooks' names."""
    root = tmp_path_factory.mktemp("own") / "lake"
    for name in ("flights", "stock", "orders"):
        Lake(root).publisher(name, keys=["id"]).upsert([{"id": 1, "n": 5}])
    for name in ("planes", "reported", "visits", "mine"):
        write_deltalake(root / "Tables" / name, rows_of({"id": [1, 2]}))
    return root


@pytest.fixture(scope="module")
def published_into(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sample into which an application has published."""
    root = tmp_path_factory.mktemp("sample") / "lake"
    lake = open_sample(str(root), fresh=True, tables=["stock"])
    lake.publisher("stock", keys=["id"]).upsert([{"id": 1}])
    seal_sample(lake)
    Lake(root).publisher("stock", keys=["id"]).upsert([{"id": 2}])
    return root


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Point Spark to a closed port, so that starting it fails with another error."""
    monkeypatch.setenv("SPARK_REMOTE", "sc://127.0.0.1:1")


def plan_of(folder: Path, notebook: str, root: Path) -> Path:
    plan = folder / "plan.yaml"
    step = {"notebook": notebook, "parameters": {"root": str(root)}}
    plan.write_text(yaml.safe_dump({"steps": [step]}))
    return plan


def test_there_are_some() -> None:
    assert set(MAKERS) >= HARMED


@pytest.mark.parametrize(
    ("kind", "notebook"),
    [
        pytest.param(kind, name, marks=[] if (kind, name) in QUICK else pytest.mark.long)
        for kind in ("own", "published_into")
        for name in MAKERS
    ],
)
def test_it_ends_with_an_error_and_a_hint(
    kind: str, notebook: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    root: Path = request.getfixturevalue(kind)
    before = lake_state(root)
    failed = run_plan(plan_of(tmp_path, notebook, root), tmp_path / "out").failed
    assert failed is not None
    assert failed.error is not None
    assert failed.error["name"] == "SampleError", failed.error
    assert "Hint: choose another root" in failed.error["message"]
    assert lake_state(root) == before


def test_the_command_ends_with_status_1(own: Path, tmp_path: Path) -> None:
    before = lake_state(own)
    plan = plan_of(tmp_path, "learn/01_publish", own)
    command = [sys.executable, "-m", "mirrorlake.cli", "run", str(plan), "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=PROJECT, check=False)
    assert done.returncode == 1
    assert "is not a sample" in done.stderr
    assert "Hint: choose another root" in done.stderr
    assert lake_state(own) == before
