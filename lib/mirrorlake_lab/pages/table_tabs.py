"""The explorer's tabs of one table: Tables, Versions, Files, Rows and Feed.

The first three read the table's log without Spark; Files reads footers on request, of a limited
number of files, and starts Spark only for advice. Rows and Feed start Spark.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import TYPE_CHECKING, Any

import ipywidgets as widgets
import pyarrow as pa
import pyarrow.parquet as pq

from mirrorlake import skus
from mirrorlake.errors import MirrorlakeError
from mirrorlake.names import CHANGE_COLUMNS, quote, sortable_columns, spelled
from mirrorlake.results import TextTable, counted, size_text
from mirrorlake.show.changed_cells import changed_cells, narrow_changes
from mirrorlake_lab.pages import html
from mirrorlake_lab.pages.controls import Pager, Tab, label, slices

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from mirrorlake.inspection import Commit, Inspection, TableFile, VersionFiles


def columns_of(inspection: Inspection) -> TextTable:
    """Return one row per column: name, type, nullable, role as key or partition, comment."""
    keys = {key.lower() for key in inspection.keys}
    parts = set(inspection.partition_columns)
    rows = []
    for field in inspection.columns:
        name = field["name"]
        roles = ["key"] * (name.lower() in keys) + ["partition"] * (name in parts)
        comment = (field.get("metadata") or {}).get("comment", "")
        nullable = bool(field.get("nullable", True))
        rows.append((name, _type(field["type"]), nullable, ", ".join(roles), comment))
    return TextTable(("column", "type", "nullable", "role", "comment"), tuple(rows))


def _type(kind: Any) -> str:
    """Return a type of Spark's JSON as Spark's DDL writes it."""
    if isinstance(kind, str):
        return kind
    if kind["type"] == "array":
        return f"array<{_type(kind['elementType'])}>"
    if kind["type"] == "map":
        return f"map<{_type(kind['keyType'])},{_type(kind['valueType'])}>"
    inner = (f"{field['name']}:{_type(field['type'])}" for field in kind.get("fields", ()))
    return f"struct<{','.join(inner)}>"


def summary_of(files: Sequence[TableFile]) -> dict[str, Any]:
    """Return the number, rows and sizes of files."""
    sizes = [file.size for file in files]
    found: dict[str, Any] = {
        "files": len(files),
        "rows": sum(file.rows for file in files),
        "size": size_text(sum(sizes)),
        "rows deleted by vectors": sum(file.deleted for file in files),
    }
    if sizes:
        found["smallest, median, largest file"] = ", ".join(
            size_text(size) for size in (min(sizes), median(sizes), max(sizes))
        )
        found["files in V-Order"] = sum(file.ordered for file in files)
    return found


def properties_of(inspection: Inspection) -> TextTable:
    """Return the table properties, ordered by name."""
    shown = [(name, _short(value)) for name, value in sorted(inspection.properties.items())]
    return TextTable(("property", "value"), tuple(shown))


def _short(value: str) -> str:
    try:
        text = json.dumps(json.loads(value), ensure_ascii=False)
    except ValueError:
        text = value
    return text if len(text) <= 300 else f"{text[:299]}…"


class TablesTab(Tab):
    """The chosen table's columns and properties, and the list of all tables."""

    title = "Tables"

    def _build(self) -> list[widgets.Widget]:
        self._facts = widgets.HTML()
        self._columns = self.pager("Columns")
        self._properties = self.pager("Properties")
        self._all = self.pager("Tables of the lake")
        parts = (self._columns, self._properties, self._all)
        return [self.message, self._facts, *(part.widget for part in parts)]

    def _fill(self) -> None:
        found = self.inspect()
        self._facts.value = html.view(table_facts(found))
        columns, properties = columns_of(found), properties_of(found)
        self._columns.fill(len(columns.rows), slices(columns))
        self._properties.fill(len(properties.rows), slices(properties))
        tables = self.lake.tables()

        def page(start: int, stop: int) -> TextTable:
            newest = self.lake.versions(tables[start:stop])
            rows = tuple((str(name), version) for name, version in newest.items())
            return TextTable(("table", "newest version"), rows)

        self._all.fill(len(tables), page)


