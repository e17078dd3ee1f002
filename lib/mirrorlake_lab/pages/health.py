"""How a lake is, for the monitor page: read from listings, kept states and logs, without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from mirrorlake.delta.snapshot import delta_tables, read_snapshot
from mirrorlake.errors import MirrorlakeError, with_place
from mirrorlake.mirror.ledger import read_ledger
from mirrorlake.mirror.properties import VIEW_PROPERTY
from mirrorlake.mirror.state import STOPPED
from mirrorlake.mirror.status import TableStatus
from mirrorlake.names import TableName
from mirrorlake.results import Result, TextTable
from mirrorlake.source_status import SourceReport, source_reports
from mirrorlake.storage.files import Storage

if TYPE_CHECKING:
    from mirrorlake.lake import Lake
    from mirrorlake.views.definition import ViewStatus

BATCHES = 20
_AT_ONCE = 8
GOOD, WARN, BAD, IDLE = "good", "warn", "bad", "idle"


@dataclass(frozen=True)
class TableHealth:
    """One table that a publisher feeds.

    Attributes:
        status: as `Lake.status` has it.
        lags: seconds from publication to commit of the newest files, the newest last.
        applied: when the newest of them was applied, ISO-8601 UTC; None if nobody knows.
    """

    status: TableStatus
    lags: tuple[float, ...] = ()
    applied: str | None = None

    @property
    def level(self) -> str:
        """`bad` if it stopped at an error, `warn` if a file is missing, `idle` if it is paused."""
        if self.status.error:
            return BAD
        if self.status.waiting_for is not None:
            return WARN
        return IDLE if self.status.state == STOPPED else GOOD

    @property
    def problem(self) -> str:
        """What is wrong, with the place; empty if nothing is."""
        if error := self.status.error:
            return with_place(str(error["message"]).partition(" Hint: ")[0], error)
        if self.status.waiting_for is not None:
            return f"File {self.status.waiting_for} is missing; those behind it wait."
        return ""

    @property
    def fix(self) -> str:
        """What to do about it; empty if there is nothing to do."""
        name, missing = self.status.full_name, self.status.waiting_for
        if self.status.error:
            return str(self.status.error["message"]).partition(" Hint: ")[2]
        if missing is not None:
            return f"publish file {missing}, or pass over it: skip ROOT {name} {missing} --apply"
        return f"resume ROOT {name}" if self.level == IDLE else ""


@dataclass(frozen=True)
class LakeHealth(Result):
    """How a lake is at a moment.

    Attributes:
        root: the lake.
        at: when it was looked at, UTC.
        tables: those that publishers feed, first what stopped.
        views: the views; empty where the extra `spark` is not installed.
        sources: databases and streams that publish into it.
    """

    root: str
    at: datetime
    tables: tuple[TableHealth, ...]
    views: tuple[ViewStatus, ...] = ()
    sources: tuple[SourceReport, ...] = ()

    @property
    def problems(self) -> int:
        """How many tables stopped or wait for a file, and how many sources stopped."""
        stopped = sum(one.failed for one in self.sources)
        return stopped + sum(bool(one.problem) for one in self.tables)

    def shown(self) -> TextTable:
        """One row a table."""
        columns = ("table", "state", "rows", "last file", "waiting", "lag", "problem", "fix")
        rows = tuple(
            (s.full_name, s.state, s.rows, s.last_file, s.backlog_files,
             f"{s.lag_seconds:.0f} s", one.problem, one.fix)
            for one in self.tables for s in [one.status]
        )  # fmt: skip
        return TextTable(columns, rows)

    def as_dict(self) -> dict[str, Any]:
        """The document that `monitor --json` prints: what `status` has, and the lags."""
        return {
            "at": self.at.isoformat(timespec="seconds"),
            "tables": [
                {
                    "table": one.status.full_name,
                    "state": one.status.state,
                    "rows": one.status.rows,
                    "last_file": one.status.last_file,
                    "backlog_files": one.status.backlog_files,
                    "waiting_for": one.status.waiting_for,
                    "lag_seconds": one.status.lag_seconds,
                    "lags": list(one.lags),
                    "applied": one.applied,
                    "problem": one.problem or None,
                    "fix": one.fix or None,
                }
                for one in self.tables
            ],
        }

    def __repr__(self) -> str:
        return f"{len(self.tables)} tables, {self.problems} problems"


def read_health(lake: Lake) -> LakeHealth:
    """Looks at a lake's tables, views and sources; changes nothing.

    Args:
        lake: the lake.

    Returns:
        The tables in the order of their trouble, then of their names.
    """
    storage = lake.storage
    report = lake.status()
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        found = list(pool.map(lambda line: _look_at(storage, line), report.tables))
    order = (BAD, WARN, IDLE, GOOD)
    found.sort(key=lambda one: (order.index(one.level), one.status.full_name))
    return LakeHealth(
        storage.root,
        datetime.now(timezone.utc),
        tuple(found),
        read_views(storage, delta_tables(storage, but=report.fed)),
        tuple(source_reports(storage)),
    )


def _look_at(storage: Storage, line: TableStatus) -> TableHealth:
    table = line.table
    if not line.last_file or table is None:
        return TableHealth(line)
    try:
        ledger = read_ledger(storage, table, last=BATCHES)
    except (MirrorlakeError, OSError, ValueError):  # the status has said what there is to say
        return TableHealth(line)
    done = [entry for entry in ledger.entries if entry.lag_seconds is not None][-BATCHES:]
    lags = tuple(entry.lag_seconds or 0.0 for entry in done)
    return TableHealth(line, lags, done[-1].applied if done else None)


def read_views(storage: Storage, tables: Sequence[TableName]) -> tuple[ViewStatus, ...]:
    """The views among some tables; what they need is imported only where there is one."""
    marked = [
        name
        for name in tables
        if (snapshot := read_snapshot(storage, name.table_path)) is not None
        and VIEW_PROPERTY in snapshot.properties
    ]
    if not marked:
        return ()
    try:
        from mirrorlake.views.definition import list_definitions, view_status
    except ImportError:  # the extra `spark` is not there
        return ()
    return tuple(view_status(storage, one) for one in list_definitions(storage, marked))
