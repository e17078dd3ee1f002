"""The plans with only `-p root=…`, on a copy of the sample and on a lake of other writers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from helpers.elsewhere import on_read_only_disk
from helpers.notebooks import lake_state
from helpers.project import PROJECT
from helpers.small_notebooks import put_plan
from mirrorlake import Lake
from mirrorlake.spark.session import PROFILE_VARIABLE

pytestmark = pytest.mark.long  # each plan takes a minute
READERS = ("monitor", "file_diagnostics", "time_travel", "query", "change_feed", "vorder")
WRITERS = ("publish", "mirror", "maintain")


def call(home: Path, *arguments: str, disk: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run `mirrorlake run` as a scheduler does, with `disk` as a read-only folder."""
    command = [sys.executable, "-m", "mirrorlake.cli", "run", *arguments, "--json"]
    if disk is not None:
        command = on_read_only_disk(disk, command)
    environment = os.environ | {"MIRRORLAKE_HOME": str(home), PROFILE_VARIABLE: "small"}
    environment |= {"MIRRORLAKE_STATE": str(home / "state")}
    return subprocess.run(
        command, capture_output=True, text=True, cwd=PROJECT, env=environment, check=False
    )


@pytest.mark.parametrize("kind", ["sample", "foreign"])
def test_they_end_well(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    lake = tmp_path / "lake"
    if kind == "sample":
        home: Path = request.getfixturevalue("sample_home")
        shutil.copytree(home / "lakes" / "sample", lake)
    else:
        shutil.copytree(request.getfixturevalue("foreign_lake"), lake)
    for plan in ("report", "nightly"):
        before = lake_state(lake)
        done = call(tmp_path, plan, "-p", f"root={lake}")
        document = json.loads(done.stdout)
        assert done.returncode == 0, (document, done.stderr[-2000:])
        assert {step["status"] for step in document["steps"]} == {"done"}
        if plan == "report":
            assert lake_state(lake) == before
    assert list(lake.rglob("*.lease")) == []


def test_a_lake_on_a_read_only_disk(foreign_lake: Path, tmp_path: Path) -> None:
    """Notebooks that only read succeed; those that write fail with a hint and change no byte."""
    lake = tmp_path / "lake"
    shutil.copytree(foreign_lake, lake)
    (tmp_path / "a.csv").write_text("id,n\n1,2\n")
    known: dict[str, dict[str, Any]] = {
        "publish": {"table": "new", "source": str(tmp_path / "a.csv"), "keys": "id"},
        "query": {"sql": "SELECT count(*) AS n FROM parted"},
        "maintain": {"apply": True},
        **{name: {"table": "by_delta_rs"} for name in ("time_travel", "change_feed", "vorder")},
    }
    steps = [
        {"notebook": name, "needs": [], "parameters": {"root": str(lake), **known.get(name, {})}}
        for name in (*READERS, *WRITERS)
    ]
    plan = put_plan(tmp_path, json.dumps({"name": "all", "steps": steps}))
    Lake(lake).publisher("waits", keys=["id"]).upsert(
        [{"id": 1}]
    )  # otherwise `mirror` has nothing to apply
    before = lake_state(lake)
    done = call(tmp_path, str(plan), disk=lake)
    found = {step["notebook"]: step for step in json.loads(done.stdout)["steps"]}
    assert lake_state(lake) == before
    assert done.returncode == 1
    told = {name: (step["status"], step["error"]) for name, step in found.items()}
    assert {name: told[name] for name in READERS} == dict.fromkeys(READERS, ("done", None))
    for name in WRITERS:
        status, error = told[name]
        assert status == "failed", name
        assert "Hint: " in error["message"], (name, error)
        written = json.dumps(error["message"], ensure_ascii=False)[1:-1]
        assert written in Path(found[name]["output"]).read_text(encoding="utf-8")
