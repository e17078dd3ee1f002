"""What analyses found, for people: the tables of a lake at a glance, and one table in short tables.

An overview has those first that need care. It reads logs and footers, no rows. A table that can't
be looked at has its error in its line; the others are there all the same. The short tables have
sizes with units, the largest first, cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from mirrorlake.delta.table import TableHandle
from mirrorlake.errors import MirrorlakeError, TableNotFoundError
from mirrorlake.layout.advice import advise
from mirrorlake.layout.analysis import Analysis, analyze_table
from mirrorlake.layout.guardrails import GuardrailReport, check_guardrails, find_sku, measure
from mirrorlake.names import TableName
from mirrorlake.results import Result, TextTable, size_text
from mirrorlake.spark.sql import spark_message

_AT_ONCE = 4
# What costs most when it is left as it is comes first.
_WEIGHTS = {
    "small files": 3,
    "row-group size": 2,
    "deletion vectors piled up": 2,
    "partitions of high cardinality": 3,
    "V-Order signals disagree": 1,
    "missing statistics": 1,
}
_MOST = 20
_GB = "GB On Disk"


@dataclass(frozen=True)
class TableFiles:
    """One table of an overview.

    Attributes:
        table: its name.
        files, row_groups, rows, size: of the newest version; size in bytes.
        used: the part of the SKU's nearest guardrail that is used; above 1 it is broken.
        guardrail: which one that is.
        rules: the advice on its files, by short names.
        error: why it can't be looked at; empty if it can.
    """

    table: str
    files: int = 0
    row_groups: int = 0
    rows: int = 0
    size: int = 0
    used: float = 0.0
    guardrail: str = ""
    rules: tuple[str, ...] = ()
    error: str = ""

    @property
    def care(self) -> tuple[bool, bool, int, float, int]:
        """What the overview is ordered by: errors, broken guardrails, advice, what is used."""
        weight = sum(_WEIGHTS.get(rule, 0) for rule in self.rules)
        return bool(self.error), self.used > 1, weight, self.used, self.size


@dataclass(frozen=True)
class FilesOverview(Result):
    """The tables of a lake, those first that need care.

    Attributes:
        sku: whose guardrails are meant; the smallest one's by default.
        tables: one entry a table.
        model: how all tables together stand, as one model.
    """

    sku: str
    tables: tuple[TableFiles, ...]
    model: GuardrailReport

    @property
    def first(self) -> str:
        """The table that needs most care; empty if there is none that can be looked at."""
        return next((one.table for one in self.tables if not one.error), "")

    @property
    def broken(self) -> tuple[TableFiles, ...]:
        """The tables beyond a guardrail."""
        return tuple(one for one in self.tables if one.used > 1)

    @property
    def failed(self) -> tuple[TableFiles, ...]:
        """The tables that can't be looked at."""
        return tuple(one for one in self.tables if one.error)

    def check(self) -> None:
        """Ends with an error where no table can be looked at.

        Raises:
            TableNotFoundError: there is none, or each has an error of its own.
        """
        if not self.first:
            why = self.tables[0].error if self.tables else "the lake has no tables"
            raise TableNotFoundError(f"No table can be looked at: {why}.", hint="run `mirror`.")

    def used(self, most: int = 20) -> dict[str, float]:
        """Percent of the nearest guardrail by table, for a picture; the first ones only."""
        return {one.table: 100 * one.used for one in self.tables[:most] if not one.error}

    def shown(self) -> TextTable:
        """One row a table."""
        columns = ("table", "files", "row groups", "rows", "size", "nearest guardrail", "used",
                   "what needs care")  # fmt: skip
        rows = tuple(
            (one.table, one.files, one.row_groups, one.rows, size_text(one.size),
             one.guardrail, f"{100 * one.used:,.3g} %", one.error or ", ".join(one.rules))
            for one in self.tables
        )  # fmt: skip
        return TextTable(columns, rows)

    def __repr__(self) -> str:
        return (
            f"{len(self.tables)} tables, {len(self.broken)} beyond a guardrail of {self.sku},"
            f" {len(self.failed)} can't be read"
        )


def survey_files(
    open_table: Callable[[TableName], TableHandle], names: Iterable[TableName], sku: str = ""
) -> FilesOverview:
    """Looks at the files of tables.

    Args:
        open_table: how to come to a table by its name.
        names: which tables.
        sku: the capacity whose guardrails count; by default the smallest, F2.

    Raises:
        UsageError: there is no such SKU.

    Example:
        >>> survey_files(lake.table, lake.tables(), "F64")  # doctest: +SKIP
        7 tables, 1 beyond a guardrail of F64, 0 can't be read
    """
    chosen = find_sku(sku or "F2").name
    look = partial(_survey_one, open_table, sku=chosen)
    wanted = list(names)
    found = [look(name) for name in wanted[:1]]  # it starts Spark where nothing else has
    # A small table is a row of short jobs: several at once keep the workers busy.
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        found += pool.map(look, wanted[1:])
    found.sort(key=lambda one: one.table)
    found.sort(key=lambda one: one.care, reverse=True)
    sums = {
        "files": float(max((one.files for one in found), default=0)),
        "row_groups": float(max((one.row_groups for one in found), default=0)),
        "rows": float(max((one.rows for one in found), default=0)),
        "model_gb": sum(one.size for one in found) / 10**9,
    }
    return FilesOverview(chosen, tuple(found), check_guardrails(sums, sums, chosen))


def _survey_one(
    open_table: Callable[[TableName], TableHandle], name: TableName, sku: str
) -> TableFiles:
    """One table's line; its trouble must not hide the others."""
    try:
        analysis = analyze_table(open_table(name), scan=False)
        try:
            return _look_at(analysis, sku)
        finally:
            analysis.release()
    except Exception as error:
        text = error.message if isinstance(error, MirrorlakeError) else spark_message(error)
        return TableFiles(str(name), error=text)


