"""The command `serve`: serve lakes with the storage protocol, optionally with a mirror."""

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
        int,
        typer.Option(help="HTTPS port; the next two are for blobs and HTTP. 0: use free ports."),
    ] = 8443,
    mirror: Annotated[
        bool, typer.Option("--mirror", help="Mirror ROOT in the same process.")
    ] = False,
    interval: Annotated[float, typer.Option(help="Seconds between busy cycles.", min=0.1)] = 5,
    widen: Annotated[
        bool,
        typer.Option(
            "--widen", help="Accept wider column types; with --mirror also widen the columns."
        ),
    ] = False,
    read_only: Annotated[bool, typer.Option("--read-only", help="Refuse every write.")] = False,
    workspace: Annotated[
        str | None, typer.Option(metavar="DIR", help="Also serve each lake in this folder.")
    ] = None,
    bind: Annotated[str, typer.Option(help="Address on which HTTPS listens.")] = "127.0.0.1",
    name: Annotated[
        list[str] | None, typer.Option(help="Another host name of this machine; may be repeated.")
    ] = None,
    proxy: Annotated[
        bool,
        typer.Option(
            "--proxy", help="Start a proxy for clients with hard-coded OneLake addresses."
        ),
    ] = False,
    proxy_port: Annotated[
        int,
        typer.Option(help="Start the proxy on this port, not on a free one.", min=0, max=65535),
    ] = 0,
    as_json: Json = False,
) -> None:
    """Serve lakes with OneLake's storage protocol, for any publisher of Open Mirroring."""
    from mirrorlake.storage.files import Storage
    from mirrorlake_serve.lakes import Mirrors, Workspace
    from mirrorlake_serve.server import Settings, export_lines, run_server

    if root is None and workspace is None:
        raise UsageError("No lake is named.", hint="give ROOT or --workspace DIR.")
    at_most_one(mirror=mirror, read_only=read_only)
    for found in (root, workspace):
        if found is not None and "://" not in found:
            Path(found).mkdir(parents=True, exist_ok=True)
    if not 0 <= port <= 65533:
        raise UsageError(
            f"Port {port} is out of range.", hint="choose 0, or a port from 1 to 65533."
        )
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

    settings = Settings(port, bind, tuple(name or ()), proxy or proxy_port > 0, proxy_port)
    try:
        run_server(served, mirrors, settings, stop, ready)
    finally:
        mirrors.close()
