"""Controls that tabs and forms share: buttons, fields, paged rows, file previews, the base tab."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import ipywidgets as widgets
import pyarrow as pa
import pyarrow.parquet as pq

from mirrorlake.errors import DataFileError, MirrorlakeError, first_line
from mirrorlake.landing.check import is_text
from mirrorlake.landing.metadata import read_metadata
from mirrorlake.landing.text import read_text
from mirrorlake.names import TableName
from mirrorlake.results import TextTable, counted
from mirrorlake.storage.files import Storage
from mirrorlake_lab.pages import html

if TYPE_CHECKING:
    from mirrorlake.inspection import Inspection
    from mirrorlake.lake import Lake
    from mirrorlake.table import Table


class Guarded:
    """A group of controls that shows errors as sentences, because a click has no output cell."""

    def __init__(self) -> None:
        self.message = widgets.HTML()

    def guard(self, work: Callable[[], object]) -> None:
        """Call a function and show its error with the hint."""
        self.message.value = ""
        try:
            work()
        except MirrorlakeError as error:
            self.on_error()
            self.show_message(str(error), "bad")
        except Exception as error:  # a widget would swallow it
            self.on_error()
            self.show_message(f"{type(error).__name__}: {first_line(error)}", "bad")

    def on_error(self) -> None:
        """Reset state after an error; does nothing by default."""

    def show_message(self, message: str, kind: str = "") -> None:
        """Show a message: plain, or with a dot of one of `html.dot`'s kinds."""
        shown = html.dot(kind, message) if kind else html.note(message)
        self.message.value = html.view(f'<div role="status">{shown}</div>')

    def button(self, text: str, work: Callable[[], object], tooltip: str = "") -> widgets.Button:
        """Return a button that is disabled while its work runs."""
        made = widgets.Button(
            description=text, tooltip=tooltip or text, layout={"width": "max-content"}
        )

        def act(_: Any) -> None:
            made.disabled = True
            try:
                self.guard(work)
            finally:
                made.disabled = False

        made.on_click(act)
        return made

    def pager(self, caption: str, **options: Any) -> Pager:
        """Return a `Pager` whose buttons show errors like the other controls."""
        return Pager(caption, self.guard, **options)


def label(text: str, width: str = "24em") -> dict[str, Any]:
    """Return a field's arguments for its label, which screen readers read, and its width."""
    return {
        "description": text,
        "style": {"description_width": "initial"},
        "layout": {"width": width, "max_width": "100%"},
    }


PAGE = 25
Fetch = Callable[[int, int], TextTable]
Marks = Callable[[TextTable], Iterable[tuple[int, int]]]
Guard = Callable[[Callable[[], object]], None]


class Pager:
    """A table with buttons for the next and previous page; hidden until it is filled.

    Args:
        caption: what the rows are.
        guard: calls a button's work, and shows its error.
        size: rows per page.
        marks: returns the cells of a page to highlight.
        data: whether the rows are user data; see `html.table`.
    """

    def __init__(
        self,
        caption: str,
        guard: Guard,
        *,
        size: int = PAGE,
        marks: Marks | None = None,
        data: bool = False,
    ) -> None:
        self._caption = caption
        self._size = size
        self._marks = marks
        self._data = data
        self._fetch: Fetch = lambda _start, _stop: TextTable((), ())
        self._count: int | None = 0
        self.start = 0
        turns = [partial(guard, partial(self.turn, pages)) for pages in (-1, 1)]
        self._back = _button("◀", f"Earlier page of {caption}", turns[0])
        self._next = _button("▶", f"Later page of {caption}", turns[1])
        self._where = widgets.HTML()
        self._buttons = widgets.HBox([self._back, self._next, self._where])
        self.shown = widgets.HTML()
        self.widget = widgets.VBox([self.shown, self._buttons])
        self.hide()

    def fill(self, count: int | None, fetch: Fetch, caption: str = "") -> None:
        """Show the first page of a list.

        Args:
            count: the number of rows; None if it is unknown.
            fetch: returns the rows of a range, with `more` set if `count` is None and rows follow.
            caption: what these rows are; by default, the caption stays.
        """
        self._count, self._fetch = count, fetch
        self._caption = caption or self._caption
        self._show(0)
        self.widget.layout.display = ""

    def hide(self) -> None:
        """Hide the list until it is filled again."""
        self.widget.layout.display = "none"

    def turn(self, pages: int) -> None:
        """Go forward by a number of pages; back if it is negative."""
        self._show(max(0, self.start + pages * self._size))

    def _show(self, start: int) -> None:
        stop = start + self._size
        rows = self._fetch(start, stop)
        self.start = start
        more = rows.more if self._count is None else stop < self._count
        self._back.disabled = self.start == 0
        self._next.disabled = not more
        self._buttons.layout.display = "" if self.start or more else "none"
        total = "" if self._count is None else f" of {self._count:,}"
        last = self.start + len(rows.rows)
        self._where.value = html.view(html.note(f"{self.start + 1:,} to {last:,}{total}"))
        marks = self._marks(rows) if self._marks else ()
        inner = html.note(f"{self._caption}: none.")
        if rows.rows:
            inner = html.table(rows, caption=self._caption, changed=marks, data=self._data)
        self.shown.value = html.view(inner)


