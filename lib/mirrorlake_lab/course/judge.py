"""Judges an answer: right, a mistake with its own hint, or wrong; and never an exception."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from mirrorlake_lab.course.looks import LOOKS, TRUTHS
from mirrorlake_lab.course.tasks import Task

if TYPE_CHECKING:
    from mirrorlake.lake import Lake


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
