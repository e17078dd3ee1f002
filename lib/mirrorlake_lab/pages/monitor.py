"""The monitor page: a lake's health, refreshed in Lab, and as an HTML file.

The health is read from listings, kept states and logs, without Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

from mirrorlake.errors import MirrorlakeError, TableNotFoundError, UsageError, with_place
from mirrorlake.names import TableName
from mirrorlake.results import Result, TextTable, moment_text
from mirrorlake.source_status import SourceReport, source_reports
from mirrorlake.storage.paths import shown_path
from mirrorlake_lab.pages import html

if TYPE_CHECKING:
    import ipywidgets

    from mirrorlake.lake import Lake
    from mirrorlake.mirror.status import TableStatus
    from mirrorlake.views.definition import ViewStatus


BATCHES = 20
_AT_ONCE = 8
GOOD, WARN, BAD, IDLE = "good", "warn", "bad", "idle"
_PAUSED = "Stopped"  # the state of a paused table


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
        return IDLE if self.status.state == _PAUSED else GOOD

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
    report = lake.status()
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        found = list(pool.map(lambda line: _look_at(lake, line), report.tables))
    order = (BAD, WARN, IDLE, GOOD)
    found.sort(key=lambda one: (order.index(one.level), one.status.full_name))
    return LakeHealth(
        lake.storage.root,
        datetime.now(timezone.utc),
        tuple(found),
        read_views(lake, lake.tables(exclude=report.fed)),
        tuple(source_reports(lake.storage)),
    )


def _look_at(lake: Lake, line: TableStatus) -> TableHealth:
    """Return a table's status with the lags of its newest batches."""
    table = line.table
    if not line.last_file or table is None:
        return TableHealth(line)
    try:
        ledger = lake.operations.ledger(table, last=BATCHES)
    except (MirrorlakeError, OSError, ValueError):  # the status already has the error
        return TableHealth(line)
    done = [entry for entry in ledger.entries if entry.lag_seconds is not None][-BATCHES:]
    lags = tuple(entry.lag_seconds or 0.0 for entry in done)
    return TableHealth(line, lags, done[-1].applied if done else None)


def read_views(lake: Lake, tables: Sequence[TableName]) -> tuple[ViewStatus, ...]:
    """Return the state of the views among tables; none if the extra `spark` is not installed.

    Without views nothing of the extra is imported.
    """
    marked = [name for name in tables if _is_view(lake, name)]
    if not marked:
        return ()
    try:
        return tuple(lake.views.status(marked))
    except ImportError:
        return ()


def _is_view(lake: Lake, name: TableName) -> bool:
    try:
        return lake.inspect(name).is_view
    except TableNotFoundError:  # dropped since it was listed
        return False


_VIEWS = {"current": "good", "behind": "warn", "unknown": "bad"}


def render_health(health: LakeHealth) -> html.Html:
    """The page's content."""
    count = len(health.tables)
    said = f"{count:,} {'table' if count == 1 else 'tables'}, {health.problems:,} "
    said += "problem" if health.problems == 1 else "problems"
    parts = [
        html.Html(f"<h1>{html.dot('bad' if health.problems else 'good', said)}</h1>"),
        html.note(f"{shown_path(health.root)} at {health.at:%Y-%m-%d %H:%M:%S} UTC"),
        html.heading("Replication"),
        _tables(health.tables) if health.tables else html.note("No publisher feeds a table here."),
    ]
    if health.views:
        parts += [html.heading("Views"), html.table(view_table(health.views))]
    if health.sources:
        parts += [html.heading("Sources"), *(html.table(one.shown()) for one in health.sources)]
    return html.join(*parts)


