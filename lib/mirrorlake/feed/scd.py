"""Slowly changing dimensions from changes: type 1 keeps the latest row a key, type 2 all of them.

The semantics are those of Databricks' AUTO CDC (APPLY CHANGES). Changes may come late and in any
order: each lands where its sequence puts it. A delete is remembered, so that a late update does not
bring a row back. Keys may be composite and NULL. The result depends only on which changes were
applied, not on how they were cut into batches, so running the same batch twice changes nothing.

Of two changes of a key with the same sequence an upsert counts before a delete, and of two upserts
the one that is in the table already.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from mirrorlake.delta.table import Table
from mirrorlake.errors import UsageError
from mirrorlake.feed.changes import key_columns
from mirrorlake.feed.cursor import Batch, Cursor
from mirrorlake.feed.dimension import (
    END,
    IS_DELETE,
    IS_TRUNCATE,
    SEQUENCE,
    TIE,
    Dimension,
    feed_dimension,
    table_or_none,
)
from mirrorlake.feed.net import net_changes
from mirrorlake.feed.scd1 import apply_type_1
from mirrorlake.feed.scd2 import apply_type_2
from mirrorlake.feed.schema import RESERVED
from mirrorlake.names import TableName
from mirrorlake.spark.sql import quote


def follow_feed(
    source: Table,
    into: TableName,
    *,
    keys: Sequence[str] | None = None,
    stored_as: Literal[1, 2] = 1,
    dry_run: bool = False,
) -> Batch:
    """Brings a dimension up to date with a table's feed; see `Lake.update_dimension`."""
    cursor = Cursor(source, f"dimension {into}")
    batch = cursor.read()
    dimension = feed_dimension(key_columns(source, keys), stored_as)
    if not batch.is_empty and not dry_run:
        apply_changes(batch.rows, source.storage.path(into.table_path), dimension)
        cursor.commit(batch)
    return batch


def apply_changes(changes: DataFrame, path: str, dimension: Dimension) -> None:
    """Applies a batch of changes; in `foreachBatch` as well.

    Args:
        changes: one row a change, in any order. Of a change feed, old images are left out.
        path: the table's folder or URI; it is made if there is none.
        dimension: how.

    Raises:
        UsageError: columns that aren't there.
    """
    if RESERVED[0] in changes.columns:
        changes = changes.where(f"{RESERVED[0]} <> 'update_preimage'")
    columns = dimension.data_columns(changes)
    spelled = {name.lower(): name for name in columns}
    dimension = replace(dimension, keys=tuple(spelled[key.lower()] for key in dimension.keys))
    events = _events(changes, columns, dimension)
    apply = apply_type_1 if dimension.stored_as == 1 else apply_type_2
    apply(events, path, columns, dimension)


def apply_snapshot(snapshot: DataFrame, path: str, dimension: Dimension, sequence: int) -> None:
    """Applies whole snapshots instead of changes: what differs is changed, what lacks is deleted.

    Args:
        snapshot: all rows as they are now, a row a key.
        path: the table's folder or URI; it is made if there is none.
        dimension: how; its sequence and conditions are not used.
        sequence: the snapshot's place among others; greater than any before it.

    Raises:
        UsageError: NULLs are to be ignored, which in a snapshot are values like any other.
    """
    if dimension.ignore_null_updates:
        raise UsageError(
            "A snapshot holds whole rows, so a NULL in it is the value: it can't be ignored.",
            hint="leave ignore_null_updates out, or apply changes instead of snapshots.",
        )
    columns = dimension.data_columns(snapshot)
    spark = snapshot.sparkSession
    rows = snapshot.select(*map(quote, columns)).withColumn(RESERVED[0], F.lit("insert"))
    current = table_or_none(spark, path)
    if current is not None:
        if dimension.stored_as == 2:
            current = current.where(F.col(END).isNull())
        old = current.select(*map(quote, columns)).withColumn(RESERVED[0], F.lit("delete"))
        rows = rows.unionByName(old)
    marks = {RESERVED[1]: F.lit(sequence).cast("bigint"), RESERVED[2]: F.lit(None)}
    changes = net_changes(
        rows.withColumns(marks), dimension.keys, unique=range(sequence, sequence + 1)
    )
    how = feed_dimension(dimension.keys, dimension.stored_as)
    apply_changes(changes, path, replace(how, track_history=dimension.track_history))


def _events(changes: DataFrame, columns: list[str], dimension: Dimension) -> DataFrame:
    """The changes with their sequence and kind."""

    def condition(text: str | None) -> str:
        return f"coalesce({text}, false)" if text else "false"

    sequence = F.expr(dimension.sequence_by)
    checked = F.when(
        sequence.isNull(), F.raise_error(F.lit(f"{dimension.sequence_by} is NULL in a change"))
    ).otherwise(sequence)
    data = [F.col(quote(name)) for name in columns]
    return changes.select(
        *data,
        checked.alias(SEQUENCE),
        F.expr(condition(dimension.apply_as_deletes)).alias(IS_DELETE),
        F.expr(condition(dimension.apply_as_truncates)).alias(IS_TRUNCATE),
        F.xxhash64(*data).alias(TIE),
    )
