"""Check the answers of the course's tasks: `check.task("02-3", answer)` shows a verdict or a hint.

A check never shows the solution. A typical mistake gets its own hint; other wrong answers get the
task's first hint, then the second, and then a page to read. Each check records `{task: passed}`, as
`mirrorlake_runs.record` does. `check.hint("02-3")` and `check.solution("02-3")` help without an
answer, and `check.progress()` counts the passed tasks of all lessons.

If the right answer depends on the lake, a function of `ANSWERS` computes it. If an answer has a
structure, a function of `CHECKERS` returns the name of its mistake, as in `course.yaml`, or an
empty text for a right answer.
"""

from __future__ import annotations

import html
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from mirrorlake import skus
from mirrorlake.errors import CheckError
from mirrorlake.names import ZONE, file_number
from mirrorlake.results import TextTable
from mirrorlake.storage.paths import home
from mirrorlake_lab.course.lessons import Task, find_solution, lesson_paths, lessons, tasks

if TYPE_CHECKING:
    from mirrorlake.lake import Lake


_MARKER = "__rowMarker__"
_MARKERS = (0, 1, 2, 4)
_REDMOND, _BELLEVUE = "redmond", "bellevue"
_WASHER = {"item": "washer", "n": 75, "shelf": "1b"}
_SHOP_KEYS = [1, 4, 3, 5]
_MANY_FILES = 6000


def next_number(lake: Lake) -> int:
    """Return the number of the next published file of `flights`."""
    names = (entry.name for entry in lake.storage.list(f"{ZONE}/flights").files)
    return max((number for name in names if (number := file_number(name))), default=0) + 1


def files_of_planes(lake: Lake) -> int:
    """Return the number of files that version 0 of the table `planes` added."""
    log = lake.storage.read(f"Tables/planes/_delta_log/{0:020}.json").decode()
    return sum("add" in json.loads(line) for line in log.splitlines())


def employee_moved(answer: Any) -> str:
    """Check whether the rows of a file move E0001, and nobody else, to Bellevue.

    Returns:
        An empty text, or the mistake: `twice`, `still`, `others`, `unreadable`.

    Example:
        >>> employee_moved([{"__rowMarker__": 0, "EmployeeID": "E0001"}])
        'twice'
    """
    redmond = {"EmployeeLocation": _REDMOND}
    try:
        table = _applied(answer, "EmployeeID", dict.fromkeys(("E0001", "E0002", "E0003"), redmond))
    except (TypeError, KeyError, AttributeError):
        return "unreadable"
    places = {
        key: [str(row.get("EmployeeLocation")).casefold() for row in rows]
        for key, rows in table.items()
    }
    moved = places.pop("E0001")
    if len(moved) > 1:
        return "twice"
    if moved != [_BELLEVUE]:
        return "still"
    return "" if places == {"E0002": [_REDMOND], "E0003": [_REDMOND]} else "others"


def gates_published(answer: Any) -> str:
    """Check whether the files of the table `gates` leave one row: gate B2 in terminal 3.

    Args:
        answer: the lake.

    Returns:
        An empty text, or the mistake: `missing`, `keys`, `closed`, `moved`, `unreadable`.
    """
    folder, rows = f"{ZONE}/gates", []
    try:
        for entry in sorted(answer.storage.list(folder).files, key=lambda file: file.name):
            if file_number(entry.name):
                with answer.storage.open(f"{folder}/{entry.name}") as file:
                    rows += pq.read_table(file).to_pylist()
        if not rows:
            return "missing"
        metadata = answer.storage.read_json(f"{folder}/_metadata.json") or {}
        if metadata.get("keyColumns") != ["gate"]:
            return "keys"
        table = _applied(({_MARKER: 0} | row for row in rows), "gate", {})
        left = {gate: [row["terminal"] for row in same] for gate, same in table.items() if same}
    except (TypeError, KeyError, AttributeError):
        return "unreadable"
    if set(left) - {"B2"}:
        return "closed"
    return "" if left == {"B2": [3]} else "moved"


def key_changed(answer: Any) -> str:
    """Check whether the rows of a file change the washer's key from 5 to 9 and nothing else.

    Returns:
        An empty text, or the mistake: `both`, `gone`, `still`, `lost`, `unreadable`.

    Example:
        >>> key_changed([{"__rowMarker__": 2, "id": 5}])
        'gone'
    """
    try:
        table = _applied(answer, "id", {5: _WASHER})
    except (TypeError, KeyError, AttributeError):
        return "unreadable"
    old, new = table.pop(5), table.pop(9, [])
    if not new:
        return "still" if old else "gone"
    if old or len(new) > 1:
        return "both"
    values = {
        name: value.casefold() if isinstance(value, str) else value
        for name, value in new[0].items()
        if name not in ("id", _MARKER)
    }
    return "" if values == _WASHER and not any(table.values()) else "lost"


