"""Commands on a table's past: history, diff, restore."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

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
    print_shown,
    progress,
    split_names,
)
from mirrorlake.errors import TableNotFoundError

if TYPE_CHECKING:
    from mirrorlake.lake import Lake
    from mirrorlake.names import TableName


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
    if as_json:
        print_json(found.as_dict())
        return
    print_shown(found.with_moments())
    if found.more:
        out.print(f"… and older ones; --limit {limit} shows the newest {limit}.")
    print_shown(find_readable_range(lake.storage, name).shown())


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
    limit: Annotated[int, typer.Option(help="Most rows to show; --json has all.")] = 50,
) -> None:
    """Show what changed between two versions, a row a change."""
    lake = open_lake(root)
    chosen = split_names(keys)
    changes = lake.table(find_table(lake, table)).diff(before, after, match=match, keys=chosen)
    print_rows(changes, as_json=as_json, limit=limit)


@app.command()
def restore(
    root: RootArgument,
    table: TableArgument,
    version: Annotated[int, typer.Option(help="The version to come back.", min=0)],
    apply: Annotated[bool, typer.Option("--apply", help="Do it, not only say it.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Make a table what it was at a version; only said, unless --apply is given."""
    lake = open_lake(root)
    with progress("restoring …"):
        result = lake.table(find_table(lake, table)).restore(version, apply=apply)
    if as_json:
        print_json({**asdict(result), "table": str(result.table)})
        return
    print_shown(result.shown())
    if not apply:
        out.print(literal("Nothing was changed; --apply does it."))


def find_table(lake: Lake, text: str) -> TableName:
    """A table of the lake by the name a person typed.

    Raises:
        TableNotFoundError: there is none of that name.
    """
    from mirrorlake.names import TableName

    wanted = TableName.parse(text)
    found = lake.find(wanted)
    if found is None:
        known = ", ".join(map(str, lake.tables()[:10])) or "no table at all"
        raise TableNotFoundError(
            f"There is no table {wanted} in the lake.", hint=f"it has {known}."
        )
    return found
