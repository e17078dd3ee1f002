"""The command `serve`: the storage protocol over lakes, and the mirror beside it if asked for."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mirrorlake.cli import app, stop_on_signals
from mirrorlake.cli.options import Json, at_most_one
from mirrorlake.cli.printing import say
from mirrorlake.errors import UsageError

if TYPE_CHECKING:
    from mirrorlake_serve.server import Ready


@app.command()
def serve(
    root: Annotated[
        str | None, typer.Argument(metavar="[ROOT]", help="The lake: a path or a URI.")
    ] = None,
    port: Annotated[
        int, typer.Option(help="Of https; the next two are for blobs and http. 0: free ones.")
    ] = 8443,
    mirror: Annotated[bool, typer.Option("--mirror", help="Mirror ROOT beside it.")] = False,
    interval: Annotated[float, typer.Option(help="Seconds between busy cycles.", min=0.1)] = 5,
    widen: Annotated[
        bool, typer.Option("--widen", help="Accept wider types, and widen columns with --mirror.")
    ] = False,
    read_only: Annotated[bool, typer.Option("--read-only", help="Refuse every write.")] = False,
    workspace: Annotated[
        str | None, typer.Option(metavar="DIR", help="Serve the lakes in a folder, too.")
    ] = None,
    bind: Annotated[str, typer.Option(help="The address that https listens on.")] = "127.0.0.1",
    name: Annotated[
        list[str] | None, typer.Option(help="A further name of this machine; may be repeated.")
    ] = None,
    proxy: Annotated[
        bool, typer.Option("--proxy", help="For clients with OneLake's addresses in them.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Speak the storage protocol of OneLake, for any publisher of Open Mirroring."""
    from mirrorlake.storage.files import Storage
    from mirrorlake_serve.lakes import Mirrors, Workspace
    from mirrorlake_serve.server import Settings, export_lines, run_server

    if root is None and workspace is None:
        raise UsageError("There is nothing to serve.", hint="name a ROOT, or --workspace DIR.")
    at_most_one(mirror=mirror, read_only=read_only)
    for found in (root, workspace):
        if found is not None and "://" not in found:
            Path(found).mkdir(parents=True, exist_ok=True)
    if not 0 <= port <= 65533:
        raise UsageError(f"Port {port} is out of range.", hint="three ports are needed, or 0.")
    stop = stop_on_signals()
    mirrors = Mirrors(interval, allowed=mirror, widen=widen)
    served = Workspace(root, workspace, read_only=read_only, widen=widen)

    def ready(where: Ready) -> None:
        if as_json:  # on one line, at once
            sys.stdout.write(json.dumps(where.document()) + "\n")
            sys.stdout.flush()
        else:
            say(export_lines(where))
        if mirror and root is not None:
            mirrors.start(Storage(root))

    try:
        run_server(served, mirrors, Settings(port, bind, tuple(name or ()), proxy), stop, ready)
    finally:
        mirrors.close()
