"""A page of a long list at a time: only the rows of that page are read and sent to the browser."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import ipywidgets as widgets

from mirrorlake.results import TextTable
from mirrorlake_lab.pages import html

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
