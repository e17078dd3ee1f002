"""Small tables to look at: ordered, limited, the same facts as HTML and as text.

`Shown` serves everything that has rows: Spark's rows by `show_rows`, a report by `show_status`,
published files by `show_files`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from html import escape
from typing import TYPE_CHECKING, Any

from mirrorlake.landing.check import inspect_file
from mirrorlake.landing.markers import Marker
from mirrorlake.landing.metadata import read_metadata
from mirrorlake.landing.zone import list_folder
from mirrorlake.names import TableName

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from mirrorlake.lake import Lake
    from mirrorlake.mirror.state import Report

_NUMBER = "text-align:right;font-variant-numeric:tabular-nums"
_TEXT = "text-align:left"


@dataclass(frozen=True)
class Shown:
    """Rows to look at.

    Attributes:
        columns: the names.
        rows: the values, in the columns' order.
        more: whether rows were left out.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    more: bool = False

    def __repr__(self) -> str:
        return text_table(self)

    def _repr_html_(self) -> str:
        return html_table(self)


def show_rows(df: DataFrame, *, order_by: Sequence[str | Column], limit: int = 10) -> Shown:
    """The first rows of a Spark DataFrame; no others are fetched.

    Args:
        df: any DataFrame; its moments are shown in the session's time zone.
        order_by: what makes the order certain: columns, or names with or without ` DESC`.
        limit: most rows.
    """
    from pyspark.sql import functions as sf

    order = [
        sf.desc(by[: -len(" DESC")]) if isinstance(by, str) and by.endswith(" DESC") else by
        for by in order_by
    ]
    first = df.orderBy(*order).limit(limit + 1)
    # Python would turn moments into its own time zone.
    shown = [
        sf.col(quoted).cast("string").alias(name) if kind == "timestamp" else sf.col(quoted)
        for name, kind in first.dtypes
        for quoted in ["`" + name.replace("`", "``") + "`"]
    ]
    rows = tuple(tuple(row) for row in first.select(*shown).collect())
    return Shown(tuple(first.columns), rows[:limit], more=len(rows) > limit)


def show_status(report: Report) -> Shown:
    """How the tables stand: one row a table, without what changes from run to run."""
    columns = ("table", "state", "rows", "last_file", "backlog_files", "error")
    rows = tuple(
        (
            table.name if table.schema is None else f"{table.schema}.{table.name}",
            table.state,
            table.rows,
            table.last_file,
            table.backlog_files,
            table.error and table.error["message"],
        )
        for table in report.tables
    )
    # A column of nothing but "no error" tells nothing.
    keep = len(columns) if report.failed else len(columns) - 1
    return Shown(columns[:keep], tuple(row[:keep] for row in rows))


def show_files(lake: Lake, table: str) -> Shown:
    """The data files that lie in a table's folder of the zone, with their rows by marker.

    Raises:
        DataFileError: one of them can't be read.
    """
    name = TableName.parse(table)
    metadata = read_metadata(lake.storage, name)
    rows = []
    for _, entry in sorted(list_folder(lake.storage, name).numbered.items()):
        facts = inspect_file(lake.storage, f"{name.folder}/{entry.name}", metadata)
        marker = "several" if facts.marker else "none: initial load"
        if facts.marker and len(facts.rows) == 1:
            kind = next(iter(facts.rows))
            marker = f"{int(kind)}: {Marker(kind).name.lower()}"
        rows.append((entry.name, facts.row_count, marker, f"{entry.size / 1024:,.0f} KiB"))
    return Shown(("file", "rows", "marker", "size"), tuple(rows))


def html_table(shown: Shown) -> str:
    """The rows as HTML, numbers to the right, every value escaped."""
    styles = [_NUMBER if _is_numeric(shown, i) else _TEXT for i in range(len(shown.columns))]
    head = _html_row("th", shown.columns, styles)
    body = "".join(_html_row("td", map(_text, row), styles) for row in shown.rows)
    more = "<p>… and more rows</p>" if shown.more else ""
    return f"<table><thead>{head}</thead><tbody>{body}</tbody></table>{more}"


def text_table(shown: Shown) -> str:
    """The rows as aligned text."""
    lines = [list(shown.columns), *([_text(value) for value in row] for row in shown.rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    right = [_is_numeric(shown, i) for i in range(len(widths))]
    texts = [
        "  ".join(
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in lines
    ]
    return "\n".join(texts + ["… and more rows"] * shown.more)


def _html_row(tag: str, cells: Any, styles: list[str]) -> str:
    inner = "".join(
        f'<{tag} style="{style}">{escape(cell)}</{tag}>'
        for cell, style in zip(cells, styles, strict=True)
    )
    return f"<tr>{inner}</tr>"


def _is_numeric(shown: Shown, index: int) -> bool:
    values = [row[index] for row in shown.rows if row[index] is not None]
    return bool(values) and all(isinstance(v, (int, float, Decimal)) for v in values)


def _text(value: Any) -> str:
    if value is None:
        return "NULL"
    # Sums of parts differ in the last digits from run to run.
    return f"{value:.10g}" if isinstance(value, float) else str(value)
