"""The feed of a table: switched on, its own columns, and what it can be read across.

Columns are known by their physical name where the table maps columns, else by their name. Added
columns are harmless; so is a column that becomes nullable.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from mirrorlake.delta.snapshot import FEED, ROW_TRACKING, physical_name
from mirrorlake.delta.table import TableHandle, create_delta
from mirrorlake.errors import FeedError, UsageError
from mirrorlake.history.diff import CHANGE_TYPE
from mirrorlake.mirror.options import KEYS_PROPERTY
from mirrorlake.spark.jvm import feed_scan, has_gateway
from mirrorlake.spark.sql import delta_name, quote

Field = dict[str, Any]
COMMIT_VERSION, COMMIT_TIMESTAMP = "_commit_version", "_commit_timestamp"
FEED_COLUMNS = {CHANGE_TYPE: "STRING", COMMIT_VERSION: "BIGINT", COMMIT_TIMESTAMP: "TIMESTAMP"}
RESERVED = tuple(FEED_COLUMNS)
DEFAULT_CONF = "spark.databricks.delta.properties.defaults.enableChangeDataFeed"


def reserved_columns(names: Iterable[str]) -> list[str]:
    """The columns that are named like one of the feed's own."""
    return [name for name in names if name.lower() in RESERVED]


def enable_feed(table: TableHandle, *, rename_reserved: bool = False) -> int:
    """Switches the feed of an existing table on; nothing happens if it is on.

    Args:
        table: the table.
        rename_reserved: rename columns that are named like the feed's own, `_change_type` to
            `change_type` for example. That needs column mapping, which some readers lack.

    Returns:
        The first version whose changes are recorded.

    Raises:
        FeedError: columns are named like the feed's own.
    """
    snapshot, alter = table.snapshot(), f"ALTER TABLE {table.sql_name}"
    reserved = reserved_columns(snapshot.schema)
    if reserved and not rename_reserved:
        raise _clash(str(table.name), reserved)
    if reserved:
        table.spark.sql(f"{alter} SET TBLPROPERTIES (delta.columnMapping.mode = 'name')")
        taken = {name.lower() for name in snapshot.schema}
        for name in reserved:
            new = name.lstrip("_")
            while new.lower() in taken:
                new += "_"
            taken.add(new.lower())
            table.spark.sql(f"{alter} RENAME COLUMN {quote(name)} TO {quote(new)}")
    elif snapshot.properties.get(FEED) == "true":
        return snapshot.version
    table.spark.sql(f"{alter} SET TBLPROPERTIES ({FEED} = 'true')")
    return table.snapshot().version


def create_table(
    spark: SparkSession,
    path: str,
    columns: Mapping[str, str],
    *,
    keys: Sequence[str] = (),
    feed: bool | None = True,
    row_tracking: bool | None = None,
    properties: Mapping[str, str] | None = None,
) -> None:
    """Makes an empty table; nothing happens if there is one.

    Args:
        spark: the session.
        path: the table's folder, in full.
        columns: Spark's type by name.
        keys: the columns that tell rows apart.
        feed: whether changes are recorded from version 0 on; None leaves it to the session.
        row_tracking: whether rows have ids from version 0 on; None leaves it to the session.
        properties: further table properties.

    Raises:
        FeedError: a column is named like one of the feed's own.
        UsageError: a key is no column.
    """
    reserved = reserved_columns(columns)
    if feed and reserved:
        raise _clash(delta_name(path), reserved)
    if missing := [key for key in keys if key not in columns]:
        raise UsageError(f"The key {missing[0]} is no column.", column=missing[0])
    wanted = dict(properties or {})
    if feed is not None:
        wanted[FEED] = str(feed).lower()
    if row_tracking is not None:
        wanted[ROW_TRACKING] = str(row_tracking).lower()
    if keys:
        wanted[KEYS_PROPERTY] = json.dumps(list(keys), ensure_ascii=False)
    create_delta(spark, path, columns, wanted)


def _clash(table: str, reserved: list[str]) -> FeedError:
    return FeedError(
        f"The table {table} has columns named like the feed's own: {', '.join(reserved)}.",
        hint="rename them first, or let enable_feed(rename_reserved=True) do it.",
        column=reserved[0],
    )


@dataclass(frozen=True)
class Break:
    """One change of a schema that the feed can't be read across."""

    column: str
    text: str


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
