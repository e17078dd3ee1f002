"""Recommend improvements of a table's files and columns, each with evidence, gain and remedy.

The rules are those of the Direct Lake storage document. They read an analysis, so they cost a few
aggregates. Only facts that footers lack (floats that could be rounded, columns that repeat or
follow from others) are read from the rows, in one pass over a sample.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass, field
from datetime import date
from itertools import permutations
from typing import Any

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from mirrorlake.delta.snapshot import (
    FABRIC_VORDER,
    MAPPING_FIX,
    VECTOR_READERS,
    mapping_problem,
    missing_column,
)
from mirrorlake.layout.measures import Measured
from mirrorlake.mirror.options import declared_keys, has_partitioning_policy
from mirrorlake.names import quote, safe_column, split_names
from mirrorlake.results import Result, TextTable, counted
from mirrorlake.storage.paths import PROGRAM, docs_page

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
# Features that other readers may lack; docs/readers.md has the whole table.
_DEMANDING = {"deletionVectors", "typeWidening", "v2Checkpoint", "variantType"}
_ROWS = 200_000
_DIGITS = (0, 1, 2, 3, 4)
_WORTH = 0.5
_MANY = 100
_FLOATS = ("double", "float")
_QUANTITY = re.compile(r"quantity|qty|units|count|hours", re.IGNORECASE)
_PRICE = re.compile(r"price|rate|cost|unit_?amount", re.IGNORECASE)
_MONEY = re.compile(rf"{_PRICE.pattern}|amount|total|revenue|fee|tax|salary|balance", re.IGNORECASE)
_CENTS = 2  # digits
_FIRST = re.compile(r"(first|given)[ _]?name|forename", re.IGNORECASE)
_LAST = re.compile(r"(last|family|sur)[ _]?name", re.IGNORECASE)
_FEW_VALUES = 10_000
_FEW_SHARE = 0.1  # of the rows; grouping by a column with more values saves few rows
_YEARS = 2
_FRACTIONS = ("double", "float", "decimal")
_WHOLE = ("int", "bigint", "smallint", "tinyint")
_NUMBERS = (*_FRACTIONS, *_WHOLE)


@dataclass(frozen=True)
class Finding:
    """One recommendation.

    Attributes:
        rule: its short name.
        column: the column concerned, or None for the table.
        evidence: the reason, with figures.
        gain: the expected improvement.
        remedy: the command or the code that applies it.
    """

    rule: str
    column: str | None
    evidence: str
    gain: str
    remedy: str


@dataclass(frozen=True)
class Advice(Result):
    """All recommendations for one table; empty if nothing should be improved.

    Attributes:
        table: the table's name.
        findings: one entry per recommendation.
        root: the lake's folder, which `shown` replaces by ROOT.
    """

    table: str
    findings: tuple[Finding, ...]
    root: str = field(default="", repr=False, compare=False)

    def __repr__(self) -> str:
        rules = ", ".join(dict.fromkeys(finding.rule for finding in self.findings))
        found = f"{counted(len(self.findings), 'finding')} ({rules})" if rules else "no findings"
        return f"{self.table}: {found}"

    def shown(self) -> TextTable:
        """Return one row per recommendation; commands have ROOT in place of the lake's folder."""
        root = self.root.replace("`", "``")
        rows = tuple(
            (one.rule, one.column or "", one.evidence, one.gain,
             one.remedy.replace(root, "ROOT") if root else one.remedy)
            for one in self.findings
        )  # fmt: skip
        return TextTable(("advice", "column", "evidence", "gain", "command"), rows)

    def as_dict(self) -> dict[str, Any]:
        """Return the columns and rows that `--json` prints."""
        columns = ("Rule", "Column", "Evidence", "Gain", "Remedy")
        return TextTable(columns, tuple(map(astuple, self.findings))).document()


