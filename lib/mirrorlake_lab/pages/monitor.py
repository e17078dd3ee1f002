"""The monitor page: a lake's health in Lab, where it refreshes itself, and as a file of HTML."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

from mirrorlake.errors import MirrorlakeError, UsageError
from mirrorlake.results import TextTable, moment_text
from mirrorlake.storage.paths import shown_path
from mirrorlake_lab.pages import html
from mirrorlake_lab.pages.health import LakeHealth, TableHealth, read_health
from mirrorlake_lab.pages.serving import save_page

if TYPE_CHECKING:
    import ipywidgets

    from mirrorlake.lake import Lake
    from mirrorlake.views.definition import ViewStatus

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
            save_page(path, document)
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
