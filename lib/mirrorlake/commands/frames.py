"""The command `frame`: the versions that a model's readers see."""

from __future__ import annotations

from dataclasses import asdict
from enum import Enum
from typing import Annotated

import typer
from rich.table import Table as RichTable

from mirrorlake.commands.base import (
    JsonOption,
    RootArgument,
    app,
    literal,
    open_lake,
    out,
    print_json,
    print_shown,
    progress,
    split_names,
)
from mirrorlake.commands.history import find_table
from mirrorlake.errors import UsageError
from mirrorlake.lake import Lake


class FrameVerb(str, Enum):
    """What `frame` does."""

    CREATE = "create"
    LIST = "list"
    SHOW = "show"
    RELEASE = "release"


@app.command()
def frame(
    root: RootArgument,
    verb: Annotated[FrameVerb, typer.Argument(help="create, list, show or release")],
    model: Annotated[str | None, typer.Argument(help="The model; not for list.")] = None,
    tables: Annotated[str, typer.Option(help="Tables to frame, separated by commas.")] = "",
    expires_in: Annotated[
        float, typer.Option(help="Days until it no longer holds files; 0 for never.", min=0)
    ] = 30.0,
    owner: Annotated[str | None, typer.Option(help="Whom to ask about it.")] = None,
    delete_from: Annotated[
        str | None, typer.Option(help="show: what a DELETE from this table would change.")
    ] = None,
    where: Annotated[str, typer.Option(help="show: the predicate of that DELETE.")] = "true",
    as_json: JsonOption = False,
) -> None:
    """Pin the versions that a model's readers see, and show how far the lake has moved on."""
    lake = open_lake(root)
    if verb is FrameVerb.LIST:
        _list(lake, as_json)
        return
    if model is None:
        raise UsageError(
            f"frame {verb.value} needs a model.", hint=f"frame ROOT {verb.value} MODEL"
        )
    if verb is FrameVerb.SHOW:
        delete = (find_table(lake, delete_from), where) if delete_from else None
        with progress("comparing …"):
            lines = lake.frames.show(model, delete=delete)
        if as_json:
            print_json({"tables": [asdict(line) for line in lines]})
            return
        for line in lines:
            print_shown(line.shown())
        return
    if verb is FrameVerb.CREATE:
        names = [find_table(lake, name) for name in split_names(tables)]
        with progress("framing …"):
            done = lake.frames.create(model, names, owner=owner, expires_in=expires_in or None)
    else:
        done = lake.frames.release(model)
    if as_json:
        print_json(done.as_dict())
    else:
        out.print(repr(done), markup=False, highlight=False)


def _list(lake: Lake, as_json: bool) -> None:
    found = lake.frames.list()
    if as_json:
        print_json({"frames": [frame.as_dict() for frame in found]})
        return
    table = RichTable("model", "frame", "state", "owner", "expires", "tables")
    for one in found:
        at = ", ".join(f"{framed.table}@v{framed.version}" for framed in one.tables)
        facts = (one.model, str(one.number), one.state, one.owner, one.expires or "never", at)
        table.add_row(*map(literal, facts))
    out.print(table)
