"""The tabs Zone, Views and Runs: the files of publishers, incremental views, runs of notebooks.

They read without Spark. The tab Runs shows what ran on this machine.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import ipywidgets as widgets
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from mirrorlake.errors import DataFileError, SetupError
from mirrorlake.landing.metadata import read_metadata
from mirrorlake.landing.zone import published_tables
from mirrorlake.names import TableName, file_number
from mirrorlake.results import TextTable, moment_text, size_text
from mirrorlake.storage.files import Entry, Storage
from mirrorlake_lab.pages import html
from mirrorlake_lab.pages.controls import Pager, Tab, label, slices
from mirrorlake_lab.pages.monitor import TableHealth, read_views, view_table
from mirrorlake_runs.records import RunRecord, list_runs

if TYPE_CHECKING:
    from mirrorlake.mirror.status import TableStatus

_AROUND = 5
_ROWS = 20
_MOST_COLUMNS = 20


class ZoneTab(Tab):
    """The landing zone's folders, and the files of one of them."""

    title = "Zone"
    of_table = False

    def _build(self) -> list[widgets.Widget]:
        self._folders = Pager("Folders of the landing zone")
        self.folder = widgets.Dropdown(**label("Folder"))
        self.when_changed(self.folder, self._open)
        self._declared = widgets.HTML()
        self._files = Pager("Files that wait or were applied and not yet moved")
        self._lint = self.button("Lint", self.lint, "Check this folder by the format's rules")
        self._found = Pager("Findings")
        self._found.widget.layout.display = "none"
        self.file = widgets.Combobox(**label("File"))
        self.row = widgets.BoundedIntText(value=1, min=1, max=10**9, **label("around row", "12em"))
        self._read = self.button("Show rows", self.read_rows, "Rows of this file, as published")
        self._rows = widgets.HTML()
        choice = widgets.HBox([self.folder, self._lint], layout={"flex_flow": "row wrap"})
        rows = widgets.HBox([self.file, self.row, self._read], layout={"flex_flow": "row wrap"})
        parts = [self._declared, self._files.widget, self._found.widget, rows, self._rows]
        return [self._folders.widget, choice, *parts]

    def _fill(self) -> None:
        lines = list(self.lake.status().tables)
        self._applied = {one.table: one.last_file for one in lines}
        self._folders.fill(len(lines), lambda start, stop: list_folders(lines[start:stop]))
        tables = published_tables(self.storage)
        wanted = self.name if self.name in tables else (tables[0] if tables else None)
        self.folder.options = [(html.plain_text(str(name)), name) for name in tables]
        self.folder.value = wanted
        self._open()

    def _open(self) -> None:
        name = self.folder.value
        if name is None:
            return
        self._found.widget.layout.display = "none"
        self._rows.value = ""
        keys = ", ".join(read_metadata(self.storage, name).keys) or "none declared"
        self._declared.value = html.view(html.facts({"folder": name.folder, "keys": keys}))
        files = self.storage.list(name.folder).files
        data = [entry for entry in files if not entry.name.startswith(("_", "."))]
        last = self._applied.get(name, 0)
        self._files.fill(len(data), lambda start, stop: list_files(data[start:stop], last))
        self.file.options = [entry.name for entry in data]
        self.file.value = data[-1].name if data else ""

    def lint(self) -> None:
        """Checks the folder; a finding's file and row are taken over into the fields below."""
        report = self.lake.lint(self.folder.value)
        shown = report.shown()
        self._found.widget.layout.display = ""
        self._found.fill(len(shown.rows), slices(shown))
        placed = next((one for one in report.findings if one.file in self.file.options), None)
        if placed is not None:
            self.file.value, self.row.value = placed.file or "", placed.row or 1
        self.say(repr(report))

    def read_rows(self) -> None:
        """Shows the rows of a file around one of them."""
        if self.file.value not in self.file.options:
            self.say("Choose one of the folder's files.", "bad")
            return
        path = f"{self.folder.value.folder}/{self.file.value}"
        shown = preview_rows(self.storage, path, self.row.value)
        self._rows.value = html.view(
            html.table(shown, caption=f"Rows of {self.file.value}", data=True)
        )