def advise(
    analysis: Measured,
    *,
    used: str | Iterable[str] | None = None,
    many_rows: int = MANY_ROWS,
    columns: bool = True,
) -> Advice:
    """Recommend improvements of a table; arguments and errors are those of `Analysis.advice`."""
    in_use = None if used is None else _known_columns(analysis, split_names(used))
    found = [
        *_on_files(analysis),
        *(_on_rows(analysis) if analysis.summary["Row Count"] >= many_rows else ()),
        *_on_partitions(analysis),
        *_on_protocol(analysis),
        *(_on_columns(analysis, in_use) if columns else ()),
    ]
    return Advice(str(analysis.name), tuple(found), analysis.table.storage.root)


def _on_files(analysis: Measured) -> Iterator[Finding]:
    s, name = analysis.summary, analysis.name
    small = analysis.facts.where(f"size < {_SMALL_FILE}").count()
    if small >= _LEAST_FILES:
        limits = {one.guardrail: one for one in analysis.guardrails().limits}
        after = limits["Parquet Files"].after_optimize
        yield Finding(
            "small files",
            None,
            f"{small:,} of {counted(s['Parquet Files'], 'file')} under {_SMALL_FILE // _MIB} MiB",
            f"about {after:,.0f} instead of {counted(s['Parquet Files'], 'file')}",
            _compact(analysis),
        )
    average = s["Avg Rows Per Row Group"] or 0
    if s["Row Groups"] > s["Parquet Files"] and average < _FEW_ROWS:
        yield Finding(
            "row-group size",
            None,
            f"{counted(s['Row Groups'], 'row group')} with {average:,.0f} rows on average",
            "fewer and longer reads: row groups of 2 to 6 million rows load fastest",
            f"{PROGRAM} vorder ROOT {name}",
        )
    lacking = s["Parquet Files"] - s["VOrder Files"] - s["Open V-Order Files"]
    if lacking > 0:
        yield Finding(
            "no V-Order",
            None,
            f"{lacking:,} of {counted(s['Parquet Files'], 'file')} without V-Order",
            "smaller files that are faster to read; a dry run estimates the savings",
            f"{PROGRAM} vorder ROOT {name} --dry-run",
        )
    if s["VOrder Disagreements"]:
        yield Finding(
            "V-Order signals disagree",
            None,
            f"{counted(s['VOrder Disagreements'], 'footer')} contradicting the file's tag or the"
            f" table's {' or '.join(FABRIC_VORDER)}",
            "tags and properties that match the files",
            f"{PROGRAM} vorder ROOT {name}",
        )
    written = s["Row Count"] + s["Deleted Rows"]
    if s["Deleted Rows"] > _DELETED_SHARE * max(1, written):
        yield Finding(
            "deletion vectors piled up",
            None,
            f"{s['Deleted Rows']:,} of {counted(written, 'row')} deleted in"
            f" {counted(s['Deletion Vectors'], 'file')}",
            f"{100 * s['Deleted Rows'] / written:.0f} % fewer rows to read",
            _purge(analysis),
        )
    if s["Files Without Statistics"]:
        yield Finding(
            "missing statistics",
            None,
            f"{counted(s['Files Without Statistics'], 'file')} without statistics in the log",
            "queries skip files that can't match",
            f"ANALYZE TABLE {analysis.sql_name} COMPUTE DELTA STATISTICS",
        )


def _purge(analysis: Measured) -> str:
    """Return the command that purges files; plain REORG would mix the partitions of a policy."""
    if has_partitioning_policy(analysis.table.storage, analysis.name):
        return f"{PROGRAM} reorg ROOT {analysis.name}"
    return f"REORG TABLE {analysis.sql_name} APPLY (PURGE)"


def _compact(analysis: Measured) -> str:
    """Return the command that merges small files; OPTIMIZE would mix the partitions of a policy."""
    if has_partitioning_policy(analysis.table.storage, analysis.name):
        return f"{PROGRAM} partition run ROOT {analysis.name}"
    return f"OPTIMIZE {analysis.sql_name}"