def table_facts(inspection: Inspection) -> html.Html:
    """Return the main facts about a table as HTML."""
    found = {
        "table": str(inspection.name),
        "version": inspection.version,
        "columns": len(inspection.columns),
        "keys": ", ".join(inspection.keys) or "none declared",
        "partitioned by": ", ".join(inspection.partition_columns) or "nothing",
        "change feed": "on" if inspection.has_feed else "off",
        "protocol": inspection.protocol,
    }
    return html.facts(found | summary_of(inspection.files))


_AROUND = 20
_MOST_FILES = 10
_WIDTH, _HEIGHT = 16, 46


class VersionsTab(Tab):
    """One version at a time, and the list of all versions."""

    title = "Versions"

    def _build(self) -> list[widgets.Widget]:
        field = label("Version", "60%") | {"readout": True, "continuous_update": True}
        self.slider = widgets.IntSlider(min=0, max=0, **field)
        self.when_changed(self.slider, lambda: self._show(self.slider.value))
        back = self.button("◀ older", lambda: self.step(-1), "One version back")
        forth = self.button("newer ▶", lambda: self.step(1), "One version on")
        self.shown = widgets.HTML()
        self._range = widgets.HTML()
        self._all = self.pager("All versions that the log contains")
        row = widgets.HBox([back, self.slider, forth], layout={"flex_flow": "row wrap"})
        return [row, self.message, self.shown, self._range, self._all.widget]

    def _fill(self) -> None:
        self._found = found = self.inspect()
        self._known: dict[int, Commit] = {}
        with self.slider.hold_trait_notifications():
            self.slider.min = min(found.earliest, self.slider.max)
            self.slider.max = found.version
            self.slider.min = found.earliest
            self.slider.value = found.version
        self._show(found.version)
        self._range.value = html.view(readable_text(found))
        self._all.fill(found.version - found.earliest + 1, self._page)

    def step(self, versions: int) -> None:
        """Go forward by a number of versions; back if it is negative."""
        wanted = self.slider.value + versions
        self.slider.value = max(self.slider.min, min(self.slider.max, wanted))

    def _show(self, version: int) -> None:
        strip = draw_strip(self._around(version), version)
        changed = self._found.changed_files(version)
        self.shown.value = html.view(html.join(strip, version_facts(changed)))

    def _around(self, version: int) -> list[Commit]:
        first = max(self._found.earliest, version - _AROUND)
        wanted = range(first, min(self._found.version, version + _AROUND) + 1)
        missing = [number for number in wanted if number not in self._known]
        if missing:
            count = missing[-1] - missing[0] + 1
            read = self._found.history(count, newest=missing[-1])
            self._known |= {commit.version: commit for commit in read.commits}
        return [self._known[number] for number in wanted if number in self._known]

    def _page(self, start: int, stop: int) -> TextTable:
        newest = self._found.version - start
        return self._found.history(stop - start, newest=newest).shown()


