"""What a sample of rows says about columns: digits to spare, repeated columns, pairs to join."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime
from itertools import combinations
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from mirrorlake.layout.analysis import Analysis
from mirrorlake.spark.sql import quote

_ROWS = 200_000
_DIGITS = (0, 1, 2, 3, 4)
_WORTH = 0.5
_MANY = 100
_FLOATS = ("double", "float")
_NUMBERS = ("double", "float", "int", "bigint", "smallint", "tinyint", "decimal")
QUANTITY = re.compile(r"quantity|qty|units|count|hours", re.IGNORECASE)
_PRICE = re.compile(r"price|rate|cost|unit_?amount", re.IGNORECASE)
_FIRST = re.compile(r"(first|given)[ _]?name|forename", re.IGNORECASE)
_LAST = re.compile(r"(last|family|sur)[ _]?name", re.IGNORECASE)


@dataclass(frozen=True)
class Calculated:
    """A column that follows from two others, told by their names and types.

    Attributes:
        name: a name for it that is still free.
        kind: its type.
        parts: the two columns.
        sign: what stands between them.
        expression: SQL that makes it.
        evidence: why it is worth it.
    """

    name: str
    kind: str
    parts: tuple[str, str]
    sign: str
    expression: str
    evidence: str


@dataclass(frozen=True)
class ColumnFacts:
    """What was found; columns by the table's names.

    Attributes:
        roundable: floats that have far fewer values when rounded: digits, values before and after.
        duplicates: a column, and an earlier one that it repeats.
        calculated: what is worth a column of its own, and has none yet.
    """

    roundable: dict[str, tuple[int, int, int]]
    duplicates: tuple[tuple[str, str], ...]
    calculated: tuple[Calculated, ...]


def look_at_columns(analysis: Analysis) -> ColumnFacts:
    """Looks at a sample of the rows: an aggregate, and one for each pair worth a new column."""
    rows = analysis.rows().limit(_ROWS)
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
    return ColumnFacts(
        roundable={
            name: best
            for i, name in enumerate(floats)
            if (best := _best_digits(values, i)) is not None
        },
        duplicates=_duplicates(simple, kinds, values),
        calculated=tuple(_calculated(rows)),
    )


def _calculated(rows: DataFrame) -> Iterator[Calculated]:
    """Products and full names; one that some column has already is left out."""
    kinds = dict(rows.dtypes)
    wanted = [
        (pair, "amount", "×", "{} * {}", "numbers that are mostly used by their product")
        for pair in _pairs(kinds, QUANTITY, _PRICE, _NUMBERS)
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
        yield Calculated(free, kind, pair, sign, expression, f"{' and '.join(pair)} are {use}")


def _best_digits(values: dict[str, Any], index: int) -> tuple[int, int, int] | None:
    """The most digits that still halve the number of values."""
    before = values[f"all{index}"]
    if before < _MANY:
        return None
    for digits in reversed(_DIGITS):
        after = values[f"r{index}_{digits}"]
        if 1 < after <= _WORTH * before:
            return digits, before, after
    return None


def _duplicates(
    names: list[str], kinds: dict[str, str], values: dict[str, Any]
) -> tuple[tuple[str, str], ...]:
    found: dict[str, str] = {}
    for (i, first), (j, second) in combinations(enumerate(names), 2):
        same = kinds[first] == kinds[second] and values[f"h{i}"] == values[f"h{j}"]
        if same and values[f"h{i}"] is not None and first not in found:
            found.setdefault(second, first)
    return tuple(found.items())


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


_FEW_VALUES = 10_000
_FEW_SHARE = 0.1  # of the rows: a column with more values would keep nearly every row
_YEARS = 2
_FRACTIONS = ("double", "float", "decimal")
_WHOLE = ("int", "bigint", "smallint", "tinyint")


@dataclass(frozen=True)
class Summary:
    """A smaller table that answers questions by group.

    Attributes:
        groups: the columns to group by.
        measures: the numbers to add up.
        rows: about how many rows it has.
    """

    groups: tuple[str, ...]
    measures: tuple[str, ...]
    rows: int


@dataclass(frozen=True)
class OldRows:
    """What a shorter history would leave out.

    Attributes:
        column: the moment that rows belong to.
        before: rows before this day are old.
        newest: the last value there is.
        rows: how many are old.
    """

    column: str
    before: date
    newest: date
    rows: int


def summary_of(analysis: Analysis) -> Summary | None:
    """The summary by every column of few values; None if it would not halve the rows."""
    total, rows = analysis.summary["Row Count"], analysis.rows()
    kinds = _kinds(rows)
    distinct = {
        row["Column Name"]: row["Cardinality"]
        for row in analysis.tables["Columns"].collect()  # a row a column
        if row["Cardinality"] is not None and row["Column Name"] in kinds
    }
    few = min(_FEW_VALUES, int(_FEW_SHARE * total))
    counted = [name for name in kinds if name in distinct]  # in the schema's order
    measures = tuple(name for name in counted if _is_measure(name, kinds[name]))
    groups = tuple(name for name in counted if distinct[name] <= few and name not in measures)
    if not groups or not measures:
        return None
    key = F.struct(*map(quote, groups))
    found = rows.agg(F.approx_count_distinct(key, 0.01)).first()
    left = int(found[0]) if found else total
    return Summary(groups, measures, left) if left <= total / 2 else None


def old_rows(analysis: Analysis) -> OldRows | None:
    """Rows that are years older than the newest, by the first column of days or moments."""
    frame = analysis.rows()
    kinds = _kinds(frame)
    column = next((c for c, kind in kinds.items() if kind.startswith(("date", "timestamp"))), None)
    if column is None:
        return None
    day = F.col(quote(column)).cast("date")
    row = frame.agg(F.max(day).alias("newest")).first()
    if row is None or not isinstance(row["newest"], (date, datetime)):
        return None
    newest: date = row["newest"]
    before = date(newest.year - _YEARS, newest.month, 1)
    old = frame.where(day < F.lit(before)).count()
    return OldRows(column, before, newest, old) if old else None


def _is_measure(name: str, kind: str) -> bool:
    """Whole numbers are mostly keys and codes, so only a name makes one a measure."""
    counts = kind.startswith(_WHOLE) and QUANTITY.search(name) is not None
    return kind.startswith(_FRACTIONS) or counts


def _kinds(rows: DataFrame) -> dict[str, str]:
    """The columns that can be grouped by, with their types."""
    nested = ("<", "binary", "variant")
    return {name: kind for name, kind in rows.dtypes if not any(word in kind for word in nested)}
