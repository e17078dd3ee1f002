"""The lessons and tasks of `course.yaml`, copies of the lessons, and the course's page in the docs.

Students' copies have no solutions; teachers' copies have them, with nbgrader's metadata. A cell
with the tag `solution` contains the answer of a task, and the next cell checks it. For nbgrader the
answer is a solution, and the check is a graded test of one point.

`python -m mirrorlake_lab.course.lessons > docs/course.md` prints the page.
"""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import urldefrag

import yaml

from mirrorlake.errors import UsageError
from mirrorlake.storage.paths import NOTEBOOKS, docs_page
from mirrorlake_runs.notebook_files import first_words, nbformat
from mirrorlake_runs.records import OWN_LAKES


@dataclass(frozen=True)
class Mistake:
    """A typical mistake and its hint.

    Attributes:
        answer: the wrong answer, or the name that a function of `CHECKERS` gives the mistake.
        hint: the hint.
    """

    answer: Any
    hint: str


@dataclass(frozen=True)
class Task:
    """A task of a lesson.

    Attributes:
        number: the lesson's number and the task's own, such as `02-3`.
        title: the title.
        answers: the right answers; none if a function decides.
        query: a query of the lake, whose result is the right answer.
        computed_by: the key of a function in `check.ANSWERS`, which returns the right answer.
        checked_by: the key of a function in `check.CHECKERS`, which returns the mistake.
        wants: the kind of answer, such as `a number`.
        unordered: whether the order of a list does not matter.
        right: the reason that is shown after a right answer.
        mistakes: typical mistakes.
        hints: the first and the second hint.
        read: a page of the docs.
        after: earlier tasks that must be passed first.
    """

    number: str
    title: str
    answers: tuple[Any, ...]
    query: str | None
    computed_by: str | None
    checked_by: str | None
    wants: str
    unordered: bool
    right: str
    mistakes: tuple[Mistake, ...]
    hints: tuple[str, str]
    read: str
    after: tuple[str, ...] = ()


@dataclass(frozen=True)
class Lesson:
    """A lesson of the course.

    Attributes:
        number: two digits.
        goal: the skills that the lesson teaches.
        minutes: the approximate duration.
        needs: the numbers of the lessons that it builds on.
        part: the part of the system that it is about.
        tool: the notebook that does the same for your own lake.
        docs: the page of the docs to read.
        tasks: its tasks.
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
    """Return all lessons by number.

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
    """Return all tasks by number."""
    return {task.number: task for lesson in lessons().values() for task in lesson.tasks}


def _task(number: str, entry: dict[str, Any]) -> Task:
    answers = entry.get("answers", [entry["answer"]] if "answer" in entry else [])
    first, second = entry["hints"]
    return Task(
        number=number,
        title=entry["title"],
        answers=tuple(answers),
        query=entry.get("query"),
        computed_by=entry.get("computed_by"),
        checked_by=entry.get("checked_by"),
        wants=entry.get("wants") or _wanted(answers[0]),
        unordered=entry.get("unordered", False),
        right=entry["right"],
        mistakes=tuple(Mistake(answer, hint) for answer, hint in entry["wrong"]),
        hints=(first, second),
        read=entry["read"],
        after=tuple(entry.get("after", ())),
    )


SOLUTION = "solution"
BLANK = "answer = None"
PICTURE = "plot_system("  # the cell that calls it keeps its output in copies
_CHECK = re.compile(r'^check\.task\("(\d\d-\d)"', re.MULTILINE)
MARK = ".mirrorlake-course"
START = "START.md"
_DOCS = NOTEBOOKS.parent / "docs"
_LINK = re.compile(r"\[([^\]]+)\]\((?!https?:)([^)#\s]+\.(?:md|ipynb|png)(?:#[^)]*)?)\)")
_OWN_LAKES = f"# The lakes of these lessons are in the folder of this notebook.\n{OWN_LAKES}\n"
_CONFIG = f"""# `nbgrader generate_assignment mirrorlake` creates students' copies of source/.
c = get_config()
c.CourseDirectory.course_id = "mirrorlake"
c.ClearSolutions.code_stub = {{"python": "{BLANK}"}}
c.ClearSolutions.enforce_metadata = False
"""


@dataclass(frozen=True)
class Course:
    """Copies of the lessons.

    Attributes:
        folder: the folder of the copies.
        notebooks: the paths of the copies.
        tasks: the numbers of their tasks.
    """

    folder: Path
    notebooks: tuple[Path, ...]
    tasks: tuple[str, ...]


