"""The tabs Rows and Feed: rows of a version, differences and changes; Spark reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ipywidgets as widgets

from mirrorlake.delta.snapshot import open_snapshot
from mirrorlake.mirror.options import declared_keys
from mirrorlake.results import TextTable
from mirrorlake_lab.pages import html
from mirrorlake_lab.pages.controls import Pager, Tab, label, slices

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


_PAGE = 20
_COLUMNS = 15
_KIND = "_change_type"
_BEFORE, _AFTER = "update_preimage", "update_postimage"


class RowsTab(Tab):
    """Rows of a version, filtered and sorted; changes between two versions."""

    title = "Rows"

    def _build(self) -> list[widgets.Widget]:
        self.version = widgets.BoundedIntText(min=0, **label("Version", "12em"))
        self.where = widgets.Text(placeholder="n > 9", **label("Filter", "22em"))
        self.order = widgets.Dropdown(**label("Sort by", "18em"))
        self.down = widgets.Checkbox(value=False, indent=False, description="descending")
        self.first = widgets.BoundedIntText(min=1, **label("From column", "12em"))
        self.before = widgets.BoundedIntText(min=0, **label("Compare version", "14em"))
        self.after = widgets.BoundedIntText(min=0, **label("with", "10em"))
        read = self.button("Read rows", self.read, "Rows of this version; starts Spark")
        compare = self.button("Compare", self.compare, "Changes between two; starts Spark")
        self._rows = Pager("Rows", size=_PAGE, data=True)
        self._changes = Pager("Changes", size=_PAGE, marks=self._marks, data=True)
        self._keys: tuple[str, ...] = ()
        rows = widgets.HBox([self.version, self.where, self.order, self.down, self.first, read])
        changes = widgets.HBox([self.before, self.after, compare])
        for box in (rows, changes):
            box.layout.flex_flow = "row wrap"
        self._hide()
        return [rows, self._rows.widget, changes, self._changes.widget]

    def _fill(self) -> None:
        snapshot = open_snapshot(self.storage, self.table)
        for field in (self.version, self.before, self.after):
            field.max = snapshot.version
            field.value = snapshot.version
        self.before.value = max(0, snapshot.version - 1)
        names = [field["name"] for field in snapshot.fields]
        self.order.options = [("as it is read", None), *((html.plain_text(n), n) for n in names)]
        self.first.max = max(1, len(names))
        self.first.value, self.where.value = 1, ""
        self._hide()

    def _hide(self) -> None:
        for pager in (self._rows, self._changes):
            pager.widget.layout.display = "none"

    def read(self) -> None:
        """Shows the first page of a version's rows."""
        from mirrorlake.spark.sql import query_errors, quote

        with query_errors():
            self.say("Spark reads the rows …")
            where = self.where.value.strip() or None
            frame = self.handle.read(where, version=self.version.value)
            start = self.first.value - 1
            sort = self.order.value
            shown = [quote(name) for name in frame.columns[start : start + _COLUMNS]]
            if sort is not None:
                by = frame[quote(sort)]
                frame = frame.orderBy(by.desc() if self.down.value else by.asc())
            self._open(self._rows, frame.select(*shown))
            self.said.value = ""

    def compare(self) -> None:
        """Shows the first page of what changed; changed cells are marked where rows have keys."""
        from mirrorlake.spark.sql import query_errors, quote

        with query_errors():
            self.say("Spark compares the versions …")
            table = self.handle
            self._keys = table.keys
            frame = table.diff(self.before.value, self.after.value)
            others = [name for name in frame.columns if name not in (*self._keys, _KIND)]
            start = self.first.value - 1
            chosen = [_KIND, *self._keys, *others[start : start + _COLUMNS]]
            # The old row of a pair comes first: preimage is after postimage in the alphabet.
            order = [*(frame[quote(key)].asc() for key in self._keys), frame[_KIND].desc()]
            ordered = frame.orderBy(*order) if self._keys else frame
            self._open(self._changes, ordered.select(*map(quote, chosen)))
            self.said.value = ""

    def _open(self, pager: Pager, frame: DataFrame) -> None:
        from mirrorlake import show_rows

        def fetch(start: int, stop: int) -> TextTable:
            return show_rows(frame.offset(start), limit=stop - start)

        pager.fill(None, fetch)
        pager.widget.layout.display = ""

    def _marks(self, page: TextTable) -> list[tuple[int, int]]:
        return changed_cells(page, self._keys)


def changed_cells(page: TextTable, keys: tuple[str, ...]) -> list[tuple[int, int]]:
    """The cells of pairs of old and new rows that differ; of keys that are not there none do.

    Args:
        page: changes in the order of their keys, the old row of a pair before the new one.
        keys: the columns that pair rows.
    """
    if not keys or _KIND not in page.columns:
        return []
    kind = page.columns.index(_KIND)
    places = [page.columns.index(key) for key in keys if key in page.columns]

    def same(old: tuple[Any, ...], new: tuple[Any, ...]) -> bool:
        return all(old[place] == new[place] for place in places)

    found = []
    for y, (old, new) in enumerate(zip(page.rows, page.rows[1:], strict=False)):
        if old[kind] == _BEFORE and new[kind] == _AFTER and same(old, new):
            differ = [x for x in range(len(old)) if x != kind and old[x] != new[x]]
            found += [(y + side, x) for x in differ for side in (0, 1)]
    return found


_NEWEST = 100


class FeedTab(Tab):
    """What changed in a range of versions."""

    title = "Feed"

    def _build(self) -> list[widgets.Widget]:
        self._facts = widgets.HTML()
        self.start = widgets.Text(placeholder="the newest 100", **label("From version", "18em"))
        self.end = widgets.Text(placeholder="the newest", **label("to", "14em"))
        self.where = widgets.Text(placeholder="id = 7", **label("Only rows of", "22em"))
        read = self.button("Read changes", self.read, "Changes by version; starts Spark")
        self._shown = widgets.HTML()
        self._versions = Pager("Changes by version")
        self._life = Pager("One key's life", data=True)
        row = widgets.HBox([self.start, self.end, self.where, read])
        row.layout.flex_flow = "row wrap"
        return [self._facts, row, self._shown, self._versions.widget, self._life.widget]

    def _fill(self) -> None:
        snapshot = open_snapshot(self.storage, self.table)
        keys = ", ".join(declared_keys(snapshot.properties))
        state = "on" if snapshot.has_feed else "off: changes.enable() switches it on"
        found = {"change feed": state, "keys": keys or "none declared", "to": snapshot.version}
        self._facts.value = html.view(html.facts(found))
        self._shown.value = ""
        for pager in (self._versions, self._life):
            pager.widget.layout.display = "none"

    def read(self) -> None:
        """Shows what changed in the range, and the history of the key that changed most often."""
        self.say("Spark reads the changes …")
        report = self.handle.changes.report(
            self.start.value.strip(),
            self.end.value.strip(),
            newest=_NEWEST,
            where=self.where.value.strip(),
        )
        self._shown.value = html.view(html.table(report.shown(), caption="Rows, raw and net"))
        for pager, rows in ((self._versions, report.by_version), (self._life, report.timeline)):
            pager.widget.layout.display = ""
            newest = TextTable(rows.columns, rows.rows[::-1])
            pager.fill(len(newest.rows), slices(newest))
        self.say(f"One key's life: {report.followed}." if report.followed else repr(report))