def _look_at(analysis: Analysis, sku: str) -> TableFiles:
    s = analysis.summary
    now = measure([s])
    nearest = max(check_guardrails(now, now, sku).limits, key=lambda one: one.used)
    rules = dict.fromkeys(finding.rule for finding in advise(analysis, columns=False).findings)
    if s["Unreadable Files"]:
        rules = {"unreadable files": None} | rules
    return TableFiles(
        str(analysis.name),
        s["Parquet Files"],
        s["Row Groups"],
        s["Row Count"],
        s["File Size"],
        nearest.used,
        nearest.guardrail,
        tuple(rules),
    )


def show_summary(analysis: Analysis) -> TextTable:
    """The version's figures, one a row.

    Args:
        analysis: of any version; what is not there is 0.
    """
    s = analysis.summary
    least, most = (s[f"{which} Rows Per Row Group"] or 0 for which in ("Min", "Max"))
    rows = (
        ("version", str(analysis.version)),
        ("rows", f"{s['Row Count']:,}"),
        ("rows lying deleted", f"{s['Deleted Rows']:,} in {s['Deletion Vectors']:,} files"),
        ("files", f"{s['Parquet Files']:,}"),
        ("size", size_text(s["File Size"])),
        ("row groups", f"{s['Row Groups']:,}"),
        ("rows in a row group", f"{least:,} to {most:,}"),
        ("files in V-Order", f"{s['VOrder Files'] + s['Open V-Order Files']:,}"),
        ("stale files", f"{s['Stale Files']:,} of {size_text(s['Stale Size'] or 0)}"),
        ("files without statistics", f"{s['Files Without Statistics']:,}"),
        ("unreadable files", f"{s['Unreadable Files']:,}"),
    )
    return TextTable((str(analysis.name), ""), rows)


def show_guardrails(report: GuardrailReport) -> TextTable:
    """How a table stands to a SKU's guardrails, one a row."""

    def text(guardrail: str, value: float | None) -> str:
        if value is None:
            return "none"
        return size_text(value * 10**9) if _GB in guardrail else f"{value:,.0f}"

    rows = tuple(
        (
            one.guardrail.replace(_GB, "Size On Disk"),
            text(one.guardrail, one.value),
            text(one.guardrail, one.limit),
            "" if not one.limit else f"{100 * one.value / one.limit:,.3g} %",
            text(one.guardrail, one.after_optimize),
            one.consequence or "within",
        )
        for one in report.limits
    )
    columns = (f"guardrail of {report.sku}", "now", "limit", "used", "after OPTIMIZE", "so")
    return TextTable(columns, rows)


def show_columns(analysis: Analysis, most: int = _MOST) -> TextTable:
    """The columns, the largest first.

    Args:
        analysis: without a scan it does not know the values.
        most: how many.
    """
    wanted = ["Column Name", "Primitive Type", "Compressed Size", "Size Percent Of Table",
              "Cardinality", "Nulls", "Chunks Without Dictionary", "Chunks"]  # fmt: skip
    hidden = analysis.hidden_columns
    found = analysis.tables["Columns"].select(*wanted).collect()  # a row a column
    found.sort(key=lambda row: (-(row[2] or 0), row[0]))
    rows = tuple(
        (hidden.get(row[0], row[0]), row[1], size_text(row[2] or 0), f"{row[3] or 0:.0f} %",
         row[4], row[5], f"{row[6]:,} of {row[7]:,}")
        for row in found[:most]
    )  # fmt: skip
    columns = ("column", "type", "size", "of the table", "values", "nulls",
               "chunks without dictionary")  # fmt: skip
    return TextTable(columns, rows, more=len(found) > most)


def show_advice(analysis: Analysis) -> TextTable:
    """The advice on a table, one finding a row; commands have ROOT for the lake's folder.

    Args:
        analysis: with a scan, or the advice on columns is left out.
    """
    root = analysis.table.storage.root.replace("`", "``")
    rows = tuple(
        (one.rule, one.column or "", one.evidence, one.gain, one.remedy.replace(root, "ROOT"))
        for one in advise(analysis).findings
    )
    return TextTable(("advice", "column", "evidence", "gain", "command"), rows)


def compare_columns(before: Analysis, after: Analysis | None = None) -> TextTable:
    """The sizes of the columns, the largest first; with `after` what they became.

    Args:
        before: an analysis of one version.
        after: one of a later version; a column that it lacks has 0 bytes then.
    """
    old = column_bytes(before)
    some = list(old.items())[:_MOST]
    more = len(old) > _MOST
    if after is None:
        total = max(1, sum(old.values()))
        rows = tuple((name, size_text(n), f"{100 * n / total:.0f} %") for name, n in some)
        return TextTable(("column", "size", "of the table"), rows, more)
    new = column_bytes(after)
    lines = tuple(
        (name, size_text(n), size_text(new.get(name, 0)), _less(n, new.get(name, 0)))
        for name, n in some
    )
    return TextTable(("column", "before", "after", "less"), lines, more)


def column_bytes(analysis: Analysis) -> dict[str, int]:
    """Compressed bytes by column, the largest first."""
    columns = analysis.tables["Columns"].select("Column Name", "Compressed Size")
    hidden = analysis.hidden_columns
    found = [(hidden.get(row[0], row[0]), int(row[1] or 0)) for row in columns.collect()]
    return dict(sorted(found, key=lambda one: (-one[1], one[0])))


def _less(before: int, after: int) -> str:
    return f"{100 * (1 - after / max(1, before)):.0f} %"
