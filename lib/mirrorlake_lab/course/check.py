"""Check the answers of the course's tasks: `check.task("02-3", answer)` shows a verdict or a hint.

A check never shows the solution. A typical mistake gets its own hint; other wrong answers get the
task's first hint, then the second, and then a page to read. If the answer has a wrong form, such as
a text in place of a number, the hint always names the right form. Each check records
`{task: passed}`, as `mirrorlake_runs.record` does. `check.hint("02-3")` and
`check.solution("02-3")` help without an answer, and `check.progress()` counts the passed tasks of
all lessons.

If the right answer depends on the lake, a query of `course.yaml` or a function of `ANSWERS`
computes it. If an answer has a structure, or shows the effect of a student's code, a function of
`CHECKERS` returns its mistake. Both are in `task_checks`.
"""

from __future__ import annotations

import html
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mirrorlake.errors import CheckError
from mirrorlake.results import TextTable
from mirrorlake.storage.paths import docs_page, home
from mirrorlake_lab.course.lessons import Task, find_solution, lesson_paths, lessons, tasks
from mirrorlake_lab.course.task_checks import ANSWERS, CHECKERS, named_rows

if TYPE_CHECKING:
    from mirrorlake.lake import Lake


_Table = tuple[list[str], list[Any]]  # the names of the columns, and the rows


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
        answer: a value of any type; None and `...` are blank. A text with commas can be a list. The
            columns of a table can have any order if they have names.
        lake: the lesson's lake, which some tasks need.
    """
    if answer is None or answer is ...:
        return Verdict(passed=False, blank=True)
    try:
        if task.checked_by is not None:
            mistake = CHECKERS[task.checked_by](answer)
            return Verdict(not mistake, _hint_of(task, plain(mistake)))
        right_answers = list(task.answers)
        if not right_answers:
            if lake is None:
                return Verdict(
                    False, f'Pass the lake as well: check.task("{task.number}", …, lake).'
                )
            compute = ANSWERS.get(task.computed_by or "")
            right_answers = [compute(lake) if compute else lake.sql(str(task.query))]
        if isinstance(answer, str) and isinstance(right_answers[0], list):
            parts = re.split(r",|\band\b", answer)
            answer = parts if len(parts) > 1 else answer
        table = named_rows(answer)
        for right in right_answers:
            right_table = named_rows(right)
            given = answer if table is None else _in_order(table, right_table)
            wanted = right if right_table is None else _in_order(right_table)
            given, wanted = (plain(one, unordered=task.unordered) for one in (given, wanted))
            if given == wanted:
                return Verdict(passed=True)
    except Exception as error:  # an answer can be anything: show a sentence, not a traceback
        said = f"{type(error).__name__}: {error}".splitlines()[0]
        return Verdict(False, f"The answer could not be checked ({said}).")
    kind = _kind(answer, given, is_table=table is not None)
    return Verdict(False, _hint_of(task, given) or _other_form(task, kind, given, wanted))


def plain(value: Any, *, unordered: bool = False) -> Any:
    """Return a value in the form that checks compare: floats, casefolded texts, tuples.

    A table is a list of its rows, without the names of columns. If it has one column, it is a list
    of this column's values. A list of dicts is a table, too. A text has no full stop at its end, a
    letter no parentheses, and a percentage is a number.

    Args:
        value: a value, also of numpy, pandas, Arrow or Spark.
        unordered: sort the values of a list.

    Example:
        >>> plain(" Left  Anti JOIN "), plain(3) == plain(3.0), plain(["b", "A"], unordered=True)
        ('left anti join', True, ('a', 'b'))
    """
    if (table := named_rows(value)) is not None:
        value = _in_order(table)
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
        return _plain_text(value)
    if isinstance(value, Mapping):
        return tuple(sorted(((plain(key), plain(one)) for key, one in value.items()), key=str))
    if isinstance(value, Iterable):
        parts = [plain(one) for one in value]
        return tuple(sorted(parts, key=str) if unordered or isinstance(value, set) else parts)
    return _plain_text(str(value))  # a date, for example


def _plain_text(text: str) -> str | float:
    text = " ".join(text.casefold().split()).rstrip(".")
    if percentage := re.fullmatch(r"(\d+(\.\d+)?) ?%", text):
        return float(percentage[1])
    letter = re.fullmatch(r"\(?([a-z])\)", text)
    return letter[1] if letter else text


def _in_order(table: _Table, right: _Table | None = None) -> list[Any]:
    """Return a table's rows with their columns in the order of the right table.

    Columns without the name of a right one keep their order. If there is one column, return its
    values.
    """
    names, rows = [name.casefold() for name in table[0]], table[1]
    right_names = [name.casefold() for name in right[0]] if right else []
    order = list(range(len(names)))
    if len(set(names)) == len(right_names) and len(set(right_names)) == len(names):
        others = (index for index in order if names[index] not in right_names)
        order = [names.index(one) if one in names else next(others) for one in right_names]
    return [row[0] if len(order) == 1 else tuple(row[index] for index in order) for row in rows]


def _hint_of(task: Task, given: Any) -> str:
    """Return the hint for a typical mistake, from the plain form of an answer."""
    for mistake in task.mistakes:
        if given == plain(mistake.answer, unordered=task.unordered):
            return mistake.hint
    return ""


_OTHER = "a value of the type"
_FORMS = ("[a-d]", r"\d{4}-\d\d-\d\d.*")  # letters and dates


def _other_form(task: Task, kind: str, given: Any, wanted: Any) -> str:
    """Return a sentence if an answer has another form than the right one; otherwise empty."""
    form = next((form for form in _FORMS if re.fullmatch(form, str(wanted))), "(?s:.*)")
    is_dict = isinstance(task.answers and task.answers[0], Mapping)
    if (
        type(given) is type(wanted)
        and re.fullmatch(form, str(given))
        and is_dict == (kind == "a dict")
        and not kind.startswith(_OTHER)
    ):
        return ""
    return f"The answer is {task.wants}, and yours is {kind}."


def _kind(answer: Any, given: Any, *, is_table: bool) -> str:
    """Return the kind of an answer, also given in its plain form."""
    if is_table:
        return "a DataFrame" if hasattr(answer, "dtypes") else "a table"
    if isinstance(answer, Mapping):
        return "a dict"
    if isinstance(given, float):
        return "a number"
    if isinstance(answer, bool):
        return "a bool"
    if isinstance(answer, (str, date)):
        return "a text"
    if isinstance(given, tuple) and not isinstance(answer, bytes):
        return "a list"
    return f"{_OTHER} {type(answer).__name__}"


_UNREADABLE = ("text", "unknown", "unreadable")  # mistakes in the form of an answer
_wrong: dict[str, list[str]] = {}  # the hints that each task has shown so far
_passed: dict[str, bool] = {}
_checked: dict[str, Any] = {}  # the last answer to each task
_NO_TASK = "There is no such task. The number of a task is written like 01-2."
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
    passed, said = (False, _NO_TASK) if found is None else _say(found, answer, lake)
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
    said = _NO_TASK if found is None else _next_hint(found)
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
        open_tasks = [n for n in found.after if not _passed.get(n, (_progress() / n).exists())]
        if open_tasks:
            names = ", ".join(open_tasks)
            return False, f"Not yet. This answer counts after {names}, which is not passed."
        _wrong.pop(found.number, None)
        return True, f"Correct. {found.right}"
    if verdict.blank:
        return False, "No answer yet. Assign it to `answer`, and run both cells."
    typical = {one.hint for one in found.mistakes if one.answer not in _UNREADABLE}
    if verdict.hint and verdict.hint not in typical:  # the form is wrong, not the content
        return False, f"Not yet. {verdict.hint}"
    return False, f"Not yet. {_next_hint(found, verdict.hint)}"


def _next_hint(found: Task, mistake: str = "") -> str:
    """Return the hint for a mistake; if it was shown before, add the next hint of the task.

    After the last hint, the text names a page to read and the call that shows the solution.
    """
    before = _wrong.setdefault(found.number, [])
    if mistake and mistake not in before:
        before.append(mistake)
        return mistake
    further = next((hint for hint in found.hints if hint not in before), None)
    if further is None:
        page, solution = docs_page(found.read), f'check.solution("{found.number}")'
        further = f"Read {page} and run the lesson's cells again, or look at {solution}."
    before.append(further)
    return f"{mistake} {further}".lstrip()
