"""Check answers: `check.task("02-3", answer)` shows what is right, or a hint; never the solution.

The first wrong answer gets the hint of its mistake, or the task's first; later ones get the second,
and then the page to read. Each check records `{task: passed}`, as `mirrorlake_runs.record` does.

For a task that depends on the lake, a function of `TRUTHS` returns the right answer. For an answer
of more than one value, a function of `LOOKS` returns the name of the mistake, as `course.yaml` has
it; an empty name means that the answer is right.
"""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from mirrorlake import skus
from mirrorlake.errors import CheckError
from mirrorlake.names import ZONE, file_number
from mirrorlake_lab.course.lessons import Task, tasks

if TYPE_CHECKING:
    from mirrorlake.lake import Lake


_MARKER = "__rowMarker__"
_MARKERS = (0, 1, 2, 4)
_REDMOND, _BELLEVUE = "redmond", "bellevue"
_WASHER = {"item": "washer", "n": 75, "shelf": "1b"}
_SHOP_KEYS = [1, 4, 3, 5]
_MANY_FILES = 6000


def next_number(lake: Lake) -> int:
    """The number of the file that `flights` gets next."""
    names = (entry.name for entry in lake.storage.list(f"{ZONE}/flights").files)
    return max((number for name in names if (number := file_number(name))), default=0) + 1


def files_of_planes(lake: Lake) -> int:
    """How many files the table `planes` arrived in."""
    log = lake.storage.read(f"Tables/planes/_delta_log/{0:020}.json").decode()
    return sum("add" in json.loads(line) for line in log.splitlines())


def employee_moved(answer: Any) -> str:
    """Whether rows of a file move E0001 to Bellevue, and nobody else.

    Returns:
        Nothing, or `twice`, `still`, `others`, `unreadable`.

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


def key_changed(answer: Any) -> str:
    """Whether rows of a file give the washer the key 9 in place of 5, and keep what it has.

    Returns:
        Nothing, or `both`, `gone`, `still`, `lost`, `unreadable`.

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
    """The rows of each key after a file's changes; an unknown marker or no key is a KeyError."""
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
    """Whether the four rows of the bad file are as they should have been published.

    Returns:
        Nothing, or `null-key`, `marker`, `fewer`, `other`, `unreadable`.
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
    """Whether a capacity is the smallest F that allows 6,000 files of a table.

    Returns:
        Nothing, or `too-small`, `too-large`, `unknown`.
    """
    capacities = {name: sku for name, sku in skus().items() if name.startswith("F")}
    name = str(answer).strip().upper()
    if name not in capacities:
        return "unknown"
    if capacities[name].files < _MANY_FILES:
        return "too-small"
    fitting = (sku for sku in capacities.values() if sku.files >= _MANY_FILES)
    return "" if min(fitting, key=lambda sku: sku.memory_gb).name == name else "too-large"


TRUTHS: dict[str, Callable[[Lake], Any]] = {
    "files_of_planes": files_of_planes,
    "next_number": next_number,
}
LOOKS: dict[str, Callable[[Any], str]] = {
    "employee_moved": employee_moved,
    "key_changed": key_changed,
    "rows_repaired": rows_repaired,
    "smallest_sku": smallest_sku,
}


@dataclass(frozen=True)
class Verdict:
    """What an answer is.

    Attributes:
        passed: whether it is right.
        hint: the mistake's own hint; empty where the mistake is not a typical one.
        blank: nothing was answered yet.
    """

    passed: bool
    hint: str = ""
    blank: bool = False


def judge(task: Task, answer: Any, lake: Lake | None = None) -> Verdict:
    """Judges an answer by its value, not by its text.

    Args:
        task: which task.
        answer: of any type; None and `...` are blank.
        lake: where the task looks at the lake.
    """
    if answer is None or answer is ...:
        return Verdict(passed=False, blank=True)
    try:
        if task.looks is not None:
            mistake = LOOKS[task.looks](answer)
            return Verdict(not mistake, _hint_of(task, mistake))
        rights = list(task.answers)
        if task.truth is not None:
            if lake is None:
                return Verdict(False, f'pass the lake, too: check.task("{task.number}", …, lake).')
            rights = [TRUTHS[task.truth](lake)]
    except Exception as error:  # whatever was handed in: a learner gets a sentence
        said = f"{type(error).__name__}: {error}".splitlines()[0]
        return Verdict(False, f"the check could not look at it ({said}).")
    given = plain(answer, unordered=task.unordered)
    if any(given == plain(right, unordered=task.unordered) for right in rights):
        return Verdict(passed=True)
    hint = _hint_of(task, answer)
    return Verdict(False, hint or _other_kind(given, plain(rights[0], unordered=task.unordered)))


def plain(value: Any, *, unordered: bool = False) -> Any:
    """A value as checks compare it: numbers as floats, texts without case and outer blanks.

    Args:
        value: also of numpy, pandas or Spark.
        unordered: sort what a list holds.

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
    return f"{names[type(right)]} is asked for, and this is {names[type(given)]}."


_wrong: dict[str, list[str]] = {}  # what was said to each task's wrong answers so far
_passed: dict[str, bool] = {}
_COLOURS = {True: "#2e7d32", False: "#b26a00"}


def task(number: str, answer: Any, lake: Lake | None = None) -> None:
    """Checks an answer, says how it is, and records whether it is right.

    Args:
        number: the task's, such as `02-3`.
        answer: what the task asks for.
        lake: the lesson's lake, where the task looks at it.
    """
    found = tasks().get(number)
    passed, said = (False, "there is no such task.") if found is None else _say(found, answer, lake)
    _passed[number] = passed
    from IPython.display import display

    display(_shown(number, passed, said), raw=True)  # type: ignore[no-untyped-call]


def demand(number: str) -> None:
    """Raises if a task was not passed: what teachers' copies grade by.

    Raises:
        CheckError: it was not.
    """
    if not _passed.get(number, False):
        raise CheckError(f"Task {number} is not passed.", hint="its hint stands above.")


def forget() -> None:
    """Forgets all answers of this process, as a new kernel does."""
    _wrong.clear()
    _passed.clear()


def _shown(number: str, passed: bool, said: str) -> dict[str, Any]:
    """A sentence by MIME type; the record goes to the run's summary."""
    from mirrorlake_runs.records import MIME

    text = f"{'✓' if passed else '✗'} {number}: {said}"
    style = f"border-left: 4px solid {_COLOURS[passed]}; padding: 2px 10px"
    page = f'<div style="{style}">{html.escape(text, quote=False)}</div>'
    return {MIME: {number: passed}, "text/plain": text, "text/html": page}


def _say(found: Task, answer: Any, lake: Lake | None) -> tuple[bool, str]:
    verdict = judge(found, answer, lake)
    if verdict.passed:
        _wrong.pop(found.number, None)
        return True, f"right: {found.right}"
    if verdict.blank:
        return False, "no answer yet. Put yours in place of None, and run the cell."
    before = _wrong.setdefault(found.number, [])
    said = next(
        (hint for hint in (verdict.hint, *found.hints) if hint and hint not in before),
        f"read docs/{found.read}, and run the lesson's cells once more.",
    )
    before.append(said)
    return False, f"not yet: {said}"
