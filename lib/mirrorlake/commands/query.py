"""The command `sql`: queries over the lake's tables."""

from __future__ import annotations

from typing import Annotated

import typer

from mirrorlake.commands.base import JsonOption, RootArgument, app, open_lake, print_rows


@app.command()
def sql(
    root: RootArgument,
    query: Annotated[str, typer.Argument(help='For example "SELECT * FROM flights@v2".')],
    as_json: JsonOption = False,
    limit: Annotated[int, typer.Option(help="Most rows to show; --json has all.")] = 50,
) -> None:
    """Query the lake's tables, at any version or moment."""
    print_rows(open_lake(root).sql(query), as_json=as_json, limit=limit)
