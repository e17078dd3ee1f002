"""The command `docs`: builds the site, and serves it to this machine if asked for."""

from __future__ import annotations

from functools import partial
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from typing import Annotated

import typer

from mirrorlake.commands import app, stop_on_signals
from mirrorlake.commands.options import Json
from mirrorlake.commands.printing import progress, say, tell
from mirrorlake.errors import UsageError
from mirrorlake.paths import PROJECT


@app.command()
def docs(
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Where it is built; else site/.")
    ] = None,
    serve: Annotated[bool, typer.Option("--serve", help="Serve it until Ctrl-C.")] = False,
    port: Annotated[int, typer.Option(help="With --serve; 0: a free one.", min=0, max=65535)] = 0,
    as_json: Json = False,
) -> None:
    """Build the documentation's site: lessons, tools, how-to pages, reference; no network."""
    from mirrorlake.site.build import build_site

    if serve and as_json:
        raise UsageError("--serve and --json exclude each other.", hint="choose one.")
    with progress("building the site …"):
        site = build_site((out or PROJECT / "site").absolute())
    first = site.folder / "index.html"
    document = {"site": str(first), "pages": site.pages}
    tell(as_json, document, f"✓ {site.pages} pages: {first}")
    if serve:
        serve_folder(site.folder, port)


def serve_folder(folder: Path, port: int) -> None:
    """Serves a folder to this machine alone, until SIGTERM or Ctrl-C.

    Args:
        folder: what is served.
        port: 0 takes a free one.

    Raises:
        SetupError: the port is taken.
    """
    from mirrorlake.explore.serving import LocalServer

    stop = stop_on_signals()
    server = LocalServer(partial(_Quiet, directory=str(folder)), port)
    say(server.address)
    server.run(stop)


class _Quiet(SimpleHTTPRequestHandler):
    """A line for each request would hide the address."""

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""
