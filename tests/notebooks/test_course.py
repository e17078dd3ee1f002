"""Students' copies, executed, and teachers' copies, graded by nbgrader."""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path

import nbformat
import papermill
import pytest

from helpers.environments import add_kernel, bare_environment, make_environment
from helpers.postgres import ensure_installed
from mirrorlake_lab import find_solution, lessons, make_course
from mirrorlake_lab.course import lessons as course
from mirrorlake_lab.course.lessons import BLANK, MARK, START
from mirrorlake_runs import read_records
from mirrorlake_runs.execution import private_sockets

DATABASE = "16"  # the lesson that starts a database server
ASKED = """
import json, sys
from nbgrader.api import Gradebook
with Gradebook(f"sqlite:///{sys.argv[1]}/gradebook.db") as book:
    (submission,) = book.assignment_submissions("mirrorlake")
    cells = {grade.name: grade.score for note in submission.notebooks for grade in note.grades}
    print(json.dumps(cells))
"""


def run(notebook: Path, out: Path) -> dict[str, bool]:
    """Execute a notebook and return the records of its checks; no cell may fail."""
    with tempfile.TemporaryDirectory() as folder:
        papermill.execute_notebook(
            str(notebook),
            str(out),
            cwd=str(notebook.parent),
            progress_bar=False,
            kernel_name="python3",
            config=private_sockets(folder),
        )
    executed = nbformat.read(out, as_version=4)
    for cell in executed.cells:
        if cell.source.startswith("check.task"):
            (output,) = cell.outputs
            assert output.data["text/plain"][:6] in (
                f"{mark} {cell.source[12:16]}" for mark in "✓✗"
            )
    return {name: found for name, found in read_records(out).items() if name in course.tasks()}


@pytest.mark.parametrize(
    "chosen",
    [
        pytest.param({"01"}, id="first"),
        pytest.param(set(lessons()) - {DATABASE}, id="all", marks=pytest.mark.long),
        pytest.param({DATABASE}, id="database", marks=pytest.mark.long),
    ],
)
def test_blank_copies_fail_every_check_and_solved_ones_pass(
    chosen: set[str], tmp_path: Path
) -> None:
    if DATABASE in chosen:
        ensure_installed()
    # Without --long only blank copies: the stored outputs of the lessons show that solutions pass.
    for solved in (False,) if chosen == {"01"} else (False, True):
        copies = make_course(tmp_path / f"course-{solved}")
        for path in copies.notebooks:
            number = path.name[:2]
            if number not in chosen:
                continue
            notebook = nbformat.read(path, as_version=4)
            for cell in notebook.cells:
                if solved and cell.source.endswith(f"\n{BLANK}"):
                    name = cell.metadata.nbgrader.grade_id.removeprefix("answer-")
                    cell.source = find_solution(name)
            nbformat.write(notebook, path)
            found = run(path, tmp_path / f"{number}-{solved}.ipynb")
            assert found == {task.number: solved for task in lessons()[number].tasks}
        assert any((copies.folder / "lakes").iterdir())  # each copy has its own lakes


@pytest.mark.long
def test_nbgrader_releases_and_grades_them(tmp_path: Path) -> None:
    make_course(tmp_path / "class", solutions=True)
    folder = tmp_path / "class"
    for path in (folder / "source" / "mirrorlake").glob("*.ipynb"):
        if not path.name.startswith("01"):
            path.unlink()  # the others start Spark
    python = make_environment("nbgrader", "nbgrader>=0.9")
    environment = bare_environment(tmp_path) | add_kernel(tmp_path / "kernels", "python3")
    environment["PATH"] = f"{python.parent}:{environment['PATH']}"
    (tmp_path / "user").mkdir()

    def nbgrader(*arguments: str) -> None:
        command = [str(python), "-m", "nbgrader", *arguments]
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr[-4000:]

    nbgrader("generate_assignment", "mirrorlake", "--create")
    released = folder / "release" / "mirrorlake" / "01_publish.ipynb"
    notebook = nbformat.read(released, as_version=4)
    answers = [cell for cell in notebook.cells if cell.source.endswith(f"\n{BLANK}")]
    assert len(answers) == len(lessons()["01"].tasks)
    assert "SOLUTION" not in released.read_text()
    assert "HIDDEN" not in released.read_text()
    for name in (MARK, START):  # `lab` opens the folder
        assert (released.parent / name).is_file()
    answers[0].source = find_solution("01-1")
    answers[1].source = "answer = []"
    handed_in = folder / "submitted" / "ada" / "mirrorlake" / "01_publish.ipynb"
    handed_in.parent.mkdir(parents=True)
    nbformat.write(notebook, handed_in)
    nbgrader("autograde", "mirrorlake", "--create")
    told = subprocess.run(
        [str(python), "-c", ASKED, str(folder)], capture_output=True, text=True, check=True
    )
    assert json.loads(told.stdout) == {
        f"check-{task.number}": float(task.number == "01-1") for task in lessons()["01"].tasks
    }
