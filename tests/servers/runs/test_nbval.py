"""`pytest --nbval NOTEBOOK` as users call it: in the checkout, and in copies of its notebooks."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
from nbformat.v4 import new_output

from helpers.project import PROJECT
from helpers.small_notebooks import put_notebook

NOW = "import datetime\nprint('made at', datetime.datetime.now(), 'for', word)"


def put_printed(folder: Path, word: str) -> Path:
    """Write a notebook whose outputs were printed on another day."""
    path = put_notebook(folder, "printed", NOW)
    notebook = nbformat.read(path, as_version=4)
    text = f"made at 2024-01-02 03:04:05.678901 for {word}\n"
    notebook.cells[-1].execution_count = 2
    notebook.cells[-1].outputs = [new_output("stream", name="stdout", text=text)]
    nbformat.write(notebook, path)
    return path


def nbval(path: Path, cwd: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "--nbval", "-p", "no:cacheprovider", *options]
    return subprocess.run(
        [*command, str(path)],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": ""},
        capture_output=True,
        text=True,
    )


def copied(folder: Path) -> Path:
    """Copy the lessons into a folder and return it."""
    command = [sys.executable, "-m", "mirrorlake.cli", "notebooks", str(folder)]
    subprocess.run(command, check=True)
    return folder / "notebooks" / "learn"


def test_the_plain_command_works_on_copies(tmp_path: Path) -> None:
    lessons = copied(tmp_path / "copy")
    path = put_printed(lessons, "a")
    done = nbval(path, lessons)
    assert "2 passed" in done.stdout, done.stdout + done.stderr


def test_the_plain_command_works_on_copies_within_the_checkout(tmp_path: Path) -> None:
    """The checkout's settings exclude nbval from its other tests only. Another output fails."""
    shutil.copy(PROJECT / "pyproject.toml", tmp_path)
    path = put_printed(copied(tmp_path / "copy"), "another")
    done = nbval(path.relative_to(tmp_path), tmp_path)
    assert "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr


def test_the_plain_command_finds_the_checkouts_notebooks() -> None:
    found = nbval(Path("notebooks/mirror.ipynb"), PROJECT, "--collect-only", "-q")
    assert found.returncode == 0, found.stdout + found.stderr
    assert "mirror.ipynb::Cell 0" in found.stdout
