"""The explorer: a lake's tables to choose from, tabs for each, and the same as an HTML document.

A tab is filled when it is first opened. Spark starts when rows, changes or advice are asked for.
The document has no scripts, and what can be shown without Spark.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import ipywidgets as widgets

from mirrorlake.delta.commits import CommitLog
from mirrorlake.delta.snapshot import open_snapshot
from mirrorlake.errors import MirrorlakeError, TableNotFoundError
from mirrorlake.layout.guardrails import skus
from mirrorlake.names import TableName, as_table
from mirrorlake.results import TextTable
from mirrorlake_lab.pages import html
from mirrorlake_lab.pages.controls import Tab, label
from mirrorlake_lab.pages.lake_tabs import RunsTab, ViewsTab, ZoneTab, list_records
from mirrorlake_lab.pages.monitor import read_health, render_health
from mirrorlake_lab.pages.row_tabs import FeedTab, RowsTab
from mirrorlake_lab.pages.serving import save_page
from mirrorlake_lab.pages.table_tabs import (
    FilesTab,
    TablesTab,
    VersionsTab,
    columns_of,
    draw_strip,
    files_of,
    gauges,
    list_files,
    properties_of,
    readable_text,
    table_facts,
)
from mirrorlake_runs.records import list_runs

if TYPE_CHECKING:
    from mirrorlake.lake import Lake


TABS: tuple[type[Tab], ...] = (
    *(ZoneTab, TablesTab, VersionsTab, RowsTab, FeedTab, FilesTab, ViewsTab, RunsTab),
)


class Explorer:
    """A lake to look at.

    Args:
        lake: the lake.
        table: the table to begin with; by default the first one.

    Raises:
        TableNotFoundError: there is none of that name.
    """

    def __init__(self, lake: Lake, table: str | TableName | None = None) -> None:
        self.lake = lake
        self._names = lake.tables()
        chosen = self._names[0] if self._names else None
        if table is not None:
            chosen = lake.find(as_table(table))
            if chosen is None:
                raise TableNotFoundError(f"There is no table {table} in {lake.storage.root}.")
        options = [(html.plain_text(str(name)), name) for name in self._names]
        self.picker = widgets.Dropdown(options=options, value=chosen, **label("Table"))
        again = widgets.Button(description="Look again", tooltip="Read the lake again")
        again.on_click(lambda _: self.refresh())
        self.tabs = [kind(lake, self.choose) for kind in TABS]
        self._tab = widgets.Tab([tab.widget for tab in self.tabs])
        self._tab.add_class("ml-tabs")
        self._tab.titles = tuple(tab.title for tab in self.tabs)
        self._tab.selected_index = next(i for i, tab in enumerate(self.tabs) if tab.of_table)
        self.picker.observe(lambda _: self._show(), "value")
        self._tab.observe(lambda _: self._show(), "selected_index")
        top = widgets.HBox([self.picker, again], layout={"flex_flow": "row wrap"})
        self.widget = widgets.VBox([top, self._tab], layout={"max_width": "100%"})
        self._show()

    def __repr__(self) -> str:
        return f"Explorer({self.lake.storage.root!r}): {len(self._names)} tables"

    def choose(self, table: str | TableName) -> None:
        """Makes a table the chosen one.

        Args:
            table: its name; one that is no Delta table of the lake changes nothing.

        Example:
            >>> explore(lake).choose("stock")  # doctest: +SKIP
        """
        if (found := as_table(table)) in self._names:
            self.picker.value = found

    def open(self, title: str) -> Tab:
        """Goes to a tab and returns it.

        Args:
            title: such as `Versions`.

        Example:
            >>> explore(lake).open("Versions").title  # doctest: +SKIP
            'Versions'
        """
        titles = [tab.title for tab in self.tabs]
        self._tab.selected_index = titles.index(title)
        return self.tabs[titles.index(title)]

    def refresh(self) -> None:
        """Reads the lake again: tables that came are in the list, and the tab shows what is new."""
        chosen, self._names = self.picker.value, self.lake.tables()
        self.picker.options = [(html.plain_text(str(name)), name) for name in self._names]
        if chosen in self._names:
            self.picker.value = chosen
        for tab in self.tabs:
            tab.forget()
        self._show()

    def to_html(self, path: str | Path | None = None) -> str:
        """The same as a document without scripts, for reports: all but rows.

        Args:
            path: a file to write it to as well.

        Raises:
            UsageError: the file can't be written.

        Example:
            >>> explore(lake).to_html("lake.html")  # doctest: +SKIP
        """
        document = html.page("Lake", render_lake(self.lake))
        if path is not None:
            save_page(path, document)
        return document

    def _show(self) -> None:
        self.tabs[self._tab.selected_index].show(self.picker.value)

    def _repr_mimebundle_(self, **options: Any) -> dict[str, Any]:
        """The widget; for exported reports the chosen table as it is now."""
        shown = "" if self.picker.value is None else render_table(self.lake, self.picker.value)
        bundle = {"text/plain": repr(self), "text/html": html.view(shown)}
        return {**self.widget._repr_mimebundle_(**options), **bundle}


_MOST_TABLES = 200
_MOST_ROWS = 25
_STRIP = 40


def render_lake(lake: Lake) -> html.Html:
    """How replication is, then each table in a part that opens, then the newest runs."""
    names = lake.tables()
    parts = [render_health(read_health(lake)), html.heading("Tables")]
    for name in names[:_MOST_TABLES]:
        inner = render_table(lake, name)
        parts.append(
            html.Html(f"<details><summary>{html.text(str(name))}</summary>{inner}</details>")
        )
    if len(names) > _MOST_TABLES:
        parts.append(html.note(f"and {len(names) - _MOST_TABLES:,} more tables"))
    runs = list_runs()[:_MOST_ROWS]
    parts += [html.heading("Runs"), html.table(list_records(runs)) if runs else html.note("none")]
    return html.join(*parts)


def render_table(lake: Lake, name: TableName) -> html.Html:
    """One table: facts, columns, versions, files; one that can't be read says why."""
    try:
        return _render(lake, name)
    except (MirrorlakeError, OSError, ValueError, KeyError) as error:
        return html.Html(f"<p>{html.dot('bad', f'{name} can not be read: {error}')}</p>")


def _render(lake: Lake, name: TableName) -> html.Html:
    storage = lake.storage
    snapshot = open_snapshot(storage, name)
    history = CommitLog(storage, name.table_path).read(snapshot.version, _STRIP)
    files = files_of(storage, name, snapshot)
    return html.join(
        html.heading(str(name)),
        table_facts(storage, name, snapshot),
        _first(columns_of(snapshot), "Columns"),
        _first(properties_of(snapshot), "Properties"),
        draw_strip(list(reversed(history.commits)), snapshot.version),
        _first(history.shown(), "The newest versions"),
        readable_text(storage, name),
        gauges(files, next(iter(skus()))),
        _first(list_files(files[: _MOST_ROWS + 1]), "The largest files"),
    )


def _first(rows: TextTable, caption: str) -> html.Html:
    shown = html.table(TextTable(rows.columns, rows.rows[:_MOST_ROWS]), caption=caption)
    more = len(rows.rows) > _MOST_ROWS or rows.more
    return html.join(shown, html.note("and more") if more else "")