def _tables(tables: tuple[TableHealth, ...]) -> html.Html:
    columns = (
        "table", "state", "rows applied", "last file", "applied (UTC)", "files waiting",
        "lag, s", "lag of the newest files", "problem and fix",
    )  # fmt: skip
    rows = []
    for one in tables:
        s = one.status
        label = f"lag of the newest {len(one.lags)} files: {min(one.lags, default=0):.0f}"
        label += f" to {max(one.lags, default=0):.0f} s"
        applied = moment_text(one.applied or "")
        rows.append(
            (
                s.full_name,
                html.dot(one.level, s.state),
                s.rows,
                s.last_file,
                applied,
                s.backlog_files,
                round(s.lag_seconds),
                html.sparkline(one.lags, label),
                html.wide(one.problem, f"Fix: {one.fix}" if one.fix else ""),
            )
        )
    return html.table(TextTable(columns, tuple(rows)))


def view_table(views: Sequence[ViewStatus]) -> TextTable:
    """Views with what each shows of its sources, and how old that is."""
    rows = tuple(
        (
            one.view,
            html.dot(_VIEWS.get(one.state, "idle"), one.state),
            ", ".join(f"{s.table} {_at(s.shown)} of {_at(s.newest)}" for s in one.sources),
            None if one.lag_seconds is None else round(one.lag_seconds),
            one.reason or "",
        )
        for one in views
    )
    return TextTable(("view", "state", "sources at versions", "lag, s", "reason"), rows)


def _at(version: int | None) -> str:
    return "?" if version is None else str(version)


class Monitor:
    """A lake's health that is shown, and looked at again as often as is said.

    Args:
        lake: the lake.
        every: seconds between two looks in Lab.

    Raises:
        UsageError: they are less than 1.
    """

    def __init__(self, lake: Lake, *, every: float = 10) -> None:
        if every < 1:
            raise UsageError(f"{every} seconds are too few.", hint="1 or more.")
        self.lake = lake
        self.every = every
        self.health = read_health(lake)
        self._stop = Event()
        self._widget: ipywidgets.VBox | None = None

    def __repr__(self) -> str:
        return f"Monitor({self.lake.storage.root!r}): {self.health!r}"

    def refresh(self) -> LakeHealth:
        """Looks at the lake now; what is shown follows.

        Example:
            >>> monitor(lake).refresh()  # doctest: +SKIP
            3 tables, 1 problems
        """
        self.health = read_health(self.lake)
        if self._widget is not None:
            self._widget.children[1].value = html.view(render_health(self.health))
        return self.health

    def close(self) -> None:
        """Ends the refreshing; what was shown last stays."""
        self._stop.set()

    def to_html(self, path: str | Path | None = None, *, every: float | None = None) -> str:
        """The page as a document of its own, without scripts.

        Args:
            path: a file to write it to as well.
            every: seconds after which a browser loads it again; by default it does not.

        Raises:
            UsageError: the file can't be written.

        Example:
            >>> monitor(lake).to_html("monitor.html")  # doctest: +SKIP
        """
        document = html.page("Monitor", render_health(self.health), every=every)
        if path is not None:
            html.save_page(path, document)
        return document

    @property
    def widget(self) -> ipywidgets.VBox:
        """The live page, made when it is first asked for."""
        if self._widget is None:
            import ipywidgets as widgets

            live = widgets.Checkbox(
                value=True, indent=False, description=f"look again every {self.every:g} s"
            )
            now = widgets.Button(description="Look now", tooltip="Look at the lake now")
            now.on_click(lambda _: self.refresh())
            shown = widgets.HTML(html.view(render_health(self.health)))
            self._widget = widgets.VBox([widgets.HBox([now, live]), shown])
            Thread(target=self._follow, args=(live,), daemon=True).start()
        return self._widget

    def _follow(self, live: ipywidgets.Checkbox) -> None:
        while not self._stop.wait(self.every):
            if not live.value:
                continue
            try:
                self.refresh()
            except (MirrorlakeError, OSError):
                continue  # a store that is away for a moment; the page keeps its last time

    def _repr_mimebundle_(self, **options: Any) -> dict[str, Any]:
        """The live page, and for exported reports its twin without scripts."""
        bundle: dict[str, Any] = {
            "text/plain": repr(self),
            "text/html": html.view(render_health(self.health)),
        }
        try:
            live = self.widget._repr_mimebundle_(**options)
        except ImportError:
            live = None
        return bundle if live is None else {**live, **bundle}
