"""The tab Files: a version's files, their footers, guardrails by capacity, advice with commands.

The log gives sizes and rows; footers are read when asked for, of a bounded number of files; advice
starts Spark.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ipywidgets as widgets
import pyarrow as pa
import pyarrow.parquet as pq

from mirrorlake.delta.actions import Places
from mirrorlake.delta.snapshot import open_snapshot
from mirrorlake.errors import MirrorlakeError
from mirrorlake.layout.guardrails import check_guardrails, skus
from mirrorlake.names import TableName
from mirrorlake.results import TextTable, size_text
from mirrorlake.storage.files import Storage
from mirrorlake_lab.pages import html
from mirrorlake_lab.pages.facts import LiveFile, files_of, summary_of
from mirrorlake_lab.pages.guarded import label
from mirrorlake_lab.pages.pager import Pager
from mirrorlake_lab.pages.tab import Tab

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
        from mirrorlake.layout.analysis import analyze_table

        self.say("Spark analyses the files …")
        analysis = analyze_table(self.handle, scan=False)
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
