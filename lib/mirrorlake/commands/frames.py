"""The commands `frame …`: the versions that a model's readers see."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from mirrorlake.commands.base import (
    DRY_RUN,
    DryRunOption,
    JsonOption,
    RootArgument,
    find_table,
    open_lake,
    progress,
    split_names,
    tell,
    verbs,
)
from mirrorlake.results import TextTable

frame = verbs("frame", "Pin the versions that a model's readers see.")

ModelArgument = Annotated[str, typer.Argument(metavar="MODEL", help="The model's name.")]


@frame.command()
def create(
    root: RootArgument,
    model: ModelArgument,
    tables: Annotated[str, typer.Option(help="Tables to frame, separated by commas.")] = "",
    expires_in: Annotated[
        float, typer.Option(help="Days until it no longer holds files; 0 for never.", min=0)
    ] = 30.0,
    owner: Annotated[str | None, typer.Option(help="Whom to ask about it.")] = None,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Frame the newest versions of some tables, all as they were at one moment."""
    lake = open_lake(root)
    names = [find_table(lake, name) for name in split_names(tables)]
    with progress("framing …"):
        done = lake.frames.create(
            model, names, owner=owner, expires_in=expires_in or None, dry_run=dry_run
        )
    tell(as_json, done.as_dict(), done, note=DRY_RUN * dry_run)


@frame.command("list")
def list_(root: RootArgument, as_json: JsonOption = False) -> None:
    """List the frame of each model."""
    found = open_lake(root).frames.list()
    rows = [
        (
            one.model,
            one.number,
            one.state,
            one.owner,
            one.expires or "never",
            ", ".join(f"{framed.table}@v{framed.version}" for framed in one.tables),
        )
        for one in found
    ]
    columns = ("model", "frame", "state", "owner", "expires", "tables")
    tell(as_json, {"frames": [one.as_dict() for one in found]}, TextTable(columns, tuple(rows)))


@frame.command()
def show(
    root: RootArgument,
    model: ModelArgument,
    delete_from: Annotated[
        str | None, typer.Option(help="What a DELETE from this table would change.")
    ] = None,
    where: Annotated[str, typer.Option(help="The predicate of that DELETE.")] = "true",
    as_json: JsonOption = False,
) -> None:
    """Show how far the lake has moved on, and what the next frame would reload."""
    lake = open_lake(root)
    delete = (find_table(lake, delete_from), where) if delete_from else None
    with progress("comparing …"):
        lines = lake.frames.show(model, delete=delete)
    tell(as_json, {"tables": [asdict(line) for line in lines]}, *(line.shown() for line in lines))


@frame.command()
def release(
    root: RootArgument,
    model: ModelArgument,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Let the model's files go; its readers get an error until it is framed again."""
    done = open_lake(root).frames.release(model, dry_run=dry_run)
    tell(as_json, done.as_dict(), done, note=DRY_RUN * dry_run)