def _applied(
    changes: Iterable[dict[str, Any]], key: str, before: dict[Any, dict[str, Any]]
) -> dict[Any, list[dict[str, Any]]]:
    """Apply a file's changes and return the rows by key.

    Raises:
        KeyError: a row has no key or an unknown marker.
    """
    table = {name: [row] for name, row in before.items()}
    for row in changes:
        marker, name = row[_MARKER], row[key]
        if marker not in _MARKERS or name is None:
            raise KeyError(_MARKER)
        if marker == 0:
            table.setdefault(name, []).append(row)
        else:
            table[name] = [] if marker == 2 else [row]
    return table


def rows_repaired(answer: Any) -> str:
    """Check whether the four rows of the invalid file are repaired.

    Returns:
        An empty text, or the mistake: `null-key`, `marker`, `fewer`, `other`, `unreadable`.
    """
    try:
        rows = [(row["id"], row[_MARKER]) for row in answer]
    except (TypeError, KeyError):
        return "unreadable"
    if len(rows) < len(_SHOP_KEYS):
        return "fewer"
    if any(key is None for key, _ in rows):
        return "null-key"
    if any(marker not in _MARKERS for _, marker in rows):
        return "marker"
    return "" if [key for key, _ in rows] == _SHOP_KEYS else "other"


def smallest_sku(answer: Any) -> str:
    """Check whether a capacity is the smallest F capacity that allows 6,000 files per table.

    Returns:
        An empty text, or the mistake: `too-small`, `too-large`, `unknown`.
    """
    capacities = {name: sku for name, sku in skus().items() if name.startswith("F")}
    name = str(answer).strip().upper()
    if name not in capacities:
        return "unknown"
    if capacities[name].files < _MANY_FILES:
        return "too-small"
    fitting = (sku for sku in capacities.values() if sku.files >= _MANY_FILES)
    return "" if min(fitting, key=lambda sku: sku.memory_gb).name == name else "too-large"


ANSWERS: dict[str, Callable[[Lake], Any]] = {
    "files_of_planes": files_of_planes,
    "next_number": next_number,
}
CHECKERS: dict[str, Callable[[Any], str]] = {
    "employee_moved": employee_moved,
    "gates_published": gates_published,
    "key_changed": key_changed,
    "rows_repaired": rows_repaired,
    "smallest_sku": smallest_sku,
}


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
        if task.computed_by is not None:
            if lake is None:
                return Verdict(
                    False, f'Pass the lake as well: check.task("{task.number}", …, lake).'
                )
            right_answers = [ANSWERS[task.computed_by](lake)]
        given = plain(answer, unordered=task.unordered)
    except Exception as error:  # an answer can be anything: show a sentence, not a traceback
        said = f"{type(error).__name__}: {error}".splitlines()[0]
        return Verdict(False, f"The answer could not be checked ({said}).")
    if any(given == plain(right, unordered=task.unordered) for right in right_answers):
        return Verdict(passed=True)
    hint = _hint_of(task, answer)
    return Verdict(
        False, hint or _other_kind(given, plain(right_answers[0], unordered=task.unordered))
    )


def plain(value: Any, *, unordered: bool = False) -> Any:
    """Return a value in the form that checks compare: floats, casefolded texts, tuples.

    Args:
        value: a value, also of numpy, pandas or Spark.
        unordered: sort the values of a list.

    Example:
        >>> plain(" Left  Anti JOIN "), plain(3) == plain(3.0), plain(["b", "A"], unordered=True)
        ('left anti join', True, ('a', 'b'))
    """
    value = value.item() if hasattr(value, "item") and getattr(value, "size", 1) == 1 else value
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float, Decimal)):
        return float(value)
    if isinstance(value, str):
        return " ".join(value.casefold().split())
    if isinstance(value, Mapping):
        return tuple((plain(key), plain(one)) for key, one in value.items())
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


def _other_kind(given: Any, right: Any) -> str:
    names = {float: "a number", str: "a text", tuple: "a list"}
    if type(given) is type(right):
        return ""
    return f"The answer is {names[type(right)]}, and yours is {names[type(given)]}."


_wrong: dict[str, list[str]] = {}  # the hints that each task has shown so far
_passed: dict[str, bool] = {}
_COLOURS = {True: "#2e7d32", False: "#b26a00"}


def task(number: str, answer: Any, lake: Lake | None = None) -> None:
    """Check an answer, show the verdict or a hint, and record whether the answer is right.

    Args:
        number: the task's number, such as `02-3`.
        answer: the answer; None is no answer yet.
        lake: the lesson's lake, which some tasks need.

    Example:
        >>> task("02-1", 1)  # doctest: +SKIP
        ✓ 02-1: right: …
    """
    found = tasks().get(number)
    passed, said = (False, "There is no such task.") if found is None else _say(found, answer, lake)
    _passed[number] = passed
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
    _wrong.clear()
    _passed.clear()


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
        return False, "No answer yet. Replace None by your answer and run both cells."
    return False, f"Not yet. {_next_hint(found, verdict.hint)}"


def _next_hint(found: Task, first: str = "") -> str:
    """Return the next hint that was not shown yet, and then a page to read."""
    before = _wrong.setdefault(found.number, [])
    said = next(
        (hint for hint in (first, *found.hints) if hint and hint not in before),
        f"Read docs/{found.read} and run the lesson's cells again.",
    )
    before.append(said)
    return said
