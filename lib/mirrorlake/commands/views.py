"""The command `view`: tables that follow a query."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from mirrorlake.commands.base import (
    JsonOption,
    RootArgument,
    app,
    open_lake,
    out,
    print_json,
    print_shown,
    progress,
)
from mirrorlake.errors import UsageError
from mirrorlake.lake import Lake
from mirrorlake.text_table import TextTable


class ViewVerb(str, Enum):
    """What `view` does."""

    CREATE = "create"
    REFRESH = "refresh"
    EXPLAIN = "explain"
    CHECK = "check"
    LIST = "list"
    DROP = "drop"


@app.command()
def view(
    root: RootArgument,
    verb: Annotated[ViewVerb, typer.Argument(help="create, refresh, explain, check, list or drop")],
    name: Annotated[str | None, typer.Argument(help="The view; not for list.")] = None,
    query: Annotated[str, typer.Option("--sql", help="create: the view's query.")] = "",
    full: Annotated[bool, typer.Option("--full", help="refresh: compute all anew.")] = False,
    incremental: Annotated[
        bool, typer.Option("--incremental", help="refresh: by what changed, whatever it costs.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="refresh: compare with the query; exit 1 if it differs.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Keep tables that follow a query, refreshed by what changed in its sources."""
    lake = open_lake(root)
    if verb is ViewVerb.LIST:
        _list(lake, as_json)
        return
    if name is None:
        raise UsageError(f"view {verb.value} needs a view.", hint=f"view ROOT {verb.value} NAME")
    if verb is ViewVerb.CREATE and not query:
        raise UsageError("view create needs a query.", hint='add --sql "SELECT …".')
    if full and incremental:
        raise UsageError("--full and --incremental exclude each other.", hint="choose one.")
    if verb is ViewVerb.EXPLAIN:
        explained = lake.views.explain(name)
        _print(explained.as_dict(), explained.with_seconds(), as_json)
    elif verb is ViewVerb.CHECK:
        _check(lake, name, as_json)
    elif verb is ViewVerb.DROP:
        lake.views.drop(name)
        _print({"dropped": name}, TextTable(("dropped",), ((name,),)), as_json)
    else:
        how = "full" if full else "incremental" if incremental else "auto"
        with progress(f"{verb.value} {name} …"):
            if verb is ViewVerb.CREATE:
                done = lake.views.create(name, query)
            else:
                done = lake.views.refresh(name, how=how, check=check)
        seconds = ("seconds", f"{done.seconds:.1f}")
        shown = done.shown()
        _print(done.as_dict(), TextTable(shown.columns, (*shown.rows, seconds)), as_json)
        if done.differences:
            raise typer.Exit(1)


def _print(document: dict[str, object], shown: TextTable, as_json: bool) -> None:
    if as_json:
        print_json(document)
    else:
        print_shown(shown)


def _check(lake: Lake, name: str, as_json: bool) -> None:
    with progress(f"comparing {name} with its query …"):
        found = lake.views.check(name)
    if as_json:
        print_json({"view": found.view, "missing": found.missing, "extra": found.extra})
    else:
        out.print(repr(found), markup=False, highlight=False)
    if found.differences:
        raise typer.Exit(1)


def _list(lake: Lake, as_json: bool) -> None:
    found = lake.views.list()
    if as_json:
        document = [
            {"view": str(one.name), "sql": one.sql, "sources": [str(s) for s in one.sources]}
            for one in found
        ]
        print_json({"views": document})
        return
    rows = [(str(v.name), ", ".join(map(str, v.sources)), " ".join(v.sql.split())) for v in found]
    print_shown(TextTable(("view", "sources", "query"), tuple(rows)))
