"""The lessons' notebooks: copies for students and teachers, and the course's page.

Students' copies have no solutions; teachers' copies have them, with nbgrader's marks. A cell with
the tag `solution` has a task's answer, the next cell its check. nbgrader recognises them by
metadata: the answer is a solution, the check a graded test of one point.

`python -m mirrorlake_lab.course.lessons > docs/course.md` prints the page.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from mirrorlake.errors import UsageError
from mirrorlake.storage.paths import NOTEBOOKS
from mirrorlake_runs.notebook_files import first_words, nbformat


@dataclass(frozen=True)
class Mistake:
    """A typical wrong answer, or what a look at the answer calls it, with its own hint."""

    answer: Any
    hint: str


@dataclass(frozen=True)
class Task:
    """One task of a lesson.

    Attributes:
        number: the lesson's and its own, such as `02-3`.
        title: what it is about.
        answers: the answers that are right; none where `truth` or `looks` says so.
        truth: a function of `mirrorlake_lab.course.check` that gives the right answer for a lake.
        looks: one that looks at an answer and names the mistake.
        unordered: whether the order of a list plays no part.
        right: why it is right; said after a right answer.
        mistakes: typical ones.
        hints: the first and the second hint.
        read: a page of the docs.
    """

    number: str
    title: str
    answers: tuple[Any, ...]
    truth: str | None
    looks: str | None
    unordered: bool
    right: str
    mistakes: tuple[Mistake, ...]
    hints: tuple[str, str]
    read: str


@dataclass(frozen=True)
class Lesson:
    """One lesson.

    Attributes:
        number: two digits.
        goal: what somebody can do who has done it.
        minutes: how long it takes, about.
        needs: the lessons that come before it.
        part: the part of the system that it is about.
        tool: the notebook that does the same for a lake of one's own.
        docs: the page to read.
    """

    number: str
    goal: str
    minutes: int
    needs: tuple[str, ...]
    part: str
    tool: str
    docs: str
    tasks: tuple[Task, ...]


@cache
def lessons() -> dict[str, Lesson]:
    """All lessons by number.

    Example:
        >>> lessons()["02"].tasks[0].number
        '02-1'
    """
    text = files("mirrorlake_lab.course").joinpath("course.yaml").read_text(encoding="utf-8")
    found = {}
    for number, entry in yaml.safe_load(text).items():
        tasks = tuple(_task(name, task) for name, task in entry.pop("tasks").items())
        needs = tuple(entry.pop("needs"))
        found[number] = Lesson(number=number, tasks=tasks, needs=needs, **entry)
    return found


@cache
def tasks() -> dict[str, Task]:
    """All tasks by number."""
    return {task.number: task for lesson in lessons().values() for task in lesson.tasks}


def _task(number: str, entry: dict[str, Any]) -> Task:
    answers = entry.get("answers", [entry["answer"]] if "answer" in entry else [])
    first, second = entry["hints"]
    return Task(
        number=number,
        title=entry["title"],
        answers=tuple(answers),
        truth=entry.get("truth"),
        looks=entry.get("looks"),
        unordered=entry.get("unordered", False),
        right=entry["right"],
        mistakes=tuple(Mistake(answer, hint) for answer, hint in entry["wrong"]),
        hints=(first, second),
        read=entry["read"],
    )


SOLUTION = "solution"
BLANK = "answer = None  # your answer; a text in quotes"
PICTURE = "plot_system("  # what the cell with the picture of the system calls
_CHECK = re.compile(r'^check\.task\("(\d\d-\d)"', re.MULTILINE)
_LINK = re.compile(r"\[([^\]]+)\]\((?!https?:)([^)]+)\)")
_CONFIG = f"""# `nbgrader generate_assignment mirrorlake` makes students' copies of source/.
c = get_config()
c.CourseDirectory.course_id = "mirrorlake"
c.ClearSolutions.code_stub = {{"python": "{BLANK}"}}
c.ClearSolutions.enforce_metadata = False
"""


@dataclass(frozen=True)
class Course:
    """Copies that were made.

    Attributes:
        folder: where they are.
        notebooks: their paths.
        tasks: the numbers of their tasks.
    """

    folder: Path
    notebooks: tuple[Path, ...]
    tasks: tuple[str, ...]


def make_course(folder: Path, *, solutions: bool = False) -> Course:
    """Copies the lessons into a folder.

    Args:
        folder: absent or empty.
        solutions: for teachers, in nbgrader's layout; a failed check raises.

    Raises:
        UsageError: the folder holds something, or there are no lessons here.
    """
    lessons = list(lesson_paths().values())
    if not lessons:
        raise UsageError("There are no lessons here.", hint="they lie in the project's source.")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} holds something already.", hint="name an empty folder.")
    place = folder / "source" / "mirrorlake" if solutions else folder
    place.mkdir(parents=True, exist_ok=True)
    made, numbers = [], []
    for path in lessons:
        notebook = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
        numbers += _rewrite(notebook, solutions=solutions)
        _keep_links(notebook, {one.name for one in lessons})
        made.append(place / path.name)
        nbformat.write(notebook, made[-1])  # type: ignore[no-untyped-call]
    if solutions:
        (folder / "nbgrader_config.py").write_text(_CONFIG, encoding="utf-8")
    return Course(folder, tuple(made), tuple(numbers))


def student_copy(lesson: Path) -> bytes:
    """A lesson without solutions and outputs, to lie where the lesson lies: its links stay.

    Args:
        lesson: the notebook.
    """
    notebook = nbformat.read(lesson, as_version=4)  # type: ignore[no-untyped-call]
    _rewrite(notebook, solutions=False)
    return f"{nbformat.writes(notebook)}\n".encode()  # type: ignore[no-untyped-call]


def find_solution(number: str) -> str:
    """A task's solution, as its lesson has it.

    Raises:
        UsageError: there is no such task.

    Example:
        >>> print(find_solution("02-1"))
        answer = 1
    """
    path = lesson_paths().get(number[:2])
    if path is not None:
        notebook = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
        for index, cell in enumerate(notebook.cells):
            if _number(notebook, index) == number:
                return str(cell.source)
    raise UsageError(f"There is no task {number}.", hint="docs/course.md lists all.")


def _rewrite(notebook: Any, *, solutions: bool) -> list[str]:
    """Makes a student's or a teacher's copy of a lesson, in place; the numbers of its tasks."""
    numbers = []
    for index, cell in enumerate(notebook.cells):
        if cell.cell_type != "code":
            continue
        cell.execution_count = None
        if PICTURE not in cell.source:  # where one is, is seen before anything has run
            cell.outputs = []
        for output in cell.outputs:
            if "execution_count" in output:
                output.execution_count = None
        number = _number(notebook, index)
        if number:
            marked = f"### BEGIN SOLUTION\n{cell.source}\n### END SOLUTION"
            cell.source = marked if solutions else BLANK
            cell.metadata["nbgrader"] = _marks(f"answer-{number}", solution=True)
            cell["id"] = f"answer-{number}"
        elif check := _CHECK.search(cell.source):
            numbers.append(check[1])
            if solutions:
                cell.source += (
                    f'\n### BEGIN HIDDEN TESTS\ncheck.demand("{check[1]}")\n### END HIDDEN TESTS'
                )
            cell.metadata["nbgrader"] = _marks(f"check-{check[1]}", solution=False)
            cell["id"] = f"check-{check[1]}"
    return numbers


def _number(notebook: Any, index: int) -> str:
    """The task whose answer a cell is: the next cell checks it; empty for any other cell."""
    cell = notebook.cells[index]
    if cell.cell_type != "code" or SOLUTION not in cell.metadata.get("tags", []):
        return ""
    found = _CHECK.search(notebook.cells[index + 1].source)
    return found[1] if found else ""


def _marks(name: str, *, solution: bool) -> dict[str, Any]:
    marks: dict[str, Any] = {
        "schema_version": 3,
        "grade_id": name,
        "cell_type": "code",
        "grade": not solution,
        "solution": solution,
        "locked": not solution,
        "task": False,
    }
    return marks if solution else marks | {"points": 1}


def _keep_links(notebook: Any, lessons: set[str]) -> None:
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = _LINK.sub(lambda link: _reachable(link, lessons), cell.source)


def _reachable(link: re.Match[str], lessons: set[str]) -> str:
    """Links between lessons stay; a copy has no docs and no tools, so those become texts."""
    if link[2] in lessons or link[2].startswith("#"):
        return link[0]
    return f"{link[1]} (`{link[2].removeprefix('../').removeprefix('../')}`)"


PATHS = {
    "An engineer who runs a lake": (
        *("01", "02", "03", "04", "15", "16", "05", "06", "07", "10", "12"),
    ),
    "An analyst with a semantic model": ("01", "02", "03", "05", "06", "10", "11", "08", "14"),
    "A teacher, for a day": ("01", "02", "03", "04", "05", "06", "08", "09", "13", "14"),
}


def lesson_paths() -> dict[str, Path]:
    """The lessons' notebooks by number."""
    return {path.stem[:2]: path for path in sorted((NOTEBOOKS / "learn").glob("*.ipynb"))}


