"""All views of a lake brought up to date, one after the other: what was stale, and what it took.

A view that reads another one comes after it. One that fails stops no other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mirrorlake.delta.actions import live_files
from mirrorlake.delta.snapshot import read_snapshot
from mirrorlake.errors import QueryError
from mirrorlake.names import TableName
from mirrorlake.results import Result, TextTable
from mirrorlake.spark.sql import spark_message
from mirrorlake.storage.files import Storage
from mirrorlake.views.definition import Definition, ViewStatus, view_status
from mirrorlake.views.refresh import Refresh

if TYPE_CHECKING:
    from mirrorlake.show.chart import Chart


@dataclass(frozen=True)
class ViewRun:
    """One view's refresh.

    Attributes:
        status: how it stood before.
        refresh: what was done; None if it failed.
        rows_full: the rows that a full refresh reads: those of its sources, as their logs count
            them; None where one does not tell.
        error: why it failed; empty if it did not.
    """

    status: ViewStatus
    refresh: Refresh | None
    rows_full: int | None
    error: str = ""

    @property
    def rows_read(self) -> int | None:
        """The source rows that the refresh read; None where they were not counted."""
        if self.refresh is None or not self.refresh.applied:
            return None
        return self.rows_full if self.refresh.mode == "full" else self.refresh.changed

    @property
    def sources(self) -> str:
        """Each source with the version shown before and its newest."""
        return ", ".join(
            f"{one.table} {'?' if one.shown is None else one.shown} → {one.newest}"
            if one.shown != one.newest
            else f"{one.table} {one.newest}"
            for one in self.status.sources
        )


@dataclass(frozen=True)
class ViewRuns(Result):
    """The refreshes of a lake's views, in the order in which they ran."""

    runs: tuple[ViewRun, ...]

    @property
    def failed(self) -> tuple[ViewRun, ...]:
        """Those that failed."""
        return tuple(run for run in self.runs if run.error)

    @property
    def differences(self) -> int:
        """Rows that checks found missing or superfluous."""
        return sum(run.refresh.differences or 0 for run in self.runs if run.refresh)

    def rows_read(self) -> dict[str, float]:
        """Return the source rows that each refresh read, and those that a full one reads."""
        found: dict[str, float] = {}
        for run in self.runs:
            if run.rows_read is not None and run.rows_full is not None:
                found[f"{run.status.view}: read"] = run.rows_read
                found[f"{run.status.view}: a full refresh reads"] = run.rows_full
        return found

    def plot(self) -> Chart:
        """Draw the source rows that each refresh read, beside those that a full one reads."""
        from mirrorlake.show.plots import plot_bars

        return plot_bars(self.rows_read(), title="Source rows read", label="rows")

    def stale(self) -> TextTable:
        """How the views stood before: one row each."""
        rows = []
        for run in self.runs:
            status = run.status
            age = "" if status.lag_seconds is None else f"{status.lag_seconds:,.1f} s"
            rows.append((status.view, status.state, run.sources, age, status.reason))
        columns = ("view", "state", "sources: shown → newest", "behind", "reason")
        return TextTable(columns, tuple(rows))

    def shown(self) -> TextTable:
        """What was done: one row a view."""
        columns = ("view", "refresh", "why", "rows read", "rows in sources", "rows changed",
                   "took", "differences")  # fmt: skip
        return TextTable(columns, tuple(map(_line, self.runs)))

    def check(self) -> None:
        """Ends with an error where a view failed, or is not what its query gives.

        Raises:
            QueryError: with the first one's message.
        """
        if self.failed:
            first = self.failed[0]
            raise QueryError(f"{len(self.failed)} views failed: {first.status.view}: {first.error}")
        if self.differences:
            raise QueryError(
                f"{self.differences} rows of the views differ from their queries.",
                hint="refresh the view with how: full.",
            )

    def __repr__(self) -> str:
        if not self.runs:
            return "the lake has no views"
        return f"{len(self.runs)} views, {len(self.failed)} failed"


def refresh_all(
    storage: Storage, views: Sequence[Definition], refresh: Callable[[TableName], Refresh]
) -> ViewRuns:
    """Refreshes views, those first that others of them read; one that fails stops no other."""
    runs = []
    for definition in in_order_of_sources(views):
        status, full = view_status(storage, definition), source_rows(storage, definition)
        try:
            done = refresh(definition.name)
        except Exception as error:
            runs.append(ViewRun(status, None, full, spark_message(error)))
        else:
            runs.append(ViewRun(status, done, full))
    return ViewRuns(tuple(runs))


def in_order_of_sources(views: Sequence[Definition]) -> list[Definition]:
    """Views, those first that others of them read; else by name."""
    left = {view.name: view for view in sorted(views, key=lambda view: str(view.name))}
    ordered: list[Definition] = []
    while left:
        free = [v for v in left.values() if not any(s in left for s in v.sources if s != v.name)]
        for view in free or list(left.values()):
            ordered.append(left.pop(view.name))
    return ordered


def source_rows(storage: Storage, definition: Definition) -> int | None:
    """The rows of a view's sources by their logs; None where a file has no statistics."""
    total = 0
    for name in definition.sources:
        snapshot = read_snapshot(storage, name.table_path)
        if snapshot is None:
            return None
        files = live_files(storage, name.table_path, snapshot.version)
        if not all("numRecords" in (add.get("stats") or "") for add in files):
            return None
        total += sum(int(add["records"]) for add in files)
    return total


def _line(run: ViewRun) -> tuple[Any, ...]:
    name, done = run.status.view, run.refresh
    if done is None:
        return (name, "failed", run.error, None, run.rows_full, None, None, None)
    why = "" if done.reason is None else done.reason.why
    took = f"{done.seconds:.1f} s" if done.applied else "a dry run"
    written = ", ".join(f"{count:,} {kind}" for kind, count in done.rows.items() if count)
    return (name, done.mode, why, run.rows_read, run.rows_full, written, took, done.differences)
