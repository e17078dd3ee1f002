"""Commands on a table's files: analyze, optimize, reorg, vorder, vacuum, and maintain for all."""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table as RichTable

from mirrorlake.commands.base import (
    APPLY_DOES_IT,
    DRY_RUN,
    ApplyOption,
    DryRunOption,
    JsonOption,
    RootArgument,
    TableArgument,
    app,
    open_lake,
    open_table,
    progress,
    rich_table,
    split_names,
    tell,
)
from mirrorlake.paths import PARAMETERS

if TYPE_CHECKING:
    from mirrorlake.history.compact import Compaction
    from mirrorlake.history.vacuum import Vacuum

_SHOWN = ("Summary", "Columns", "File Sizes", "Row Group Sizes", "Change History")
_ROWS = 20


@app.command()
def analyze(
    root: RootArgument,
    table: TableArgument,
    sku: Annotated[str | None, typer.Option(help="Check the guardrails of this SKU.")] = None,
    version: Annotated[int | None, typer.Option(help="By default the newest.")] = None,
    footers_only: Annotated[
        bool, typer.Option(help="Don't read rows: no cardinality, no runs.")
    ] = False,
    save: Annotated[bool, typer.Option(help="Append it all to the schema diagnostics.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show what a table's files are like: files, row groups, chunks, columns, guardrails."""
    from mirrorlake.layout.advice import advise
    from mirrorlake.layout.guardrails import find_sku
    from mirrorlake.show.tables import rows_document

    if sku is not None:
        find_sku(sku)  # before anything is read
    with progress("reading footers …"):
        analysis = open_table(root, table).analyze(version=version, scan=not footers_only)
        guardrails = analysis.guardrails(sku)
        if save:
            analysis.save()
        wanted = analysis.tables if as_json else dict.fromkeys(_SHOWN)
        documents = {
            name: rows_document(frame if as_json else frame.limit(_ROWS))
            for name, frame in analysis.tables.items()
            if name in wanted
        }
        advice = advise(analysis)
    documents["Guardrails"] = guardrails.shown().document()
    documents["Advice"] = advice.shown().document()
    tell(as_json, documents, analysis, *(_titled(*one) for one in documents.items()))
    if sku is not None and guardrails.exceeded:
        raise typer.Exit(1)


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
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Put small files together."""
    with progress("optimizing …"):
        optimize = open_table(root, table).optimize
        columns = split_names(zorder_by)
        verb = partial(optimize.z_order, columns) if columns else optimize.compact
        size = target_mib * 2**20
        done = verb(where=where, target_bytes=size, vorder=vorder, dry_run=dry_run)
    _tell(done, as_json)


@app.command()
def reorg(
    root: RootArgument,
    table: TableArgument,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Purge deleted rows and dropped columns from the files."""
    with progress("reorganising …"):
        done = open_table(root, table).optimize.purge(dry_run=dry_run)
    _tell(done, as_json)


@app.command()
def vorder(
    root: RootArgument,
    table: TableArgument,
    sort_by: Annotated[str, typer.Option(help="Columns to sort by first, by commas.")] = "",
    again: Annotated[bool, typer.Option(help="Files that are ordered already, too.")] = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Order the rows within a table's files, so that they get smaller and quicker to read."""
    columns = split_names(sort_by)
    with progress("ordering files …"):
        done = open_table(root, table).optimize.vorder(
            dry_run=dry_run, sort_by=columns, again=again
        )
    tell(as_json, done.shown().document(), done, note=DRY_RUN * dry_run)


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
    """Delete files that no version, frame or feed needs."""
    with progress("vacuuming …"):
        done = open_table(root, table).vacuum(
            retention_hours=retention_hours,
            feed_hours=feed_hours,
            allow_short=allow_short,
            apply=apply,
        )
    _tell(done, as_json, f"{DRY_RUN} {APPLY_DOES_IT}")


@app.command()
def maintain(
    root: RootArgument,
    policy: Annotated[
        Path | None, typer.Option(help="A YAML file; the usual one by default.")
    ] = None,
    apply: ApplyOption = False,
    as_json: JsonOption = False,
) -> None:
    """Run a policy over all tables: reorg, optimize, vacuum; a policy may say apply itself."""
    from mirrorlake.history.maintenance import load_policy

    lake = open_lake(root)
    chosen = load_policy(policy or PARAMETERS / "learn/07_maintain.yaml")
    if apply:
        chosen = replace(chosen, apply=True)
    with progress("maintaining …") as update:
        done = lake.maintain(chosen, on_table=lambda name: update(f"maintaining {name} …"))
    lines = [{**asdict(line), "table": str(line.table)} for line in done.tables]
    tell(as_json, {"policy": asdict(chosen), "tables": lines}, done.shown())
    if done.failed:
        raise typer.Exit(1)


def _tell(done: Compaction | Vacuum, as_json: bool, note: str = DRY_RUN) -> None:
    document = {**asdict(done), "table": str(done.table)}
    tell(as_json, document, done.shown(), note=note * (not done.applied))


def _titled(name: str, document: dict[str, Any]) -> RichTable:
    """A table for people: of a single row its fields, else the first rows."""
    columns, rows = document["columns"], [list(row.values()) for row in document["rows"]]
    if name == "Summary":
        rows = [list(pair) for pair in document["rows"][0].items()]
        return rich_table(["Summary", ""], [map(_text, row) for row in rows])
    return rich_table(columns, [map(_text, row) for row in rows], title=name)


def _text(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:,.1f}" if isinstance(value, float) else str(value)
