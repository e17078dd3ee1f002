"""What an analysis found as short tables for people: sizes with units, the largest first, cut."""

from __future__ import annotations

from mirrorlake.delta.snapshot import ROW_ID_COLUMN, ROW_VERSION_COLUMN
from mirrorlake.layout.advice import advise
from mirrorlake.layout.analysis import Analysis
from mirrorlake.layout.guardrails import GuardrailReport
from mirrorlake.results import TextTable, size_text

_MOST = 20
_GB = "GB On Disk"


def show_summary(analysis: Analysis) -> TextTable:
    """The version's figures, one a row.

    Args:
        analysis: of any version; what is not there is 0.
    """
    s = analysis.summary
    groups = [s[f"{which} Rows Per Row Group"] for which in ("Min", "Avg", "Max")]
    rows = (
        ("version", str(analysis.version)),
        ("rows", f"{s['Row Count']:,}"),
        ("rows lying deleted", f"{s['Deleted Rows']:,} in {s['Deletion Vectors']:,} files"),
        ("files", f"{s['Parquet Files']:,}"),
        ("size", size_text(s["File Size"])),
        ("row groups", f"{s['Row Groups']:,}"),
        ("rows in a row group", " to ".join(f"{n or 0:,.0f}" for n in groups[::2])),
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
    hidden = _hidden(analysis)
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
    root = analysis.storage.root.replace("`", "``")
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
    hidden = _hidden(analysis)
    found = [(hidden.get(row[0], row[0]), int(row[1] or 0)) for row in columns.collect()]
    return dict(sorted(found, key=lambda one: (-one[1], one[0])))


def _hidden(analysis: Analysis) -> dict[str, str]:
    """What the hidden columns of row tracking are: their names are numbers to nobody's use."""
    known = analysis.metadata.get("configuration") or {}
    told = {ROW_ID_COLUMN: "(row ids)", ROW_VERSION_COLUMN: "(commit versions of rows)"}
    return {known[name]: text for name, text in told.items() if name in known}


def _less(before: int, after: int) -> str:
    return f"{100 * (1 - after / max(1, before)):.0f} %"
