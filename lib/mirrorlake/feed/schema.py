"""Which changes of a schema the feed can't be read across.

Columns are known by their physical name where the table maps columns, else by their name. Added
columns are harmless; so is a column that becomes nullable.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from mirrorlake.delta.snapshot import physical_name
from mirrorlake.spark.gateway import has_gateway
from mirrorlake.spark.jvm import feed_scan

Field = dict[str, Any]
FEED_COLUMNS = {
    "_change_type": "STRING",
    "_commit_version": "BIGINT",
    "_commit_timestamp": "TIMESTAMP",
}
RESERVED = tuple(FEED_COLUMNS)


@dataclass(frozen=True)
class Break:
    """One change of a schema that the feed can't be read across."""

    column: str
    text: str


def reserved_columns(names: Iterable[str]) -> list[str]:
    """The columns that are named like one of the feed's own."""
    return [name for name in names if name.lower() in RESERVED]


def find_breaks(old: list[Field], new: list[Field], *, prefix: str = "") -> list[Break]:
    """What keeps rows of an older schema from being read by a newer one.

    Args:
        old: the older columns, as Spark's JSON describes them.
        new: the newer columns.
        prefix: the struct's path, for columns inside of one.
    """
    by_name = {physical_name(field).lower(): field for field in new}
    breaks: list[Break] = []
    for field in old:
        name = prefix + field["name"]
        later = by_name.get(physical_name(field).lower())
        if later is None:
            breaks.append(Break(name, f"drops column {name}"))
            continue
        if later["name"] != field["name"]:
            breaks.append(Break(name, f"renames column {name} to {prefix}{later['name']}"))
        if field["nullable"] and not later["nullable"]:
            breaks.append(Break(name, f"makes column {name} NOT NULL"))
        breaks += _type_breaks(name, field["type"], later["type"])
    return breaks


def _type_breaks(name: str, old: Any, new: Any) -> list[Break]:
    if isinstance(old, dict) and isinstance(new, dict) and old["type"] == new["type"]:
        if old["type"] == "struct":
            return find_breaks(old["fields"], new["fields"], prefix=f"{name}.")
        parts = ("elementType",) if old["type"] == "array" else ("keyType", "valueType")
        return [b for part in parts for b in _type_breaks(f"{name}.{part}", old[part], new[part])]
    if old == new:
        return []
    was, now = (kind["type"] if isinstance(kind, dict) else kind for kind in (old, new))
    return [Break(name, f"changes column {name} from {was} to {now}")]


def read_feed(spark: SparkSession, path: str, start: int, end: int) -> DataFrame:
    """Delta's own feed of a range that is known to be readable.

    Args:
        spark: the session; Connect's reads what Delta's source gives, about half as quickly.
        path: the table's folder, full.
        start: the first version.
        end: the last version.
    """
    reader = spark.read.format("delta").option("readChangeFeed", "true")
    rows = reader.option("startingVersion", start).option("endingVersion", end).load(path)
    return feed_scan(rows, start, end) if has_gateway(spark) else rows
