"""The tab Versions: a timeline to step through, and what each version did; read from the log alone.

The slider steps by the arrow keys. A step reads the commits of the strip that are not known yet.
"""

from __future__ import annotations

from typing import Any

import ipywidgets as widgets

from mirrorlake.delta.commit_figures import describe_commit
from mirrorlake.delta.commits import Commit, CommitLog
from mirrorlake.delta.snapshot import open_snapshot
from mirrorlake.history.versions import find_readable_range
from mirrorlake.names import TableName
from mirrorlake.results import TextTable, size_text
from mirrorlake.storage.files import Storage
from mirrorlake_lab.pages import html
from mirrorlake_lab.pages.controls import Pager, Tab, label
from mirrorlake_lab.pages.facts import VersionFacts, read_version

_AROUND = 20
_MOST_FILES = 10
_WIDTH, _HEIGHT = 16, 46


class VersionsTab(Tab):
    """One version at a time, and the list of all."""

    title = "Versions"

    def _build(self) -> list[widgets.Widget]:
        field = label("Version", "60%") | {"readout": True, "continuous_update": True}
        self.slider = widgets.IntSlider(min=0, max=0, **field)
        self.when_changed(self.slider, lambda: self._show(self.slider.value))
        back = self.button("◀ older", lambda: self.step(-1), "One version back")
        forth = self.button("newer ▶", lambda: self.step(1), "One version on")
        self.shown = widgets.HTML()
        self._range = widgets.HTML()
        self._all = Pager("All versions that the log holds")
        row = widgets.HBox([back, self.slider, forth], layout={"flex_flow": "row wrap"})
        return [row, self.shown, self._range, self._all.widget]

    def _fill(self) -> None:
        newest = open_snapshot(self.storage, self.table).version
        self._log = CommitLog(self.storage, self.table.table_path)
        self._known: dict[int, Commit] = {}
        self._oldest = self._log.earliest(newest)
        self._newest = newest
        with self.slider.hold_trait_notifications():
            self.slider.min, self.slider.max = min(self._oldest, self.slider.max), newest
            self.slider.min = self._oldest
            self.slider.value = newest
        self._show(newest)
        self._range.value = html.view(readable_text(self.storage, self.table))
        self._all.fill(newest - self._oldest + 1, self._page)

    def step(self, versions: int) -> None:
        """Goes so many versions on, or back."""
        wanted = self.slider.value + versions
        self.slider.value = max(self.slider.min, min(self.slider.max, wanted))

    def _show(self, version: int) -> None:
        strip = draw_strip(self._around(version), version)
        facts = read_version(self.storage, self.table, version)
        self.shown.value = html.view(html.join(strip, version_facts(facts)))

    def _around(self, version: int) -> list[Commit]:
        first = max(self._oldest, version - _AROUND)
        wanted = range(first, min(self._newest, version + _AROUND) + 1)
        missing = [number for number in wanted if number not in self._known]
        if missing:
            read = self._log.read(missing[-1], missing[-1] - missing[0] + 1)
            self._known |= {commit.version: commit for commit in read.commits}
        return [self._known[number] for number in wanted if number in self._known]

    def _page(self, start: int, stop: int) -> TextTable:
        return self._log.read(self._newest - start, stop - start).shown()


def version_facts(facts: VersionFacts) -> html.Html:
    """What a version did."""
    commit, rows = facts.commit, facts.commit.rows
    made = "" if commit.timestamp is None else f"{commit.timestamp:%Y-%m-%d %H:%M:%S} UTC"
    counts = {
        f"rows {kind}": "not counted by its writer" if count is None else count
        for kind, count in (
            ("inserted", rows.inserted),
            ("updated", rows.updated),
            ("deleted", rows.deleted),
        )
    }
    what = describe_commit(commit.operation, commit.parameters, commit.metrics, commit.note)
    found: dict[str, Any] = {"version": commit.version, "made": made}
    found |= {"operation": commit.operation} | ({"what": what} if what else {}) | counts
    found |= {"files that came": _files(facts.came), "files that went": _files(facts.went)}
    return html.facts(found)


def _files(files: tuple[tuple[str, int], ...]) -> html.Html:
    if not files:
        return html.Html("none")
    total = size_text(sum(size for _, size in files))
    listed = "".join(
        f"<li><code>{html.text(path)}</code> {size_text(size)}</li>"
        for path, size in files[:_MOST_FILES]
    )
    more = len(files) - _MOST_FILES
    rest = f"<li>and {more:,} more</li>" if more > 0 else ""
    return html.Html(
        f"<details><summary>{len(files):,}, {total}</summary><ul>{listed}{rest}</ul></details>"
    )


def draw_strip(commits: list[Commit], chosen: int) -> html.Html:
    """The versions around one as bars: how high tells how many rows changed, by order."""
    bars = []
    for place, commit in enumerate(commits):
        rows = commit.rows
        changed = sum(filter(None, (rows.inserted, rows.updated, rows.deleted)))
        height = min(_HEIGHT - 4, 6 + 6 * len(str(changed))) if changed else 6
        colour = "var(--ml-warn)" if rows.deleted else "var(--ml-blue)"
        colour = colour if changed else "var(--ml-soft)"
        frame = ' stroke="var(--ml-fg)" stroke-width="3"' if commit.version == chosen else ""
        title = f"version {commit.version}: {commit.operation}, {changed:,} rows changed"
        bars.append(
            f'<rect x="{2 + place * _WIDTH}" y="{_HEIGHT - height}" width="{_WIDTH - 4}"'
            f' height="{height - 2}" fill="{colour}"{frame}>'
            f"<title>{html.text(title)}</title></rect>"
        )
    said = f"versions {commits[0].version} to {commits[-1].version}" if commits else "none"
    width = 4 + _WIDTH * len(commits)
    return html.Html(
        f'<div class="scroll"><svg width="{width}" height="{_HEIGHT}" role="img"'
        f' aria-label="{html.text(said)}, version {chosen} framed">{"".join(bars)}</svg></div>'
    )


def readable_text(storage: Storage, table: TableName) -> html.Html:
    """How far back the table can be read, and why not further."""
    return html.table(find_readable_range(storage, table).shown(), caption="What can be read")
