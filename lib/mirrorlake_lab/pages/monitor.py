"""The monitor page: the status of a lake and the lag of its newest files, live and as HTML.

It is read from listings, kept states and logs, without Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

from mirrorlake.errors import MirrorlakeError, UsageError, first_line, with_place
from mirrorlake.results import Result, TextTable, counted, moment_text
from mirrorlake.storage.paths import shown_path
from mirrorlake_lab.pages import html

if TYPE_CHECKING:
    import ipywidgets

    from mirrorlake.lake import Lake
    from mirrorlake.status import LakeStatus, TableStatus, ViewStatus


BATCHES = 20
_MOST_ERRORS = 3
_MOST_LINTED = 32 << 20  # bytes of waiting files; the page checks those of a failed table each time
_AT_ONCE = 8
_LEVELS = ("bad", "warn", "idle", "good")


@dataclass(frozen=True)
class TableHealth:
    """One table that a publisher feeds.

    Attributes:
        status: the table's entry in `Lake.status`.
        lags: seconds from publication to commit of the newest files, the newest last.
        applied: when the newest of them was applied, ISO-8601 UTC; None if unknown.
        more_errors: further errors that the linter finds in a failed table's waiting files.
    """

    status: TableStatus
    lags: tuple[float, ...] = ()
    applied: str | None = None
    more_errors: tuple[str, ...] = ()


@dataclass(frozen=True)
class LakeHealth(Result):
    """The status of a lake at a time, with the lag of its newest files.

    Attributes:
        at: when it was read, UTC.
        status: the status of the lake.
        tables: the tables that publishers feed; those with problems first.
    """

    at: datetime
    status: LakeStatus
    tables: tuple[TableHealth, ...]

    @property
    def level(self) -> str:
        """`bad` if there is a problem, `warn` if there is a warning, else `good`."""
        return "bad" if self.status.problems else "warn" if self.status.warnings else "good"

    def shown(self) -> TextTable:
        """Return one row per table."""
        return self.status.shown()

    def as_dict(self) -> dict[str, Any]:
        """Return the document that `monitor --json` prints."""
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
                    "problem": one.status.problem or None,
                    "fix": one.status.fix or None,
                }
                for one in self.tables
            ],
        }

    def __repr__(self) -> str:
        return repr(self.status)


def read_health(lake: Lake) -> LakeHealth:
    """Read the status of a lake and the lag of its newest files."""
    status = replace(lake.status(), must_exist=True)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        found = list(pool.map(lambda line: _look_at(lake, line), status.tables))
    found.sort(key=lambda one: (_LEVELS.index(one.status.level), one.status.full_name))
    return LakeHealth(datetime.now(timezone.utc), status, tuple(found))


def _look_at(lake: Lake, line: TableStatus) -> TableHealth:
    """Return a table's status, the lag of its batches, and further errors of its waiting files."""
    table, more = line.table, _more_errors(lake, line)
    if not line.last_file or table is None:
        return TableHealth(line, more_errors=more)
    try:
        ledger = lake.operations.ledger(table, last=BATCHES)
    except (MirrorlakeError, OSError, ValueError):  # the status has the table's error
        return TableHealth(line, more_errors=more)
    done = [entry for entry in ledger.entries if entry.lag_seconds is not None][-BATCHES:]
    lags = tuple(entry.lag_seconds or 0.0 for entry in done)
    return TableHealth(line, lags, done[-1].applied if done else None, more)


def _more_errors(lake: Lake, line: TableStatus) -> tuple[str, ...]:
    """Return the linter's errors in a failed table's files, without the one that stopped it."""
    if not line.error or line.table is None or line.backlog_bytes > _MOST_LINTED:
        return ()
    try:
        found = lake.lint(line.table).errors
    except (MirrorlakeError, OSError, ValueError):  # the status has the table's error
        return ()
    stopped_at = tuple(line.error[name] for name in ("file", "row", "column"))
    return tuple(
        with_place(one.message, one.as_dict())
        for one in found
        if (one.file, one.row, one.column) != stopped_at  # the linter's message counts the rows
    )


_VIEWS = {"current": "good", "behind": "warn", "unknown": "bad"}


def render_health(health: LakeHealth) -> html.Html:
    """Return the page's content."""
    status = health.status
    parts = [
        html.Html(f"<h1>{html.dot(health.level, repr(health))}</h1>"),
        html.note(f"{shown_path(status.storage.root)} at {health.at:%Y-%m-%d %H:%M:%S} UTC"),
        html.heading("Replication"),
        _tables(health.tables)
        if health.tables
        else html.table((status.table_problems or status).shown()),
    ]
    if status.views:
        parts += [html.heading("Views"), html.table(view_table(status.views))]
    if status.sources:
        parts += [html.heading("Sources"), *(html.table(one.shown()) for one in status.sources)]
    return html.join(*parts)