def course_page() -> str:
    """`docs/course.md`."""
    found, paths = lessons(), lesson_paths()
    count = sum(len(lesson.tasks) for lesson in found.values())
    minutes = sum(lesson.minutes for lesson in found.values())
    lines = [
        *("# The course", ""),
        f"{len(found)} lessons with {count} tasks: predict and then run, find the version, repair"
        f" a zone, make a guardrail hold. About {minutes / 60:.0f} hours in all. Every task has a"
        " check that answers: what is right, or a hint.",
        "",
        "`./mirrorlake lab` opens copies without solutions to work on; `./mirrorlake course DIR`"
        " puts such copies into a folder. `./mirrorlake course --show 02-3` shows one solution.",
        "",
        "| lesson | goal | minutes | tasks | needs |",
        "|---|---|---|---|---|",
    ]
    for number, lesson in found.items():
        path = paths[number]
        needs = ", ".join(lesson.needs) or "–"
        link = f"[{number} {title_of(path)}](../notebooks/learn/{path.name})"
        lines.append(
            f"| {link} | {lesson.goal} | {lesson.minutes} | {len(lesson.tasks)} | {needs} |"
        )
    lines += ["", "## Three ways through it", ""]
    for reader, numbers in PATHS.items():
        steps = " → ".join(
            f"[{number}](../notebooks/learn/{paths[number].name})" for number in numbers
        )
        total = sum(found[number].minutes for number in numbers)
        lines += [f"- **{reader}** ({total} minutes): {steps}"]
    return "\n".join([*lines, "", _TEACHERS])


_TEACHERS = """## For teachers

`./mirrorlake course DIR --solutions` makes copies in nbgrader's layout: `source/mirrorlake/` has
the solutions, marked, and each check is a graded cell of one point that raises where a task is not
passed. `nbgrader generate_assignment mirrorlake` then makes the students' version, and `nbgrader
autograde mirrorlake` grades what they hand in.

A lesson run by `./mirrorlake run` keeps `{task: passed}` among its records, so `summary.json` says
who passed what.
"""


def title_of(path: Path) -> str:
    """A notebook's title."""
    return first_words(nbformat.read(path, as_version=4))[0]  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    sys.stdout.write(course_page())
