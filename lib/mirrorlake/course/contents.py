"""The course's table of contents, and each lesson's first and last words.

`python -m mirrorlake.course.contents > docs/course.md` prints the page.
"""

from __future__ import annotations

import sys
from pathlib import Path

from mirrorlake.course.tasks import Lesson, lessons
from mirrorlake.paths import NOTEBOOKS, PROJECT
from mirrorlake.runs.notebook_files import nbformat

PARTS = ("applications", "landing zone", "mirror", "tables", "feed", "views", "queries", "people")
PATHS = {
    "An engineer who runs a lake": (
        *("01", "02", "03", "04", "15", "16", "05", "06", "07", "10", "12"),
    ),
    "An analyst with a semantic model": ("01", "02", "03", "05", "06", "10", "11", "08", "14"),
    "A teacher, for a day": ("01", "02", "03", "04", "05", "06", "08", "09", "13", "14"),
}


def lesson_paths() -> dict[str, Path]:
    """The lessons' notebooks by number."""
    return {path.stem[:2]: path for path in sorted((NOTEBOOKS / "learn").glob("*.ipynb"))}


def opening(lesson: Lesson) -> str:
    """What stands below a lesson's title: its goal, where it is, and where to go."""
    flow = " → ".join(f"**[{part}]**" if part == lesson.part else part for part in PARTS)
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


def closing(lesson: Lesson) -> str:
    """What stands at a lesson's end."""
    return f"**Go on.** {_links(lesson)}"


def _links(lesson: Lesson) -> str:
    paths = lesson_paths()
    numbers = list(paths)
    place = numbers.index(lesson.number)
    parts = []
    if place > 0:
        before = paths[numbers[place - 1]]
        parts.append(f"before: [{title_of(before)}]({before.name})")
    if place + 1 < len(numbers):
        after = paths[numbers[place + 1]]
        parts.append(f"after: [{title_of(after)}]({after.name})")
    parts.append(f"on a lake of your own: [{lesson.tool}](../{lesson.tool}.ipynb)")
    page = (PROJECT / "docs" / f"{lesson.docs}.md").read_text(encoding="utf-8")
    parts.append(f"to read: [{heading(page)}](../../docs/{lesson.docs}.md)")
    parts.append("[all lessons](../../docs/course.md)")
    return " · ".join(parts)


def course_page() -> str:
    """`docs/course.md`."""
    found, paths = lessons(), lesson_paths()
    count = sum(len(lesson.tasks) for lesson in found.values())
    minutes = sum(lesson.minutes for lesson in found.values())
    lines = [
        *("# The course", ""),
        f"{len(found)} lessons with {count} tasks: predict and then run, find the version, repair"
        f" a zone, make a guardrail hold. About {minutes / 60:.0f} hours in all. Every task has a"
        " check that answers: what is right, or a hint.",
        "",
        "`./mirrorlake lab` opens copies without solutions to work on; `./mirrorlake course DIR`"
        " puts such copies into a folder. `./mirrorlake course --show 02-3` shows one solution.",
        "",
        "| lesson | goal | minutes | tasks | needs |",
        "|---|---|---|---|---|",
    ]
    for number, lesson in found.items():
        path = paths[number]
        needs = ", ".join(lesson.needs) or "–"
        link = f"[{number} {title_of(path)}](../notebooks/learn/{path.name})"
        lines.append(
            f"| {link} | {lesson.goal} | {lesson.minutes} | {len(lesson.tasks)} | {needs} |"
        )
    lines += ["", "## Three ways through it", ""]
    for reader, numbers in PATHS.items():
        steps = " → ".join(
            f"[{number}](../notebooks/learn/{paths[number].name})" for number in numbers
        )
        total = sum(found[number].minutes for number in numbers)
        lines += [f"- **{reader}** ({total} minutes): {steps}"]
    return "\n".join([*lines, "", _TEACHERS])


_TEACHERS = """## For teachers

`./mirrorlake course DIR --solutions` makes copies in nbgrader's layout: `source/mirrorlake/` has
the solutions, marked, and each check is a graded cell of one point that raises where a task is not
passed. `nbgrader generate_assignment mirrorlake` then makes the students' version, and `nbgrader
autograde mirrorlake` grades what they hand in.

A lesson run by `./mirrorlake run` keeps `{task: passed}` among its records, so `summary.json` says
who passed what.
"""


def title_of(path: Path) -> str:
    """A notebook's title."""
    notebook = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    return heading(notebook.cells[0].source)


def heading(text: str) -> str:
    """What a Markdown text's first line says."""
    return text.partition("\n")[0].lstrip("# ")


if __name__ == "__main__":
    sys.stdout.write(course_page())
