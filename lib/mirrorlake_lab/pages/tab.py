"""What all tabs share: lake, chosen table, a line for errors; each fills in when looked at."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import ipywidgets as widgets

from mirrorlake.delta.table import TableHandle
from mirrorlake.names import TableName
from mirrorlake.storage.files import Storage
from mirrorlake_lab.pages.guarded import Guarded

if TYPE_CHECKING:
    from mirrorlake.lake import Lake


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
    def handle(self) -> TableHandle:
        """The chosen table, to be read with Spark."""
        return TableHandle(lambda: self.lake.spark, self.storage, self.table)

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
