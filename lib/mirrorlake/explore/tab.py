"""What all tabs share: lake, chosen table, a line for errors; each fills in when looked at."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import ipywidgets as widgets

from mirrorlake.errors import MirrorlakeError, first_line
from mirrorlake.explore import html
from mirrorlake.names import TableName
from mirrorlake.storage import Storage

if TYPE_CHECKING:
    from mirrorlake.lake import Lake

WIDE = {"width": "auto", "max_width": "60em"}


class Tab:
    """One tab.

    Args:
        lake: the lake.
        choose: makes another table the chosen one, wherever it is named.
    """

    title = ""
    of_table = True

    def __init__(self, lake: Lake, choose: Callable[[TableName], None]) -> None:
        self.lake = lake
        self.choose = choose
        self.name: TableName | None = None
        self._filled: object = None
        self.said = widgets.HTML()
        self.widget = widgets.VBox([*self._build(), self.said])

    @property
    def storage(self) -> Storage:
        """The lake's files."""
        return self.lake.storage

    @property
    def table(self) -> TableName:
        """The chosen table."""
        assert self.name is not None
        return self.name

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
        self.name, self._filled = name, (name,)
        if self.of_table and name is None:
            self.say("The lake has no Delta tables yet: publish, then mirror.")
            return
        self.guard(self._fill)

    def forget(self) -> None:
        """Lets the next look fill the tab again."""
        self._filled = None

    def guard(self, work: Callable[[], object]) -> None:
        """Does something whose error is shown as a sentence, with its hint."""
        self.said.value = ""
        try:
            work()
        except MirrorlakeError as error:
            self.say(str(error), bad=True)
        except Exception as error:  # a click has no cell that would show it
            self.say(f"{type(error).__name__}: {first_line(error)}", bad=True)

    def say(self, message: str, *, bad: bool = False) -> None:
        """A line below the tab's content."""
        shown = html.dot("bad", message) if bad else html.note(message)
        self.said.value = html.view(f'<div role="status">{shown}</div>')

    def button(self, text: str, work: Callable[[], object], tooltip: str = "") -> widgets.Button:
        """A button whose work may take a while: it can't be pressed twice, and errors are said."""
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
