"""What all commands share: the app, and how they open lakes and tables.

One rule: what loses no row and no history acts, and `--dry-run` only says what would be done; what
deletes, takes back or passes over only says it, and `--apply` does it.
"""

from __future__ import annotations

import signal
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

import typer

from mirrorlake.errors import TableNotFoundError, UsageError
from mirrorlake.lake import Lake
from mirrorlake.names import TableName

if TYPE_CHECKING:
    from mirrorlake.lake_table import LakeTable

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
    if "://" not in root and not Path(root).is_dir():
        raise UsageError(f"There is no lake at {root}.", hint="publish something there first.")
    return Lake(root)


def find_table(lake: Lake, text: str) -> TableName:
    """A table of the lake by the name a person typed.

    Raises:
        TableNotFoundError: there is none of that name.
    """
    wanted = TableName.parse(text)
    found = lake.find(wanted)
    if found is None:
        known = ", ".join(map(str, lake.tables()[:10])) or "no table at all"
        raise TableNotFoundError(
            f"There is no table {wanted} in the lake.", hint=f"it has {known}."
        )
    return found


def open_table(root: str, table: str) -> LakeTable:
    """A Delta table that must be there.

    Raises:
        TableNotFoundError: there is none of that name.
    """
    lake = open_lake(root)
    return lake.table(find_table(lake, table))


def split_names(text: str) -> list[str]:
    """Names that were given with commas between them."""
    return [name.strip() for name in text.split(",") if name.strip()]


def stop_on_signals() -> Event:
    """An event that SIGTERM and Ctrl-C set, for what ends after the work at hand."""
    stop = Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: stop.set())
    return stop
