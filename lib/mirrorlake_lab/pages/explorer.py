"""The explorer: a lake's tables to choose from, and a tab for each side of them.

A tab is filled when it is first looked at. Spark starts when rows, changes or advice are asked for.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import ipywidgets as widgets

from mirrorlake.errors import TableNotFoundError
from mirrorlake.names import TableName, as_table
from mirrorlake_lab.pages import html
from mirrorlake_lab.pages.feed import FeedTab
from mirrorlake_lab.pages.files import FilesTab
from mirrorlake_lab.pages.guarded import label
from mirrorlake_lab.pages.rows import RowsTab
from mirrorlake_lab.pages.runs import RunsTab
from mirrorlake_lab.pages.serving import save_page
from mirrorlake_lab.pages.tab import Tab
from mirrorlake_lab.pages.tables import TablesTab
from mirrorlake_lab.pages.versions import VersionsTab
from mirrorlake_lab.pages.views import ViewsTab
from mirrorlake_lab.pages.zone import ZoneTab

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
        from mirrorlake_lab.pages.static import render_lake

        document = html.page("Lake", render_lake(self.lake))
        if path is not None:
            save_page(path, document)
        return document

    def _show(self) -> None:
        self.tabs[self._tab.selected_index].show(self.picker.value)

    def _repr_mimebundle_(self, **options: Any) -> dict[str, Any]:
        """The widget; for exported reports the chosen table as it is now."""
        from mirrorlake_lab.pages.static import render_table

        shown = "" if self.picker.value is None else render_table(self.lake, self.picker.value)
        bundle = {"text/plain": repr(self), "text/html": html.view(shown)}
        return {**self.widget._repr_mimebundle_(**options), **bundle}
