"""A tool by papermill alone: without the launcher, from any folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import nbformat

from mirrorlake import Lake
from mirrorlake.storage.paths import NOTEBOOKS, PARAMETERS


def test_papermill_runs_a_tool_from_any_folder(tmp_path: Path) -> None:
    lake, elsewhere = Lake(tmp_path / "lake"), tmp_path / "elsewhere"
    lake.publisher("stock", keys=["id"]).upsert([{"id": 1}, {"id": 2}])
    elsewhere.mkdir()
    done = subprocess.run(
        [
            *(sys.executable, "-m", "papermill", NOTEBOOKS / "mirror.ipynb", "out.ipynb"),
            *("-f", PARAMETERS / "mirror.yaml", "-p", "root", lake.storage.root),
            *("-p", "dry_run", "True"),
        ],
        cwd=elsewhere,
        env={name: value for name, value in os.environ.items() if name != "MIRRORLAKE_HOME"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    executed = nbformat.read(elsewhere / "out.ipynb", as_version=4)
    texts = [
        output.data.get("text/plain")
        for cell in executed.cells
        for output in cell.get("outputs", ())
        if "data" in output
    ]
    assert "1 file with 2 rows would be applied (dry run)" in texts
