"""The tabs Tables, Versions and Files: what a table's log and footers show of it.

They read without Spark, except for advice on the files. The log gives sizes and rows. Footers are
read on request, of a bounded number of files.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from statistics import median
from typing import Any
from urllib.parse import unquote

import ipywidgets as widgets
import pyarrow as pa
import pyarrow.parquet as pq

from mirrorlake.delta.actions import Places, live_files
from mirrorlake.delta.commits import Commit, CommitLog, describe_commit, find_newest
from mirrorlake.delta.log_files import commit_path, read_actions
from mirrorlake.delta.snapshot import OPEN_TAG, Snapshot, open_snapshot
from mirrorlake.errors import MirrorlakeError, TableNotFoundError
from mirrorlake.history.versions import find_readable_range
from mirrorlake.layout.guardrails import check_guardrails, skus
from mirrorlake.mirror.options import declared_keys
from mirrorlake.names import TableName
from mirrorlake.results import TextTable, size_text
from mirrorlake.storage.files import Storage
from mirrorlake_lab.pages import html
from mirrorlake_lab.pages.controls import Pager, Tab, label, slices


def columns_of(snapshot: Snapshot) -> TextTable:
    """The columns: name, type, whether they may be NULL, and what they are for."""
    keys = {key.lower() for key in declared_keys(snapshot.properties)}
    parts = set(snapshot.partition_columns)
    rows = []
    for field in snapshot.fields:
        name, kind = field["name"], field["type"]
        roles = ["key"] * (name.lower() in keys) + ["partition"] * (name in parts)
        shown = kind if isinstance(kind, str) else _nested(kind)
        comment = (field.get("metadata") or {}).get("comment", "")
        rows.append((name, shown, bool(field.get("nullable", True)), ", ".join(roles), comment))
    return TextTable(("column", "type", "nullable", "role", "comment"), tuple(rows))


def _nested(kind: dict[str, Any]) -> str:
    if kind["type"] == "array":
        return f"array<{_type(kind['elementType'])}>"
    if kind["type"] == "map":
        return f"map<{_type(kind['keyType'])},{_type(kind['valueType'])}>"
    inner = (f"{field['name']}:{_type(field['type'])}" for field in kind.get("fields", ()))
    return f"struct<{','.join(inner)}>"


def _type(kind: Any) -> str:
    return kind if isinstance(kind, str) else _nested(kind)


def protocol_of(snapshot: Snapshot) -> str:
    """What readers and writers must know."""
    found = snapshot.protocol
    text = f"reader {found.get('minReaderVersion')}, writer {found.get('minWriterVersion')}"
    features = sorted({*snapshot.reader_features, *snapshot.writer_features})
    return f"{text}: {', '.join(features)}" if features else text


@dataclass(frozen=True)
class LiveFile:
    """A data file of a version, as the log has it.

    Attributes:
        path: as the log has it, decoded.
        rows: without deleted ones.
        deleted: by a deletion vector.
        values: the partition's values, as text.
        ordered: whether its rows are in V-Order.
    """

    path: str
    size: int
    rows: int
    deleted: int
    values: str
    ordered: bool


_KEPT: dict[tuple[str, TableName, str, int], list[LiveFile]] = {}
_MOST_KEPT = 2


def files_of(storage: Storage, table: TableName, snapshot: Snapshot) -> list[LiveFile]:
    """The files of a version, the largest first; those looked at last are kept, for all tabs."""
    key = (storage.root, table, str(snapshot.metadata.get("id")), snapshot.version)
    found = _KEPT.get(key)
    if found is None:
        found = _read_files(storage, table, snapshot.version)
        while len(_KEPT) >= _MOST_KEPT:
            _KEPT.pop(next(iter(_KEPT)))
        _KEPT[key] = found
    return found


def _read_files(storage: Storage, table: TableName, version: int) -> list[LiveFile]:
    found = [
        LiveFile(
            unquote(action["path"]),
            int(action.get("size") or 0),
            int(action["records"]),
            int((action.get("deletionVector") or {}).get("cardinality", 0)),
            _values(action),
            OPEN_TAG in (action.get("tags") or {}),
        )
        for action in live_files(storage, table.table_path, version)
    ]
    return sorted(found, key=lambda file: (-file.size, file.path))


def _values(action: dict[str, Any]) -> str:
    values = action.get("partitionValues")
    if not values:
        return ""
    return ", ".join(f"{name}={value}" for name, value in dict(values).items())


def summary_of(files: Sequence[LiveFile]) -> dict[str, Any]:
    """Figures of some files."""
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


@dataclass(frozen=True)
class VersionFacts:
    """One version: its commit, and the files that came and went with it.

    Attributes:
        came, went: path and size of each.
    """

    commit: Commit
    came: tuple[tuple[str, int], ...]
    went: tuple[tuple[str, int], ...]


def read_version(storage: Storage, table: TableName, version: int) -> VersionFacts:
    """One version of a table; the cost is its own commit and a few before it.

    Raises:
        TableNotFoundError: the log no longer holds it.
    """
    commits = CommitLog(storage, table.table_path).read(version, 1).commits
    if not commits:
        raise TableNotFoundError(
            f"The log of {table} no longer holds version {version}.", hint="choose a newer one."
        )
    found: dict[str, list[tuple[str, int]]] = {"add": [], "remove": []}
    for kind, action in read_actions(
        storage, commit_path(table.table_path, version), ("add", "remove")
    ):
        found[kind].append((unquote(action["path"]), int(action.get("size") or 0)))
    return VersionFacts(commits[0], tuple(found["add"]), tuple(found["remove"]))


def properties_of(snapshot: Snapshot) -> TextTable:
    """The table's properties, in the order of their names."""
    shown = [(name, _short(value)) for name, value in sorted(snapshot.properties.items())]
    return TextTable(("property", "value"), tuple(shown))


