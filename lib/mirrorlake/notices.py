"""Notices to the person at the terminal: what is being set up, and why it takes a moment.

They are log records of the logger `mirrorlake` and those below it. An application that has set up
logging gets them its own way; otherwise they are lines on stderr, so that stdout stays what was
asked for.
"""

from __future__ import annotations

import logging
import sys


class _Lines(logging.Handler):
    """Writes to whatever stderr is by then: notebooks put another in its place."""

    def emit(self, record: logging.LogRecord) -> None:
        sys.stderr.write(f"mirrorlake: {record.getMessage()}\n")


def show_notices() -> None:
    """Shows notices on stderr from now on, unless the application has handlers of its own."""
    logger = logging.getLogger("mirrorlake")
    if not logger.hasHandlers():
        logger.addHandler(_Lines())
        logger.setLevel(logging.INFO)
