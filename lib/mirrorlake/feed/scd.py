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
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from mirrorlake.delta.commits import read_versions
from mirrorlake.delta.files import total
from mirrorlake.delta.snapshot import read_snapshot
from mirrorlake.delta.table import TableHandle
from mirrorlake.errors import UsageError
from mirrorlake.feed.changes import key_columns
from mirrorlake.feed.cursor import (
    Batch,
    Cursor,
    FollowReport,
    follow_or_why_not,
    report_run,
    target_name,
)
from mirrorlake.feed.dimension import (
    END,
    IS_DELETE,
    IS_TRUNCATE,
    SEQUENCE,
    START,
    TIE,
    Dimension,
    feed_dimension,
    table_or_none,
)
from mirrorlake.feed.doctor import examine
from mirrorlake.feed.net import net_changes
from mirrorlake.feed.report import as_texts, short
from mirrorlake.feed.scd_types import apply_type_1, apply_type_2
from mirrorlake.feed.schema import COMMIT_TIMESTAMP, COMMIT_VERSION
from mirrorlake.history.diff import CHANGE_TYPE
from mirrorlake.mirror.properties import declared_keys
from mirrorlake.names import TableName
from mirrorlake.results import TextTable
from mirrorlake.spark.sql import query_errors, quote

_MOST_KEYS, _MOST_PERIODS = 12, 40  # to show


