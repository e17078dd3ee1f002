"""How a table could do with fewer rows: a summary of it, or less history.

Asked of the rows of the version that was analysed, in two aggregates; columns whose values are too
many to group by are left out of a summary beforehand, by the analysis's own counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from mirrorlake.layout.analysis import Analysis
from mirrorlake.layout.column_facts import QUANTITY
from mirrorlake.spark.sql import quote

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
