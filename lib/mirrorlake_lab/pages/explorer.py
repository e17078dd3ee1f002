"""The explorer: a table picker, a tab per view of the lake or table, and an HTML document of both.

This module has the tabs of the lake (Zone, Views, Runs); `table_tabs` has those of one table. A tab
is filled when it is opened first. Spark starts only for rows, changes and advice. The document has
no scripts, and contains what needs no Spark.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import ipywidgets as widgets

from mirrorlake import skus
from mirrorlake.errors import MirrorlakeError, UsageError
from mirrorlake.landing.metadata import read_metadata
from mirrorlake.landing.zone import published_tables
from mirrorlake.names import TableName, file_number
from mirrorlake.results import TextTable, moment_text, size_text
from mirrorlake.storage.files import Entry
from mirrorlake.storage.paths import lake_path
from mirrorlake_lab.pages import html
from mirrorlake_lab.pages.controls import Tab, label, preview_rows, slices
from mirrorlake_lab.pages.monitor import problem_and_fix, read_health, render_health, view_table
from mirrorlake_lab.pages.table_tabs import (
    FeedTab,
    FilesTab,
    RowsTab,
    TablesTab,
    VersionsTab,
    columns_of,
    draw_strip,
    gauges,
    list_files,
    properties_of,
    readable_text,
    table_facts,
)
from mirrorlake_runs.records import RunRecord, list_runs

if TYPE_CHECKING:
    from mirrorlake.lake import Lake
    from mirrorlake.status import TableStatus


class ZoneTab(Tab):
    """The landing zone's folders, and the files of one of them."""

    title = "Zone"
    of_table = False

    def _build(self) -> list[widgets.Widget]:
        self._folders = self.pager("Folders of the landing zone")
        self.folder = widgets.Dropdown(**label("Folder"))
        self.when_changed(self.folder, self._open)
        self._declared = widgets.HTML()
        self._files = self.pager("Files that wait, or were applied and are not moved yet")
        self._lint = self.button("Lint", self.lint, "Check this folder by the format's rules")
        self._found = self.pager("Findings")
        self.file = widgets.Combobox(**label("File"))
        self.row = widgets.BoundedIntText(value=1, min=1, max=10**9, **label("around row", "12em"))
        self._read = self.button("Show rows", self.read_rows, "Rows of this file, as published")
        self._rows = widgets.HTML()
        choice = widgets.HBox([self.folder, self._lint], layout={"flex_flow": "row wrap"})
        rows = widgets.HBox([self.file, self.row, self._read], layout={"flex_flow": "row wrap"})
        results = [self._found.widget, self._rows, self._declared, self._files.widget]
        return [self._folders.widget, choice, rows, self.message, *results]

    def _fill(self) -> None:
        lines = list(self.lake.status().tables)
        self._applied = {one.table: one.last_file for one in lines}
        self._folders.fill(len(lines), lambda start, stop: list_folders(lines[start:stop]))
        tables = published_tables(self.lake.storage)
        wanted = self.name if self.name in tables else (tables[0] if tables else None)
        self.folder.options = [(html.plain_text(str(name)), name) for name in tables]
        self.folder.value = wanted
        self._open()

    def _open(self) -> None:
        name = self.folder.value
        if name is None:
            return
        self._found.hide()
        self._rows.value = ""
        keys = ", ".join(read_metadata(self.lake.storage, name).keys) or "none declared"
        self._declared.value = html.view(html.facts({"folder": name.folder, "keys": keys}))
        files = self.lake.storage.list(name.folder).files
        data = [entry for entry in files if not entry.name.startswith(("_", "."))]
        last = self._applied.get(name, 0)
        self._files.fill(len(data), lambda start, stop: list_published(data[start:stop], last))
        self.file.options = [entry.name for entry in data]
        self.file.value = data[-1].name if data else ""

    def lint(self) -> None:
        """Check the folder, and select the first finding's file and row in the fields below."""
        report = self.lake.lint(self.folder.value)
        shown = report.shown()
        self._found.fill(len(shown.rows), slices(shown))
        placed = next((one for one in report.findings if one.file in self.file.options), None)
        if placed is not None:
            self.file.value, self.row.value = placed.file or "", placed.row or 1
        self.show_message(repr(report))

    def read_rows(self) -> None:
        """Show the selected file's rows around the selected row."""
        self._rows.value = ""
        if self.file.value not in self.file.options:
            self.show_message("Choose one of the folder's files.", "bad")
            return
        name = self.file.value
        shown = preview_rows(self.lake.storage, self.folder.value, name, self.row.value)
        self._rows.value = html.view(html.table(shown, caption=f"Rows of {name}", data=True))


def list_folders(lines: list[TableStatus]) -> TextTable:
    """Return one row per folder of the zone: state, problem and fix, backlog."""
    rows = tuple(
        (
            one.full_name,
            html.dot(one.level, one.shown_state),
            problem_and_fix(one),
            one.last_file,
            html.unbroken(one.backlog),
        )
        for one in lines
    )
    columns = ("folder", "state", "problem and fix", "last file", "backlog")
    return TextTable(columns, rows)


