"""The command `docs`: builds the site, and serves it to this machine if asked for."""

from __future__ import annotations

from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Annotated

import typer

from mirrorlake.commands import app, stop_on_signals
from mirrorlake.commands.options import Json
from mirrorlake.commands.printing import print_json, progress, say
from mirrorlake.errors import SetupError, UsageError
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
    if as_json:
        print_json({"site": str(first), "pages": site.pages})
    else:
        say(f"✓ {site.pages} pages: {first}")
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
    stop = stop_on_signals()
    handler = partial(_Quiet, directory=str(folder))
    try:
        server = ThreadingHTTPServer(("127.0.0.1", port), handler)
    except OSError as error:
        raise SetupError(f"Port {port} can't be used.", hint="name another --port.") from error
    say(f"http://127.0.0.1:{server.server_address[1]}/")
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    stop.wait()
    server.shutdown()
    server.server_close()
    thread.join()


class _Quiet(SimpleHTTPRequestHandler):
    """A line for each request would hide the address."""

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""
