"""The commands `rows …`: row tracking on and off, ids, and one row's history."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mirrorlake.commands import open_table, verbs
from mirrorlake.commands.options import Apply, DryRun, Json, Root, Table
from mirrorlake.commands.printing import first_rows, progress, tell
from mirrorlake.errors import UsageError

if TYPE_CHECKING:
    from mirrorlake.rows.tracking import FeatureChange

rows = verbs("rows", "Row tracking: enable or disable it, show row ids and the history of a row.")


@rows.command()
def enable(root: Root, table: Table, dry_run: DryRun = False, as_json: Json = False) -> None:
    """Enable row tracking: all rows get ids, and no file is rewritten."""
    with progress("looking at the table's files …"):
        done = open_table(root, table).row_tracking.enable(dry_run=dry_run)
    _tell(done, as_json)


@rows.command()
def disable(root: Root, table: Table, apply: Apply = False, as_json: Json = False) -> None:
    """Disable row tracking: ids can't be trusted afterwards; the table feature stays."""
    with progress("looking at the table's files …"):
        done = open_table(root, table).row_tracking.disable(apply=apply)
    _tell(done, as_json)


@rows.command()
def drop(root: Root, table: Table, apply: Apply = False, as_json: Json = False) -> None:
    """Drop the table feature of row tracking; all ids are lost."""
    with progress("looking at the table's files …"):
        done = open_table(root, table).row_tracking.drop(apply=apply)
    _tell(done, as_json)


@rows.command()
def show(
    root: Root,
    table: Table,
    limit: Annotated[int, typer.Option(help="Most rows to show with their ids.", min=0)] = 20,
    as_json: Json = False,
) -> None:
    """Show since when rows have ids, how far to trust them, and some rows with ids."""
    from mirrorlake.show.tables import rows_document

    found = open_table(root, table)
    with progress("reading the history …"):
        tracking = found.row_tracking.status()
    document: dict[str, Any] = {"columns": [], "rows": []}
    if tracking.enabled:
        sample = found.row_tracking.read()
        document = rows_document(sample.orderBy(sample.columns[-2]).limit(limit))
    sample_rows = first_rows(document, limit) if tracking.enabled else ()
    tell(as_json, tracking.as_dict() | document, tracking.shown(), *sample_rows)


@rows.command()
def history(
    root: Root,
    table: Table,
    key: Annotated[
        list[str] | None,
        typer.Option(help="VALUE or COLUMN=VALUE, once for each key column."),
    ] = None,
    row_id: Annotated[int | None, typer.Option(help="The row's id.", min=0)] = None,
    start: Annotated[int | None, typer.Option("--from", help="The first version.", min=0)] = None,
    as_json: Json = False,
) -> None:
    """Show the history of one row, by its key or its id."""
    from mirrorlake.show.tables import rows_document

    found = open_table(root, table)
    wanted = parse_row_key(key, found.keys) if key else None
    with progress("following the row …"):
        story = found.row_tracking.history(key=wanted, row_id=row_id, start=start)
        document = rows_document(story.events)
    findings = [finding.as_dict() for finding in story.findings]
    facts = {"table": story.table, "ids": list(story.ids), **document, "findings": findings}
    none = "" if document["rows"] else "No row of that key or id was found in these versions."
    events, _ = first_rows(document, len(document["rows"]))
    tell(as_json, facts, events, story.shown(), none, failed=none)


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
