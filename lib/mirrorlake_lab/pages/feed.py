"""The tab Feed: changes by version and kind, and one key's life; Spark reads the feed for it."""

from __future__ import annotations

import ipywidgets as widgets

from mirrorlake.delta.snapshot import open_snapshot
from mirrorlake.mirror.properties import declared_keys
from mirrorlake.results import TextTable
from mirrorlake_lab.pages import html
from mirrorlake_lab.pages.controls import Pager, Tab, label, slices

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
        from mirrorlake.feed.api import Changes

        self.say("Spark reads the changes …")
        report = Changes(self.handle).report(
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
