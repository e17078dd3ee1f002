"""The command line's entry: every group of commands, and errors of ours as one line.

Exit status: 0 done; 1 a problem found; 2 wrong use.
"""

from __future__ import annotations

import sys

from mirrorlake.commands import (
    feed,
    frames,
    history,
    layout,
    lint,
    maintenance,
    operate,
    partition,
    project,
    query,
    rows,
    views,
    zone,
)
from mirrorlake.commands.base import app, err
from mirrorlake.errors import InvalidNameError, MirrorlakeError, UsageError
from mirrorlake.notices import show_notices

# Importing a module registers its commands; --help shows them in this order.
COMMANDS = (
    project,
    zone,
    lint,
    operate,
    query,
    history,
    frames,
    maintenance,
    feed,
    layout,
    partition,
    rows,
    views,
)


def main() -> None:
    """Runs a command; an error of ours becomes one line and an exit status."""
    show_notices()
    order = [module.__name__ for module in COMMANDS]
    app.registered_commands.sort(key=lambda command: order.index(command.callback.__module__))
    try:
        app(prog_name="./mirrorlake")
    except (UsageError, InvalidNameError) as error:
        _say_error(error)
        sys.exit(2)
    except MirrorlakeError as error:
        _say_error(error)
        sys.exit(1)


def _say_error(error: MirrorlakeError) -> None:
    err.print(f"mirrorlake: {error}", markup=False, highlight=False)


if __name__ == "__main__":
    main()