def make_course(folder: Path, *, solutions: bool = False) -> Course:
    """Copy the lessons into a folder.

    Args:
        folder: a folder that is absent or empty.
        solutions: keep the solutions, for teachers, in nbgrader's layout; a failed check then
            raises an error.

    Returns:
        The copies and the numbers of their tasks.

    Raises:
        UsageError: the folder is not empty, or the lessons are not installed.

    Example:
        >>> make_course(Path("class"), solutions=True).tasks[0]  # doctest: +SKIP
        '01-1'
    """
    paths = list(lesson_paths().values())
    if not paths:
        raise UsageError(
            "The lessons are not installed.",
            hint="clone the project's repository and run this there.",
        )
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is not a folder.", hint="choose an empty folder.")
    if folder.exists() and any(folder.iterdir()):
        raise UsageError(f"{folder} is not empty.", hint="choose an empty folder.")
    place = folder / "source" / "mirrorlake" if solutions else folder
    copies = {path: place / path.name for path in paths}
    for ending in ("md", "png"):
        pages = _DOCS.rglob(f"*.{ending}")
        copies |= {page: place / "docs" / page.relative_to(_DOCS) for page in pages}
    course = _DOCS / "course.md"
    copies[course] = place / START
    numbers = []
    for source, copy in copies.items():
        copy.parent.mkdir(parents=True, exist_ok=True)
        if source in paths:
            notebook = nbformat.read(source, as_version=4)  # type: ignore[no-untyped-call]
            numbers += _rewrite(notebook, solutions=solutions)
            for cell in notebook.cells:
                if cell.cell_type == "markdown":
                    cell.source = _relinked(cell.source, source, copies)
                elif "parameters" in cell.metadata.get("tags", []):
                    cell.source = _OWN_LAKES + cell.source
            nbformat.write(notebook, copy)  # type: ignore[no-untyped-call]
        elif source.suffix == ".md":
            text = course_page() if source == course else source.read_text(encoding="utf-8")
            copy.write_text(_relinked(text, source, copies), encoding="utf-8")
        else:
            copy.write_bytes(source.read_bytes())
    (place / MARK).touch()  # nbgrader copies it, so `lab` opens what it releases
    if solutions:
        (folder / "nbgrader_config.py").write_text(_CONFIG, encoding="utf-8")
    return Course(folder, tuple(copies[path] for path in paths), tuple(numbers))


def student_copy(lesson: Path) -> bytes:
    """Return a lesson without solutions and outputs, with its links unchanged.

    Args:
        lesson: the notebook.
    """
    notebook = nbformat.read(lesson, as_version=4)  # type: ignore[no-untyped-call]
    _rewrite(notebook, solutions=False)
    return f"{nbformat.writes(notebook)}\n".encode()  # type: ignore[no-untyped-call]


def find_solution(number: str) -> str:
    """Return the solution of a task.

    Args:
        number: the task's number, such as `02-1`.

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
    raise UsageError(
        f"There is no task {number}.", hint=f"{docs_page('course.md')} lists the lessons."
    )


def _rewrite(notebook: Any, *, solutions: bool) -> list[str]:
    """Turn a lesson into a student's or teacher's copy, and return the numbers of its tasks."""
    numbers = []
    for index, cell in enumerate(notebook.cells):
        if cell.cell_type != "code":
            continue
        cell.execution_count = None
        if PICTURE not in cell.source:  # the picture is visible before any cell runs
            cell.outputs = []
        for output in cell.outputs:
            if "execution_count" in output:
                output.execution_count = None
        number = _number(notebook, index)
        if number:
            marked = f"### BEGIN SOLUTION\n{cell.source}\n### END SOLUTION"
            wanted = f"# Your answer: {tasks()[number].wants}."
            cell.source = f"{wanted}\n{marked if solutions else BLANK}"
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
    """Return the task that a cell answers, by the check in the next cell; empty for other cells."""
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


def _wanted(right: Any) -> str:
    """Return the kind of an answer, for the blank of a task whose right answers are known."""
    one = right[0] if isinstance(right, list) else right
    kind = "letter" if re.fullmatch("[a-d]", str(one)) else "text"
    kinds = ("number", "") if isinstance(one, int) else (kind, " in quotes")
    return "a list of {}s{}".format(*kinds) if isinstance(right, list) else "a {}{}".format(*kinds)


def _relinked(text: str, source: Path, copies: dict[Path, Path]) -> str:
    """Return a text whose links lead to copies; links to files without a copy become text."""

    def relink(link: re.Match[str]) -> str:
        path, anchor = urldefrag(link[2])
        target = Path(os.path.normpath(source.parent / path))
        if target not in copies:
            return f"{link[1]} (`{target.relative_to(NOTEBOOKS.parent).as_posix()}`)"
        place = Path(os.path.relpath(copies[target], copies[source].parent)).as_posix()
        return f"[{link[1]}]({place}{'#' * bool(anchor)}{anchor})"

    return _LINK.sub(relink, text)


PATHS = {
    "Engineers who run a lake": (
        *("01", "02", "03", "04", "15", "16", "05", "06", "07", "10", "12", "17"),
    ),
    "Analysts with a semantic model": ("01", "02", "03", "05", "06", "10", "11", "08", "14"),
    "Teachers, for one day": ("01", "02", "03", "04", "05", "06", "08", "09", "13", "14"),
}


def lesson_paths() -> dict[str, Path]:
    """Return the lessons' notebooks by number."""
    return {path.stem[:2]: path for path in sorted((NOTEBOOKS / "learn").glob("*.ipynb"))}


