"""Short words to the person at the terminal: what is being set up, and why it takes a moment."""

from __future__ import annotations

import sys


def say(text: str) -> None:
    """Writes a line to stderr, so that stdout stays what was asked for."""
    sys.stderr.write(f"mirrorlake: {text}\n")
