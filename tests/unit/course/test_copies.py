"""Copies of the lessons: without solutions for students, with nbgrader's metadata for teachers."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import nbformat
import pytest
from typer.testing import CliRunner

from helpers.project import NOTEBOOKS
from mirrorlake.cli import main as cli
from mirrorlake.errors import UsageError
from mirrorlake_lab import find_solution, make_course
from mirrorlake_lab.course import lessons
from mirrorlake_runs.parameters import read_parameters


@cache
def cells(path: Path) -> list[Any]:
    """Return the cells of a copy, which is read once."""
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    return list(notebook.cells)


def marked(path: Path, kind: str) -> list[Any]:
    return [cell for cell in cells(path) if cell.metadata.get("nbgrader", {}).get(kind)]


def test_students_get_blank_tasks_and_no_output(tmp_path: Path) -> None:
    course = make_course(tmp_path / "course")
    assert list(course.tasks) == list(lessons.tasks())
    assert sorted(tmp_path.rglob("*.ipynb")) == sorted(course.notebooks)
    for path in course.notebooks:
        answers, checks = marked(path, "solution"), marked(path, "grade")
        assert len(answers) == len(checks) > 0
        for cell in answers:
            task = lessons.tasks()[cell.metadata.nbgrader.grade_id.removeprefix("answer-")]
            assert cell.source == f"# Your answer: {task.wants}.\n{lessons.BLANK}"
        (parameters,) = [
            cell for cell in cells(path) if "parameters" in cell.metadata.get("tags", [])
        ]
        assert "%env MIRRORLAKE_HOME=." in parameters.source  # classmates share no lake
        assert all(cell.metadata.nbgrader.locked for cell in checks)
        shown = [cell for cell in cells(path) if cell.get("outputs")]
        assert [lessons.PICTURE in cell.source for cell in shown] == [
            True
        ]  # only the picture of the system
        assert set(shown[0].outputs[0].data) == {"image/png", "text/plain"}
        text = path.read_text(encoding="utf-8")
        assert "BEGIN" not in text
    for number in lessons.tasks():
        solution = find_solution(number)
        if len(solution) > 30:
            (path,) = [p for p in course.notebooks if p.name.startswith(number[:2])]
            assert json.dumps(solution, ensure_ascii=False)[1:-1] not in path.read_text()


def test_blanks_name_the_kind_of_answer() -> None:
    kinds = {"01-1": "a letter in quotes", "01-2": "a list of rows", "01-3": "a text in quotes"}
    kinds |= {"01-4": "a number", "04-2": "a list of texts in quotes", "09-4": "a list of numbers"}
    assert {number: lessons.tasks()[number].wants for number in kinds} == kinds
    assert lessons.tasks()["14-3"].wants == "a list of letters in quotes"


def test_copies_can_be_run_with_the_parameters_of_the_lessons(tmp_path: Path) -> None:
    """The first line of their parameters is a magic."""
    for path in make_course(tmp_path / "course").notebooks:
        found = read_parameters(path)
        assert found == read_parameters(NOTEBOOKS / "learn" / path.name)
        assert "root" in found


@pytest.mark.parametrize("solutions", [False, True], ids=["students", "teachers"])
def test_links_of_copies_lead_to_copies(tmp_path: Path, solutions: bool) -> None:
    """The copies contain the lessons, the pages that these point to, and a start page.

    No link leaves the folder of the lessons, which is all that nbgrader releases.
    """
    course = make_course(tmp_path, solutions=solutions)
    place = course.notebooks[0].parent
    texts = {page: page.read_text(encoding="utf-8") for page in tmp_path.rglob("*.md")}
    for path in course.notebooks:
        texts[path] = "\n".join(c.source for c in cells(path) if c.cell_type == "markdown")
    found = r"\]\(((?!https?:)[^)#\s]+\.(?:md|ipynb|png))"
    links = [(page, link) for page, text in texts.items() for link in re.findall(found, text)]
    assert {page for page, _ in links} > {*course.notebooks, place / "START.md"}
    for page, link in links:
        target = (page.parent / link).resolve()
        assert target.is_file(), (page, link)
        assert target.is_relative_to(place.resolve()), (page, link)
    for task in lessons.tasks().values():
        assert (place / "docs" / task.read).is_file()


def test_teachers_get_solutions_that_are_marked(tmp_path: Path) -> None:
    course = make_course(tmp_path, solutions=True)
    assert {path.parent for path in course.notebooks} == {tmp_path / "source" / "mirrorlake"}
    for path in course.notebooks:
        for cell in marked(path, "solution"):
            number = cell.metadata.nbgrader.grade_id.removeprefix("answer-")
            assert cell.source.splitlines()[1] == "### BEGIN SOLUTION"
            assert find_solution(number) in cell.source
        for cell in marked(path, "grade"):
            number = cell.metadata.nbgrader.grade_id.removeprefix("check-")
            assert cell.metadata.nbgrader.points == 1
            assert f'check.demand("{number}")' in cell.source
    assert lessons.BLANK in (tmp_path / "nbgrader_config.py").read_text(encoding="utf-8")


def test_the_lessons_themselves_are_not_changed(tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in NOTEBOOKS.rglob("*.ipynb")}
    make_course(tmp_path / "a")
    make_course(tmp_path / "b", solutions=True)
    lessons.student_copy(NOTEBOOKS / "learn" / "02_mirror.ipynb")
    assert {path: path.read_bytes() for path in NOTEBOOKS.rglob("*.ipynb")} == before


def test_a_folder_with_something_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    for place, reason in ((tmp_path, "is not empty"), (tmp_path / "mine.txt", "is not a folder")):
        with pytest.raises(UsageError, match=reason):
            make_course(place)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_one_solution_is_shown() -> None:
    assert find_solution("03-3") == 'answer = "flights@v2"'
    with pytest.raises(UsageError, match="no task 99-9"):
        find_solution("99-9")


def test_the_command_copies_and_shows(tmp_path: Path) -> None:
    cli.command()  # registers the commands of satellites
    run = CliRunner().invoke
    made = run(cli.app, ["course", str(tmp_path / "course"), "--json"])
    assert json.loads(made.stdout) == {
        "course": str(tmp_path / "course"),
        "tasks": list(lessons.tasks()),
        "next": f"./mirrorlake lab --folder {tmp_path / 'course'}",
    }
    graded = run(cli.app, ["course", str(tmp_path / "class"), "--solutions"]).stdout
    assert f"Next: cd {tmp_path / 'class'} && nbgrader generate_assignment mirrorlake" in (
        " ".join(graded.split())
    )
    assert run(cli.app, ["course", "--show", "02-1"]).stdout == "answer = 1\n"
    for wrong in ([], [str(tmp_path / "b"), "--show", "02-1"]):
        assert isinstance(run(cli.app, ["course", *wrong]).exception, UsageError)
