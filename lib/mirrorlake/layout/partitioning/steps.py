"""The steps of one operation, in order; whoever listens hears of each when it is done.

Progress displays listen, and so do the tests that kill an operation between any two steps.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from mirrorlake.names import TableName


class Step(Enum):
    """What has just been done for a table."""

    RECOVERED = "settled"
    CHOSEN = "chosen"
    COUNTED = "counted"
    WRITTEN = "written"
    PROVED = "proved"
    RECORDED = "recorded"
    COMMITTED = "committed"
    DONE = "done"


StepListener = Callable[[TableName, Step], None]
