"""Switches the change feed on: for a table, for a new one, for all to come."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from pyspark.sql import SparkSession

from mirrorlake.delta.snapshot import FEED, ROW_TRACKING
from mirrorlake.delta.table import Table, create_delta
from mirrorlake.errors import FeedError, UsageError
from mirrorlake.feed.schema import reserved_columns
from mirrorlake.mirror.properties import KEYS_PROPERTY
from mirrorlake.spark.sql import delta_name, quote

DEFAULT_CONF = "spark.databricks.delta.properties.defaults.enableChangeDataFeed"


def enable_feed(table: Table, *, rename_reserved: bool = False) -> int:
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
    snapshot = table.snapshot()
    reserved = reserved_columns(snapshot.schema)
    if reserved and not rename_reserved:
        raise _clash(str(table.name), reserved)
    if reserved:
        table.spark.sql(
            f"ALTER TABLE {table.sql_name} SET TBLPROPERTIES (delta.columnMapping.mode = 'name')"
        )
        taken = {name.lower() for name in snapshot.schema}
        for name in reserved:
            new = name.lstrip("_")
            while new.lower() in taken:
                new += "_"
            taken.add(new.lower())
            table.spark.sql(
                f"ALTER TABLE {table.sql_name} RENAME COLUMN {quote(name)} TO {quote(new)}"
            )
    elif snapshot.properties.get(FEED) == "true":
        return snapshot.version
    table.spark.sql(f"ALTER TABLE {table.sql_name} SET TBLPROPERTIES ({FEED} = 'true')")
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
