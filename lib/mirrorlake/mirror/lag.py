"""Plot the lag and the backlog of tables over time, from their ledgers."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from itertools import accumulate
from typing import TYPE_CHECKING, Literal

from mirrorlake.errors import UsageError
from mirrorlake.mirror.ledger import Ledger, read_ledger
from mirrorlake.names import TableName
from mirrorlake.results import counted
from mirrorlake.storage.files import Storage

if TYPE_CHECKING:
    from mirrorlake.show.chart import Chart

What = Literal["lag", "backlog"]
_MOST_TABLES = 6
_MOST_BATCHES = 200


def plot_replication(
    storage: Storage, tables: Sequence[TableName], what: What = "lag"
) -> Chart | None:
    """Plot the newest batches of the first six tables.

    Args:
        storage: the lake's files.
        tables: the tables, in the order of their importance.
        what: `lag`, the seconds from a file's publication to its commit; or `backlog`, the number
            of published files that were not yet applied.

    Returns:
        One line per table; None if no file was applied. The title has the number of tables that
        are not shown.

    Raises:
        UsageError: `what` is neither.
    """
    if what not in ("lag", "backlog"):
        raise UsageError(f"There is no plot {what!r}.", hint="choose lag or backlog.")
    ledgers = [read_ledger(storage, name, last=_MOST_BATCHES) for name in tables[:_MOST_TABLES]]
    more = len(tables) - len(ledgers)
    note = f" ({more:,} of {counted(len(tables), 'table')} not shown)" if more else ""
    return _plot_lag(ledgers, note) if what == "lag" else _plot_backlog(ledgers, note)


def _plot_lag(ledgers: Sequence[Ledger], note: str) -> Chart | None:
    from mirrorlake.show.plots import plot_times

    found = {
        ledger.table: sorted(
            (datetime.fromisoformat(entry.applied), entry.lag_seconds)
            for entry in ledger.entries
            if entry.applied and entry.lag_seconds is not None
        )
        for ledger in ledgers
    }
    return plot_times(found, title=f"Lag: from publication to commit{note}", label="seconds")


def _plot_backlog(ledgers: Sequence[Ledger], note: str) -> Chart | None:
    from mirrorlake.show.plots import plot_times

    found = {}
    for ledger in ledgers:
        steps = sorted(
            (datetime.fromisoformat(timestamp), change)
            for entry in ledger.entries
            if entry.published and entry.applied
            for timestamp, change in ((entry.published, 1), (entry.applied, -1))
        )
        counts = accumulate(change for _, change in steps)
        found[ledger.table] = [(at, max(0, n)) for (at, _), n in zip(steps, counts, strict=True)]
    return plot_times(found, title=f"Backlog: files that wait{note}", label="files", steps=True)
