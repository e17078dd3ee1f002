"""The commands `rows …`: row tracking on and off, ids, and one row's history."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mirrorlake.commands.base import (
    ApplyOption,
    DryRunOption,
    JsonOption,
    RootArgument,
    TableArgument,
    first_rows,
    open_table,
    progress,
    tell,
    verbs,
)
from mirrorlake.errors import UsageError

if TYPE_CHECKING:
    from mirrorlake.rows.tracking import FeatureChange

rows = verbs("rows", "Track rows: give them ids, show these, and tell one row's history.")


@rows.command()
def enable(
    root: RootArgument,
    table: TableArgument,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Give all rows ids, by commits that rewrite no file."""
    with progress("looking at the table's files …"):
        done = open_table(root, table).row_tracking.enable(dry_run=dry_run)
    _tell(done, as_json)


@rows.command()
def disable(
    root: RootArgument,
    table: TableArgument,
    apply: ApplyOption = False,
    as_json: JsonOption = False,
) -> None:
    """Hide the ids, which can't be trusted afterwards; the feature stays."""
    with progress("looking at the table's files …"):
        done = open_table(root, table).row_tracking.disable(apply=apply)
    _tell(done, as_json)


@rows.command()
def drop(
    root: RootArgument,
    table: TableArgument,
    apply: ApplyOption = False,
    as_json: JsonOption = False,
) -> None:
    """Take the feature out of the protocol; all ids are lost."""
    with progress("looking at the table's files …"):
        done = open_table(root, table).row_tracking.drop(apply=apply)
    _tell(done, as_json)


@rows.command()
def show(
    root: RootArgument,
    table: TableArgument,
    limit: Annotated[int, typer.Option(help="How many rows with their ids.", min=0)] = 20,
    as_json: JsonOption = False,
) -> None:
    """Show since when rows have ids, how far these can be trusted, and some of them."""
    from mirrorlake.show.tables import rows_document

    found = open_table(root, table)
    with progress("reading the history …"):
        tracking = found.row_tracking.status()
    document: dict[str, Any] = {"columns": [], "rows": []}
    if tracking.enabled:
        sample = found.row_tracking.read()
        document = rows_document(sample.orderBy(sample.columns[-2]).limit(limit))
    sample_rows = first_rows(document, limit) if tracking.enabled else []
    tell(as_json, tracking.as_dict() | document, tracking.shown(), *sample_rows)


@rows.command()
def history(
    root: RootArgument,
    table: TableArgument,
    key: Annotated[
        list[str] | None,
        typer.Option(help="The row's key, VALUE or COLUMN=VALUE; one a key column."),
    ] = None,
    row_id: Annotated[int | None, typer.Option(help="The row's id.", min=0)] = None,
    start: Annotated[int | None, typer.Option("--from", help="The first version.", min=0)] = None,
    as_json: JsonOption = False,
) -> None:
    """Show everything that happened to one row, by its key or its id."""
    from mirrorlake.show.tables import rows_document

    found = open_table(root, table)
    wanted = parse_row_key(key, found.keys) if key else None
    with progress("following the row …"):
        story = found.row_tracking.history(key=wanted, row_id=row_id, start=start)
        document = rows_document(story.events)
    facts = {"table": story.table, "ids": list(story.ids)}
    findings = [finding.as_dict() for finding in story.findings]
    parts = [*first_rows(document, len(document["rows"])), story.shown()]
    if not document["rows"]:
        parts.append("No row of that key or id was found in these versions.")
    tell(as_json, facts | document | {"findings": findings}, *parts)
    if not document["rows"]:
        raise typer.Exit(1)


def parse_row_key(given: list[str], declared: tuple[str, ...]) -> dict[str, str]:
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


def _tell(done: FeatureChange, as_json: bool) -> None:
    nothing = f"Nothing to {done.verb}: the table is as it should be."
    tell(as_json, asdict(done), done.shown() if done.commits else nothing)
