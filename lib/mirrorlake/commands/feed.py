"""Commands on the change feed: changes, doctor."""

from __future__ import annotations

from enum import Enum
from functools import partial
from typing import Annotated

import typer
from rich.table import Table as RichTable

from mirrorlake.commands.base import (
    JsonOption,
    RootArgument,
    TableArgument,
    app,
    literal,
    open_lake,
    out,
    print_json,
    print_rows,
    progress,
    split_names,
)

EndHelp = "a version, or yyyy-MM-dd[ HH:mm:ss[.SSS]]"


class Outside(str, Enum):
    """What happens to an end outside of what the feed holds."""

    ERROR = "error"
    CLIP = "clip"


@app.command()
def changes(
    root: RootArgument,
    table: TableArgument,
    start: Annotated[str, typer.Option("--from", help=f"First: {EndHelp}.")],
    end: Annotated[str | None, typer.Option("--to", help=f"Last: {EndHelp}.")] = None,
    net: Annotated[bool, typer.Option("--net", help="One outcome a key.")] = False,
    keys: Annotated[str, typer.Option(help="Key columns, if the table declares none.")] = "",
    across_gaps: Annotated[
        bool, typer.Option("--across-gaps", help="Compare versions where there is no feed.")
    ] = False,
    beyond: Annotated[
        Outside | None, typer.Option(help="Ends beyond the latest version.", show_default=False)
    ] = None,
    before: Annotated[Outside, typer.Option(help="A start before the feed's.")] = Outside.ERROR,
    as_json: JsonOption = False,
    limit: Annotated[int, typer.Option(help="Most rows to show; --json has all.")] = 50,
) -> None:
    """Show what changed in a table from one version to another, both included."""
    from mirrorlake.feed.changes import in_order

    found = open_lake(root).table(table)
    chosen = split_names(keys) or None
    read = partial(found.changes.net, keys=chosen) if net else found.changes.read
    rows = read(
        start,
        end,
        across_gaps=across_gaps,
        beyond_latest=beyond.value if beyond else None,
        before_feed=before.value,
    )
    print_rows(in_order(rows, chosen or found.keys), as_json=as_json, limit=limit)


@app.command()
def doctor(
    root: RootArgument,
    table: TableArgument,
    start: Annotated[int | None, typer.Option("--from", help="First version.")] = None,
    end: Annotated[int | None, typer.Option("--to", help="Last version.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Tell what stands in the way of reading a table's change feed."""
    lake = open_lake(root)
    with progress("looking at the log and its files …"):
        diagnosis = lake.table(table).changes.diagnose(start, end)
    if as_json:
        print_json(diagnosis.as_dict())
    else:
        shown = diagnosis.shown()
        listed = RichTable(*shown.columns)
        for row in shown.rows:
            listed.add_row(*[literal(str(value)) for value in row])
        out.print(listed)
        out.print(repr(diagnosis), markup=False, highlight=False)
    if diagnosis.blocking:
        raise typer.Exit(1)
