"""Advice that only the rows can give: digits to spare, repeated columns, pairs to join, fewer rows.

A rule is its name, the column, the evidence, the gain and the remedy; see `advice.Finding`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import date, datetime
from itertools import combinations
from typing import Any

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from mirrorlake.layout.analysis import Analysis
from mirrorlake.spark.sql import quote

Rule = tuple[str, str | None, str, str, str]

_ROWS = 200_000
_DIGITS = (0, 1, 2, 3, 4)
_WORTH = 0.5
_MANY = 100
_FLOATS = ("double", "float")
_NUMBERS = ("double", "float", "int", "bigint", "smallint", "tinyint", "decimal")
_QUANTITY = re.compile(r"quantity|qty|units|count|hours", re.IGNORECASE)
_PRICE = re.compile(r"price|rate|cost|unit_?amount", re.IGNORECASE)
_FIRST = re.compile(r"(first|given)[ _]?name|forename", re.IGNORECASE)
_LAST = re.compile(r"(last|family|sur)[ _]?name", re.IGNORECASE)
_FEW_VALUES = 10_000
_FEW_SHARE = 0.1  # of the rows: a column with more values would keep nearly every row
_YEARS = 2
_FRACTIONS = ("double", "float", "decimal")
_WHOLE = ("int", "bigint", "smallint", "tinyint")


def on_values(analysis: Analysis, known: Mapping[str, Row]) -> Iterator[Rule]:
    """Looks at a sample of the rows: an aggregate, and one for each pair worth a new column.

    Args:
        analysis: of the table.
        known: what it says of each column, by name.
    """
    rows, table = analysis.rows().limit(_ROWS), analysis.sql_name
    kinds = dict(rows.dtypes)
    floats = [name for name, kind in kinds.items() if kind in _FLOATS]
    simple = [name for name, kind in kinds.items() if "<" not in kind and kind != "variant"]
    wanted: dict[str, Column] = {}
    for i, name in enumerate(floats):
        column = F.col(quote(name))
        wanted[f"all{i}"] = F.countDistinct(column)
        wanted |= {f"r{i}_{d}": F.countDistinct(F.round(column, d)) for d in _DIGITS}
    # Equal hashes of all values, in place of comparing every pair of columns.
    wanted |= {
        f"h{i}": F.sum(F.xxhash64("_row", quote(name)).bitwiseAND(0xFFFF_FFFF))
        for i, name in enumerate(simple)
    }
    numbered = rows.withColumn("_row", F.xxhash64(*[quote(name) for name in simple]))
    found = numbered.agg(*[column.alias(name) for name, column in wanted.items()]).first()
    values: dict[str, Any] = {} if found is None else found.asDict()
    for i, name in enumerate(floats):
        before = values[f"all{i}"]
        fewer = [d for d in _DIGITS if 1 < values[f"r{i}_{d}"] <= _WORTH * before]
        if before >= _MANY and fewer:
            digits, share = fewer[-1], known[name]["Size Percent Of Table"] or 0
            after = values[f"r{i}_{digits}"]
            yield (
                "float precision",
                name,
                f"{before:,} values in the sample, {after:,} when rounded to {digits} digits",
                f"part of its {share:.0f} % of the table",
                f"UPDATE {table} SET {quote(name)} = round({quote(name)}, {digits})",
            )
    for name, same in _duplicates(simple, kinds, values).items():
        yield (
            "duplicate column",
            name,
            f"equal to {same} in every row of the sample",
            f"{known[name]['Compressed Size']:,} bytes",
            f"ALTER TABLE {table} DROP COLUMN {quote(name)}",
        )
    yield from _calculated(rows, table)


def _calculated(rows: DataFrame, table: str) -> Iterator[Rule]:
    """Products and full names; one that some column has already is left out."""
    kinds = dict(rows.dtypes)
    wanted = [
        (pair, "amount", "×", "{} * {}", "numbers that are mostly used by their product")
        for pair in _pairs(kinds, _QUANTITY, _PRICE, _NUMBERS)
    ] + [
        (pair, "full_name", "+", "concat_ws(' ', {}, {})", "shown together as one text")
        for pair in _pairs(kinds, _FIRST, _LAST, ("string",))
    ]
    for pair, name, sign, pattern, use in wanted:
        expression = pattern.format(*map(quote, pair))
        kind = dict(rows.select(F.expr(expression).alias("made")).dtypes)["made"]
        numeric = kind.startswith(_NUMBERS)
        others = [
            other
            for other, its in kinds.items()
            if other not in pair and (its.startswith(_NUMBERS) if numeric else its == "string")
        ]
        same = [
            F.bool_and(F.expr(f"{quote(other)} <=> CAST({expression} AS {kinds[other]})"))
            for other in others
        ]
        found = rows.agg(F.count(F.lit(1)), *same).first()
        if found is None or any(found[1:]):
            continue
        taken = {other.lower() for other in kinds}
        free = next(n for n in (name, *(f"{name}_{i}" for i in range(2, 99))) if n not in taken)
        yield (
            "calculated column",
            f" {sign} ".join(pair),
            f"{' and '.join(pair)} are {use}",
            "Direct Lake calculates no columns, so it has to be in the table; where nothing else"
            f" uses the parts: ALTER TABLE {table} DROP COLUMNS ({', '.join(map(quote, pair))})",
            f"ALTER TABLE {table} ADD COLUMN {quote(free)} {kind};"
            f" UPDATE {table} SET {quote(free)} = {expression}",
        )


def _duplicates(
    names: list[str], kinds: dict[str, str], values: dict[str, Any]
) -> dict[str, str]:  # fmt: skip
    """Columns, each with an earlier one that it repeats."""
    found: dict[str, str] = {}
    for (i, first), (j, second) in combinations(enumerate(names), 2):
        same = kinds[first] == kinds[second] and values[f"h{i}"] == values[f"h{j}"]
        if same and values[f"h{i}"] is not None and first not in found:
            found.setdefault(second, first)
    return found


def _pairs(
    kinds: dict[str, str], left: re.Pattern[str], right: re.Pattern[str], wanted: tuple[str, ...]
) -> tuple[tuple[str, str], ...]:
    fitting = [name for name, kind in kinds.items() if kind.startswith(wanted)]
    return tuple(
        (one, other)
        for one in fitting
        for other in fitting
        if left.search(one) and right.search(other) and one != other
    )


def on_rows(analysis: Analysis) -> Iterator[Rule]:
    """Ways to have fewer rows: a smaller table of totals, and less history."""
    total, table, rows = analysis.summary["Row Count"], analysis.sql_name, analysis.rows()
    # Columns that can be grouped by, in the schema's order.
    nested = ("<", "binary", "variant")
    kinds = {name: kind for name, kind in rows.dtypes if not any(word in kind for word in nested)}
    allowed = next(one.limit for one in analysis.guardrails().limits if one.guardrail == "Rows")
    share = f"{total:,} rows" + (
        f", {100 * total / allowed:.1f} % of the guardrail" if allowed else ""
    )
    distinct = {
        row["Column Name"]: row["Cardinality"]
        for row in analysis.tables["Columns"].collect()  # a row a column
        if row["Cardinality"] is not None
    }
    few = min(_FEW_VALUES, int(_FEW_SHARE * total))
    counted = [name for name in kinds if name in distinct]
    measures = [name for name in counted if _is_measure(name, kinds[name])]
    groups = [name for name in counted if distinct[name] <= few and name not in measures]
    if groups and measures:
        key = F.struct(*map(quote, groups))
        found = rows.agg(F.approx_count_distinct(key, 0.01)).first()
        left = int(found[0]) if found else total
        if left <= total / 2:
            columns = ", ".join(map(quote, groups))
            sums = ", ".join(f"sum({quote(m)}) AS {quote(m)}" for m in measures)
            yield (
                "fewer rows by a summary",
                ", ".join(groups),
                f"{share}; about {left:,} combinations of these columns",
                f"{total / max(1, left):,.0f} times fewer rows where totals are enough",
                f"SELECT {columns}, {sums}, count(*) AS rows FROM {table} GROUP BY {columns}",
            )
    times = [name for name, kind in kinds.items() if kind.startswith(("date", "timestamp"))]
    for column in times[:1]:
        day = F.col(quote(column)).cast("date")
        row = rows.agg(F.max(day).alias("newest")).first()
        if row is None or not isinstance(newest := row["newest"], (date, datetime)):
            continue
        before = date(newest.year - _YEARS, newest.month, 1)
        if old := rows.where(day < F.lit(before)).count():
            yield (
                "fewer rows by less history",
                column,
                f"{share}; {old:,} are from before {before}, the newest is of {newest}",
                f"{100 * old / total:.0f} % fewer rows",
                f"DELETE FROM {table} WHERE {quote(column)} < DATE'{before}'",
            )


def _is_measure(name: str, kind: str) -> bool:
    """Whole numbers are mostly keys and codes, so only a name makes one a measure."""
    counts = kind.startswith(_WHOLE) and _QUANTITY.search(name) is not None
    return kind.startswith(_FRACTIONS) or counts
