"""The command `lint`: what is wrong with a landing zone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from mirrorlake.commands.base import (
    JsonOption,
    RootArgument,
    app,
    open_lake,
    out,
    print_json,
    progress,
)

if TYPE_CHECKING:
    from mirrorlake.lint.findings import LintFinding


@app.command()
def lint(
    root: RootArgument,
    table: Annotated[str | None, typer.Option(help="Only this table.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Check the landing zone before a mirror stumbles over it; reads only."""
    lake = open_lake(root)
    with progress("linting …") as update:
        report = lake.lint(
            table, on_file=lambda name, done, total: update(f"{name}: {done:,} of {total:,} files")
        )
    if as_json:
        print_json(report.as_dict())
    else:
        for found in report.findings:
            out.print(_line(found), markup=False, highlight=False)
        out.print(repr(report), markup=False, highlight=False)
    if report.errors:
        raise typer.Exit(1)


def _line(found: LintFinding) -> str:
    places = (("file", found.file), ("row", found.row), ("column", found.column))
    where = ", ".join(f"{label} {value}" for label, value in places if value is not None)
    text = f"{found.severity} {found.rule} {found.table or 'the zone'}: {found.message}"
    text += f"{f' [{where}]' if where else ''} Fix: {found.fix}"
    # A name from outside must not steer the terminal.
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