def version_facts(changed: VersionFiles) -> html.Html:
    """Return a version's operation, changed rows and changed files as HTML."""
    commit, rows = changed.commit, changed.commit.rows
    made = "" if commit.timestamp is None else f"{commit.timestamp:%Y-%m-%d %H:%M:%S} UTC"
    counts = {
        f"rows {kind}": "not counted by its writer" if count is None else count
        for kind, count in (
            ("inserted", rows.inserted),
            ("updated", rows.updated),
            ("deleted", rows.deleted),
        )
    }
    what = commit.description
    found: dict[str, Any] = {"version": commit.version, "made": made}
    found |= {"operation": commit.operation} | ({"what": what} if what else {}) | counts
    found |= {"files added": _files(changed.added), "files removed": _files(changed.removed)}
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
    """Return versions as bars; a bar's height is the number of digits of its changed rows.

    A version whose writer did not count its rows is a gap.
    """
    bars = []
    for place, commit in enumerate(commits):
        rows = commit.rows
        counts = (rows.inserted, rows.updated, rows.deleted)
        changed = sum(filter(None, counts))
        is_counted = bool(changed) or None not in counts
        label = f"{counted(changed, 'row')} changed" if is_counted else "not counted"
        height = min(_HEIGHT - 4, 6 + 6 * len(str(changed))) if changed else 6
        colour = "var(--ml-warn)" if rows.deleted else "var(--ml-blue)"
        colour = colour if changed else "var(--ml-soft)" if is_counted else "transparent"
        frame = ' stroke="var(--ml-fg)" stroke-width="3"' if commit.version == chosen else ""
        title = f"version {commit.version}: {commit.operation}, {label}"
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


def readable_text(inspection: Inspection) -> html.Html:
    """Return the readable versions and their limits as HTML."""
    return html.table(inspection.readable_range().shown(), caption="What can be read")


MOST_FOOTERS = 200
_AT_ONCE = 8


class FilesTab(Tab):
    """The data files of the newest version."""

    title = "Files"

    def _build(self) -> list[widgets.Widget]:
        self._summary = widgets.HTML()
        options = list(skus())
        self.sku = widgets.Dropdown(options=options, value=options[0], **label("Capacity", "14em"))
        self.when_changed(self.sku, self._gauges)
        self._limits = widgets.HTML()
        self._footers = self.button("Read the footers", self.read_footers)
        self._columns = self.pager("Columns by bytes, from the footers")
        self._advise = self.button("Advice", self.advise, "Advice on the files; starts Spark")
        self._advice = widgets.HTML()
        self._list = self.pager("Files, the largest first")
        buttons = widgets.HBox([self.sku, self._footers, self._advise])
        buttons.layout.flex_flow = "row wrap"
        parts = [self._advice, self._columns.widget, self._list.widget]
        return [self._summary, buttons, self.message, self._limits, *parts]

    def _fill(self) -> None:
        self._found = self.inspect()
        self._groups: int | None = None
        self._columns.hide()
        self._advice.value = ""
        files = self._found.files
        facts = {"version": self._found.version} | summary_of(files)
        self._summary.value = html.view(html.facts(facts))
        self._gauges()
        self._list.fill(len(files), lambda start, stop: list_files(files[start:stop]))

    def _gauges(self) -> None:
        self._limits.value = html.view(gauges(self._found, self.sku.value, self._groups))

    def read_footers(self) -> None:
        """Show row groups, and bytes by column, from the footers of the largest files."""
        files = self._found.files
        some = files[:MOST_FOOTERS]
        groups, columns, problems = read_footers(self._found, some)
        self._groups = groups if len(some) == len(files) else None
        self._gauges()
        self._columns.fill(len(columns), lambda start, stop: _column_rows(columns, start, stop))
        said = f"{groups:,} row groups in {len(some):,} of {len(files):,} files."
        self.show_message(" ".join([said, *problems[:3]]), "bad" if problems else "")

    def advise(self) -> None:
        """Show advice on the files; Spark reads the footers for it."""
        self._advice.value = ""
        self.show_message("Spark analyses the files …")
        analysis = self.handle.analyze(scan=False)
        try:
            found = analysis.advice(columns=False)
        finally:
            analysis.release()
        rows = tuple(
            (one.rule, one.evidence, one.gain, copyable(one.remedy)) for one in found.findings
        )
        shown = TextTable(("rule", "evidence", "gain", "remedy"), rows)
        inner = html.table(shown, caption="Advice") if rows else html.note("Advice: none needed.")
        self._advice.value = html.view(inner)
        self.message.value = ""


