"""Run notebooks with nbval, and compare the files of a lake before and after."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from helpers.project import NOTEBOOKS, PARAMETERS, PROJECT
from mirrorlake.spark.session import SharedJvm

TOOLS = sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb") if path.stem != "sample")
# Parameters besides root and table that a tool needs on a lake other than the sample.
_NEEDED: dict[str, dict[str, Any]] = {
    "maintain": {"tables": "{table}"},
    "publish": {"table": "new", "keys": "id", "marker": "upsert", "source": "incoming/*.csv"},
    "query": {"sql": "SELECT count(*) AS n FROM `{table}`"},
}


def tool_parameters(tool: str, root: str, table: str) -> dict[str, Any]:
    """Return the parameters with which a tool runs on one table of a lake."""
    known = yaml.safe_load((PARAMETERS / f"{tool}.yaml").read_text(encoding="utf-8"))
    chosen = {"root": root} | ({"table": table} if "table" in known else {})
    for name, value in _NEEDED.get(tool, {}).items():
        chosen[name] = value.format(table=table) if isinstance(value, str) else value
    return chosen


def lake_state(root: Path) -> dict[str, str]:
    """Return the hash of every file, and every folder."""
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        if path.is_file()
        else "a folder"
        for path in sorted(root.rglob("*"))
    }


def run_nbval(
    notebooks: Sequence[Path], home: Path, jvm: SharedJvm, *options: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Execute notebooks in order, and compare their outputs with the stored ones."""
    command = [sys.executable, "-m", "pytest", "--nbval", "-p", "no:cacheprovider", "-q"]
    command += ["-p", "helpers.nbval_one_spark"]
    command += [*options, *map(str, notebooks)]
    paths = os.pathsep.join([str(PROJECT / "tests"), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=PROJECT,
        env=os.environ
        | {"MIRRORLAKE_HOME": str(home), "PYTHONPATH": paths}
        | jvm.environment
        | environment,
        check=False,
    )
