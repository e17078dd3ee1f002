"""Check the answers of the course's tasks: `check.task("02-3", answer)` shows a verdict or a hint.

A check never shows the solution. A typical mistake gets its own hint; other wrong answers get the
task's first hint, then the second, and then a page to read. Each check records `{task: passed}`, as
`mirrorlake_runs.record` does. `check.hint("02-3")` and `check.solution("02-3")` help without an
answer, and `check.progress()` counts the passed tasks of all lessons.

If the right answer depends on the lake, a query of `course.yaml` or a function of `ANSWERS`
computes it. If an answer has a structure, or shows the effect of a student's code, a function of
`CHECKERS` returns its mistake. Both are in `task_checks`.
"""

from __future__ import annotations

import html
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mirrorlake.errors import CheckError
from mirrorlake.results import TextTable
from mirrorlake.storage.paths import docs_page, home
from mirrorlake_lab.course.lessons import Task, find_solution, lesson_paths, lessons, tasks
from mirrorlake_lab.course.task_checks import ANSWERS, CHECKERS, listed

if TYPE_CHECKING:
    from mirrorlake.lake import Lake


@dataclass(frozen=True)
class Verdict:
    """The result of a check.

    Attributes:
        passed: whether the answer is right.
        hint: the hint for the mistake; empty if the mistake is not a typical one.
        blank: whether there is no answer yet.
    """

    passed: bool
    hint: str = ""
    blank: bool = False


def judge(task: Task, answer: Any, lake: Lake | None = None) -> Verdict:
    """Compare an answer by value, not by text or type, with the right ones.

    Args:
        task: the task.
        answer: a value of any type; None and `...` are blank.
        lake: the lesson's lake, which some tasks need.
    """
    if answer is None or answer is ...:
        return Verdict(passed=False, blank=True)
    try:
        if task.checked_by is not None:
            mistake = CHECKERS[task.checked_by](answer)
            return Verdict(not mistake, _hint_of(task, mistake))
        right_answers = list(task.answers)
        if not right_answers:
            if lake is None:
                return Verdict(
                    False, f'Pass the lake as well: check.task("{task.number}", …, lake).'
                )
            compute = ANSWERS.get(task.computed_by or "")
            right_answers = [compute(lake) if compute else lake.sql(str(task.query))]
        given = plain(answer, unordered=task.unordered)
    except Exception as error:  # an answer can be anything: show a sentence, not a traceback
        said = f"{type(error).__name__}: {error}".splitlines()[0]
        return Verdict(False, f"The answer could not be checked ({said}).")
    if any(given == plain(right, unordered=task.unordered) for right in right_answers):
        return Verdict(passed=True)
    hint = _hint_of(task, answer)
    return Verdict(
        False, hint or _other_kind(answer, given, plain(right_answers[0], unordered=task.unordered))
    )


def plain(value: Any, *, unordered: bool = False) -> Any:
    """Return a value in the form that checks compare: floats, casefolded texts, tuples.

    A table is a list of its rows, without the names of columns. If it has one column, it is a list
    of this column's values. A list of dicts is a table, too.

    Args:
        value: a value, also of numpy, pandas, Arrow or Spark.
        unordered: sort the values of a list.

    Example:
        >>> plain(" Left  Anti JOIN "), plain(3) == plain(3.0), plain(["b", "A"], unordered=True)
        ('left anti join', True, ('a', 'b'))
    """
    rows = listed(value)
    if isinstance(value, list) and value and all(isinstance(row, Mapping) for row in value):
        rows = [tuple(row.values()) for row in value]
    if rows is not value:
        value = [row[0] if len(row) == 1 else tuple(row) for row in rows]
    if isinstance(value, tuple):  # a row that Spark has collected can have a column `item`
        if hasattr(value, "asDict") and len(value) == 1:
            return plain(value[0])
    elif hasattr(value, "item") and getattr(value, "size", 1) == 1:
        value = value.item()
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float, Decimal)):
        return float(value)
    if isinstance(value, str):
        return " ".join(value.casefold().split())
    if isinstance(value, Mapping):
        return tuple(sorted(((plain(key), plain(one)) for key, one in value.items()), key=str))
    if isinstance(value, Iterable):
        parts = [plain(one) for one in value]
        return tuple(sorted(parts, key=str) if unordered or isinstance(value, set) else parts)
    return " ".join(str(value).casefold().split())  # a date, for example


def _hint_of(task: Task, answer: Any) -> str:
    given = plain(answer, unordered=task.unordered)
    for mistake in task.mistakes:
        if given == plain(mistake.answer, unordered=task.unordered):
            return mistake.hint
    return ""


def _other_kind(answer: Any, given: Any, right: Any) -> str:
    names = {float: "a number", str: "a text", tuple: "a list"}
    if type(given) is type(right):
        return ""
    frame = "a DataFrame" if hasattr(answer, "dtypes") else "a table"
    mine = names[type(given)] if listed(answer) is answer else frame
    return f"The answer is {names[type(right)]}, and yours is {mine}."


