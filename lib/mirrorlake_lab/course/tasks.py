"""The lessons and their tasks, as `course.yaml` has them: right answers, mistakes, hints."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import yaml


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
