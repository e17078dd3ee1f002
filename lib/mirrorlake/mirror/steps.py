"""The steps of a table's cycle, in order; whoever listens hears of each when it is done.

Progress displays listen, and so do the tests that kill the mirror between any two steps.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from mirrorlake.names import TableName


class Step(Enum):
    """What has just been done for a table."""

    LISTED = "listed"
    IDENTIFIED = "identified"
    CHECKED = "checked"
    PLANNED = "planned"
    QUARANTINED = "quarantined"
    CREATED = "created"
    COMMITTED = "committed"
    MOVED = "moved"
    COMPACTED = "compacted"


StepListener = Callable[[TableName, Step], None]


def noop(*_heard: object) -> None:
    """A listener that does not care, of these steps and of others."""