def list_published(entries: list[Entry], last: int) -> TextTable:
    """Return one row per published file, with whether it is applied.

    Args:
        entries: the files.
        last: the number of the last applied file.
    """
    rows = []
    for entry in entries:
        number = file_number(entry.name)
        state = "" if number is None else "applied" if number <= last else "waits"
        rows.append((entry.name, size_text(entry.size), entry.modified, state))
    return TextTable(("file", "size", "published (UTC)", "state"), tuple(rows))


_MOST_LINKS = 40


class ViewsTab(Tab):
    """The lake's views, and the lineage of the chosen table."""

    title = "Views"

    def _build(self) -> list[widgets.Widget]:
        self._list = self.pager("Views")
        self._lineage = widgets.VBox()
        self._query = widgets.HTML()
        return [self.message, self._lineage, self._query, self._list.widget]

    def _fill(self) -> None:
        tables = self.lake.tables()
        shown = view_table(self.lake.status().views)
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
        self._definitions = self.lake.views.list(tables)
        return [(one.name, source) for one in self._definitions for source in one.sources]

    def _link(self, name: TableName) -> widgets.Button:
        made = widgets.Button(
            description=html.plain_text(str(name)),
            tooltip=f"Go to {html.plain_text(str(name))}",
            layout={"width": "max-content"},
        )
        made.on_click(lambda _: self.guard(lambda: self.choose(name)))
        return made


_STATES = {"done": "good", "failed": "bad", "stopped": "warn", "lost": "bad", "running": "idle"}
_MOST_RUNS = 200


class RunsTab(Tab):
    """The runs of this machine, and the steps of one of them."""

    title = "Runs"
    of_table = False

    def _build(self) -> list[widgets.Widget]:
        self._list = self.pager("Runs, those of this lake first, then the newest")
        self.run = widgets.Dropdown(**label("Run", "36em"))
        self.when_changed(self.run, self._open)
        self._steps = widgets.HTML()
        return [self.message, self._list.widget, self.run, self._steps]

    def _fill(self) -> None:
        self._runs = {record.run: record for record in own_runs_first(self.lake)}
        found = list(self._runs.values())
        root = self.lake.storage.root
        self._list.fill(len(found), lambda start, stop: list_records(found[start:stop], root))
        newest = list(self._runs)[:_MOST_RUNS]
        chosen = self.run.value
        self.run.options = [(html.plain_text(run), run) for run in newest]
        self.run.value = chosen if chosen in newest else next(iter(newest), None)
        self._open()

    def _open(self) -> None:
        record = self._runs.get(self.run.value)
        self._steps.value = html.view(
            html.note("No run was recorded.") if not record else steps(record)
        )


def own_runs_first(lake: Lake) -> list[RunRecord]:
    """Return all runs, the newest first, but those of this lake before all others."""
    return sorted(list_runs(), key=lambda record: not _is_of(record, lake.storage.root))


def _is_of(record: RunRecord, root: str) -> bool:
    """Return whether a step of a run had this lake as its root."""
    for step in record.document.get("steps") or ():
        named = (step.get("parameters") or {}).get("root")
        if isinstance(named, str) and named and lake_path(named) == root:
            return True
    return False


def list_records(records: list[RunRecord], root: str) -> TextTable:
    """Return one row per run, with whether it is one of the lake in `root`."""
    rows = tuple(
        (
            record.run,
            html.dot(_STATES.get(record.status, "idle"), record.status),
            record.plan,
            "this one" if _is_of(record, root) else "",
            moment_text(record.started),
            moment_text(record.ended),
        )
        for record in records
    )
    return TextTable(("run", "status", "plan", "lake", "started (UTC)", "ended (UTC)"), rows)


def steps(record: RunRecord) -> html.Html:
    """Return a run's steps with their records and errors."""
    rows = []
    for step in record.document.get("steps") or ():
        error = step.get("error") or {}
        said = ", ".join(f"{k}: {v}" for k, v in (step.get("records") or {}).items())
        problem = error.get("message") or error.get("text") or error.get("value") or ""
        status = html.dot(_STATES.get(step.get("status"), "idle"), str(step.get("status")))
        figures = (step.get("attempts"), step.get("seconds"))
        rows.append((step.get("notebook"), status, *figures, html.wide(said, problem)))
    columns = ("notebook", "status", "attempts", "seconds", "records and problems")
    shown = TextTable(columns, tuple(rows))
    return html.table(shown, caption=f"Steps of {record.run}")


TABS: tuple[type[Tab], ...] = (
    *(ZoneTab, TablesTab, VersionsTab, RowsTab, FeedTab, FilesTab, ViewsTab, RunsTab),
)


