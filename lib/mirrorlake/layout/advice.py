"""Advice on a table's files and columns: each finding with its evidence, its gain and its remedy.

The rules are those of the Direct Lake storage document. They read an analysis, so they cost a few
aggregates; only what no footer tells (floats that could be rounded, columns that repeat or follow
from others) is asked of the rows, in one pass over a sample.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple, dataclass

from pyspark.sql import Row

from mirrorlake.delta.snapshot import ROW_ID_COLUMN, ROW_VERSION_COLUMN
from mirrorlake.layout.analysis import Analysis
from mirrorlake.layout.measures import PROPERTIES
from mirrorlake.layout.row_advice import Rule, on_rows, on_values
from mirrorlake.results import Result, TextTable
from mirrorlake.spark.sql import quote

_MIB = 2**20
_SMALL_FILE = 32 * _MIB
_LEAST_FILES = 8
_FEW_ROWS = 500_000
_MANY_PARTITIONS = 100
_PARTITION_BYTES = 2**30
_DELETED_SHARE = 0.1
_MANY_VALUES = 0.5
_WIDE_BYTES = 64
_WORTH_PERCENT = 10.0
MANY_ROWS = 100_000_000
# What a reader of another kind has to know; the page on readers has the whole table.
_DEMANDING = {"deletionVectors", "columnMapping", "typeWidening", "v2Checkpoint", "variantType"}


@dataclass(frozen=True)
class Finding:
    """One piece of advice.

    Attributes:
        rule: its short name.
        column: the column it is about, or None for the table.
        evidence: what was found, with figures.
        gain: what is to be expected.
        remedy: the command or the code that does it.
    """

    rule: str
    column: str | None
    evidence: str
    gain: str
    remedy: str


@dataclass(frozen=True)
class Advice(Result):
    """All findings on one table; none is good news."""

    table: str
    findings: tuple[Finding, ...]

    def __repr__(self) -> str:
        rules = ", ".join(dict.fromkeys(finding.rule for finding in self.findings))
        return f"{self.table}: {f'{len(self.findings)} findings ({rules})' if rules else 'well'}"

    def shown(self) -> TextTable:
        """The findings as rows."""
        columns = ("Rule", "Column", "Evidence", "Gain", "Remedy")
        return TextTable(columns, tuple(map(astuple, self.findings)))


def advise(
    analysis: Analysis,
    *,
    used: list[str] | None = None,
    many_rows: int = MANY_ROWS,
    columns: bool = True,
) -> Advice:
    """What could be better about a table.

    Args:
        analysis: with a scan, or the advice on columns is left out.
        used: the columns that models and reports use; by default nothing is known of it.
        many_rows: from how many rows on it is worth to look for ways to have fewer.
        columns: look at the columns, too.
    """
    rules = [
        *_on_files(analysis),
        *(on_rows(analysis) if analysis.summary["Row Count"] >= many_rows else ()),
        *_on_partitions(analysis),
        *_on_protocol(analysis),
        *(_on_columns(analysis, used) if columns else ()),
    ]
    return Advice(str(analysis.name), tuple(Finding(*rule) for rule in rules))


def _on_files(analysis: Analysis) -> Iterator[Rule]:
    s, name = analysis.summary, analysis.name
    small = analysis.facts.where(f"size < {_SMALL_FILE}").count()
    if small >= _LEAST_FILES:
        after = next(
            one for one in analysis.guardrails().limits if one.guardrail == "Parquet Files"
        )
        yield (
            "small files",
            None,
            f"{small:,} of {s['Parquet Files']:,} files are under {_SMALL_FILE // _MIB} MiB",
            f"about {after.after_optimize:,.0f} files in place of {s['Parquet Files']:,}",
            f"OPTIMIZE {analysis.sql_name}",
        )
    average = s["Avg Rows Per Row Group"] or 0
    if s["Row Groups"] > s["Parquet Files"] and average < _FEW_ROWS:
        yield (
            "row-group size",
            None,
            f"{s['Row Groups']:,} row groups of {average:,.0f} rows on average",
            "fewer and longer reads: row groups of 2 to 6 million rows load fastest",
            f"./mirrorlake vorder ROOT {name}",
        )
    lacking = s["Parquet Files"] - s["VOrder Files"] - s["Open V-Order Files"]
    if lacking > 0:
        yield (
            "no V-Order",
            None,
            f"{lacking:,} of {s['Parquet Files']:,} files are in no V-Order",
            "smaller files, quicker to read; a dry run tells how much",
            f"./mirrorlake vorder ROOT {name} --dry-run",
        )
    if s["VOrder Disagreements"]:
        yield (
            "V-Order signals disagree",
            None,
            f"{s['VOrder Disagreements']:,} files' footers contradict their tag or the table's"
            f" {' or '.join(PROPERTIES)}",
            "what is claimed is what is there",
            f"./mirrorlake vorder ROOT {name}",
        )
    written = s["Row Count"] + s["Deleted Rows"]
    if s["Deleted Rows"] > _DELETED_SHARE * max(1, written):
        yield (
            "deletion vectors piled up",
            None,
            f"{s['Deleted Rows']:,} of {written:,} rows lie deleted in {s['Deletion Vectors']:,}"
            " files",
            f"{100 * s['Deleted Rows'] / written:.0f} % fewer rows to read",
            f"REORG TABLE {analysis.sql_name} APPLY (PURGE)",
        )
    if s["Files Without Statistics"]:
        yield (
            "missing statistics",
            None,
            f"{s['Files Without Statistics']:,} files have none in the log",
            "queries skip files that can't match",
            f"ANALYZE TABLE {analysis.sql_name} COMPUTE DELTA STATISTICS",
        )


def _on_partitions(analysis: Analysis) -> Iterator[Rule]:
    columns = analysis.metadata.get("partitionColumns") or []
    if not columns:
        return
    s, listed = analysis.summary, ", ".join(columns)
    count = analysis.tables["Partitions"].count()
    average = s["File Size"] / max(1, count)
    if count >= _MANY_PARTITIONS:
        yield (
            "partitions of high cardinality",
            listed,
            f"{count:,} partitions, {s['Parquet Files']:,} files",
            "far fewer files: each partition has at least one",
            _unpartition(analysis),
        )
    elif average < _PARTITION_BYTES:
        yield (
            "needless partitions",
            listed,
            f"{count:,} partitions of {average / _MIB:,.1f} MiB on average",
            "larger files; keep the partitions only if writes gain by them",
            _unpartition(analysis),
        )


def _on_protocol(analysis: Analysis) -> Iterator[Rule]:
    features = set(analysis.protocol.get("readerFeatures") or [])
    if demanding := sorted(features & _DEMANDING):
        yield (
            "features a reader may lack",
            None,
            f"the protocol asks of readers: {', '.join(demanding)}",
            "readers that lack one refuse the table; docs/readers.md says which",
            f"ALTER TABLE {analysis.sql_name} DROP FEATURE {demanding[0]}",
        )


def _on_columns(analysis: Analysis, used: list[str] | None) -> Iterator[Rule]:
    properties = analysis.metadata.get("configuration") or {}
    hidden = {properties.get(name) for name in (ROW_ID_COLUMN, ROW_VERSION_COLUMN)}
    found = analysis.tables["Columns"].collect()  # a row a column: of the schema's size
    columns = [row for row in found if row["Column Name"] not in hidden]
    known = {row["Column Name"]: row for row in columns}
    rows = analysis.summary["Row Count"]
    for row in columns:
        yield from _on_one_column(analysis, row, rows, used)
    if rows and any(row["Cardinality"] is not None for row in columns):
        yield from on_values(analysis, known)


def _on_one_column(
    analysis: Analysis, row: Row, rows: int, used: list[str] | None
) -> Iterator[Rule]:
    name, percent = row["Column Name"], row["Size Percent Of Table"] or 0
    table, column = analysis.sql_name, quote(name)
    evidence = f"{row['Compressed Size']:,} bytes, {percent:.0f} % of the table"
    distinct = row["Cardinality"]
    if used is not None and name.split(".")[0] not in used:
        yield (
            "unused column", name, evidence, f"{percent:.0f} % of the table's bytes",
            f"ALTER TABLE {table} DROP COLUMN {column}, then REORG TABLE {table} APPLY (PURGE)",
        )  # fmt: skip
        return
    if distinct is not None and distinct <= 1 < rows:
        yield (
            "constant column", name, f"{distinct} value in {rows:,} rows",
            "one column less to load", f"ALTER TABLE {table} DROP COLUMN {column}",
        )  # fmt: skip
        return
    if percent < _WORTH_PERCENT or distinct is None:
        return
    kind = row["Primitive Type"]
    if kind == "string" and (row["BytesPerRow"] or 0) > _WIDE_BYTES:
        yield (
            "wide strings", name, f"{evidence}, {row['BytesPerRow']:.0f} bytes a row",
            f"up to {percent:.0f} % of the table's bytes",
            "keep it in a table of its own, or drop it if no report shows it",
        )  # fmt: skip
    elif distinct > _MANY_VALUES * rows:
        remedy = "split it, round it, or keep it out of the model"
        if kind.startswith("timestamp"):
            remedy = f"CAST({column} AS DATE) AS day, and the time of day rounded, in two columns"
        yield (
            "high cardinality", name, f"{distinct:,} values in {rows:,} rows; {evidence}",
            "a smaller dictionary", remedy,
        )  # fmt: skip


def _unpartition(analysis: Analysis) -> str:
    table = analysis.sql_name
    return f"CREATE TABLE … USING delta AS SELECT * FROM {table}, and time both by compare_layouts"
