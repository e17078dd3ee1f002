"""Commands that operate the mirror: pause, resume, skip, replay, …, quarantine and forget."""

from __future__ import annotations

import signal
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from mirrorlake.cli import app, open_lake
from mirrorlake.cli.options import AnyTable, Apply, DryRun, Json, Root, Table
from mirrorlake.cli.printing import (
    APPLY_DOES_IT,
    DRY_RUN,
    finding_line,
    first_rows,
    print_rows,
    progress,
    tell,
    warn,
)
from mirrorlake.names import TableName
from mirrorlake.results import Outcome


@app.command()
def pause(root: Root, table: Table, dry_run: DryRun = False, as_json: Json = False) -> None:
    """Pause a table: no further files are applied until it is resumed."""
    _tell(open_lake(root).operations.pause(table, dry_run=dry_run), as_json)


@app.command()
def resume(root: Root, table: Table, dry_run: DryRun = False, as_json: Json = False) -> None:
    """Resume a paused table."""
    _tell(open_lake(root).operations.resume(table, dry_run=dry_run), as_json)


@app.command()
def skip(
    root: Root,
    table: Table,
    number: Annotated[str, typer.Argument(help="The file's number, or its name.")],
    apply: Apply = False,
    as_json: Json = False,
) -> None:
    """Skip a file that can't be applied, or that never arrives."""
    _tell(open_lake(root).operations.skip(table, number, apply=apply), as_json, APPLY_DOES_IT)


@app.command()
def replay(
    root: Root,
    table: Table,
    first: Annotated[int, typer.Option("--from", help="The first file's number.", min=1)],
    last: Annotated[int | None, typer.Option("--to", help="The last file's number.")] = None,
    as_is: Annotated[bool, typer.Option("--as-is", help="Keep inserts as inserts.")] = False,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Publish applied files again; inserts become upserts."""
    operations = open_lake(root).operations
    _tell(operations.replay(table, first, last, as_is=as_is, dry_run=dry_run), as_json)


@app.command()
def reseed(
    root: Root,
    table: Table,
    files: Annotated[list[Path] | None, typer.Argument(help="A new initial load.")] = None,
    apply: Apply = False,
    as_json: Json = False,
) -> None:
    """Rebuild a table from its kept files, or from a new initial load, in one commit."""
    operations = open_lake(root).operations
    _tell(operations.reseed(table, files or (), apply=apply), as_json, APPLY_DOES_IT)


@app.command()
def undrop(root: Root, table: Table, dry_run: DryRun = False, as_json: Json = False) -> None:
    """Recover a table that was dropped with its folder in the last 7 days."""
    _tell(open_lake(root).operations.undrop(table, dry_run=dry_run), as_json)


@app.command()
def defaults(
    root: Root,
    deletion_vectors: Annotated[
        bool | None,
        typer.Option(
            "--deletion-vectors/--no-deletion-vectors",
            help="Whether new tables have deletion vectors. If never set: those with keys.",
        ),
    ] = None,
    vorder: Annotated[
        bool | None,
        typer.Option("--vorder/--no-vorder", help="Whether new tables ask for V-Order."),
    ] = None,
    safe_names: Annotated[
        bool | None,
        typer.Option(
            "--safe-names/--no-safe-names",
            help="Whether publishers rename columns such as 'unit price' to 'unit_price'.",
        ),
    ] = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Show or set what new tables of the lake are made with."""
    from mirrorlake.lake import Lake

    is_set = {deletion_vectors, vorder, safe_names} != {None}
    lake = Lake(root) if is_set else open_lake(root)  # setting creates the folder of a new lake
    found = lake.operations.defaults(
        deletion_vectors=deletion_vectors, vorder=vorder, safe_names=safe_names, dry_run=dry_run
    )
    tell(as_json, asdict(found), found, DRY_RUN * dry_run)


@app.command()
def ledger(root: Root, table: Table, as_json: Json = False) -> None:
    """Show which files were applied, when, and in which version."""
    document = open_lake(root).operations.ledger(table).document()
    tell(as_json, document, *first_rows(document, 10_000))


@app.command()
def quarantine(root: Root, table: AnyTable = None, as_json: Json = False) -> None:
    """Show the rows and files that were skipped."""
    print_rows(open_lake(root).operations.quarantine(table), as_json=as_json)


@app.command()
def reconcile(root: Root, table: AnyTable = None, as_json: Json = False) -> None:
    """Compare tables with the manifests of their publishers."""
    with progress("comparing …"):
        found = open_lake(root).reconcile(table)
    lines = [finding_line(one) for one in found.findings]
    if found.without_manifest:
        names = ", ".join(found.without_manifest)
        lines.append(f"Not compared: {names}. Write a manifest with `publisher.manifest(rows)`.")
    tell(as_json, found.as_dict(), *lines, found, failed=found.findings)


@app.command()
def forget(
    root: Root,
    table: Table,
    key: Annotated[list[str], typer.Argument(metavar="COLUMN=VALUE…", help="Every key column.")],
    apply: Apply = False,
    as_json: Json = False,
) -> None:
    """Find a person's rows in table, history, feed, quarantine and files, and delete them."""
    from mirrorlake.mirror.forget import key_columns, parse_key

    lake = open_lake(root)
    wanted = parse_key(key, key_columns(lake.storage, TableName.parse(table)))
    try:
        with progress("searching …"):
            _ = lake.spark
            # PySpark's own handler calls the JVM, which fails while another call is running.
            signal.signal(signal.SIGINT, signal.default_int_handler)
            done = lake.forget(table, wanted, apply=apply)
    except KeyboardInterrupt:
        hint = (
            " Hint: run the same command again to complete the work. If the table stays paused,"
            " run `resume`."
        )
        warn(f"mirrorlake: forget was interrupted.{hint if apply else ''}")
        raise
    document = done.document()
    tell(as_json, document, *first_rows(document, 50), done)


def _tell(done: Outcome, as_json: bool, note: str = "") -> None:
    tell(as_json, done.as_dict(), *done.files, done, note * (not done.applied))
