"""The commands `rows …` and `view …`: row tracking, and incremental views."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mirrorlake.cli import open_lake, open_table, verbs
from mirrorlake.cli.options import Apply, DryRun, Json, Root, Table, at_most_one
from mirrorlake.cli.printing import APPLY_DOES_IT, first_rows, progress, tell
from mirrorlake.errors import UsageError
from mirrorlake.results import TextTable

if TYPE_CHECKING:
    from mirrorlake.rows.tracking import FeatureChange
    from mirrorlake.views.refresh import Refresh

rows = verbs("rows", "Row tracking: enable or disable it, show row ids and the history of a row.")


@rows.command()
def enable(root: Root, table: Table, dry_run: DryRun = False, as_json: Json = False) -> None:
    """Enable row tracking: all rows get ids, and no file is rewritten."""
    with progress("looking at the table's files …"):
        done = open_table(root, table).row_tracking.enable(dry_run=dry_run)
    _tell(done, as_json)


@rows.command()
def disable(root: Root, table: Table, apply: Apply = False, as_json: Json = False) -> None:
    """Disable row tracking; the ids are no longer reliable, but the table feature is kept."""
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
    """Show since when rows have ids, whether the ids are reliable, and some rows with ids."""
    from mirrorlake.spark.dataframes import rows_document

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
    from mirrorlake.spark.dataframes import rows_document

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
    """Parse `COLUMN=VALUE`, or only the value if the table declares one key column.

    Raises:
        UsageError: a text has no column name.
    """
    found = {}
    for text in given:
        name, equals, value = text.partition("=")
        if len(given) == 1 and len(declared) == 1 and name != declared[0]:
            return {declared[0]: text}
        if not equals:
            raise UsageError(
                f"{text!r} is not a key.", hint="write --key COLUMN=VALUE, once per column."
            )
        found[name] = value
    return found


def _tell(done: FeatureChange, as_json: bool) -> None:
    nothing = f"Nothing to {done.verb}: the table is as it should be."
    tell(as_json, asdict(done), done.shown() if done.commits else nothing)


view = verbs("view", "Materialized views: tables of a query, refreshed incrementally.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="The view: view or schema.view")]


@view.command()
def create(
    root: Root,
    name: Name,
    query: Annotated[str, typer.Option("--sql", help="The view's query.")],
    no_vectors: Annotated[
        bool,
        typer.Option("--no-deletion-vectors", help="Create a table that more readers can open."),
    ] = False,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Create a view and fill it."""
    with progress(f"creating {name} …"):
        done = open_lake(root).views.create(
            name, query, deletion_vectors=not no_vectors, dry_run=dry_run
        )
    _tell_refresh(done, as_json)


@view.command()
def refresh(
    root: Root,
    name: Name,
    full: Annotated[bool, typer.Option("--full", help="Recompute everything.")] = False,
    incremental: Annotated[
        bool, typer.Option("--incremental", help="Refresh incrementally, whatever it costs.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Compare with the query; exit 1 if it differs.")
    ] = False,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Bring a view up to date with its sources."""
    at_most_one(full=full, incremental=incremental)
    how = "full" if full else "incremental" if incremental else "auto"
    with progress(f"refreshing {name} …"):
        done = open_lake(root).views.refresh(name, how=how, check=check, dry_run=dry_run)
    _tell_refresh(done, as_json)


@view.command()
def explain(root: Root, name: Name, as_json: Json = False) -> None:
    """Show what the next refresh would do, why, and what it would cost."""
    found = open_lake(root).views.explain(name)
    tell(as_json, found.as_dict(), found.with_seconds())


@view.command()
def check(root: Root, name: Name, as_json: Json = False) -> None:
    """Compare a view with its query; exit 1 if they differ."""
    with progress(f"comparing {name} with its query …"):
        found = open_lake(root).views.check(name)
    document = {"view": found.view, "missing": found.missing, "extra": found.extra}
    tell(as_json, document, found, failed=found.differences)


@view.command("list")
def list_(root: Root, as_json: Json = False) -> None:
    """List the views with their queries."""
    found = open_lake(root).views.list()
    document = [
        {"view": str(one.name), "sql": one.sql, "sources": [str(s) for s in one.sources]}
        for one in found
    ]
    rows = [(str(v.name), ", ".join(map(str, v.sources)), " ".join(v.sql.split())) for v in found]
    tell(as_json, {"views": document}, TextTable(("view", "sources", "query"), tuple(rows)))


@view.command("drop")
def drop_view(root: Root, name: Name, apply: Apply = False, as_json: Json = False) -> None:
    """Drop a view with its table; its sources are not changed."""
    done = open_lake(root).views.drop(name, apply=apply)
    document = {"dropped": name} if apply else {"dropped": None, "would_drop": name}
    tell(as_json, document, done, APPLY_DOES_IT * (not apply))


def _tell_refresh(done: Refresh, as_json: bool) -> None:
    shown = done.shown()
    seconds = ("seconds", f"{done.seconds:.1f}")
    table = TextTable(shown.columns, (*shown.rows, seconds))
    tell(as_json, done.as_dict(), table, failed=done.differences)