def follow_feed(
    source: TableHandle,
    into: TableName,
    *,
    keys: Sequence[str] | None = None,
    stored_as: int = 1,
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
    if CHANGE_TYPE in changes.columns:
        changes = changes.where(f"{CHANGE_TYPE} <> 'update_preimage'")
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
    rows = snapshot.select(*map(quote, columns)).withColumn(CHANGE_TYPE, F.lit("insert"))
    current = table_or_none(spark, path)
    if current is not None:
        if dimension.stored_as == 2:
            current = current.where(F.col(END).isNull())
        old = current.select(*map(quote, columns)).withColumn(CHANGE_TYPE, F.lit("delete"))
        rows = rows.unionByName(old)
    marks = {COMMIT_VERSION: F.lit(sequence).cast("bigint"), COMMIT_TIMESTAMP: F.lit(None)}
    changes = net_changes(
        rows.withColumns(marks), dimension.keys, unique=range(sequence, sequence + 1)
    )
    how = feed_dimension(dimension.keys, dimension.stored_as)
    apply_changes(changes, path, replace(how, track_history=dimension.track_history))


def _events(changes: DataFrame, columns: list[str], dimension: Dimension) -> DataFrame:
    """The changes with their sequence and kind."""
    sequence = F.expr(dimension.sequence_by)
    checked = F.when(
        sequence.isNull(), F.raise_error(F.lit(f"{dimension.sequence_by} is NULL in a change"))
    ).otherwise(sequence)
    data = [F.col(quote(name)) for name in columns]
    return changes.select(
        *data,
        checked.alias(SEQUENCE),
        F.expr(f"coalesce({dimension.apply_as_deletes or 'false'}, false)").alias(IS_DELETE),
        F.expr(f"coalesce({dimension.apply_as_truncates or 'false'}, false)").alias(IS_TRUNCATE),
        F.xxhash64(*data).alias(TIE),
    )


@query_errors()
def update_dimension(
    table: TableHandle,
    into: str = "",
    *,
    keys: Sequence[str] = (),
    stored_as: int = 2,
    enable: bool = False,
    dry_run: bool = False,
) -> FollowReport:
    """Brings a dimension up to date with a table's feed; see `Lake.update_dimension`.

    Where the feed does not hold all from version 0 on, a new dimension starts with the newest
    version's rows.

    Args:
        table: whose feed.
        into: the dimension's name; by default the table's after `dim_`.
        keys: the key columns; by default those that the table declares.
        stored_as: 1 keeps the latest row of each key, 2 all of them with their periods.
        enable: switch the table's feed on, where it is off.
        dry_run: only say what is new.

    Raises:
        FeedError: the feed no longer holds what follows.
        UsageError: a key is no column, or `into` is another kind of table.

    Example:
        >>> update_dimension(lake.table("planes"), keys=["tailnum"])  # doctest: +SKIP
        planes → dim_planes: versions 0 to 4
    """
    target = target_name(table, into, "dim_{}")
    if stored_as not in (1, 2):
        raise UsageError(f"There is no type {stored_as}.", hint="choose 1 or 2.")
    if not (keys or declared_keys(table.snapshot().properties)):
        why = "The table declares no keys: say which columns tell its rows apart (keys)."
        return report_run(table, target, why_not=why)
    chosen = key_columns(table, list(keys) or None)
    _check_target(table, target, stored_as)
    if why := follow_or_why_not(table, enable=enable and not dry_run):
        return report_run(table, target, why_not=why)
    cursor = Cursor(table, f"dimension {target}")
    timeline = read_versions(table.storage, table.name.table_path)
    latest = timeline.latest
    if cursor.position < 0 and examine(table, timeline, 0, latest, files=True).blocking:
        did = f"the rows of version {latest}, since the feed does not reach back to version 0"
        if not dry_run:
            dimension = Dimension(chosen, COMMIT_VERSION, stored_as)
            path = table.storage.path(target.table_path)
            apply_snapshot(table.rows(latest), path, dimension, latest)
            cursor.move(latest)
    else:
        batch = follow_feed(table, target, keys=chosen, stored_as=stored_as, dry_run=dry_run)
        did = repr(batch)
    if dry_run:
        return report_run(table, target, f"would take {did}")
    if read_snapshot(table.storage, target.table_path) is None:
        return report_run(table, target, did)
    rows = TableHandle(table.spark, table.storage, target).rows()
    if stored_as == 1:
        return report_run(table, target, did, facts={"rows": rows.count()})
    return report_run(table, target, did, **_periods(rows, chosen))


def _check_target(table: TableHandle, target: TableName, stored_as: int) -> None:
    """Refuses to write into a table that is no dimension of this type."""
    found = read_snapshot(table.storage, target.table_path)
    if found is None or (START if stored_as == 2 else SEQUENCE) in found.schema:
        return
    what = "a dimension of the other type" if {START, SEQUENCE} & {*found.schema} else "a table"
    raise UsageError(f"There is {what} called {target}.", hint="choose another name (into).")


def _periods(rows: DataFrame, keys: Sequence[str]) -> dict[str, Any]:
    """What a type 2 dimension holds: figures, and the keys with most periods."""
    columns = [F.col(quote(key)) for key in keys]
    is_open = F.col(END).isNull()
    by_key = rows.groupBy(*columns).agg(
        F.count(F.lit(1)).alias(f"{START}s"),
        F.count_if(is_open).alias(f"{END}s"),
        F.sort_array(F.collect_list(F.struct(START, END))).alias(START),
    )
    (line,) = by_key.agg(
        F.count(F.lit(1)).alias("keys"),
        total(f"{START}s").alias("periods"),
        total(f"{END}s").alias("keys that are there now"),
        F.coalesce(F.max(f"{START}s"), F.lit(0)).alias("most periods of a key"),
    ).collect()
    most = by_key.withColumn(START, F.slice(START, 1, _MOST_PERIODS))
    most = as_texts(most.orderBy(F.desc(f"{START}s"), *columns).limit(_MOST_KEYS))
    periods = {
        ", ".join(short(row[i]) for i in range(len(keys))): tuple(
            (int(one[0]), None if one[1] is None else int(one[1])) for one in row[START]
        )
        for row in most.collect()
    }
    listed = tuple(
        (key, len(some), ", ".join(f"{a} to {'now' if b is None else b}" for a, b in some[-6:]))
        for key, some in periods.items()
    )
    details = TextTable((", ".join(keys), "periods", "versions, the last six"), listed)
    return {"facts": line.asDict(), "details": details, "periods": periods}
