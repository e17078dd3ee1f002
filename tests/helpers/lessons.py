"""The cells at the start and end of a lesson, generated from `course.yaml` and the docs' titles.

`PYTHONPATH=lib:tests .venv/bin/python -m helpers.lessons` writes them into the lessons.
"""

from __future__ import annotations

import nbformat

from helpers.project import PROJECT
from mirrorlake_lab.course import lessons as course
from mirrorlake_lab.course import system


def opening(lesson: course.Lesson) -> str:
    """Return the cell below a lesson's title: goal, place in the system, and links."""
    flow = " → ".join(f"**[{part}]**" if part == lesson.part else part for part in system.SYSTEM)
    needs = " and ".join(f"lesson {number}" for number in lesson.needs)
    builds = f"Builds on {needs}." if needs else "Needs no earlier lesson."
    return "\n".join(
        [
            f"**Goal.** {lesson.goal}",
            "",
            f"About {lesson.minutes} minutes, {len(lesson.tasks)} tasks. {builds}",
            "",
            f'*Help:* `check.hint("{lesson.tasks[0].number}")` shows the next hint for a task, '
            f'`check.solution("{lesson.tasks[0].number}")` its solution, and `check.progress()` '
            "the tasks that you have passed.",
            "",
            f"*Place in the system:* {flow}",
            "",
            _links(lesson),
        ]
    )


def closing(lesson: course.Lesson) -> str:
    """Return the last cell of a lesson."""
    return f"**Next steps.** {_links(lesson)}"


def _links(lesson: course.Lesson) -> str:
    paths = course.lesson_paths()
    numbers = list(paths)
    place = numbers.index(lesson.number)
    parts = []
    if place > 0:
        before = paths[numbers[place - 1]]
        parts.append(f"previous: [{course.title_of(before)}]({before.name})")
    if place + 1 < len(numbers):
        after = paths[numbers[place + 1]]
        parts.append(f"next: [{course.title_of(after)}]({after.name})")
    parts.append(f"for your own lake: [{lesson.tool}](../{lesson.tool}.ipynb)")
    title, *_ = (PROJECT / "docs" / f"{lesson.docs}.md").read_text(encoding="utf-8").splitlines()
    parts.append(f"documentation: [{title.lstrip('# ')}](../../docs/{lesson.docs}.md)")
    parts.append("[all lessons](../../docs/course.md)")
    return " · ".join(parts)


def update() -> None:
    """Write the generated cells into the lessons."""
    for number, lesson in course.lessons().items():
        path = course.lesson_paths()[number]
        notebook = nbformat.read(path, as_version=4)
        notebook.cells[1].source, notebook.cells[-1].source = opening(lesson), closing(lesson)
        path.write_text(f"{nbformat.writes(notebook)}\n", encoding="utf-8")


if __name__ == "__main__":
    update()
