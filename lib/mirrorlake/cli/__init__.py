"""The command line, a module for each kind of work: thin calls into the library.

Here is what they share: the app, and how they open lakes and tables.

One rule: what loses no row and no history acts, and `--dry-run` only says what would be done; what
deletes, takes back or passes over only says it, and `--apply` does it.
"""

from __future__ import annotations

import os
import signal
from threading import Event
from typing import TYPE_CHECKING

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


def verbs(noun: str, text: str) -> typer.Typer:
    """A group of commands: `NOUN VERB ROOT …`, each verb with its own help and options."""
    group = typer.Typer(no_args_is_help=True, help=text)
    app.add_typer(group, name=noun)
    return group


def open_lake(root: str) -> Lake:
    """The lake at a root that must be there; a URI is not checked."""
    from mirrorlake.lake import Lake

    if not may_be_lake(root):
        raise UsageError(f"There is no lake at {root}.", hint="publish something there first.")
    return Lake(root)


def open_table(root: str, table: str) -> Table:
    """Open a Delta table that exists.

    Raises:
        TableNotFoundError: there is no such table; the hint has the nearest names.
    """
    return open_lake(root).table(table)


def stop_on_signals() -> Event:
    """An event that SIGTERM and Ctrl-C set, for what ends after the work at hand."""
    stop = Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: stop.set())
    return stop


def warm_up() -> None:
    """Makes what later starts of a local Spark are quicker with, if it is missing."""
    if not {"SPARK_MASTER", "SPARK_REMOTE"} & set(os.environ):
        from mirrorlake.spark.java import ensure_archive
        from mirrorlake.spark.session import launch_environment

        ensure_archive(*launch_environment())
