"""Commands on a table's files: analyze, vorder."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.table import Table as RichTable

from mirrorlake.commands.base import (
    JsonOption,
    RootArgument,
    TableArgument,
    app,
    literal,
    open_lake,
    out,
    print_json,
    progress,
    split_names,
)

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
    from mirrorlake.show.json_rows import rows_document

    if sku is not None:
        find_sku(sku)  # before anything is read
    lake = open_lake(root)
    with progress("reading footers …"):
        analysis = lake.table(table).analyze(version=version, scan=not footers_only)
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
    if as_json:
        print_json(documents)
    else:
        out.print(repr(analysis), markup=False, highlight=False)
        for name, document in documents.items():
            _print(name, document)
    if sku is not None and guardrails.exceeded:
        raise typer.Exit(1)


@app.command()
def vorder(
    root: RootArgument,
    table: TableArgument,
    apply: Annotated[bool, typer.Option("--apply", help="Commit; else a dry run.")] = False,
    sort_by: Annotated[str, typer.Option(help="Columns to sort by first, by commas.")] = "",
    again: Annotated[bool, typer.Option(help="Files that are ordered already, too.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Order the rows within a table's files, so that they get smaller and quicker to read."""
    columns = split_names(sort_by)
    with progress("ordering files …"):
        report = (
            open_lake(root)
            .table(table)
            .optimize.vorder(dry_run=not apply, sort_by=columns, again=again)
        )
    if as_json:
        print_json(report.shown().document())
        return
    out.print(repr(report), markup=False, highlight=False)
    if report.outcomes and not apply:
        out.print("A dry run: --apply commits it.")


def _print(name: str, document: dict[str, Any]) -> None:
    """A table for people: of a single row its fields, else the first rows."""
    rows = document["rows"]
    columns = document["columns"]
    if name == "Summary":
        columns, rows = ["Summary", ""], [{"Summary": k, "": v} for k, v in rows[0].items()]
    table = RichTable(*map(literal, columns), title=None if name == "Summary" else name)
    for row in rows:
        table.add_row(*[literal(_text(row[column])) for column in columns])
    out.print(table)


def _text(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:,.1f}" if isinstance(value, float) else str(value)
