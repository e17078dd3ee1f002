"""Commands from the landing zone to the tables: publish, mirror, status."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table as RichTable

from mirrorlake.commands.base import (
    JsonOption,
    RootArgument,
    app,
    literal,
    open_lake,
    out,
    print_json,
    progress,
)

if TYPE_CHECKING:
    from mirrorlake.mirror.state import Report


class MarkerWord(str, Enum):
    """What `publish --marker` takes."""

    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"
    UPSERT = "upsert"


@app.command()
def publish(
    root: RootArgument,
    table: Annotated[str, typer.Argument(help="table or schema.table")],
    files: Annotated[list[Path], typer.Argument(help="Parquet or CSV files.")],
    keys: Annotated[str, typer.Option(help="Key columns, separated by commas.")] = "",
    marker: Annotated[MarkerWord | None, typer.Option(help="What all rows ask for.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Publish files into the landing zone; without --marker as they are."""
    from dataclasses import asdict

    from mirrorlake.lake import Lake

    publisher = Lake(root).publisher(table, keys=[k.strip() for k in keys.split(",") if k.strip()])
    verb = publisher.write if marker is None else getattr(publisher, marker.value)
    published = []
    for file in files:
        published.append(verb(file))
        if not as_json:  # at once: a later file may be refused
            out.print(repr(published[-1]), markup=False, highlight=False)
    if as_json:
        print_json({"published": [asdict(batch) for batch in published]})


@app.command()
def mirror(
    root: RootArgument,
    table: Annotated[str | None, typer.Option(help="Only this table.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Run one cycle: apply what is published to the Delta tables."""
    lake = open_lake(root)
    with progress("mirroring …") as update:
        report = lake.mirror(table, on_step=lambda name, step: update(f"{name}: {step.value}"))
    _finish_report(report, as_json)


@app.command()
def status(root: RootArgument, as_json: JsonOption = False) -> None:
    """Show how each table stands."""
    _finish_report(open_lake(root).status(), as_json)


def _finish_report(report: Report, as_json: bool) -> None:
    if as_json:
        print_json(report.as_dict())
    else:
        table = RichTable("table", "state", "rows applied", "last file", "backlog", "problem")
        problems: list[str] = []
        for line in report.tables:
            name = f"{line.schema}.{line.name}" if line.schema else line.name
            problem = f"waiting for {line.waiting_for}" if line.waiting_for else ""
            if line.error:
                problem = "see below"
                places = ((k, line.error[k]) for k in ("file", "row", "column"))
                where = ", ".join(f"{key} {value}" for key, value in places if value is not None)
                problems.append(f"{name}: {line.error['message']}{f' [{where}]' if where else ''}")
            numbers = (f"{line.rows:,}", str(line.last_file), str(line.backlog_files))
            table.add_row(*map(literal, (name, line.state, *numbers, problem)))
        out.print(table)
        for problem in problems:
            out.print(problem, markup=False, highlight=False)
    if report.failed:
        raise typer.Exit(1)
