"""The commands `view …`: tables that follow a query."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from mirrorlake.commands import open_lake, verbs
from mirrorlake.commands.options import Apply, DryRun, Json, Root
from mirrorlake.commands.printing import APPLY_DOES_IT, progress, tell
from mirrorlake.errors import UsageError
from mirrorlake.results import TextTable

if TYPE_CHECKING:
    from mirrorlake.rows.views.refresh import Refresh

view = verbs("view", "Materialized views: tables of a query, refreshed incrementally.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="The view: view or schema.view")]


@view.command()
def create(
    root: Root,
    name: Name,
    query: Annotated[str, typer.Option("--sql", help="The view's query.")],
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Create a view and fill it."""
    with progress(f"creating {name} …"):
        done = open_lake(root).views.create(name, query, dry_run=dry_run)
    _tell(done, as_json)


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
    if full and incremental:
        raise UsageError("--full and --incremental exclude each other.", hint="choose one.")
    how = "full" if full else "incremental" if incremental else "auto"
    with progress(f"refreshing {name} …"):
        done = open_lake(root).views.refresh(name, how=how, check=check, dry_run=dry_run)
    _tell(done, as_json)


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


@view.command()
def drop(root: Root, name: Name, apply: Apply = False, as_json: Json = False) -> None:
    """Drop a view with its table; its sources stay as they are."""
    done = open_lake(root).views.drop(name, apply=apply)
    document = {"dropped": name} if apply else {"dropped": None, "would_drop": name}
    tell(as_json, document, done, APPLY_DOES_IT * (not apply))


def _tell(done: Refresh, as_json: bool) -> None:
    shown = done.shown()
    seconds = ("seconds", f"{done.seconds:.1f}")
    table = TextTable(shown.columns, (*shown.rows, seconds))
    tell(as_json, done.as_dict(), table, failed=done.differences)
