"""Arguments and options that several commands share, as types of their parameters."""

from __future__ import annotations

from typing import Annotated

import typer

from mirrorlake.errors import UsageError

Root = Annotated[str, typer.Argument(metavar="ROOT", help="The lake: a path or a URI.")]
Table = Annotated[str, typer.Argument(metavar="TABLE", help="A table or schema.table.")]
Only = Annotated[str | None, typer.Option("--table", help="Only this table.")]
AnyTable = Annotated[str | None, typer.Argument(help="Only this table.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be done; change nothing.")]
Apply = Annotated[bool, typer.Option("--apply", help="Do it; otherwise it is a dry run.")]
Watch = Annotated[bool, typer.Option("--watch/--once", help="Run until SIGTERM or Ctrl-C.")]
Interval = Annotated[
    float, typer.Option(metavar="<s>", help="Seconds between two rounds.", min=0.1)
]
Port = Annotated[int, typer.Option(help="With --serve; 0: a free one.", min=0, max=65535)]
Limit = Annotated[int, typer.Option(help="Most rows to show; --json prints all.", min=0)]
Keys = Annotated[str, typer.Option(help="Key columns, if the table declares none.")]
RowGroups = Annotated[int, typer.Option(help="Most rows of a row group; 0: the default.", min=0)]
VOrder = Annotated[bool, typer.Option("--vorder", help="Then write files in V-Order.")]


def at_most_one(**given: object) -> None:
    """Check that at most one of these options is given.

    Raises:
        UsageError: several are given.
    """
    names = [f"--{name.replace('_', '-')}" for name, value in given.items() if value]
    if len(names) > 1:
        raise UsageError(f"{' and '.join(names)} exclude each other.", hint="choose one.")
