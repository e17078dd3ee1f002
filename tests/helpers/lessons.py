"""What stands at a lesson's beginning and end, made of what `course.yaml` says."""

from __future__ import annotations

from helpers.project import PROJECT
from mirrorlake_lab.course import lessons as course
from mirrorlake_lab.course import system


def opening(lesson: course.Lesson) -> str:
    """What stands below a lesson's title: its goal, where it is, and where to go."""
    flow = " → ".join(f"**[{part}]**" if part == lesson.part else part for part in system.SYSTEM)
    needs = " and ".join(f"lesson {number}" for number in lesson.needs) or "nothing"
    return "\n".join(
        [
            f"**Goal.** {lesson.goal}",
            "",
            f"About {lesson.minutes} minutes, {len(lesson.tasks)} tasks. You need {needs}.",
            "",
            f"*Where we are:* {flow}",
            "",
            _links(lesson),
        ]
    )


def closing(lesson: course.Lesson) -> str:
    """What stands at a lesson's end."""
    return f"**Go on.** {_links(lesson)}"


def _links(lesson: course.Lesson) -> str:
    paths = course.lesson_paths()
    numbers = list(paths)
    place = numbers.index(lesson.number)
    parts = []
    if place > 0:
        before = paths[numbers[place - 1]]
        parts.append(f"before: [{course.title_of(before)}]({before.name})")
    if place + 1 < len(numbers):
        after = paths[numbers[place + 1]]
        parts.append(f"after: [{course.title_of(after)}]({after.name})")
    parts.append(f"on a lake of your own: [{lesson.tool}](../{lesson.tool}.ipynb)")
    title, *_ = (PROJECT / "docs" / f"{lesson.docs}.md").read_text(encoding="utf-8").splitlines()
    parts.append(f"to read: [{title.lstrip('# ')}](../../docs/{lesson.docs}.md)")
    parts.append("[all lessons](../../docs/course.md)")
    return " · ".join(parts)
