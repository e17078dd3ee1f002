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
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from mirrorlake.errors import UsageError
from mirrorlake.feed.net import net_changes
from mirrorlake.feed.scd_table import END, IS_DELETE, IS_TRUNCATE, OWN, SEQUENCE, TIE, table_or_none
from mirrorlake.feed.schema import RESERVED
from mirrorlake.spark.sql import quote

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from mirrorlake.feed.cursor import Batch
    from mirrorlake.names import TableName
    from mirrorlake.table import Table


@dataclass(frozen=True)
class Dimension:
    """How changes become a table.

    Attributes:
        keys: the columns that tell rows apart.
        sequence_by: a column or SQL expression that orders the changes of a key; never NULL.
        stored_as: 1 keeps a row a key, 2 a row a key and period, from `__START_AT` up to, and
            without, `__END_AT`.
        ignore_null_updates: a NULL in a change leaves the column as it is.
        apply_as_deletes: an SQL condition for changes that delete their key.
        apply_as_truncates: an SQL condition for changes that empty the table; type 1 only.
        columns: the columns to keep, keys included; by default all.
        except_columns: columns to leave out.
        track_history: type 2 only: a new period starts only where one of these columns changes,
            other columns show the period's last value; by default all columns.
    """

    keys: tuple[str, ...]
    sequence_by: str
    stored_as: Literal[1, 2] = 1
    ignore_null_updates: bool = False
    apply_as_deletes: str | None = None
    apply_as_truncates: str | None = None
    columns: tuple[str, ...] | None = None
    except_columns: tuple[str, ...] = ()
    track_history: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if not self.keys:
            raise UsageError("A dimension needs keys.", hint="say which columns tell rows apart.")
        if self.stored_as not in (1, 2):
            raise UsageError(f"There is no type {self.stored_as}.", hint="choose 1 or 2.")
        if self.stored_as == 1 and self.track_history is not None:
            raise UsageError("Type 1 has no history to track.", hint="choose type 2.")
        if self.stored_as == 2 and self.apply_as_truncates:
            raise UsageError("Type 2 keeps its history: it can't be emptied.", hint="use type 1.")

    def data_columns(self, changes: DataFrame) -> list[str]:
        """The columns of a change that the table keeps.

        Raises:
            UsageError: a named column isn't there, or one is named like the table's own.
        """
        known = {name.lower(): name for name in changes.columns}
        wanted = list(self.columns or changes.columns)
        named = [*self.keys, *wanted, *self.except_columns, *(self.track_history or ())]
        for name in named:
            if name.lower() not in known:
                raise UsageError(f"The changes have no column {name}.", column=name)
        left_out = {name.lower() for name in self.except_columns}
        kept = [known[n.lower()] for n in wanted if n.lower() not in left_out]
        if missing := [k for k in self.keys if known[k.lower()] not in kept]:
            raise UsageError(f"The key {missing[0]} is left out.", column=missing[0])
        if clash := [name for name in kept if name in OWN]:
            raise UsageError(f"The column {clash[0]} is the table's own.", column=clash[0])
        return kept


def feed_dimension(keys: Sequence[str], stored_as: Literal[1, 2] = 1) -> Dimension:
    """The dimension of a table's own change feed: its versions are the sequence."""
    return Dimension(
        tuple(keys),
        RESERVED[1],
        stored_as,
        apply_as_deletes=f"{RESERVED[0]} = 'delete'",
        except_columns=RESERVED,
    )


def follow_feed(
    source: Table,
    into: TableName,
    *,
    keys: Sequence[str] | None = None,
    stored_as: Literal[1, 2] = 1,
) -> Batch:
    """Brings a dimension up to date with a table's feed; see `Lake.apply_feed`."""
    from mirrorlake.feed.changes import key_columns
    from mirrorlake.feed.cursor import Cursor

    cursor = Cursor(source, f"dimension {into}")
    batch = cursor.read()
    if not batch.is_empty:
        dimension = feed_dimension(key_columns(source, keys), stored_as)
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
    from mirrorlake.feed.scd1 import apply_type_1
    from mirrorlake.feed.scd2 import apply_type_2

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
    from pyspark.sql import functions as F

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
    from pyspark.sql import functions as F

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
