"""Commands that keep tables in shape: optimize, reorg, vacuum, and a policy for all of them."""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mirrorlake.commands.base import (
    JsonOption,
    RootArgument,
    TableArgument,
    app,
    open_lake,
    out,
    print_json,
    print_shown,
    progress,
    split_names,
)
from mirrorlake.commands.history import find_table

if TYPE_CHECKING:
    from mirrorlake.history.compact import Compaction
    from mirrorlake.history.vacuum import Vacuum
    from mirrorlake.text_table import TextTable

ApplyOption = Annotated[bool, typer.Option("--apply", help="Do it, not only say it.")]
# Nothing is lost by a rewrite: old versions keep their files until a vacuum.
RewriteOption = Annotated[
    bool, typer.Option("--apply/--dry-run", help="Do it, or only say what would be done.")
]


@app.command()
def optimize(
    root: RootArgument,
    table: TableArgument,
    where: Annotated[
        str | None, typer.Option(help="Only these partitions: a predicate on their columns.")
    ] = None,
    target_mib: Annotated[int, typer.Option(help="How large files are to become.", min=1)] = 1024,
    zorder_by: Annotated[str, typer.Option(help="Columns to bring together, by commas.")] = "",
    vorder: Annotated[bool, typer.Option("--vorder", help="Then order rows within files.")] = False,
    apply: RewriteOption = True,
    as_json: JsonOption = False,
) -> None:
    """Put small files together."""
    lake = open_lake(root)
    columns = split_names(zorder_by)
    with progress("optimizing …"):
        optimize = lake.table(find_table(lake, table)).optimize
        verb = partial(optimize.z_order, columns) if columns else optimize.compact
        size = target_mib * 2**20
        done = verb(where=where, target_bytes=size, vorder=vorder, dry_run=not apply)
    _print(done, done.shown(), as_json)


@app.command()
def reorg(
    root: RootArgument,
    table: TableArgument,
    apply: RewriteOption = True,
    as_json: JsonOption = False,
) -> None:
    """Purge deleted rows and dropped columns from the files."""
    lake = open_lake(root)
    with progress("reorganising …"):
        done = lake.table(find_table(lake, table)).optimize.purge(dry_run=not apply)
    _print(done, done.shown(), as_json)


@app.command()
def vacuum(
    root: RootArgument,
    table: TableArgument,
    retention_hours: Annotated[
        float | None, typer.Option(help="How long removed files stay; the table's own by default.")
    ] = None,
    feed_hours: Annotated[
        float | None, typer.Option(help="How far back the change feed has to be readable.")
    ] = None,
    allow_short: Annotated[
        bool, typer.Option("--allow-short", help="Allow less than the table's own retention.")
    ] = False,
    apply: ApplyOption = False,
    as_json: JsonOption = False,
) -> None:
    """Delete files that no version, frame or feed needs; only said, unless --apply is given."""
    lake = open_lake(root)
    with progress("vacuuming …"):
        done = lake.table(find_table(lake, table)).vacuum(
            retention_hours=retention_hours,
            feed_hours=feed_hours,
            allow_short=allow_short,
            apply=apply,
        )
    _print(done, done.shown(), as_json)


@app.command()
def maintain(
    root: RootArgument,
    policy: Annotated[
        Path | None, typer.Option(help="A YAML file; the usual one by default.")
    ] = None,
    apply: ApplyOption = False,
    as_json: JsonOption = False,
) -> None:
    """Run a policy over all tables: reorg, optimize, vacuum; only said, unless it says apply."""
    from mirrorlake.history.maintenance import load_policy
    from mirrorlake.paths import PARAMETERS

    lake = open_lake(root)
    chosen = load_policy(policy or PARAMETERS / "07_maintain.yaml")
    if apply:
        chosen = replace(chosen, apply=True)
    with progress("maintaining …") as update:
        done = lake.maintain(chosen, on_table=lambda name: update(f"maintaining {name} …"))
    if as_json:
        lines = [{**asdict(line), "table": str(line.table)} for line in done.tables]
        print_json({"policy": asdict(chosen), "tables": lines})
    else:
        print_shown(done.shown())
    if done.failed:
        raise typer.Exit(1)


def _print(done: Compaction | Vacuum, shown: TextTable, as_json: bool) -> None:
    if as_json:
        document: dict[str, Any] = {**asdict(done), "table": str(done.table)}
        print_json(document)
        return
    print_shown(shown)
    if not done.applied:
        out.print("Nothing was changed: a dry run.")
