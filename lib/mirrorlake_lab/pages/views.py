"""The tab Views: what comes from what, at which versions; a click goes on to the next table."""

from __future__ import annotations

import ipywidgets as widgets

from mirrorlake.errors import SetupError
from mirrorlake.names import TableName
from mirrorlake_lab.pages import html
from mirrorlake_lab.pages.controls import Pager, Tab, slices
from mirrorlake_lab.pages.monitor import read_views, view_table

_MOST_LINKS = 40


class ViewsTab(Tab):
    """The views of the lake, and the lineage of the chosen table."""

    title = "Views"

    def _build(self) -> list[widgets.Widget]:
        self._list = Pager("Views")
        self._lineage = widgets.VBox()
        self._query = widgets.HTML()
        return [self._lineage, self._query, self._list.widget]

    def _fill(self) -> None:
        tables = self.lake.tables()
        shown = view_table(read_views(self.storage, tables))
        self._list.fill(len(shown.rows), slices(shown))
        edges = self._edges(tables)
        parts: list[widgets.Widget] = []
        above = [source for view, source in edges if view == self.table]
        below = [view for view, source in edges if source == self.table]
        for text, names in (("Comes from", above), ("Is read by", below)):
            links = [self._link(name) for name in names[:_MOST_LINKS]]
            words = html.note(f"{text} {'nothing else' if not names else ''}".rstrip())
            row = widgets.HBox([widgets.HTML(html.view(words)), *links])
            row.layout.flex_flow = "row wrap"
            parts.append(row)
        self._lineage.children = parts
        sql = next((one.sql for one in self._definitions if one.name == self.table), "")
        code = f"<p>Its query: <code>{html.text(sql)}</code></p>"
        self._query.value = html.view(code if sql else "")

    def _edges(self, tables: list[TableName]) -> list[tuple[TableName, TableName]]:
        try:
            from mirrorlake.views.definition import list_definitions
        except ImportError as error:
            raise SetupError("Views need the extra spark.", hint=str(error)) from error
        self._definitions = list_definitions(self.storage, tables)
        return [(one.name, source) for one in self._definitions for source in one.sources]

    def _link(self, name: TableName) -> widgets.Button:
        made = widgets.Button(
            description=html.plain_text(str(name)),
            tooltip=f"Go to {html.plain_text(str(name))}",
            layout={"width": "max-content"},
        )
        made.on_click(lambda _: self.choose(name))
        return made