def _on_partitions(analysis: Measured) -> Iterator[Finding]:
    columns = analysis.snapshot.partition_columns
    if not columns:
        return
    s, listed = analysis.summary, ", ".join(columns)
    selected = f"CREATE TABLE … USING delta AS SELECT * FROM {analysis.sql_name}"
    remedy = f"{selected}, and compare both with compare_layouts"
    count = analysis.tables["Partitions"].count()
    average = s["File Size"] / max(1, count)
    if count >= _MANY_PARTITIONS:
        yield Finding(
            "partitions of high cardinality",
            listed,
            f"{counted(count, 'partition')}, {counted(s['Parquet Files'], 'file')}",
            "far fewer files, because each partition has at least one",
            remedy,
        )
    elif average < _PARTITION_BYTES:
        yield Finding(
            "needless partitions",
            listed,
            f"{counted(count, 'partition')} of {average / _MIB:,.1f} MiB on average",
            "larger files; keep the partitions only if writes benefit from them",
            remedy,
        )


def _on_protocol(analysis: Measured) -> Iterator[Finding]:
    if demanding := sorted(_DEMANDING.intersection(analysis.snapshot.reader_features)):
        lacking = "today, a reader without this feature refuses it"
        if analysis.snapshot.requires_vectors:
            lacking = VECTOR_READERS
        yield Finding(
            "features a reader may lack",
            None,
            f"the protocol requires readers to support {', '.join(demanding)}",
            f"more readers can open the table; {lacking}; see {docs_page('readers.md')}",
            f"ALTER TABLE {analysis.sql_name} DROP FEATURE {demanding[0]}",
        )
    if analysis.snapshot.is_mapped:
        columns = analysis.snapshot.schema
        unsafe = next((name for name in columns if safe_column(name) != name), None)
        drop = f"ALTER TABLE {analysis.sql_name} DROP FEATURE columnMapping"
        yield Finding(
            "column mapping",
            unsafe,
            mapping_problem(columns),
            f"more readers can open the table; see {docs_page('readers.md')}",
            MAPPING_FIX if unsafe else drop,
        )


def _known_columns(analysis: Measured, names: list[str]) -> list[str]:
    """Return the columns of these names, or of fields in them, as the table spells them."""
    known = {name.split(".")[0].lower(): name.split(".")[0] for name in analysis.snapshot.schema}
    if unknown := [name for name in names if name.split(".")[0].lower() not in known]:
        raise missing_column(analysis.name, unknown[0], analysis.snapshot)
    return [known[name.split(".")[0].lower()] for name in names]


def _on_columns(analysis: Measured, used: list[str] | None) -> Iterator[Finding]:
    found = analysis.tables["Columns"].collect()  # one row per column
    columns = [row for row in found if row["Column Name"] not in analysis.hidden_columns]
    for row in columns:
        yield from _on_one_column(analysis, row, used)
    if analysis.summary["Row Count"] and any(row["Cardinality"] is not None for row in columns):
        yield from _on_values(analysis, {row["Column Name"]: row for row in columns})


def _on_one_column(analysis: Measured, row: Row, used: list[str] | None) -> Iterator[Finding]:
    name, percent = row["Column Name"], row["Size Percent Of Table"] or 0
    rows = analysis.summary["Row Count"]
    column = quote(name)
    evidence = f"{row['Compressed Size']:,} bytes, {percent:.0f} % of the table"
    distinct = row["Cardinality"]
    # The declaration may spell them differently.
    keys = {key.lower() for key in declared_keys(analysis.snapshot.properties)}
    top = name.split(".")[0]
    if used is not None and top not in used and top.lower() not in keys:
        yield Finding(
            "unused column", name, evidence, f"{percent:.0f} % of the table's bytes",
            f"{_drop(analysis, name)}; {_purge(analysis)}",
        )  # fmt: skip
        return
    if distinct is not None and distinct <= 1 < rows:
        yield Finding(
            "constant column", name, f"{counted(distinct, 'value')} in {rows:,} rows",
            "one column fewer to load", _drop(analysis, name),
        )  # fmt: skip
        return
    if percent < _WORTH_PERCENT or distinct is None:
        return
    kind = row["Primitive Type"]
    if kind == "string" and (row["BytesPerRow"] or 0) > _WIDE_BYTES:
        yield Finding(
            "wide strings", name, f"{evidence}, {row['BytesPerRow']:.0f} bytes per row",
            f"up to {percent:.0f} % of the table's bytes",
            "move it to another table, or drop it if no report shows it",
        )  # fmt: skip
    elif distinct > _MANY_VALUES * rows and name.lower() not in keys:
        remedy = "split it, round it, or exclude it from the model"
        if kind.startswith("timestamp"):
            remedy = f"use two columns: CAST({column} AS DATE) AS day, and the rounded time of day"
        yield Finding(
            "high cardinality", name,
            f"{counted(distinct, 'value')} in {counted(rows, 'row')}; {evidence}",
            "a smaller dictionary", remedy,
        )  # fmt: skip