def _short(value: str) -> str:
    try:
        text = json.dumps(json.loads(value), ensure_ascii=False)
    except ValueError:
        text = value
    return text if len(text) <= 300 else f"{text[:299]}…"


class TablesTab(Tab):
    """What tables there are, and what one of them is made of."""

    title = "Tables"

    def _build(self) -> list[widgets.Widget]:
        self._facts = widgets.HTML()
        self._columns = Pager("Columns")
        self._properties = Pager("Properties")
        self._all = Pager("Tables of the lake")
        parts = (self._columns, self._properties, self._all)
        return [self._facts, *(part.widget for part in parts)]

    def _fill(self) -> None:
        snapshot = open_snapshot(self.storage, self.table)
        self._facts.value = html.view(table_facts(self.storage, self.table, snapshot))
        columns, properties = columns_of(snapshot), properties_of(snapshot)
        self._columns.fill(len(columns.rows), slices(columns))
        self._properties.fill(len(properties.rows), slices(properties))
        tables = self.lake.tables()
        self._all.fill(
            len(tables), lambda start, stop: list_tables(self.storage, tables[start:stop])
        )


def table_facts(storage: Storage, table: TableName, snapshot: Snapshot) -> html.Html:
    """A version of a table in a few lines."""
    keys = ", ".join(declared_keys(snapshot.properties)) or "none declared"
    found = {
        "table": str(table),
        "version": snapshot.version,
        "columns": len(snapshot.fields),
        "keys": keys,
        "partitioned by": ", ".join(snapshot.partition_columns) or "nothing",
        "change feed": "on" if snapshot.has_feed else "off",
        "protocol": protocol_of(snapshot),
    }
    return html.facts(found | summary_of(files_of(storage, table, snapshot)))


def list_tables(storage: Storage, tables: list[TableName]) -> TextTable:
    """Some tables with their newest versions."""
    rows = tuple((str(name), find_newest(storage, name.table_path)) for name in tables)
    return TextTable(("table", "newest version"), rows)


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


MOST_FOOTERS = 200
_AT_ONCE = 8