_wrong: dict[str, list[str]] = {}  # the hints that each task has shown so far
_passed: dict[str, bool] = {}
_checked: dict[str, Any] = {}  # the last answer to each task
_COLOURS = {True: "#2e7d32", False: "#b26a00"}


def task(number: str, answer: Any, lake: Lake | None = None) -> None:
    """Check an answer, show the verdict or a hint, and record whether the answer is right.

    In a notebook, a check sets the variable `answer` to `...`. So the next task does not get this
    answer if the code that assigns its own one fails.

    Args:
        number: the task's number, such as `02-3`.
        answer: the answer; None is no answer yet, and `...` the last answer to this task.
        lake: the lesson's lake, which some tasks need.

    Example:
        >>> task("02-1", 1)  # doctest: +SKIP
        ✓ 02-1: right: …
    """
    found = tasks().get(number)
    if answer is ...:
        answer = _checked.get(number)
    else:
        _clear(answer)
    passed, said = (False, "There is no such task.") if found is None else _say(found, answer, lake)
    _passed[number], _checked[number] = passed, answer
    if passed:
        _progress().mkdir(parents=True, exist_ok=True)
        (_progress() / number).touch()
    from IPython.display import display

    display(_shown(number, passed, said), raw=True)  # type: ignore[no-untyped-call]


def hint(number: str) -> None:
    """Print the next hint for a task.

    Args:
        number: the task's number, such as `02-3`.

    Example:
        >>> hint("02-1")
        What does a reader see between two commits?
    """
    found = tasks().get(number)
    said = "There is no such task." if found is None else _next_hint(found)
    sys.stdout.write(f"{said}\n")


def solution(number: str) -> None:
    """Print the solution of a task.

    Args:
        number: the task's number, such as `02-3`.

    Raises:
        UsageError: there is no such task.

    Example:
        >>> solution("02-1")
        answer = 1
    """
    sys.stdout.write(f"{find_solution(number)}\n")


def progress() -> TextTable:
    """Return how many tasks of each lesson were passed, also in other notebooks.

    Returns:
        One row per lesson, and one for the course.

    Example:
        >>> progress().columns
        ('lesson', 'passed', 'tasks', 'state')
    """
    passed = {path.name for path in _progress().glob("*-*")}
    counts = [
        (path.stem, sum(one.number in passed for one in lesson.tasks), len(lesson.tasks))
        for path, lesson in zip(lesson_paths().values(), lessons().values(), strict=True)
    ]
    counts.append(("course", sum(n for _, n, _ in counts), len(tasks())))
    states = ("finished" if n == of else "started" if n else "" for _, n, of in counts)
    rows = ((*count, state) for count, state in zip(counts, states, strict=True))
    return TextTable(("lesson", "passed", "tasks", "state"), tuple(rows))


def _progress() -> Path:
    """Return the folder with one file per passed task, beside the lakes of the lessons."""
    return home() / "lakes" / ".course"


def demand(number: str) -> None:
    """Raise an error if a task was not passed; the checks of teachers' copies call it.

    Args:
        number: the task's number, such as `02-3`.

    Raises:
        CheckError: the task was not passed.

    Example:
        >>> demand("02-1")  # doctest: +SKIP
    """
    if not _passed.get(number, False):
        raise CheckError(f"Task {number} is not passed.", hint="see the hint above.")


def forget() -> None:
    """Forget all answers of this process, as in a new kernel."""
    for state in (_wrong, _passed, _checked):
        state.clear()


def _clear(answer: Any) -> None:
    """Set the notebook's variable `answer` to `...` if it has this value."""
    from IPython import get_ipython

    shell = get_ipython()
    if shell is not None and answer is not None and shell.user_ns.get("answer") is answer:
        shell.user_ns["answer"] = ...


def _shown(number: str, passed: bool, said: str) -> dict[str, Any]:
    """Return a verdict by MIME type, with its record for the summary of a run."""
    from mirrorlake_runs.records import MIME

    text = f"{'✓' if passed else '✗'} {number}: {said}"
    style = f"border-left: 4px solid {_COLOURS[passed]}; padding: 2px 10px"
    page = f'<div style="{style}">{html.escape(text, quote=False)}</div>'
    return {MIME: {number: passed}, "text/plain": text, "text/html": page}


def _say(found: Task, answer: Any, lake: Lake | None) -> tuple[bool, str]:
    verdict = judge(found, answer, lake)
    if verdict.passed:
        _wrong.pop(found.number, None)
        return True, f"Correct. {found.right}"
    if verdict.blank:
        return False, "No answer yet. Assign it to the name answer, and run both cells."
    return False, f"Not yet. {_next_hint(found, verdict.hint)}"


def _next_hint(found: Task, first: str = "") -> str:
    """Return the next hint that was not shown yet, and then a page to read."""
    before = _wrong.setdefault(found.number, [])
    said = next(
        (hint for hint in (first, *found.hints) if hint and hint not in before),
        f"Read {docs_page(found.read)} and run the lesson's cells again.",
    )
    before.append(said)
    return said
