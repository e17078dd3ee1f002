"""Commands of those who run a mirror: from pause and replay to quarantine and forget."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mirrorlake.commands.base import (
    JsonOption,
    RootArgument,
    TableArgument,
    app,
    open_lake,
    out,
    print_document,
    print_json,
    print_rows,
    progress,
)
from mirrorlake.names import TableName


@app.command()
def pause(root: RootArgument, table: TableArgument) -> None:
    """Apply no further files of a table until it is resumed."""
    open_lake(root).operations.pause(table)
    out.print(f"{table} is paused.", markup=False, highlight=False)


@app.command()
def resume(root: RootArgument, table: TableArgument) -> None:
    """Let a paused table go on."""
    open_lake(root).operations.resume(table)
    out.print(f"{table} goes on with the next cycle.", markup=False, highlight=False)


@app.command()
def skip(
    root: RootArgument,
    table: TableArgument,
    number: Annotated[int, typer.Argument(help="The file's number, as in its name.", min=1)],
) -> None:
    """Pass over a file that can't be applied, or that never comes."""
    open_lake(root).operations.skip(table, number, apply=True)
    out.print(f"File {number} of {table} is passed over.", markup=False, highlight=False)


@app.command()
def replay(
    root: RootArgument,
    table: TableArgument,
    first: Annotated[int, typer.Option("--from", help="The first file's number.", min=1)],
    last: Annotated[int | None, typer.Option("--to", help="The last file's number.")] = None,
    as_is: Annotated[bool, typer.Option("--as-is", help="Leave inserts what they are.")] = False,
) -> None:
    """Publish applied files once more; inserts become upserts."""
    names = open_lake(root).operations.replay(table, first, last, as_is=as_is)
    for name in names:
        out.print(name, markup=False, highlight=False)


@app.command()
def reseed(
    root: RootArgument,
    table: TableArgument,
    files: Annotated[list[Path] | None, typer.Argument(help="A new initial load.")] = None,
) -> None:
    """Build a table anew from its kept files, or from a new load, in one commit."""
    open_lake(root).operations.reseed(table, files or (), apply=True)
    out.print(f"The next cycle replaces {table}.", markup=False, highlight=False)


@app.command()
def ledger(root: RootArgument, table: TableArgument, as_json: JsonOption = False) -> None:
    """Show which files were applied, when and as what."""
    print_document(
        open_lake(root).operations.ledger(table).document(), as_json=as_json, limit=10_000
    )


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
    if as_json:
        print_json(found.as_dict())
    else:
        for line in found.findings:
            text = f"{line.rule} {line.table}: {line.message} Fix: {line.fix}"
            out.print(text, markup=False, highlight=False)
        out.print(repr(found), markup=False, highlight=False)
    if found.findings:
        raise typer.Exit(1)


@app.command()
def forget(
    root: RootArgument,
    table: TableArgument,
    key: Annotated[list[str], typer.Argument(metavar="COLUMN=VALUE…", help="The whole key.")],
    apply: Annotated[bool, typer.Option("--apply", help="Remove it; without, only look.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Find a person's rows in table, history, feed, quarantine and files; then remove them."""
    from mirrorlake.mirror.key_search import key_columns, parse_key

    lake = open_lake(root)
    wanted = parse_key(key, key_columns(lake.storage, TableName.parse(table)))
    with progress("searching …"):
        done = lake.forget(table, wanted, apply=apply)
    print_document(done.document(), as_json=as_json)
    if not as_json:
        out.print(repr(done), markup=False, highlight=False)