def _on_values(analysis: Measured, known: Mapping[str, Row]) -> Iterator[Finding]:
    """Examine a sample of the rows: one aggregate, and one for each pair worth a new column."""
    rows, table = analysis.rows().limit(_ROWS), analysis.sql_name
    kinds = dict(rows.dtypes)
    floats = [name for name, kind in kinds.items() if kind in _FLOATS]
    simple = [name for name, kind in kinds.items() if "<" not in kind and kind != "variant"]

    def spread(name: str) -> Column:
        column = F.col(quote(name))
        rounded = [F.countDistinct(F.round(column, digits)) for digits in _DIGITS]
        return F.array(F.countDistinct(column), *rounded)

    # Comparing one hash per column avoids the comparison of every pair of columns.
    hashes = [F.sum(F.xxhash64("_row", quote(name)).bitwiseAND(0xFFFF_FFFF)) for name in simple]
    numbered = rows.withColumn("_row", F.xxhash64(*[quote(name) for name in simple]))
    (values,) = numbered.agg(*map(spread, floats), *hashes).collect()
    for name, (before, *rounded) in zip(floats, values, strict=False):
        counts = zip(_DIGITS, rounded, strict=True)
        least = _CENTS if _MONEY.search(name) else 0
        fewer = [(n, count) for n, count in counts if n >= least and 1 < count <= _WORTH * before]
        if before >= _MANY and fewer:
            (digits, after), share = fewer[-1], known[name]["Size Percent Of Table"] or 0
            yield Finding(
                "float precision",
                name,
                f"{before:,} values in the sample, {after:,} when rounded to"
                f" {counted(digits, 'digit')}",
                f"a part of the {share:.0f} % of the table that the column takes",
                f"UPDATE {table} SET {quote(name)} = round({quote(name)}, {digits})",
            )
    alike: dict[tuple[str, int | None], list[str]] = {}
    for name, hashed in zip(simple, values[len(floats) :], strict=True):
        alike.setdefault((kinds[name], hashed), []).append(name)
    for (_, hashed), (first, *others) in alike.items():
        for name in others if hashed is not None else ():
            yield Finding(
                "duplicate column",
                name,
                f"equal to {first} in every row of the sample",
                f"{known[name]['Compressed Size']:,} bytes",
                _drop(analysis, name),
            )
    yield from _calculated(analysis, rows)


def _drop(analysis: Measured, *columns: str) -> str:
    """Return the statements that drop columns; Delta refuses that without column mapping."""
    table = f"ALTER TABLE {analysis.sql_name}"
    drop = f"{table} DROP COLUMNS ({', '.join(map(quote, columns))})"
    if analysis.snapshot.is_mapped:
        return drop
    return f"{table} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name'); {drop}"


