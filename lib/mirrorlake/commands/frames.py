"""The commands `frame …`: the versions that a model's readers see."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from mirrorlake.commands import find_table, open_lake, split_names, verbs
from mirrorlake.commands.options import DryRun, Json, Root
from mirrorlake.commands.printing import DRY_RUN, progress, tell
from mirrorlake.results import TextTable

frame = verbs("frame", "Frames: the versions of tables that a model's readers see.")

Model = Annotated[str, typer.Argument(metavar="MODEL", help="The model's name.")]


@frame.command()
def create(
    root: Root,
    model: Model,
    tables: Annotated[str, typer.Option(help="Tables to frame, separated by commas.")] = "",
    expires_in: Annotated[
        float, typer.Option(help="Days until the frame expires; 0: never.", min=0)
    ] = 30.0,
    owner: Annotated[str | None, typer.Option(help="Whom to ask about the frame.")] = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Frame the newest versions of some tables, consistent at one timestamp."""
    lake = open_lake(root)
    names = [find_table(lake, name) for name in split_names(tables)]
    with progress("framing …"):
        done = lake.frames.create(
            model, names, owner=owner, expires_in=expires_in or None, dry_run=dry_run
        )
    tell(as_json, done.as_dict(), done, DRY_RUN * dry_run)


@frame.command("list")
def list_(root: Root, as_json: Json = False) -> None:
    """List the frame of each model."""
    found = open_lake(root).frames.list()
    rows = []
    for one in found:
        tables = ", ".join(f"{framed.table}@v{framed.version}" for framed in one.tables)
        expires = one.expires or "never"
        rows.append((one.model, one.number, one.state, one.owner, expires, tables))
    columns = ("model", "frame", "state", "owner", "expires", "tables")
    tell(as_json, {"frames": [one.as_dict() for one in found]}, TextTable(columns, tuple(rows)))


@frame.command()
def show(
    root: Root,
    model: Model,
    delete_from: Annotated[
        str | None, typer.Option(help="Show what a DELETE from this table would change.")
    ] = None,
    where: Annotated[str, typer.Option(help="The predicate of that DELETE.")] = "true",
    as_json: Json = False,
) -> None:
    """Show what has changed since the frame, and what the next one would reload."""
    lake = open_lake(root)
    delete = (find_table(lake, delete_from), where) if delete_from else None
    with progress("comparing …"):
        lines = lake.frames.show(model, delete=delete)
    tell(as_json, {"tables": [asdict(line) for line in lines]}, *(line.shown() for line in lines))


@frame.command()
def release(root: Root, model: Model, dry_run: DryRun = False, as_json: Json = False) -> None:
    """Release the model's frame; its readers get an error until it is framed again."""
    done = open_lake(root).frames.release(model, dry_run=dry_run)
    tell(as_json, done.as_dict(), done, DRY_RUN * dry_run)
