"""What an adviser has to know of a table: its size, its texts' values, its timestamps' order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from mirrorlake.delta.table import Table
from mirrorlake.errors import UsageError
from mirrorlake.layout.partitioning.groups import micros
from mirrorlake.layout.partitioning.policy import DAY, why_not_hashed
from mirrorlake.layout.partitioning.statistics import count_files, newest_files
from mirrorlake.mirror.properties import VIEW_PROPERTY
from mirrorlake.spark.sql import quote

_HIDDEN = "__mirrorlake_"  # of views' tables
GENERIC = ("n/a", "na", "null", "none", "unknown", "undefined", "-", "?", "0")
_SAMPLE = 20
_EDGES = (0.01, 0.99)
_FENCE = 3
_KINDS = ("string", "timestamp", "timestamp_ntz")


@dataclass(frozen=True)
class TextFacts:
    """One text column.

    Attributes:
        column: its name.
        distinct: how many values, about.
        nulls, empty, generic: rows with NULL, '', or a word such as 'N/A'.
        top_value, top_rows: the most frequent value; only looked for where there are many values.
        read_now: the part of the files that an equality reads as the table is.
    """

    column: str
    distinct: int
    nulls: int = 0
    empty: int = 0
    generic: int = 0
    top_value: str | None = None
    top_rows: int = 0
    read_now: float = 1.0


@dataclass(frozen=True)
class TimeFacts:
    """One column of timestamps; durations in microseconds.

    Attributes:
        column: its name.
        span: from the first to the last of the middle 98 % of rows.
        nulls: rows without a timestamp.
        far: rows more than three spans from the middle 98 %.
        read_now: the part of the files that a day of this column touches as the table is.
    """

    column: str
    span: int
    nulls: int = 0
    far: int = 0
    read_now: float = 1.0


@dataclass(frozen=True)
class Survey:
    """A table as the adviser sees it.

    Attributes:
        table: its name.
        rows, files, size: all there are; bytes as stored.
        texts, times: the columns that could be keys.
        is_view: whether it is a view's table.
    """

    table: str
    rows: int
    files: int
    size: int
    texts: tuple[TextFacts, ...] = ()
    times: tuple[TimeFacts, ...] = ()
    is_view: bool = False


def survey_table(table: Table, columns: Sequence[str] = (), *, many: int) -> Survey:
    """Looks at a table: two aggregates over the columns in question, and one more for good keys.

    Args:
        table: which table.
        columns: only these; by default all text and timestamp columns.
        many: from how many values on a text column is looked at closely.

    Raises:
        UsageError: a column is not there, or is neither text nor a timestamp.
    """
    counted = count_files(newest_files(table), table.name, None)
    snapshot = table.snapshot()
    kinds = {
        field["name"]: field["type"]
        for field in snapshot.fields
        if field["type"] in _KINDS and why_not_hashed(field) is None
    }
    wanted = [*columns] or [name for name in kinds if not name.startswith(_HIDDEN)]
    for name in wanted:
        if name not in kinds:
            raise UsageError(f"{name!r} is no column of text or timestamps of {table.name}.")
    looked = wanted if counted.rows else []
    texts = [name for name in looked if kinds[name] == "string"]
    times = {name: kinds[name] == "timestamp" for name in looked if kinds[name] != "string"}
    rows = table.spark.sql(f"SELECT * FROM {table.sql_name}")
    return Survey(
        str(table.name),
        counted.rows,
        counted.files,
        counted.size,
        tuple(_texts(rows, texts, counted.files, many)),
        tuple(_times(rows, times, counted.files)),
        VIEW_PROPERTY in snapshot.properties,
    )


def _texts(rows: DataFrame, names: list[str], files: int, many: int) -> list[TextFacts]:
    if not names:
        return []
    sums: list[Column] = []
    for at, name in enumerate(names):
        column = F.col(quote(name))
        sums += [
            F.approx_count_distinct(column, 0.02).alias(f"d{at}"),
            F.count_if(column.isNull()).alias(f"n{at}"),
            F.count_if(column == "").alias(f"e{at}"),
            F.count_if(F.lower(F.trim(column)).isin(*GENERIC)).alias(f"g{at}"),
        ]
    (line,) = rows.agg(*sums).collect()
    found = []
    for at, name in enumerate(names):
        distinct, nulls, empty, generic = (int(line[f"{kind}{at}"]) for kind in "dneg")
        top: tuple[str | None, int] = (None, 0)
        read = 1.0
        if distinct >= many:
            best = rows.groupBy(F.col(quote(name)).alias("v")).count().orderBy(F.desc("count"), "v")
            first = best.first()
            top = (None, 0) if first is None else (first["v"], first["count"])
            read = _read_by_value(rows, name, files)
        found.append(TextFacts(name, distinct, nulls, empty, generic, *top, read))
    return found


def _read_by_value(rows: DataFrame, name: str, files: int) -> float:
    """The part of the files whose least and greatest text enclose a value, for some values."""
    column = F.col(quote(name))
    sample = rows.select(column.alias("v")).where("v IS NOT NULL")
    picked = sample.orderBy(F.xxhash64("v")).limit(_SAMPLE)
    ends = rows.groupBy("_metadata.file_path").agg(
        F.min(column).alias("a"), F.max(column).alias("b")
    )
    hits = ends.crossJoin(F.broadcast(picked)).where("v BETWEEN a AND b").count()
    return min(1.0, hits / _SAMPLE / max(1, files))


def _times(rows: DataFrame, names: dict[str, bool], files: int) -> list[TimeFacts]:
    found = []
    for name, with_zone in names.items():
        at = micros(name, with_zone=with_zone)
        edges = F.percentile_approx(at, list(_EDGES)).alias("edges")
        (line,) = rows.agg(edges, F.count_if(at.isNull()).alias("nulls")).collect()
        if line["edges"] is None:
            found.append(TimeFacts(name, 0, line["nulls"]))
            continue
        low, high = line["edges"]
        reach = _FENCE * max(high - low, DAY)
        far = F.count_if((at < low - reach) | (at > high + reach)).alias("far")
        inner = F.greatest(F.least(at, F.lit(high)), F.lit(low))
        ends = rows.groupBy("_metadata.file_path").agg(
            F.min(inner).alias("a"), F.max(inner).alias("b"), far
        )
        # A day that falls anywhere in the span meets a file of length b - a with this chance.
        chance = F.least(F.lit(1.0), (F.col("b") - F.col("a") + DAY) / (high - low + DAY))
        (sums,) = ends.agg(F.sum(chance).alias("hit"), F.sum("far").alias("far")).collect()
        read = min(1.0, (sums["hit"] or 0) / max(1, files))
        found.append(TimeFacts(name, high - low, line["nulls"], sums["far"] or 0, read))
    return found