def slices(rows: TextTable) -> Fetch:
    """Return a `Pager.fill` function for rows that are all in memory."""
    return lambda start, stop: TextTable(rows.columns, rows.rows[start:stop])


def _button(sign: str, tooltip: str, act: Callable[[], None]) -> widgets.Button:
    button = widgets.Button(description=sign, tooltip=tooltip, layout={"width": "3em"})
    button.on_click(lambda _: act())
    return button


class Tab(Guarded):
    """The base of the explorer's tabs.

    Args:
        lake: the lake.
        choose: selects another table in the whole explorer.
    """

    title = ""
    of_table = True

    def __init__(self, lake: Lake, choose: Callable[[TableName], None]) -> None:
        super().__init__()
        self.lake = lake
        self.choose = choose
        self.name: TableName | None = None
        self._filled: object = None
        self._filling = False
        self.widget = widgets.VBox()

    @property
    def table(self) -> TableName:
        """The chosen table's name."""
        assert self.name is not None
        return self.name

    @property
    def handle(self) -> Table:
        """The chosen table, for reading with Spark."""
        return self.lake.table(self.table)

    def inspect(self) -> Inspection:
        """Return what the chosen table's log records, without Spark."""
        return self.lake.inspect(self.table)

    def _build(self) -> list[widgets.Widget]:
        """Return the tab's widgets, still empty; `message` is among them, above the results."""
        raise NotImplementedError

    def _fill(self) -> None:
        """Show the chosen table, or the lake."""
        raise NotImplementedError

    def show(self, name: TableName | None) -> None:
        """Fill the tab, unless it shows that table already."""
        if self._filled == (name,):
            return
        if not self.widget.children:  # a tab that is never opened costs nothing
            self.widget.children = self._build()
        self.name, self._filled = name, (name,)
        if self.of_table and name is None:
            self.show_message("The lake has no Delta tables yet: publish, then mirror.")
            return
        self._filling = True
        try:
            self.guard(self._fill)
        finally:
            self._filling = False

    def forget(self) -> None:
        """Fill the tab again when it is shown next."""
        self._filled = None

    def when_changed(self, field: widgets.Widget, work: Callable[[], object]) -> None:
        """Call a function when a user changes a field, but not when filling the tab sets it."""

        def act(_: Any) -> None:
            if not self._filling and (self.name is not None or not self.of_table):
                self.guard(work)

        field.observe(act, "value")


_AROUND = 5
_ROWS = 20
_MOST_COLUMNS = 20


def preview_rows(storage: Storage, table: TableName, file: str, around: int = 1) -> TextTable:
    """Return rows of a published file, unchanged, around one of them.

    Args:
        storage: the storage of the lake.
        table: the table.
        file: the name of a file in the table's folder.
        around: the row to center on, counted from 1.

    Raises:
        DataFileError: the file is not valid Parquet or delimited text.
    """
    first = max(1, around - _AROUND)
    path = f"{table.folder}/{file}"
    # Parquet needs no declarations, so their errors do not prevent its preview.
    is_parquet = file.lower().endswith((".parquet", ".parq"))
    metadata = None if is_parquet else read_metadata(storage, table)
    try:
        if metadata is not None and is_text(file, metadata.text):
            with ExitStack() as opened:
                rows = read_text(
                    lambda: opened.enter_context(storage.open(path)),
                    metadata,
                    name=file,
                    as_written=True,
                )
                return slice_rows(rows, first)
        with storage.open(path) as source:
            return slice_rows(pq.ParquetFile(source).iter_batches(1024), first)
    except (pa.ArrowException, OSError) as error:
        raise DataFileError(f"The file can't be read: {first_line(error)}.", file=file) from error


def slice_rows(batches: Any, first: int = 1) -> TextTable:
    """Return 20 rows of a stream from row `first` on; batches after them are not read.

    If a stream has more than 20 columns, only the first 20 are returned. The name of an added
    column contains the number of the others.
    """
    before = more = 0
    kept: list[tuple[Any, ...]] = []
    names: list[str] = []
    for batch in batches:
        names = list(batch.schema.names[:_MOST_COLUMNS])
        more = len(batch.schema.names) - len(names)
        skip = max(0, first - 1 - before)
        before += batch.num_rows
        if skip >= batch.num_rows:
            continue
        part = batch.slice(skip, _ROWS - len(kept))
        columns = [part.column(index).to_pylist() for index in range(len(names))]
        kept += list(zip(*columns, strict=True)) if columns else []
        if len(kept) >= _ROWS:
            break
    others = (f"and {counted(more, 'more column')}",) if more else ()
    rows = tuple(
        (first + place, *row, *("" for _ in others))
        for place, row in enumerate(islice(kept, _ROWS))
    )
    return TextTable(("row", *names, *others), rows)
