"""The command `monitor`: the status of a lake as a page, a file or a table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mirrorlake.cli import app, open_lake, stop_on_signals
from mirrorlake.cli.options import Interval, Json, Port, Root, at_most_one
from mirrorlake.cli.printing import say, status_parts, tell, warn
from mirrorlake.errors import UsageError


@app.command()
def monitor(
    root: Root,
    page: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write the page to a file.")
    ] = None,
    serve: Annotated[bool, typer.Option("--serve", help="Serve the page until Ctrl-C.")] = False,
    port: Port = 0,
    watch: Annotated[
        bool, typer.Option("--watch", help="With --html: write the page again at each interval.")
    ] = False,
    interval: Interval = 10,
    as_json: Json = False,
) -> None:
    """Show the status of the mirrored tables: backlog, gaps, lag, errors and fixes; no Spark."""
    from mirrorlake_lab.pages.html import PageServer
    from mirrorlake_lab.pages.html import page as whole_page
    from mirrorlake_lab.pages.monitor import Monitor, render_health

    at_most_one(html=page, serve=serve)
    if watch and page is None:
        raise UsageError("--watch needs a page to write.", hint="add --html FILE.")
    lake = open_lake(root)
    every = max(1.0, interval)
    shown = Monitor(lake, every=every)
    if serve:
        stop = stop_on_signals()

        def make() -> str:
            return whole_page("Monitor", render_health(shown.refresh()), every=every)

        server = PageServer(make, port)
        say(server.address)
        server.run(stop)
        return
    if page is not None:
        shown.to_html(page, every=every if watch else None)
        ended = stop_on_signals() if watch else None
        while ended is not None and not ended.wait(interval):
            shown.refresh()
            shown.to_html(page, every=every)
    parts = status_parts(shown.health.status) if page is None else [shown.health]
    for text in shown.health.status.table_problems if as_json else ():
        warn(f"mirrorlake: {text}")
    tell(as_json, shown.health.as_dict(), *parts, failed=shown.health.level != "good")