class FilesTab(Tab):
    """What the files of the newest version are like."""

    title = "Files"

    def _build(self) -> list[widgets.Widget]:
        self._summary = widgets.HTML()
        options = list(skus())
        self.sku = widgets.Dropdown(options=options, value=options[0], **label("Capacity", "14em"))
        self.when_changed(self.sku, self._gauges)
        self._limits = widgets.HTML()
        self._footers = self.button("Read the footers", self.read_footers)
        self._columns = Pager("Columns by bytes, from the footers")
        self._advise = self.button("Advice", self.advise, "Advice on the files; starts Spark")
        self._advice = widgets.HTML()
        self._list = Pager("Files, the largest first")
        self._columns.widget.layout.display = "none"
        buttons = widgets.HBox([self.sku, self._footers, self._advise])
        buttons.layout.flex_flow = "row wrap"
        parts = [self._advice, self._columns.widget, self._list.widget]
        return [self._summary, buttons, self._limits, *parts]

    def _fill(self) -> None:
        snapshot = open_snapshot(self.storage, self.table)
        self.files = files_of(self.storage, self.table, snapshot)
        self._groups: int | None = None
        self._columns.widget.layout.display = "none"
        self._advice.value = ""
        self._summary.value = html.view(
            html.facts({"version": snapshot.version} | summary_of(self.files))
        )
        self._gauges()
        self._list.fill(len(self.files), lambda start, stop: list_files(self.files[start:stop]))

    def _gauges(self) -> None:
        self._limits.value = html.view(gauges(self.files, self.sku.value, self._groups))

    def read_footers(self) -> None:
        """Reads the footers of the largest files: their row groups, and bytes by column."""
        some = self.files[:MOST_FOOTERS]
        groups, columns, problems = read_footers(self.storage, self.table, some)
        self._groups = groups if len(some) == len(self.files) else None
        self._gauges()
        self._columns.widget.layout.display = ""
        self._columns.fill(len(columns), lambda start, stop: _column_rows(columns, start, stop))
        said = f"{groups:,} row groups in {len(some):,} of {len(self.files):,} files."
        self.say(" ".join([said, *problems[:3]]), "bad" if problems else "")

    def advise(self) -> None:
        """Says what could be better about the files; Spark reads the footers for it."""
        self.say("Spark analyses the files …")
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
        self.said.value = ""


def list_files(files: list[LiveFile]) -> TextTable:
    """Some files, a line each."""
    rows = tuple(
        (file.path, size_text(file.size), file.rows, file.deleted, file.values, file.ordered)
        for file in files
    )
    return TextTable(("file", "size", "rows", "deleted", "partition", "V-Order"), rows)


def gauges(files: list[LiveFile], sku: str, groups: int | None = None) -> html.Html:
    """How much of a capacity's guardrails the table uses, as a model of its own.

    Args:
        files: of a version.
        sku: the capacity.
        groups: row groups; None if the footers were not read, and each file counts as one.
    """
    now = {
        "files": float(len(files)),
        "row_groups": float(len(files) if groups is None else groups),
        "rows": float(sum(file.rows for file in files)),
        "model_gb": sum(file.size for file in files) / 10**9,
    }
    rows: list[tuple[Any, ...]] = []
    for one in check_guardrails(now, now, sku).limits:
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
    storage: Storage, table: TableName, files: list[LiveFile]
) -> tuple[int, dict[str, list[int]], list[str]]:
    """What some files' footers prove, read here, several at a time.

    Returns:
        The number of row groups; by column its bytes, compressed and not, and its values; and a
        sentence for each file that can't be read.
    """
    places = Places(storage, table.table_path)

    def read(file: LiveFile) -> pq.FileMetaData | str:
        try:
            where, path = places.place(file.path)
            with where.open(path) as source:
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
    """A command, and a button that copies it; the command is never part of the script."""
    shown = html.text(command)
    return html.Html(
        f'<code>{shown}</code> <button type="button" data-command="{shown}" aria-label="Copy"'
        ' onclick="navigator.clipboard.writeText(this.dataset.command)">copy</button>'
    )
