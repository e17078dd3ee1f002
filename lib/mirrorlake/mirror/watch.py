"""Cycle after cycle, until somebody asks to stop; the quieter the zone, the longer the pauses."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event

from mirrorlake.mirror.engine import Engine
from mirrorlake.mirror.state import Report
from mirrorlake.names import TableName

_SLOWER = 1.5  # how much longer each pause gets while nothing happens


def watch(
    engine: Engine,
    stop: Event,
    *,
    only: TableName | None = None,
    interval: float = 5,
    longest: float = 60,
    on_report: Callable[[Report], None] = lambda _report: None,
) -> Report:
    """Runs cycles until `stop` is set; a running commit is always ended.

    Args:
        engine: the mirror, made with the same `stop`, so that a cycle of many tables ends early.
        stop: set by a signal's handler or another thread.
        only: a single table; by default all of the zone.
        interval: seconds from one cycle to the next while there is something to do.
        longest: seconds that a pause may grow to while there is nothing to do.
        on_report: hears of every cycle.

    Returns:
        The last cycle's report.
    """
    pause = interval
    before: Report | None = None
    try:
        while True:
            report = engine.run_cycle(only)
            on_report(report)
            busy = before is None or report.progress != before.progress
            pause = interval if busy else min(pause * _SLOWER, max(interval, longest))
            before = report
            if stop.wait(pause):
                return report
    finally:
        engine.close()