def course_page() -> str:
    """Return the text of `docs/course.md`."""
    found, paths = lessons(), lesson_paths()
    count = sum(len(lesson.tasks) for lesson in found.values())
    minutes = sum(lesson.minutes for lesson in found.values())
    lines = [
        *("# The course", ""),
        f"The course has {len(found)} lessons with {count} tasks and takes about"
        f" {minutes / 60:.0f} hours. Each lesson is a notebook. In a task, you predict the result"
        " of a cell before you run it, or write some lines of code. You write code in"
        " at least one task of each lesson. Each task ends with a check, which confirms your answer"
        " or gives a hint. In the last lesson, you repair a damaged lake.",
        "",
        "`./mirrorlake lab` opens copies of the lessons without solutions. `./mirrorlake course"
        " DIR` writes such copies and the pages of this documentation into a folder, which"
        " `./mirrorlake lab --folder DIR` opens. The lakes of these copies are in the same folder.",
        "",
        'In a notebook, `check.hint("02-3")` shows the next hint for task 02-3,'
        ' `check.solution("02-3")` shows its solution, and `check.progress()` shows the tasks that'
        " you have passed. The folder `lakes` contains the lakes and your progress. To give"
        " the same copies to several people, copy the folder before you run a lesson.",
        "",
        "For a fresh copy of one lesson, rename your copy, and start `./mirrorlake lab` again. In a"
        " folder that `course` has created, copy the lesson from a new folder of `course` instead.",
        "",
        "The lessons need a checkout of the project, and the extras `spark`, `notebooks` and"
        " `samples`. Lesson 16 also needs the extra `postgres` and a PostgreSQL server, which"
        " `apt-get install postgresql` installs. `./mirrorlake` installs all extras. All users of a"
        " checkout share the copies of `./mirrorlake lab`, so each of them should create a folder"
        " with `./mirrorlake course` instead.",
        "",
        "| lesson | goal | minutes | tasks | builds on |",
        "|---|---|---|---|---|",
    ]
    for number, lesson in found.items():
        path = paths[number]
        needs = ", ".join(lesson.needs) or "–"
        link = f"[{number} {title_of(path)}](../notebooks/learn/{path.name})"
        lines.append(
            f"| {link} | {lesson.goal} | {lesson.minutes} | {len(lesson.tasks)} | {needs} |"
        )
    lines += ["", "## Learning paths", ""]
    for reader, numbers in PATHS.items():
        steps = " → ".join(
            f"[{number}](../notebooks/learn/{paths[number].name})" for number in numbers
        )
        total = sum(found[number].minutes for number in numbers)
        lines += [f"- **{reader}** ({total} minutes): {steps}"]
    return "\n".join([*lines, "", _TEACHERS])


_TEACHERS = """## For teachers

`./mirrorlake course DIR --solutions` writes copies for nbgrader, a tool that grades notebooks.
mirrorlake does not contain nbgrader. Install it in a Python environment of its own
(`pip install nbgrader`). Its kernel must have mirrorlake. Replace the kernel, with the folder of
that environment:
`.venv/bin/python -m ipykernel install --prefix FOLDER --name python3`.

The folder `source/mirrorlake/` contains the lessons with their solutions marked. Each check is a
graded cell of one point, and raises an error if the answer is wrong. `nbgrader generate_assignment
mirrorlake` creates the version for students in `release/mirrorlake/`, and
`nbgrader autograde mirrorlake` grades what they submit. Students open their copy of the released
folder with `./mirrorlake lab --folder FOLDER`. The lakes of each student are in the folder of the
student's notebooks.

If you execute a lesson with `./mirrorlake run`, the file `summary.json` of the run contains for
each task whether it was passed. The run stops at the first cell that raises an error, and the later
tasks are missing. nbgrader continues. The lakes of the run are in the folder of the notebook, too.
So keep the notebooks of each student in a folder of their own. If you call papermill itself, pass
this folder as `--cwd`.
"""


def title_of(path: Path) -> str:
    """Return a notebook's title."""
    return first_words(nbformat.read(path, as_version=4))[0]  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    sys.stdout.write(course_page())