def list_folders(lines: list[TableStatus]) -> TextTable:
    """Some of the zone's folders: what waits there, and what is wrong."""
    found = [TableHealth(line) for line in lines]
    rows = tuple(
        (
            one.status.full_name,
            html.dot(one.level, one.status.state),
            one.status.last_file,
            one.status.backlog_files,
            size_text(one.status.backlog_bytes),
            html.wide(one.problem, f"Fix: {one.fix}" if one.fix else ""),
        )
        for one in found
    )
    columns = ("folder", "state", "last file applied", "files waiting", "size", "problem and fix")
    return TextTable(columns, rows)


def list_files(entries: list[Entry], last: int) -> TextTable:
    """Some files of a folder, and whether they are applied."""
    rows = []
    for entry in entries:
        number = file_number(entry.name)
        state = "" if number is None else "applied" if number <= last else "waits"
        rows.append((entry.name, size_text(entry.size), entry.modified, state))
    return TextTable(("file", "size", "published (UTC)", "state"), tuple(rows))


def preview_rows(storage: Storage, path: str, around: int = 1) -> TextTable:
    """Rows of a published file as they are, those before and after one of them.

    Args:
        storage: the lake's files.
        path: the file, relative to the root.
        around: a row, counted from 1.

    Raises:
        DataFileError: the file can't be read as what it seems to be.
    """
    first = max(1, around - _AROUND)
    try:
        with storage.open(path) as source:
            if path.lower().endswith((".parquet", ".parq")):
                return _slice(pq.ParquetFile(source).iter_batches(1024), first)
            reader = pacsv.open_csv(pa.PythonFile(_unpacked(source, path), mode="r"))
            return _slice(reader, first)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataFileError(
            f"It can't be read: {str(error).splitlines()[0]}.", file=path.rpartition("/")[2]
        ) from error


def _unpacked(source: Any, path: str) -> Any:
    if path.lower().endswith(".gz"):
        import gzip

        return gzip.open(source)
    return source


def _slice(batches: Any, first: int) -> TextTable:
    """Some rows of a stream, read no further than to the last of them."""
    before = 0
    kept: list[tuple[Any, ...]] = []
    names: list[str] = []
    for batch in batches:
        names = list(batch.schema.names[:_MOST_COLUMNS])
        skip = max(0, first - 1 - before)
        before += batch.num_rows
        if skip >= batch.num_rows:
            continue
        part = batch.slice(skip, _ROWS - len(kept))
        columns = [part.column(index).to_pylist() for index in range(len(names))]
        kept += list(zip(*columns, strict=True)) if columns else []
        if len(kept) >= _ROWS:
            break
    rows = tuple((first + place, *row) for place, row in enumerate(islice(kept, _ROWS)))
    return TextTable(("row", *names), rows)


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


_STATES = {"done": "good", "failed": "bad", "stopped": "warn", "lost": "bad", "running": "idle"}
_MOST = 200


class RunsTab(Tab):
    """The newest runs, and the steps of one."""

    title = "Runs"
    of_table = False

    def _build(self) -> list[widgets.Widget]:
        self._list = Pager("Runs, the newest first")
        self.run = widgets.Dropdown(**label("Run", "36em"))
        self.when_changed(self.run, self._open)
        self._steps = widgets.HTML()
        return [self._list.widget, self.run, self._steps]

    def _fill(self) -> None:
        self._runs = {record.run: record for record in list_runs()}
        found = list(self._runs.values())
        self._list.fill(len(found), lambda start, stop: list_records(found[start:stop]))
        newest = list(self._runs)[:_MOST]
        self.run.options = [(html.plain_text(run), run) for run in newest]
        self._open()

    def _open(self) -> None:
        record = self._runs.get(self.run.value)
        self._steps.value = html.view(
            html.note("No run was kept.") if not record else steps(record)
        )


def list_records(records: list[RunRecord]) -> TextTable:
    """Some runs, a line each."""
    rows = tuple(
        (
            record.run,
            html.dot(_STATES.get(record.status, "idle"), record.status),
            record.plan,
            moment_text(record.started),
            moment_text(record.ended),
        )
        for record in records
    )
    return TextTable(("run", "status", "plan", "started (UTC)", "ended (UTC)"), rows)


def steps(record: RunRecord) -> html.Html:
    """The steps of a run, and what they recorded."""
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
