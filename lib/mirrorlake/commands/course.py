"""The command `course`: the lessons as copies for students or teachers, or one solution."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mirrorlake.commands import app
from mirrorlake.commands.options import Json
from mirrorlake.commands.printing import tell
from mirrorlake.errors import UsageError


@app.command()
def course(
    folder: Annotated[
        Path | None, typer.Argument(metavar="[DIR]", help="Where the copies go; an empty folder.")
    ] = None,
    solutions: Annotated[
        bool, typer.Option("--solutions", help="For teachers: with solutions, for nbgrader.")
    ] = False,
    show: Annotated[
        str | None, typer.Option("--show", metavar="TASK", help="Only print a task's solution.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Copy the lessons to work on: tasks blank for students, with solutions for teachers."""
    from mirrorlake.course.copies import find_solution, make_course

    if (folder is None) == (show is None):
        raise UsageError("Name a folder, or a task with --show.", hint="./mirrorlake course DIR")
    if show is not None:
        solution = find_solution(show)
        tell(as_json, {"task": show, "solution": solution}, solution)
        return
    made = make_course(Path(str(folder)).absolute(), solutions=solutions)
    done = f"✓ {len(made.notebooks)} lessons, {len(made.tasks)} tasks: {made.folder}"
    tell(as_json, {"course": str(made.folder), "tasks": list(made.tasks)}, done)
