"""The entry point of the command line: all commands, and the output of errors.

Exit status: 0 done; 1 a problem was found; 2 wrong use; 3 the same plan is already running.
"""

from __future__ import annotations

import functools
import gc
import sys
from io import TextIOWrapper
from typing import Any

import typer
from typer.rich_utils import rich_format_error

from mirrorlake.cli import app, history, maintenance, operate, partition, rows, zone
from mirrorlake.cli.printing import print_json, warn
from mirrorlake.errors import (
    AlreadyRunningError,
    InvalidNameError,
    MirrorlakeError,
    SetupError,
    UsageError,
    first_line,
)
from mirrorlake.notices import show_notices
from mirrorlake.registry import registered
from mirrorlake.storage.paths import PROGRAM

# The order in --help; other modules follow by name, and groups of commands come last.
ORDER = (
    *("project", "runs", "zone", "monitor", "serve", "operate", "history", "maintenance"),
    *("partition", "rows", "sources"),
)

# Typer's usage error; Typer exports only this subclass of it.
_TyperUsageError: type[typer.BadParameter] = typer.BadParameter.__bases__[0]


@functools.cache
def command() -> Any:
    """Return all commands, those of satellites included, as one Click command."""
    core = (zone, operate, history, maintenance, partition, rows)
    modules = {module.__name__.rpartition(".")[2]: module for module in core}
    modules |= registered("mirrorlake.commands")  # importing a module registers its commands
    places = {name: place for place, name in enumerate(ORDER)}
    names = sorted(modules, key=lambda name: (places.get(name, len(places)), name))
    order = [modules[name].__name__ for name in names]
    app.registered_commands.sort(key=lambda known: order.index(known.callback.__module__))
    app.registered_groups.sort(key=lambda known: str(known.name))
    return typer.main.get_command(app)


def main() -> None:
    """Run a command; print an error as one line, or as a document with `--json`, and exit."""
    show_notices()
    if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors == "strict":
        # The encoding of a pipe on Windows, cp1252, lacks characters such as ✓.
        sys.stdout.reconfigure(errors="replace")
    try:
        sys.exit(command()(prog_name=PROGRAM, standalone_mode=False) or 0)
    except _TyperUsageError as error:
        rich_format_error(error)
        hint = f"{error.ctx.command_path} --help" if error.ctx else ""
        _print_error(UsageError(error.format_message(), hint=hint))
        sys.exit(2)
    except typer.Abort:
        sys.exit(1)
    except Exception as error:
        found = _expected(error)
        warn(f"mirrorlake: {found}")
        _print_error(found)
        if isinstance(found, AlreadyRunningError):
            sys.exit(3)
        sys.exit(2 if isinstance(found, (UsageError, InvalidNameError)) else 1)
    finally:
        # At exit, Python's garbage collector would search all imported modules for half a second.
        gc.freeze()


def _expected(error: Exception) -> MirrorlakeError:
    """Return an error of the library, a disk or a store as the error to print; raise any other."""
    if isinstance(error, MirrorlakeError):
        return error
    # Imported for errors only, because it takes longer than `--help`.
    from obstore.exceptions import BaseError

    from mirrorlake.storage.files import STORAGE_HINT

    if not isinstance(error, (OSError, BaseError)):
        raise error
    text = f"A file or a store can't be read or written: {first_line(error)}."
    return SetupError(text, hint=STORAGE_HINT)


def _print_error(error: MirrorlakeError) -> None:
    """Print the document of an error, if `--json` was given."""
    if "--json" in sys.argv[1:]:
        place = {"file": error.file, "row": error.row, "column": error.column}
        print_json({"error": {"message": error.message, "hint": error.hint or None, **place}})


if __name__ == "__main__":
    main()
