"""The commands `view …`: tables that follow a query."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from mirrorlake.commands.base import (
    APPLY_DOES_IT,
    ApplyOption,
    DryRunOption,
    JsonOption,
    RootArgument,
    open_lake,
    progress,
    tell,
    verbs,
)
from mirrorlake.errors import UsageError
from mirrorlake.results import TextTable

if TYPE_CHECKING:
    from mirrorlake.rows.views.refresh import Refresh

view = verbs("view", "Keep tables that follow a query, refreshed by what changed in its sources.")

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The view: view or schema.view")]


@view.command()
def create(
    root: RootArgument,
    name: NameArgument,
    query: Annotated[str, typer.Option("--sql", help="The view's query.")],
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Make a view and fill it."""
    with progress(f"creating {name} …"):
        done = open_lake(root).views.create(name, query, dry_run=dry_run)
    _tell(done, as_json)


@view.command()
def refresh(
    root: RootArgument,
    name: NameArgument,
    full: Annotated[bool, typer.Option("--full", help="Compute everything again.")] = False,
    incremental: Annotated[
        bool, typer.Option("--incremental", help="By what changed, whatever it costs.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Compare with the query; exit 1 if it differs.")
    ] = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Bring a view up to date with its sources."""
    if full and incremental:
        raise UsageError("--full and --incremental exclude each other.", hint="choose one.")
    how = "full" if full else "incremental" if incremental else "auto"
    with progress(f"refreshing {name} …"):
        done = open_lake(root).views.refresh(name, how=how, check=check, dry_run=dry_run)
    _tell(done, as_json)


@view.command()
def explain(root: RootArgument, name: NameArgument, as_json: JsonOption = False) -> None:
    """Show what the next refresh would do, why, and what it would cost."""
    found = open_lake(root).views.explain(name)
    tell(as_json, found.as_dict(), found.with_seconds())


@view.command()
def check(root: RootArgument, name: NameArgument, as_json: JsonOption = False) -> None:
    """Compare a view with its query; exit 1 if they differ."""
    with progress(f"comparing {name} with its query …"):
        found = open_lake(root).views.check(name)
    tell(as_json, {"view": found.view, "missing": found.missing, "extra": found.extra}, found)
    if found.differences:
        raise typer.Exit(1)


@view.command("list")
def list_(root: RootArgument, as_json: JsonOption = False) -> None:
    """List the views with their queries."""
    found = open_lake(root).views.list()
    document = [
        {"view": str(one.name), "sql": one.sql, "sources": [str(s) for s in one.sources]}
        for one in found
    ]
    rows = [(str(v.name), ", ".join(map(str, v.sources)), " ".join(v.sql.split())) for v in found]
    tell(as_json, {"views": document}, TextTable(("view", "sources", "query"), tuple(rows)))


@view.command()
def drop(
    root: RootArgument, name: NameArgument, apply: ApplyOption = False, as_json: JsonOption = False
) -> None:
    """Remove a view with its table; its sources stay as they are."""
    done = open_lake(root).views.drop(name, apply=apply)
    document = {"dropped": name} if apply else {"dropped": None, "would_drop": name}
    tell(as_json, document, done, note=APPLY_DOES_IT * (not apply))


def _tell(done: Refresh, as_json: bool) -> None:
    shown = done.shown()
    seconds = ("seconds", f"{done.seconds:.1f}")
    tell(as_json, done.as_dict(), TextTable(shown.columns, (*shown.rows, seconds)))
    if done.differences:
        raise typer.Exit(1)
