"""Commands on a table's files: analyze, optimize, reorg, vorder, vacuum, and maintain for all."""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from mirrorlake.cli import app, open_lake, open_table
from mirrorlake.cli.options import Apply, DryRun, Json, Root, RowGroups, Table
from mirrorlake.cli.printing import (
    DRY_RUN,
    NOT_APPLIED,
    facts_of,
    progress,
    tell,
    warn_other_folder,
)
from mirrorlake.names import split_names
from mirrorlake.results import TextTable
from mirrorlake.storage.paths import PARAMETERS

_SHOWN = ("Summary", "Columns", "File Sizes", "Row Group Sizes", "Change History")
_ROWS = 20


@app.command()
def analyze(
    root: Root,
    table: Table,
    sku: Annotated[str | None, typer.Option(help="Check the guardrails of this SKU.")] = None,
    version: Annotated[int | None, typer.Option(help="The newest by default.")] = None,
    footers_only: Annotated[
        bool, typer.Option(help="Read no rows: no cardinality, no runs.")
    ] = False,
    save: Annotated[bool, typer.Option(help="Append it to the schema diagnostics.")] = False,
    as_json: Json = False,
) -> None:
    """Analyze a table's files: row groups, column chunks, columns, guardrails."""
    from mirrorlake.layout.guardrails import find_sku
    from mirrorlake.spark.dataframes import rows_document

    if sku is not None:
        find_sku(sku)  # before anything is read
    with progress("reading footers …"):
        analysis = open_table(root, table).analyze(version=version, scan=not footers_only)
        guardrails = analysis.guardrails(sku)
        if save:
            analysis.save()
        documents = {
            name: rows_document(frame if as_json else frame.limit(_ROWS))
            for name, frame in analysis.tables.items()
            if as_json or name in _SHOWN
        }
        advice = analysis.advice()
    if not as_json:
        rows, hidden = documents["Columns"]["rows"], analysis.hidden_columns
        documents["Columns"]["rows"] = [row for row in rows if row["Column Name"] not in hidden]
    documents["Guardrails"] = guardrails.as_dict()
    documents["Advice"] = advice.as_dict()
    shown = [part for one in documents.items() for part in _titled(*one)]
    failed = sku is not None and guardrails.exceeded
    tell(as_json, documents, analysis, *shown, failed=failed)


@app.command()
def optimize(
    root: Root,
    table: Table,
    where: Annotated[
        str | None, typer.Option(help="Only these partitions: a predicate on their columns.")
    ] = None,
    target_mib: Annotated[int, typer.Option(help="Target size of files, in MiB.", min=1)] = 1024,
    zorder_by: Annotated[str | None, typer.Option(help="Columns to Z-order by: a,b.")] = None,
    vorder: Annotated[
        bool | None,
        typer.Option(
            "--vorder/--no-vorder",
            help="Then write files in V-Order; by default if they were, or the table asks for it.",
        ),
    ] = None,
    row_group_rows: RowGroups = 0,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Compact small files."""
    with progress("optimizing …"):
        optimize = open_table(root, table).optimize
        verb = optimize.compact if zorder_by is None else partial(optimize.z_order, zorder_by)
        done = verb(
            where=where,
            target_bytes=target_mib * 2**20,
            vorder=vorder,
            row_group_rows=row_group_rows,
            dry_run=dry_run,
        )
    tell(as_json, facts_of(done), done.shown(), DRY_RUN * (not done.applied))


@app.command()
def reorg(
    root: Root,
    table: Table,
    drop_vectors: Annotated[
        bool,
        typer.Option("--drop-vectors", help="Also drop the table's deletion vectors for good."),
    ] = False,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Purge deleted rows and dropped columns from the files."""
    with progress("reorganising …"):
        optimize = open_table(root, table).optimize
        done = optimize.purge(drop_vectors=drop_vectors, dry_run=dry_run)
    tell(as_json, facts_of(done), done.shown(), DRY_RUN * (not done.applied))


@app.command()
def vorder(
    root: Root,
    table: Table,
    sort_by: Annotated[str, typer.Option(help="Columns to sort by first: a,b.")] = "",
    again: Annotated[bool, typer.Option(help="Also files that are in V-Order already.")] = False,
    row_group_rows: RowGroups = 0,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Order the rows within each file (V-Order): smaller files, faster reads."""
    by = split_names(sort_by)
    with progress("ordering files …"):
        optimize = open_table(root, table).optimize
        done = optimize.vorder(
            dry_run=dry_run, sort_by=by, again=again, row_group_rows=row_group_rows
        )
    tell(as_json, done.shown().document(), done, DRY_RUN * dry_run)


@app.command()
def vacuum(
    root: Root,
    table: Table,
    retention_hours: Annotated[
        float | None,
        typer.Option(help="Hours that removed files stay; the table's own by default."),
    ] = None,
    feed_hours: Annotated[
        float | None, typer.Option(help="Hours of the change feed that stay readable.")
    ] = None,
    allow_short: Annotated[
        bool, typer.Option("--allow-short", help="Allow a shorter retention than the table's.")
    ] = False,
    apply: Apply = False,
    as_json: Json = False,
) -> None:
    """Delete files that are no longer needed.

    A file is kept if the newest version, the retention, a frame or the change feed needs it.
    """
    with progress("vacuuming …"):
        done = open_table(root, table).vacuum(
            retention_hours=retention_hours,
            feed_hours=feed_hours,
            allow_short=allow_short,
            apply=apply,
        )
    tell(as_json, facts_of(done), done.shown(), NOT_APPLIED * (not done.applied))


@app.command()
def maintain(
    root: Root,
    policy: Annotated[
        Path | None,
        typer.Option(help="A YAML file; by default learn/07_maintain.yaml, which vacuums."),
    ] = None,
    apply: Apply = False,
    as_json: Json = False,
) -> None:
    """Run a maintenance policy over all tables; the policy can also set apply."""
    from mirrorlake.layout.maintenance import load_policy

    lake = open_lake(root)
    warn_other_folder(lake.storage)
    chosen = load_policy(policy or PARAMETERS / "learn/07_maintain.yaml")
    if apply:
        chosen = replace(chosen, apply=True)
    with progress("maintaining …") as update:
        done = lake.maintain(chosen, on_table=lambda name: update(f"maintaining {name} …"))
    document = {"policy": asdict(chosen), "tables": [facts_of(line) for line in done.tables]}
    tell(as_json, document, done.shown(), failed=done.failed)


def _titled(name: str, document: dict[str, Any]) -> tuple[str, TextTable]:
    """Return a title and a table for people; a summary has one row per field."""
    columns, rows = document["columns"], [list(row.values()) for row in document["rows"]]
    if name == "Summary":
        columns, rows = ["what", "value"], [list(pair) for pair in document["rows"][0].items()]
    texts = tuple(tuple(map(_text, row)) for row in rows)
    return f"\n{name}", TextTable(tuple(columns), texts)


def _text(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:,.1f}" if isinstance(value, float) else str(value)
