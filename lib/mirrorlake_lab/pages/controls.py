"""Controls that tabs and forms share: buttons whose errors are shown, fields, pages, the tab."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import ipywidgets as widgets

from mirrorlake.errors import MirrorlakeError, first_line
from mirrorlake.names import TableName
from mirrorlake.results import TextTable
from mirrorlake.storage.files import Storage
from mirrorlake_lab.pages import html

if TYPE_CHECKING:
    from mirrorlake.lake import Lake
    from mirrorlake.table import Table


class Guarded:
    """Something with buttons, whose errors are sentences: a click has no cell to show them."""

    def __init__(self) -> None:
        self.said = widgets.HTML()

    def guard(self, work: Callable[[], object]) -> None:
        """Does something whose error is shown as a sentence, with its hint."""
        self.said.value = ""
        try:
            work()
        except MirrorlakeError as error:
            self.failed()
            self.say(str(error), "bad")
        except Exception as error:  # it would be seen nowhere
            self.failed()
            self.say(f"{type(error).__name__}: {first_line(error)}", "bad")

    def failed(self) -> None:
        """What else an error brings about: nothing."""

    def say(self, message: str, kind: str = "") -> None:
        """A line below the content: a soft sentence, or one of the kinds of `html.dot`."""
        shown = html.dot(kind, message) if kind else html.note(message)
        self.said.value = html.view(f'<div role="status">{shown}</div>')

    def button(self, text: str, work: Callable[[], object], tooltip: str = "") -> widgets.Button:
        """A button whose work may take a while: it can't be pressed twice meanwhile."""
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


def label(text: str, width: str = "24em") -> dict[str, Any]:
    """Arguments of a field: its name, which screen readers say, and room for it."""
    return {
        "description": text,
        "style": {"description_width": "initial"},
        "layout": {"width": width, "max_width": "100%"},
    }


PAGE = 25
Fetch = Callable[[int, int], TextTable]
Marks = Callable[[TextTable], Iterable[tuple[int, int]]]


class Pager:
    """Rows with buttons to turn the page; without them where one page holds all.

    Args:
        caption: what the rows are.
        size: rows of a page.
        marks: which cells of a page stand out.
        data: whether the rows are somebody's data; see `html.table`.
    """

    def __init__(
        self, caption: str, *, size: int = PAGE, marks: Marks | None = None, data: bool = False
    ) -> None:
        self._caption = caption
        self._size = size
        self._marks = marks
        self._data = data
        self._fetch: Fetch = lambda _start, _stop: TextTable((), ())
        self._count: int | None = 0
        self.start = 0
        self._back = _button("◀", f"Earlier page of {caption}", lambda: self.turn(-1))
        self._next = _button("▶", f"Later page of {caption}", lambda: self.turn(1))
        self._where = widgets.HTML()
        self._buttons = widgets.HBox([self._back, self._next, self._where])
        self.shown = widgets.HTML()
        self.widget = widgets.VBox([self.shown, self._buttons])

    def fill(self, count: int | None, fetch: Fetch) -> None:
        """Shows the first page of a list.

        Args:
            count: how many rows there are; None if nobody knows.
            fetch: returns the rows from a place up to another one; with `more` where `count` is
                None and rows follow.
        """
        self._count, self._fetch, self.start = count, fetch, 0
        self._show()

    def turn(self, pages: int) -> None:
        """Goes so many pages on, or back."""
        self.start = max(0, self.start + pages * self._size)
        self._show()

    def _show(self) -> None:
        stop = self.start + self._size
        rows = self._fetch(self.start, stop)
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
    """Pages of rows that are all there."""
    return lambda start, stop: TextTable(rows.columns, rows.rows[start:stop])


def _button(sign: str, tooltip: str, act: Callable[[], None]) -> widgets.Button:
    button = widgets.Button(description=sign, tooltip=tooltip, layout={"width": "3em"})
    button.on_click(lambda _: act())
    return button


class Tab(Guarded):
    """One tab.

    Args:
        lake: the lake.
        choose: makes another table the chosen one, wherever it is named.
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
    def storage(self) -> Storage:
        """The lake's files."""
        return self.lake.storage

    @property
    def table(self) -> TableName:
        """The chosen table."""
        assert self.name is not None
        return self.name

    @property
    def handle(self) -> Table:
        """The chosen table, to be read with Spark."""
        return self.lake.table(self.table)

    def _build(self) -> list[widgets.Widget]:
        """The tab's widgets, still empty."""
        raise NotImplementedError

    def _fill(self) -> None:
        """Shows the chosen table, or the lake."""
        raise NotImplementedError

    def show(self, name: TableName | None) -> None:
        """Fills the tab, unless it shows that table already."""
        if self._filled == (name,):
            return
        if not self.widget.children:  # what nobody looks at costs nothing
            self.widget.children = [*self._build(), self.said]
        self.name, self._filled = name, (name,)
        if self.of_table and name is None:
            self.say("The lake has no Delta tables yet: publish, then mirror.")
            return
        self._filling = True
        try:
            self.guard(self._fill)
        finally:
            self._filling = False

    def forget(self) -> None:
        """Lets the next look fill the tab again."""
        self._filled = None

    def when_changed(self, field: widgets.Widget, work: Callable[[], object]) -> None:
        """Does something when a field changes; not while the tab is filled, which sets it, too."""

        def act(_: Any) -> None:
            if not self._filling and (self.name is not None or not self.of_table):
                self.guard(work)

        field.observe(act, "value")
