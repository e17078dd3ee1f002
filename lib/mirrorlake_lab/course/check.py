"""Checks that answer: `check.task("02-3", answer)` says what is right, or a hint; never how.

The first wrong answer gets the hint of its mistake, or the task's first; later ones the second, and
then where to read. Each check records `{task: passed}`, as `mirrorlake.record` does.
"""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any

from mirrorlake.errors import CheckError
from mirrorlake_lab.course.judge import judge
from mirrorlake_lab.course.tasks import Task, tasks

if TYPE_CHECKING:
    from mirrorlake.lake import Lake

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
    from mirrorlake_runs.results import MIME

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
