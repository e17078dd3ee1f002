"""The tab Tables: the lake's Delta tables, and of the chosen one its columns and properties."""

from __future__ import annotations

import ipywidgets as widgets

from mirrorlake.delta.commits import find_newest
from mirrorlake.delta.snapshot import Snapshot, open_snapshot
from mirrorlake.mirror.properties import declared_keys
from mirrorlake.names import TableName
from mirrorlake.results import TextTable
from mirrorlake.storage.files import Storage
from mirrorlake_lab.pages import html
from mirrorlake_lab.pages.controls import Pager, Tab, slices
from mirrorlake_lab.pages.facts import (
    columns_of,
    files_of,
    properties_of,
    protocol_of,
    summary_of,
)


class TablesTab(Tab):
    """What tables there are, and what one of them is made of."""

    title = "Tables"

    def _build(self) -> list[widgets.Widget]:
        self._facts = widgets.HTML()
        self._columns = Pager("Columns")
        self._properties = Pager("Properties")
        self._all = Pager("Tables of the lake")
        parts = (self._columns, self._properties, self._all)
        return [self._facts, *(part.widget for part in parts)]

    def _fill(self) -> None:
        snapshot = open_snapshot(self.storage, self.table)
        self._facts.value = html.view(table_facts(self.storage, self.table, snapshot))
        columns, properties = columns_of(snapshot), properties_of(snapshot)
        self._columns.fill(len(columns.rows), slices(columns))
        self._properties.fill(len(properties.rows), slices(properties))
        tables = self.lake.tables()
        self._all.fill(
            len(tables), lambda start, stop: list_tables(self.storage, tables[start:stop])
        )


def table_facts(storage: Storage, table: TableName, snapshot: Snapshot) -> html.Html:
    """A version of a table in a few lines."""
    keys = ", ".join(declared_keys(snapshot.properties)) or "none declared"
    found = {
        "table": str(table),
        "version": snapshot.version,
        "columns": len(snapshot.fields),
        "keys": keys,
        "partitioned by": ", ".join(snapshot.partition_columns) or "nothing",
        "change feed": "on" if snapshot.has_feed else "off",
        "protocol": protocol_of(snapshot),
    }
    return html.facts(found | summary_of(files_of(storage, table, snapshot)))


def list_tables(storage: Storage, tables: list[TableName]) -> TextTable:
    """Some tables with their newest versions."""
    rows = tuple((str(name), find_newest(storage, name.table_path)) for name in tables)
    return TextTable(("table", "newest version"), rows)