def list_files(files: Sequence[TableFile]) -> TextTable:
    """Return one row per data file."""
    rows = tuple(
        (
            html.breaking(one.path),
            size_text(one.size),
            one.rows,
            one.deleted,
            one.partition,
            one.ordered,
        )
        for one in files
    )
    return TextTable(("file", "size", "rows", "deleted", "partition", "V-Order"), rows)


def gauges(inspection: Inspection, sku: str, groups: int | None = None) -> html.Html:
    """Return how much of each guardrail the table uses, as the only table of a model.

    Args:
        inspection: the table.
        sku: the capacity.
        groups: row groups; None if the footers were not read, and each file counts as one.
    """
    rows: list[tuple[Any, ...]] = []
    for one in inspection.guardrails(sku, row_groups=groups).limits:
        name, share = one.guardrail, one.used
        if name == "Row Groups" and groups is None:
            name += ", at least"
        said = f"{name}: {100 * share:.3g} % of {sku}'s limit"
        picture = html.gauge(share, said) if one.limit else ""
        shown = round(one.value, 4) if one.value % 1 else int(one.value)
        rows.append((name, shown, one.limit, picture, _percent(share), one.consequence))
    columns = ("guardrail", "value", "limit", "used", "percent", "what happens beyond")
    return html.table(TextTable(columns, tuple(rows)), caption=f"Guardrails of {sku}")


def _percent(share: float) -> str:
    return "under 0.01 %" if 0 < share < 1e-4 else f"{100 * share:,.3g} %"


def read_footers(
    inspection: Inspection, files: Sequence[TableFile]
) -> tuple[int, dict[str, list[int]], list[str]]:
    """Read the footers of files, several at a time and without Spark.

    Returns:
        The number of row groups; by column its compressed bytes, uncompressed bytes and values;
        and a sentence for each file that can't be read.
    """

    def read(file: TableFile) -> pq.FileMetaData | str:
        try:
            with inspection.open(file) as source:
                return pq.read_metadata(source)
        except (OSError, pa.ArrowException, MirrorlakeError) as error:
            return f"{file.path} can't be read: {error}."

    groups = 0
    columns: dict[str, list[int]] = {}
    problems: list[str] = []
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for found in pool.map(read, files):
            if isinstance(found, str):
                problems.append(found)
                continue
            groups += found.num_row_groups
            for group in map(found.row_group, range(found.num_row_groups)):
                for chunk in map(group.column, range(group.num_columns)):
                    sums = columns.setdefault(chunk.path_in_schema, [0, 0, 0])
                    sums[0] += chunk.total_compressed_size
                    sums[1] += chunk.total_uncompressed_size
                    sums[2] += chunk.num_values
    ordered = dict(sorted(columns.items(), key=lambda item: (-item[1][0], item[0])))
    return groups, ordered, problems


def _column_rows(columns: dict[str, list[int]], start: int, stop: int) -> TextTable:
    total = sum(sums[0] for sums in columns.values()) or 1
    rows = tuple(
        (
            name,
            size_text(sums[0]),
            html.gauge(sums[0] / total, f"{name}: {100 * sums[0] / total:.1f} % of the bytes"),
            size_text(sums[1]),
            sums[2],
        )
        for name, sums in list(columns.items())[start:stop]
    )
    return TextTable(("column in the files", "bytes", "share", "uncompressed", "values"), rows)


def copyable(command: str) -> html.Html:
    """Return a command with a button that copies it; the script never contains the command."""
    shown = html.text(command)
    return html.Html(
        f'<code>{shown}</code> <button type="button" data-command="{shown}" aria-label="Copy"'
        ' onclick="navigator.clipboard.writeText(this.dataset.command)">copy</button>'
    )


_PAGE = 20
_COLUMNS = 15
_KIND = CHANGE_COLUMNS[0]