def _tables(tables: tuple[TableHealth, ...]) -> html.Html:
    columns = (
        "table", "state", "problem and fix", "rows applied", "last file", "applied (UTC)",
        "files waiting", "lag, s", "lag of the newest files",
    )  # fmt: skip
    rows = []
    for one in tables:
        s = one.status
        label = f"lag of the newest {len(one.lags)} files: {min(one.lags, default=0):.0f}"
        label += f" to {max(one.lags, default=0):.0f} s"
        rows.append(
            (
                s.full_name,
                html.dot(s.level, s.shown_state),
                problem_and_fix(s, one.more_errors),
                s.rows,
                s.last_file,
                moment_text(one.applied or ""),
                s.backlog_files,
                round(s.lag_seconds),
                html.sparkline(one.lags, label),
            )
        )
    return html.table(TextTable(columns, tuple(rows)))


def problem_and_fix(status: TableStatus, more_errors: Sequence[str] = ()) -> html.Html:
    """Return a table's problem and its fix as a cell; empty if all is well."""
    lines = list(more_errors[:_MOST_ERRORS])
    if left := len(more_errors) - len(lines):
        lines.append(f"The linter finds {counted(left, 'more error')}.")
    if status.fix:
        lines.append(f"Fix: {status.fix}")
    # The file can also be missing.
    is_there = status.stopped_at not in ("", str(status.waiting_for)) and status.backlog_files
    if status.error and status.table and is_there and status.stopped_at not in status.skipped:
        lines.append(
            f"Store a corrected file as {status.table.folder}/{status.error['file']}. The next"
            " cycle of the mirror continues with this file."
        )
    return html.wide(status.shown_problem, *lines)


def view_table(views: Sequence[ViewStatus]) -> TextTable:
    """Return views with what each shows of its sources, and how old that is."""
    rows = tuple(
        (
            one.view,
            html.dot(_VIEWS.get(one.state, "idle"), one.state),
            one.shown_sources,
            None if one.lag_seconds is None else round(one.lag_seconds),
            one.reason or "",
        )
        for one in views
    )
    return TextTable(("view", "state", "sources at versions", "lag, s", "reason"), rows)


class Monitor:
    """The status of a lake as a page that refreshes itself.

    Args:
        lake: the lake.
        every: seconds between two refreshes in Lab; at least 1.

    Raises:
        UsageError: `every` is less than 1.
    """

    def __init__(self, lake: Lake, *, every: float = 10) -> None:
        if every < 1:
            raise UsageError(
                f"The interval of {every:g} s is too short.", hint="set every to 1 or more."
            )
        self.lake = lake
        self.every = every
        self.health = read_health(lake)
        self._stop = Event()
        self._widget: ipywidgets.VBox | None = None
        self._last = ""  # the content of the last successful refresh

    def __repr__(self) -> str:
        return f"Monitor({self.lake.storage.root!r}): {self.health!r}"

    def refresh(self) -> LakeHealth:
        """Read the status now, and show it.

        Example:
            >>> monitor(lake).refresh()  # doctest: +SKIP
            3 tables, 1 problem
        """
        self.health = read_health(self.lake)
        if self._widget is not None:
            self._last = html.view(render_health(self.health))
            self._widget.children[1].value = self._last
        return self.health

    def close(self) -> None:
        """Stop the refreshes; the page keeps its last content."""
        self._stop.set()

    def to_html(self, path: str | Path | None = None, *, every: float | None = None) -> str:
        """Return the page as an HTML document without scripts.

        Args:
            path: also write the document to this file.
            every: seconds after which a browser reloads it; by default it does not.

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
        """The live page, created on first use."""
        if self._widget is None:
            import ipywidgets as widgets

            live = widgets.Checkbox(
                value=True, indent=False, description=f"refresh every {self.every:g} s"
            )
            now = widgets.Button(description="Refresh", tooltip="Read the lake now")
            now.on_click(lambda _: self._try_refresh())
            self._last = html.view(render_health(self.health))
            shown = widgets.HTML(self._last)
            self._widget = widgets.VBox([widgets.HBox([now, live]), shown])
            Thread(target=self._follow, args=(live,), daemon=True).start()
        return self._widget

    def _follow(self, live: ipywidgets.Checkbox) -> None:
        while not self._stop.wait(self.every):
            if live.value:
                self._try_refresh()

    def _try_refresh(self) -> None:
        """Refresh the page; if the lake can't be read, show the error above the last content."""
        try:
            self.refresh()
        except Exception as error:  # neither a click nor a thread has an output
            what = html.dot("bad", f"The lake can't be read: {first_line(error)}")
            note = html.view(f"<p>{what} This page is older:</p>")
            self.widget.children[1].value = html.join(note, self._last)

    def _repr_mimebundle_(self, **options: Any) -> dict[str, Any]:
        """Return the live page, and a page without scripts for exported notebooks."""
        bundle: dict[str, Any] = {
            "text/plain": repr(self),
            "text/html": html.view(render_health(self.health)),
        }
        try:
            live = self.widget._repr_mimebundle_(**options)
        except ImportError:
            live = None
        return bundle if live is None else {**live, **bundle}
