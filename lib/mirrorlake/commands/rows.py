"""The command `rows`: row tracking on and off, ids, and one row's biography."""

from __future__ import annotations

from dataclasses import asdict
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mirrorlake.commands.base import (
    JsonOption,
    RootArgument,
    TableArgument,
    app,
    literal,
    open_lake,
    out,
    print_document,
    print_json,
    print_shown,
    progress,
)
from mirrorlake.commands.history import find_table
from mirrorlake.errors import UsageError

if TYPE_CHECKING:
    from mirrorlake.lake_table import LakeTable


class RowsVerb(str, Enum):
    """What `rows` does."""

    ENABLE = "enable"
    DISABLE = "disable"
    DROP = "drop"
    SHOW = "show"
    BIOGRAPHY = "biography"


@app.command()
def rows(
    root: RootArgument,
    table: TableArgument,
    verb: Annotated[RowsVerb, typer.Argument(help="enable, disable, drop, show or biography")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="enable, disable, drop: only say what is committed.")
    ] = False,
    key: Annotated[
        list[str] | None,
        typer.Option(help="biography: the row's key, VALUE or COLUMN=VALUE; one a key column."),
    ] = None,
    row_id: Annotated[int | None, typer.Option(help="biography: the row's id.", min=0)] = None,
    start: Annotated[
        int | None, typer.Option("--from", help="biography: the first version.", min=0)
    ] = None,
    limit: Annotated[int, typer.Option(help="show: how many rows with their ids.", min=0)] = 20,
    as_json: JsonOption = False,
) -> None:
    """Track rows: give them ids, show these, and tell one row's story."""
    lake = open_lake(root)
    found = lake.table(find_table(lake, table))
    if verb is RowsVerb.SHOW:
        _show(found, limit, as_json)
    elif verb is RowsVerb.BIOGRAPHY:
        _biography(found, key or [], row_id, start, as_json)
    else:
        _switch(found, verb, dry_run, as_json)


def _switch(table: LakeTable, verb: RowsVerb, dry_run: bool, as_json: bool) -> None:
    with progress("looking at the table's files …"):
        if verb is RowsVerb.ENABLE:
            done = table.row_tracking.enable(dry_run=dry_run)
        elif verb is RowsVerb.DISABLE:
            done = table.row_tracking.disable(apply=not dry_run)
        else:
            done = table.row_tracking.drop(apply=not dry_run)
    if as_json:
        print_json(asdict(done))
    elif not done.commits:
        out.print(f"Nothing to {verb.value}: the table is as it should be.")
    else:
        print_shown(done.shown())


def _show(table: LakeTable, limit: int, as_json: bool) -> None:
    from mirrorlake.show.json_rows import rows_document

    with progress("reading the history …"):
        tracking = table.row_tracking.status()
    document: dict[str, Any] = {"columns": [], "rows": []}
    if tracking.enabled:
        sample = table.row_tracking.read()
        document = rows_document(sample.orderBy(sample.columns[-2]).limit(limit))
    if as_json:
        print_json(tracking.as_dict() | document)
        return
    print_shown(tracking.shown())
    if tracking.enabled:
        print_document(document, as_json=False, limit=limit)


def _biography(
    table: LakeTable, key: list[str], row_id: int | None, start: int | None, as_json: bool
) -> None:
    from mirrorlake.show.json_rows import rows_document

    wanted = _parse_key(key, table.keys) if key else None
    with progress("following the row …"):
        story = table.row_tracking.history(key=wanted, row_id=row_id, start=start)
        document = rows_document(story.events)
    if as_json:
        facts = {"table": story.table, "ids": list(story.ids)}
        findings = [finding.as_dict() for finding in story.findings]
        print_json(facts | document | {"findings": findings})
    else:
        print_document(document, as_json=False, limit=len(document["rows"]))
        print_shown(story.shown())
    if not document["rows"]:
        if not as_json:
            out.print(literal("No row of that key or id was found in these versions."))
        raise typer.Exit(1)


def _parse_key(given: list[str], declared: tuple[str, ...]) -> dict[str, str]:
    """`COLUMN=VALUE`, or only the value where the table declares one key column."""
    found = {}
    for text in given:
        name, equals, value = text.partition("=")
        if len(given) == 1 and len(declared) == 1 and name != declared[0]:
            return {declared[0]: text}
        if not equals:
            raise UsageError(f"{text!r} is no key.", hint="write --key COLUMN=VALUE, one a column.")
        found[name] = value
    return found
