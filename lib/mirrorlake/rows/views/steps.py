"""The steps of a refresh; whoever listens hears of each when it is done, also to kill it there."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum


class ViewStep(Enum):
    """What has just been done."""

    CREATED = "created"
    PINNED = "pinned"
    DECIDED = "decided"
    READ = "read"
    COMMITTED = "committed"
    MEASURED = "measured"


ViewListener = Callable[[ViewStep], None]
