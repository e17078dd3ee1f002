"""Commands of those who run a mirror: from pause and replay to quarantine and forget."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mirrorlake.commands.base import (
    APPLY_DOES_IT,
    ApplyOption,
    DryRunOption,
    JsonOption,
    RootArgument,
    TableArgument,
    app,
    finding_line,
    first_rows,
    open_lake,
    print_rows,
    progress,
    tell,
)
from mirrorlake.names import TableName
from mirrorlake.results import Outcome


@app.command()
def pause(
    root: RootArgument,
    table: TableArgument,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Apply no further files of a table until it is resumed."""
    _tell(open_lake(root).operations.pause(table, dry_run=dry_run), as_json)


@app.command()
def resume(
    root: RootArgument,
    table: TableArgument,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Let a paused table go on."""
    _tell(open_lake(root).operations.resume(table, dry_run=dry_run), as_json)


@app.command()
def skip(
    root: RootArgument,
    table: TableArgument,
    number: Annotated[int, typer.Argument(help="The file's number, as in its name.", min=1)],
    apply: ApplyOption = False,
    as_json: JsonOption = False,
) -> None:
    """Pass over a file that can't be applied, or that never comes."""
    _tell(open_lake(root).operations.skip(table, number, apply=apply), as_json, APPLY_DOES_IT)


@app.command()
def replay(
    root: RootArgument,
    table: TableArgument,
    first: Annotated[int, typer.Option("--from", help="The first file's number.", min=1)],
    last: Annotated[int | None, typer.Option("--to", help="The last file's number.")] = None,
    as_is: Annotated[bool, typer.Option("--as-is", help="Leave inserts what they are.")] = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Publish applied files once more; inserts become upserts."""
    _tell(
        open_lake(root).operations.replay(table, first, last, as_is=as_is, dry_run=dry_run), as_json
    )


@app.command()
def reseed(
    root: RootArgument,
    table: TableArgument,
    files: Annotated[list[Path] | None, typer.Argument(help="A new initial load.")] = None,
    apply: ApplyOption = False,
    as_json: JsonOption = False,
) -> None:
    """Build a table again from its kept files, or from a new load, in one commit."""
    _tell(
        open_lake(root).operations.reseed(table, files or (), apply=apply), as_json, APPLY_DOES_IT
    )


@app.command()
def undrop(
    root: RootArgument,
    table: TableArgument,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Bring back a table that was dropped with its folder in the last 7 days."""
    _tell(open_lake(root).operations.undrop(table, dry_run=dry_run), as_json)


@app.command()
def ledger(root: RootArgument, table: TableArgument, as_json: JsonOption = False) -> None:
    """Show which files were applied, when and as what."""
    document = open_lake(root).operations.ledger(table).document()
    tell(as_json, document, *first_rows(document, 10_000))


@app.command()
def quarantine(
    root: RootArgument,
    table: Annotated[str | None, typer.Argument(help="Only this table's.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Show the rows and files that were passed over."""
    print_rows(open_lake(root).operations.quarantine(table), as_json=as_json)


@app.command()
def reconcile(
    root: RootArgument,
    table: Annotated[str | None, typer.Argument(help="Only this table.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Compare tables with the manifests that their publishers left."""
    with progress("comparing …"):
        found = open_lake(root).reconcile(table)
    tell(as_json, found.as_dict(), *map(finding_line, found.findings), found)
    if found.findings:
        raise typer.Exit(1)


@app.command()
def forget(
    root: RootArgument,
    table: TableArgument,
    key: Annotated[list[str], typer.Argument(metavar="COLUMN=VALUE…", help="The whole key.")],
    apply: ApplyOption = False,
    as_json: JsonOption = False,
) -> None:
    """Find a person's rows in table, history, feed, quarantine and files; then remove them."""
    from mirrorlake.mirror.key_search import key_columns, parse_key

    lake = open_lake(root)
    wanted = parse_key(key, key_columns(lake.storage, TableName.parse(table)))
    with progress("searching …"):
        done = lake.forget(table, wanted, apply=apply)
    document = done.document()
    tell(as_json, document, *first_rows(document, 50), done)


def _tell(done: Outcome, as_json: bool, note: str = "") -> None:
    tell(as_json, done.as_dict(), *done.files, done, note=note * (not done.applied))