class RowsTab(Tab):
    """Rows of a version, filtered and sorted, and the changes between two versions."""

    title = "Rows"

    def _build(self) -> list[widgets.Widget]:
        # Versions have no bounds: a bounded field would replace a version that does not exist.
        self.version = widgets.IntText(**label("Version", "12em"))
        self.where = widgets.Text(placeholder="n > 9", **label("Filter", "22em"))
        self.order = widgets.Dropdown(**label("Sort by", "18em"))
        self.down = widgets.Checkbox(value=False, indent=False, description="descending")
        self.first = widgets.BoundedIntText(min=1, **label("From column", "12em"))
        self.before = widgets.IntText(**label("Compare version", "14em"))
        self.after = widgets.IntText(**label("with", "10em"))
        read = self.button("Read rows", self.read, "Rows of this version; starts Spark")
        compare = self.button("Compare", self.compare, "Changes between two; starts Spark")
        self._rows = self.pager("Rows", size=_PAGE, data=True)
        self._changes = self.pager("Changes", size=_PAGE, marks=self._marks, data=True)
        self._keys: tuple[str, ...] = ()
        rows = widgets.HBox([self.version, self.where, self.order, self.down, self.first, read])
        changes = widgets.HBox([self.before, self.after, compare])
        for box in (rows, changes):
            box.layout.flex_flow = "row wrap"
        return [rows, changes, self.message, self._rows.widget, self._changes.widget]

    def _fill(self) -> None:
        found = self.inspect()
        for field in (self.version, self.before, self.after):
            field.value = found.version
        self.before.value = max(0, found.version - 1)
        names = [field["name"] for field in found.columns]
        self.order.options = [("unsorted", None), *((html.plain_text(n), n) for n in names)]
        self.first.max = max(1, len(names))
        self.first.value, self.where.value = 1, ""
        self._hide()

    def _hide(self) -> None:
        for pager in (self._rows, self._changes):
            pager.hide()

    def read(self) -> None:
        """Show the first page of a version's rows."""
        self._rows.hide()
        self.show_message("Spark reads the rows …")
        where = self.where.value.strip() or None
        version = self.version.value
        frame = self.handle.read(where, version=version)
        count = frame.count()
        start = self.first.value - 1
        sort = self.order.value
        shown = [quote(name) for name in frame.columns[start : start + _COLUMNS]]
        if sort is not None:
            by = frame[quote(sort)]
            ties = [frame[quote(name)] for name in tie_breakers(frame.dtypes, self.handle.keys)]
            frame = frame.orderBy(by.desc() if self.down.value else by.asc(), *ties)
        self._open(self._rows, frame.select(*shown), count, rows_caption(version, where, count))
        self.message.value = ""

    def compare(self) -> None:
        """Show the first page of changes; changed cells are marked if the table has keys."""
        self._changes.hide()
        self.show_message("Spark compares the versions …")
        table = self.handle
        self._keys = table.keys
        before, after = self.before.value, self.after.value
        frame = table.diff(before, after)
        counts = {row[0]: row[1] for row in frame.groupBy(_KIND).count().collect()}
        # In descending order the preimage comes directly before its postimage, as `_marks` expects.
        order = [*(frame[quote(key)].asc() for key in self._keys), frame[_KIND].desc()]
        ordered = frame.orderBy(*order) if self._keys else frame
        caption = changes_caption(before, after, counts)
        self._open(self._changes, ordered, sum(counts.values()), caption, self._narrow)
        self.message.value = ""

    def _narrow(self, page: TextTable) -> TextTable:
        """Return the keys and the changed columns of a page, at most 15 of them at a time."""
        page = narrow_changes(page, self._keys)
        keys = {key.lower() for key in self._keys}  # the declaration may spell them differently
        fixed = (_KIND, *(name for name in page.columns if name.lower() in keys))
        others = [name for name in page.columns if name not in fixed]
        start = self.first.value - 1 if len(others) > _COLUMNS else 0
        return page.select(*fixed, *others[start : start + _COLUMNS])

    def _open(
        self,
        pager: Pager,
        frame: DataFrame,
        count: int,
        caption: str,
        cut: Callable[[TextTable], TextTable] | None = None,
    ) -> None:
        from mirrorlake import show_rows  # imports pyspark

        def fetch(start: int, stop: int) -> TextTable:
            page = show_rows(frame.offset(start), limit=stop - start)
            return page if cut is None else cut(page)

        pager.fill(count, fetch, caption)

    def _marks(self, page: TextTable) -> list[tuple[int, int]]:
        return changed_cells(page, self._keys)


