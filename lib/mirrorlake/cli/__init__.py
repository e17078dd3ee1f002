"""The command line: the app, and helpers that the modules of commands share.

Each module has the commands of one kind of work, and calls the library. A command that loses no
row and no history acts at once, and `--dry-run` previews it. A command that deletes, restores or
skips only previews, and `--apply` does it.
"""

from __future__ import annotations

import os
import signal
from importlib.metadata import version
from threading import Event
from typing import TYPE_CHECKING, Annotated

import typer

from mirrorlake.errors import UsageError
from mirrorlake.storage.paths import may_be_lake

if TYPE_CHECKING:
    from mirrorlake.lake import Lake
    from mirrorlake.table import Table

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="An open lakehouse in notebooks.",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"mirrorlake {version('mirrorlake')}")
        raise typer.Exit


@app.callback()
def _options(
    _version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_print_version, help="Show the version."),
    ] = False,
) -> None:
    pass


def verbs(noun: str, text: str) -> typer.Typer:
    """Create a group of commands, `NOUN VERB ROOT …`."""
    group = typer.Typer(no_args_is_help=True, help=text)
    app.add_typer(group, name=noun)
    return group


def open_lake(root: str) -> Lake:
    """Open a lake whose folder exists; a URI is not checked.

    Raises:
        UsageError: the folder does not exist.
    """
    from mirrorlake.lake import Lake

    if not may_be_lake(root):
        raise UsageError(
            f"{root} is not a lake: the folder does not exist.",
            hint="check ROOT, or publish a file there first.",
        )
    return Lake(root)


def open_table(root: str, table: str) -> Table:
    """Open a Delta table that exists.

    Raises:
        TableNotFoundError: there is no such table; the hint has the nearest names.
    """
    return open_lake(root).table(table)


def stop_on_signals() -> Event:
    """Return an event that SIGTERM and Ctrl-C set, to stop after the current work."""
    stop = Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: stop.set())
    return stop


def warm_up() -> None:
    """Create the class archive, with which a local Spark starts faster, if it is missing."""
    if not {"SPARK_MASTER", "SPARK_REMOTE"} & set(os.environ):
        from mirrorlake.spark.java import ensure_archive
        from mirrorlake.spark.session import launch_environment

        ensure_archive(*launch_environment())
