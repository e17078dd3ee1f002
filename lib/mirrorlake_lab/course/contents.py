"""The course's table of contents.

`python -m mirrorlake_lab.course.contents > docs/course.md` prints the page.
"""

from __future__ import annotations

import sys
from pathlib import Path

from mirrorlake.storage.paths import NOTEBOOKS
from mirrorlake_lab.course.tasks import lessons
from mirrorlake_runs.notebook_files import first_words, nbformat

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
    return first_words(nbformat.read(path, as_version=4))[0]  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    sys.stdout.write(course_page())
