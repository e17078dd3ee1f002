"""Commands that read tables, now and as they were: sql, history, diff, restore, changes, doctor."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Annotated, Literal

import typer

from mirrorlake.commands.base import (
    APPLY_DOES_IT,
    DRY_RUN,
    ApplyOption,
    JsonOption,
    LimitOption,
    RootArgument,
    TableArgument,
    app,
    find_table,
    open_lake,
    open_table,
    print_rows,
    progress,
    split_names,
    tell,
)

Outside = Literal["error", "clip"]  # what happens to an end outside of what the feed holds
END_HELP = "a version, or yyyy-MM-dd[ HH:mm:ss[.SSS]]"


@app.command()
def sql(
    root: RootArgument,
    query: Annotated[str, typer.Argument(help='For example "SELECT * FROM flights@v2".')],
    as_json: JsonOption = False,
    limit: LimitOption = 50,
) -> None:
    """Query the lake's tables, at any version or timestamp."""
    print_rows(open_lake(root).sql(query), as_json=as_json, limit=limit)


@app.command()
def history(
    root: RootArgument,
    table: TableArgument,
    as_json: JsonOption = False,
    limit: Annotated[int, typer.Option(help="Most versions to show.", min=1)] = 20,
) -> None:
    """Show a table's versions, newest first, and how far back it can be read."""
    from mirrorlake.delta.commits import CommitLog
    from mirrorlake.history.versions import find_readable_range

    lake = open_lake(root)
    name = find_table(lake, table)
    log = CommitLog(lake.storage, name.table_path)
    found = log.read(log.newest(), limit)
    more = [f"… and older ones; --limit {limit} shows the newest {limit}."] if found.more else []
    reach = [] if as_json else [find_readable_range(lake.storage, name).shown()]
    tell(as_json, found.as_dict(), found.shown(), *more, *reach)


@app.command()
def diff(
    root: RootArgument,
    table: TableArgument,
    before: Annotated[int, typer.Option("--from", help="The older version.", min=0)],
    after: Annotated[
        int | None, typer.Option("--to", help="The newer version; by default the newest.", min=0)
    ] = None,
    match: Annotated[
        str | None, typer.Option(help="How rows are matched: row-id, key or row.")
    ] = None,
    keys: Annotated[str, typer.Option(help="Columns to match by, separated by commas.")] = "",
    as_json: JsonOption = False,
    limit: LimitOption = 50,
) -> None:
    """Show what changed between two versions, a row a change."""
    changes = open_table(root, table).diff(before, after, match=match, keys=split_names(keys))
    print_rows(changes, as_json=as_json, limit=limit)


@app.command()
def restore(
    root: RootArgument,
    table: TableArgument,
    version: Annotated[int, typer.Option(help="The version to come back.", min=0)],
    apply: ApplyOption = False,
    as_json: JsonOption = False,
) -> None:
    """Make a table what it was at a version, by a new commit."""
    with progress("restoring …"):
        done = open_table(root, table).restore(version, apply=apply)
    note = f"{DRY_RUN} {APPLY_DOES_IT}" * (not apply)
    tell(as_json, {**asdict(done), "table": str(done.table)}, done.shown(), note=note)


@app.command()
def changes(
    root: RootArgument,
    table: TableArgument,
    start: Annotated[str, typer.Option("--from", help=f"First: {END_HELP}.")],
    end: Annotated[str | None, typer.Option("--to", help=f"Last: {END_HELP}.")] = None,
    net: Annotated[bool, typer.Option("--net", help="One outcome a key.")] = False,
    keys: Annotated[str, typer.Option(help="Key columns, if the table declares none.")] = "",
    across_gaps: Annotated[
        bool, typer.Option("--across-gaps", help="Compare versions where there is no feed.")
    ] = False,
    beyond: Annotated[
        Outside | None, typer.Option(help="Ends beyond the latest version.", show_default=False)
    ] = None,
    before: Annotated[Outside, typer.Option(help="A start before the feed's.")] = "error",
    as_json: JsonOption = False,
    limit: LimitOption = 50,
) -> None:
    """Show what changed in a table from one version to another, both included."""
    from mirrorlake.feed.changes import in_order

    found = open_table(root, table)
    chosen = split_names(keys) or None
    read = partial(found.changes.net, keys=chosen) if net else found.changes.read
    rows = read(
        start,
        end,
        across_gaps=across_gaps,
        beyond_latest=beyond,
        before_feed=before,
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
    with progress("looking at the log and its files …"):
        found = open_table(root, table).changes.diagnose(start, end)
    tell(as_json, found.as_dict(), found.shown(), found)
    if found.blocking:
        raise typer.Exit(1)