def rows_caption(version: int, where: str | None, count: int) -> str:
    """Return the caption of a version's rows: version, filter and number of rows."""
    filtered = f", filter {where}" if where else ""
    counts = f": {counted(count, 'row')}" if count else ""
    return f"Rows of version {version}{filtered}{counts}"


def changes_caption(before: int, after: int, counts: Mapping[str, int]) -> str:
    """Return the caption of changes between two versions.

    Args:
        before: the older version.
        after: the newer version.
        counts: the number of changes by kind, as `_change_type` names it.
    """
    names = {"insert": "added", "delete": "removed", "update_postimage": "changed"}
    parts = [f"{counts[kind]:,} {name}" for kind, name in names.items() if counts.get(kind)]
    return f"Changes from {before} to {after}" + (f": {', '.join(parts)}" if parts else "")


def tie_breakers(kinds: Sequence[tuple[str, str]], keys: Sequence[str]) -> list[str]:
    """Return columns that order rows with equal values, so that no page repeats or skips rows.

    These are the keys if the rows have all of them, otherwise the first columns that Spark can
    order by.

    Args:
        kinds: the names and types of the rows' columns.
        keys: the key columns; they may be spelled in another case.
    """
    own = spelled(keys, [name for name, _ in kinds])
    if keys and len(own) == len(keys):
        return list(own)
    return sortable_columns(kinds)[:_COLUMNS]


_NEWEST = 100


class FeedTab(Tab):
    """The changes in a range of versions."""

    title = "Feed"

    def _build(self) -> list[widgets.Widget]:
        self._facts = widgets.HTML()
        self.start = widgets.Text(placeholder="the newest 100", **label("From version", "18em"))
        self.end = widgets.Text(placeholder="the newest", **label("to", "14em"))
        self.where = widgets.Text(placeholder="id = 7", **label("Only rows of", "22em"))
        read = self.button("Read changes", self.read, "Changes by version; starts Spark")
        self._shown = widgets.HTML()
        self._versions = self.pager("Changes by version")
        self._life = self.pager("One key's history", data=True)
        row = widgets.HBox([self.start, self.end, self.where, read])
        row.layout.flex_flow = "row wrap"
        parts = [self._shown, self._versions.widget, self._life.widget]
        return [self._facts, row, self.message, *parts]

    def _fill(self) -> None:
        found = self.inspect()
        state = "on" if found.has_feed else "off: changes.enable() switches it on"
        keys = ", ".join(found.keys) or "none declared"
        facts = {"change feed": state, "keys": keys, "newest version": found.version}
        self._facts.value = html.view(html.facts(facts))
        self._hide()

    def _hide(self) -> None:
        self._shown.value = ""
        for pager in (self._versions, self._life):
            pager.hide()

    def read(self) -> None:
        """Show the changes in the range, and the history of the key that changed most often."""
        self._hide()
        self.show_message("Spark reads the changes …")
        report = self.handle.changes.report(
            self.start.value.strip(),
            self.end.value.strip(),
            newest=_NEWEST,
            where=self.where.value.strip(),
        )
        self._shown.value = html.view(html.table(report.shown(), caption="Rows, raw and net"))
        for pager, rows in ((self._versions, report.by_version), (self._life, report.timeline)):
            newest = TextTable(rows.columns, rows.rows[::-1])
            pager.fill(len(newest.rows), slices(newest))
        told = f"One key's history: {report.followed}." if report.followed else repr(report)
        if report.timeline.more:
            told += f" Only its first {len(report.timeline.rows)} changes are shown."
        self.show_message(told)
