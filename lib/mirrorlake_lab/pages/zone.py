"""The tab Zone: what publishers put there, what waits, what is missing, and what is wrong."""

from __future__ import annotations

from itertools import islice
from typing import Any

import ipywidgets as widgets
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from mirrorlake.errors import DataFileError
from mirrorlake.landing.metadata import read_metadata
from mirrorlake.landing.zone import published_tables
from mirrorlake.mirror.status import TableStatus
from mirrorlake.names import file_number
from mirrorlake.results import TextTable, size_text
from mirrorlake.storage.files import Entry, Storage
from mirrorlake_lab.pages import html
from mirrorlake_lab.pages.controls import Pager, Tab, label, slices
from mirrorlake_lab.pages.monitor import TableHealth

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
