"""Backfills: a run of a plan for each day of a range, in order, that day as its `date`."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from typing import Any

from mirrorlake.errors import UsageError
from mirrorlake.runs.results import RunSummary

RunDay = Callable[[datetime.date, dict[str, Any]], RunSummary]


def days_of(text: str) -> list[datetime.date]:
    """The days that `--for` names: `date=2026-01-01..2026-01-31`, or one day.

    Raises:
        UsageError: it is no such range.
    """
    name, _, span = text.partition("=")
    first, dots, last = span.partition("..")
    try:
        if name.strip() != "date":
            raise ValueError(name)
        begin = datetime.date.fromisoformat(first.strip())
        end = datetime.date.fromisoformat(last.strip()) if dots else begin
    except ValueError as error:
        raise UsageError(
            f"--for {text!r} is no range of days.", hint="write date=2026-01-01..2026-01-31."
        ) from error
    if end < begin:
        raise UsageError(f"--for {text!r} ends before it begins.", hint="swap the two days.")
    return [begin + datetime.timedelta(days=n) for n in range((end - begin).days + 1)]


def run_days(days: list[datetime.date], run_day: RunDay) -> Iterator[RunSummary]:
    """Runs each day; after one that is not done, no other begins.

    Args:
        days: in order.
        run_day: runs one day; is also given what its record keeps of the days to come.
    """
    for day in days:
        summary = run_day(day, {"until": days[-1].isoformat()})
        yield summary
        if summary.status != "done":
            return


def days_after(document: dict[str, Any]) -> list[datetime.date]:
    """The days of a backfill that come after a run of it; none if it was a run of its own."""
    until = (document.get("backfill") or {}).get("until")
    if until is None:
        return []
    day = datetime.date.fromisoformat(document["day"])
    last = datetime.date.fromisoformat(until)
    return [day + datetime.timedelta(days=n) for n in range(1, (last - day).days + 1)]