def _calculated(analysis: Measured, rows: DataFrame) -> Iterator[Finding]:
    """Yield products and full names, except those that some column already contains."""
    kinds, table = dict(rows.dtypes), analysis.sql_name
    wanted = [
        (pair, "amount", "×", "{} * {}", "usually used as a product")
        for pair in _pairs(kinds, _QUANTITY, _PRICE, _NUMBERS)
    ] + [
        (pair, "full_name", "+", "concat_ws(' ', {}, {})", "usually shown as one text")
        for pair in _pairs(kinds, _FIRST, _LAST, ("string",))
    ]
    for pair, name, sign, pattern, use in wanted:
        expression = pattern.format(*map(quote, pair))
        kind = dict(rows.select(F.expr(expression).alias("made")).dtypes)["made"]
        numeric = kind.startswith(_NUMBERS)
        same = [
            F.bool_and(F.expr(f"{quote(other)} <=> CAST({expression} AS {its})"))
            for other, its in kinds.items()
            if other not in pair and (its.startswith(_NUMBERS) if numeric else its == "string")
        ]
        (found,) = rows.agg(F.count(F.lit(1)), *same).collect()
        if any(found[1:]):
            continue
        taken = {other.lower() for other in kinds}
        free = next(n for n in (name, *(f"{name}_{i}" for i in range(2, 99))) if n not in taken)
        yield Finding(
            "calculated column",
            f" {sign} ".join(pair),
            f"{' and '.join(pair)} are {use}",
            "Direct Lake calculates no columns, so the result must be stored; if nothing else uses"
            f" the parts: {_drop(analysis, *pair)}",
            f"ALTER TABLE {table} ADD COLUMN {quote(free)} {kind};"
            f" UPDATE {table} SET {quote(free)} = {expression}",
        )


def _pairs(
    kinds: dict[str, str], left: re.Pattern[str], right: re.Pattern[str], wanted: tuple[str, ...]
) -> list[tuple[str, str]]:
    fitting = [name for name, kind in kinds.items() if kind.startswith(wanted)]
    return [p for p in permutations(fitting, 2) if left.search(p[0]) and right.search(p[1])]


def _on_rows(analysis: Measured) -> Iterator[Finding]:
    """Yield ways to have fewer rows: a smaller table of totals, and less history."""
    total, table, rows = analysis.summary["Row Count"], analysis.sql_name, analysis.rows()
    # Columns that can be grouped by, in the schema's order.
    kinds = {name: kind for name, kind in rows.dtypes if not re.search("<|binary|variant", kind)}
    allowed = next(one.limit for one in analysis.guardrails().limits if one.guardrail == "Rows")
    share = f"{total:,} rows" + (
        f", {100 * total / allowed:.1f} % of the guardrail" if allowed else ""
    )
    distinct = {
        row["Column Name"]: row["Cardinality"]
        for row in analysis.tables["Columns"].collect()  # one row per column
        if row["Cardinality"] is not None
    }
    few = min(_FEW_VALUES, int(_FEW_SHARE * total))
    scanned = [name for name in kinds if name in distinct]
    # Whole numbers are usually keys and codes, so only the name identifies a measure.
    measures = [
        name
        for name in scanned
        if kinds[name].startswith(_FRACTIONS)
        or (kinds[name].startswith(_WHOLE) and _QUANTITY.search(name))
    ]
    groups = [name for name in scanned if distinct[name] <= few and name not in measures]
    if groups and measures:
        columns = ", ".join(map(quote, groups))
        ((left,),) = rows.agg(F.expr(f"approx_count_distinct(struct({columns}), 0.01)")).collect()
        if left <= total / 2:
            sums = ", ".join(f"sum({quote(m)}) AS {quote(m)}" for m in measures)
            yield Finding(
                "fewer rows by a summary",
                ", ".join(groups),
                f"{share}; about {left:,} combinations of these columns",
                f"{total / max(1, left):,.0f} times fewer rows if totals are sufficient",
                f"SELECT {columns}, {sums}, count(*) AS rows FROM {table} GROUP BY {columns}",
            )
    times = [name for name, kind in kinds.items() if kind.startswith(("date", "timestamp"))]
    for column in times[:1]:
        day = F.col(quote(column)).cast("date")
        ((newest,),) = rows.agg(F.max(day)).collect()
        if newest is None:
            continue
        before = date(newest.year - _YEARS, newest.month, 1)
        if old := rows.where(day < F.lit(before)).count():
            yield Finding(
                "fewer rows by less history",
                column,
                f"{share}; {old:,} are from before {before}, the newest is from {newest}",
                f"{100 * old / total:.0f} % fewer rows",
                f"DELETE FROM {table} WHERE {quote(column)} < DATE'{before}'",
            )