class Explorer:
    """Tabs for looking at a lake.

    Args:
        lake: the lake.
        table: the table to select first; by default the first one.

    Raises:
        TableNotFoundError: the table does not exist.
    """

    def __init__(self, lake: Lake, table: str | TableName | None = None) -> None:
        self.lake = lake
        self._names = lake.tables()
        chosen = self._names[0] if self._names else None
        if table is not None:
            chosen = lake.inspect(table).name  # raises if unknown
        options = [(html.plain_text(str(name)), name) for name in self._names]
        self.picker = widgets.Dropdown(options=options, value=chosen, **label("Table"))
        again = widgets.Button(description="Refresh", tooltip="Read the lake again")
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
        """Select a table.

        Args:
            table: `table` or `schema.table`.

        Raises:
            TableNotFoundError: the table does not exist.

        Example:
            >>> explore(lake).choose("stock")  # doctest: +SKIP
        """
        found = self.lake.inspect(table).name
        if found not in self._names:
            self.refresh()
        self.picker.value = found

    def open(self, title: str) -> Tab:
        """Open a tab and return it.

        Args:
            title: such as `Versions`.

        Raises:
            UsageError: there is no such tab.

        Example:
            >>> explore(lake).open("Versions").title  # doctest: +SKIP
            'Versions'
        """
        titles = [tab.title for tab in self.tabs]
        if title not in titles:
            raise UsageError(
                f"There is no tab {title!r}.", hint=f"choose one of {', '.join(titles)}."
            )
        self._tab.selected_index = titles.index(title)
        return self.tabs[titles.index(title)]

    def refresh(self) -> None:
        """Read the lake again, and show its new tables and versions."""
        chosen, self._names = self.picker.value, self.lake.tables()
        self.picker.options = [(html.plain_text(str(name)), name) for name in self._names]
        if chosen in self._names:
            self.picker.value = chosen
        for tab in self.tabs:
            tab.forget()
        self._show()

    def to_html(self, path: str | Path | None = None) -> str:
        """Return the lake as an HTML document without scripts and without user data.

        Args:
            path: a file to write the document to as well.

        Raises:
            UsageError: the file can't be written.

        Example:
            >>> explore(lake).to_html("lake.html")  # doctest: +SKIP
        """
        document = html.page("Lake", render_lake(self.lake))
        if path is not None:
            html.save_page(path, document)
        return document

    def _show(self) -> None:
        self.tabs[self._tab.selected_index].show(self.picker.value)

    def _repr_mimebundle_(self, **options: Any) -> dict[str, Any]:
        """Return the widget, and for exported reports the chosen table as HTML."""
        shown = "" if self.picker.value is None else render_table(self.lake, self.picker.value)
        bundle = {"text/plain": repr(self), "text/html": html.view(shown)}
        return {**self.widget._repr_mimebundle_(**options), **bundle}


_MOST_TABLES = 200
_MOST_ROWS = 25
_STRIP = 40


def render_lake(lake: Lake) -> html.Html:
    """Return the state of replication, a section per table, and the newest runs."""
    names = lake.tables()
    parts = [render_health(read_health(lake)), html.heading("Tables")]
    for name in names[:_MOST_TABLES]:
        inner = render_table(lake, name)
        parts.append(
            html.Html(f"<details><summary>{html.text(str(name))}</summary>{inner}</details>")
        )
    if len(names) > _MOST_TABLES:
        parts.append(html.note(f"and {len(names) - _MOST_TABLES:,} more tables"))
    runs = list_records(own_runs_first(lake)[:_MOST_ROWS], lake.storage.root)
    parts += [html.heading("Runs"), html.table(runs) if runs.rows else html.note("none")]
    return html.join(*parts)


def render_table(lake: Lake, name: TableName) -> html.Html:
    """Return a table's facts, columns, versions and files, or the error that prevents it."""
    try:
        return _render(lake, name)
    except (MirrorlakeError, OSError, ValueError, KeyError) as error:
        return html.Html(f"<p>{html.dot('bad', f'{name} can not be read: {error}')}</p>")


def _render(lake: Lake, name: TableName) -> html.Html:
    found = lake.inspect(name)
    history = found.history(_STRIP)
    return html.join(
        html.heading(str(name)),
        table_facts(found),
        _first(columns_of(found), "Columns"),
        _first(properties_of(found), "Properties"),
        draw_strip(list(reversed(history.commits)), found.version),
        _first(history.shown(), "The newest versions"),
        readable_text(found),
        gauges(found, next(iter(skus()))),
        _first(list_files(found.files[: _MOST_ROWS + 1]), "The largest files"),
    )


def _first(rows: TextTable, caption: str) -> html.Html:
    shown = html.table(TextTable(rows.columns, rows.rows[:_MOST_ROWS]), caption=caption)
    more = len(rows.rows) > _MOST_ROWS or rows.more
    return html.join(shown, html.note("and more") if more else "")
