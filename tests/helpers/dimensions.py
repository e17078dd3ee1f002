"""Write changes of dimensions as short texts and as rows, and read a dimension's table."""

from __future__ import annotations

from collections import Counter
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from helpers.feed_model import Event, Row

KEYS = ("example", "the key")
SCHEMA = "example INT, `the key` STRING, v INT, `w.x` STRING, at BIGINT, op STRING"
# The options of a Dimension for these changes.
HOW: dict[str, Any] = {
    "keys": KEYS,
    "sequence_by": "at",
    "apply_as_deletes": "op = 'D'",
    "except_columns": ("at", "op"),
}


def events_of(text: str) -> list[Event]:
    """Parse changes: `k5=1p` sets key k to (1, "p") at 5, `k7-` deletes it, `!8` truncates."""
    found = []
    for word in text.split():
        if word[0] == "!":
            found.append(Event(None, int(word[1:]), None))
            continue
        at = int(word[1])
        row = None if word[2] == "-" else (int(word[3]), word[4])
        found.append(Event((0, word[0]), at, row))
    return found


def as_rows(spark: SparkSession, events: list[Event]) -> DataFrame:
    rows = [
        (*(e.key or (None, None)), *(e.row or (None, None)), e.sequence, op_of(e)) for e in events
    ]
    return spark.createDataFrame(rows, SCHEMA)


def op_of(event: Event) -> str:
    return "T" if event.key is None else "D" if event.row is None else "U"


def type_1(spark: SparkSession, path: str) -> dict[Row, Row]:
    rows = spark.read.format("delta").load(path).collect()
    found = {tuple(row)[:2]: tuple(row)[2:4] for row in rows}
    assert len(found) == len(rows)
    return found


def type_2(spark: SparkSession, path: str) -> Counter[tuple[Any, ...]]:
    rows = spark.read.format("delta").load(path).collect()
    return Counter(
        (tuple(r)[:2], None if r[4] == r[5] else tuple(r)[2:4], r[4], r[5]) for r in rows
    )
