"""Type 2: the periods of the keys that changed are worked out anew and merged in one commit.

A key's rows in the table are its changes so far: each row is an upsert at its start, and an end
that is no other row's start is a delete. With tracked columns a row is several changes; it keeps
them, for a late one may part them. Together with the new changes, in the order of their sequence,
they give the key's periods; only rows that differ are written. A delete of which no period's end
tells is kept as an empty period, `__START_AT` equal to `__END_AT`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from mirrorlake.feed.dimension import (
    CHANGES,
    END,
    INHERITED,
    IS_DELETE,
    IS_NEW,
    IS_TRUNCATE,
    SEQUENCE,
    START,
    TIE,
    Dimension,
    first_of_each,
    merge_into,
    of_same_keys,
    ready_table,
    same_key,
)
from mirrorlake.feed.net import net_changes
from mirrorlake.feed.schema import RESERVED
from mirrorlake.spark.sql import quote


def apply_type_2(events: DataFrame, path: str, columns: list[str], dimension: Dimension) -> None:
    """Applies changes to a type 2 table; see `apply_changes`."""
    keys = dimension.keys
    new = events.drop(IS_TRUNCATE).withColumn(IS_NEW, F.lit(True))
    shape = periods(first_of_each(new, keys, (IS_DELETE, TIE)), columns, dimension)
    target = ready_table(shape, path, [*keys, START])
    old = of_same_keys(target, new, keys).select(*map(quote, shape.columns)).persist()
    try:
        known = _as_events(old, columns, dimension)
        together = first_of_each(known.unionByName(new), keys, (IS_DELETE, IS_NEW, TIE))
        wanted = periods(together, columns, dimension)
        _merge(_difference(old, wanted, keys), path, keys)
    finally:
        old.unpersist()


def periods(events: DataFrame, columns: list[str], dimension: Dimension) -> DataFrame:
    """The periods that changes come to.

    Args:
        events: one change a key and sequence, all of a key's.
        columns: the data columns.
        dimension: how.
    """
    keys = [F.col(quote(key)) for key in dimension.keys]
    ordered = Window.partitionBy(*keys).orderBy(SEQUENCE)
    gone = F.col(IS_DELETE)
    values = [name for name in columns if name not in dimension.keys]
    found = events.withColumns(
        {name: F.when(~gone, F.col(quote(name))) for name in values} if values else {}
    )
    extra: list[Column] = []
    if dimension.track_history is not None:
        change = F.struct(SEQUENCE, *[F.col(quote(name)) for name in values])
        found = found.withColumn(CHANGES, F.when(~gone, change))
        extra.append(F.col(CHANGES))
    if dimension.ignore_null_updates:
        life = "__mirrorlake_life"
        found = found.withColumn(life, F.sum(gone.cast("int")).over(ordered))
        alive = Window.partitionBy(*keys, life).orderBy(SEQUENCE)
        are_null = F.array_compact(
            F.array(*[F.when(F.col(quote(name)).isNull(), F.lit(name)) for name in values])
        )
        found = found.withColumn(INHERITED, are_null)
        found = found.withColumns(
            {name: F.last(quote(name), ignorenulls=True).over(alive) for name in values}
        )
        found = found.withColumn(INHERITED, F.array_except(INHERITED, are_null))
        if dimension.track_history is None:
            extra.append(F.col(INHERITED))
    found = found.withColumns(
        {
            END: F.lead(SEQUENCE).over(ordered),
            "__mirrorlake_after_delete": F.coalesce(F.lag(gone).over(ordered), F.lit(True)),
        }
    )
    lone = F.col("__mirrorlake_after_delete")
    found = found.withColumn(START, F.col(SEQUENCE))
    if dimension.track_history is not None:
        found = _tracked(found, dimension, lone)
    kept = found.where(~gone | lone)
    end = F.when(gone, F.col(START)).otherwise(F.col(END)).alias(END)
    return kept.select(*[F.col(quote(name)) for name in columns], START, end, *extra)


def _tracked(found: DataFrame, dimension: Dimension, lone: Column) -> DataFrame:
    """Changes of nothing but untracked columns become part of the period before them."""
    keys = [F.col(quote(key)) for key in dimension.keys]
    ordered = Window.partitionBy(*keys).orderBy(SEQUENCE)
    tracked = [F.col(quote(name)) for name in dimension.track_history or ()]
    differs = F.lit(False)
    for value in tracked:
        differs = differs | ~value.eqNullSafe(F.lag(value).over(ordered))
    starts, run = "__mirrorlake_starts", "__mirrorlake_run"
    found = found.withColumn(starts, lone | F.col(IS_DELETE) | differs)
    found = found.withColumns(
        {
            run: F.sum(F.col(starts).cast("int")).over(ordered),
            "__mirrorlake_ends": F.coalesce(F.lead(starts).over(ordered), F.lit(True)),
        }
    )
    period = Window.partitionBy(*keys, run).orderBy(SEQUENCE)
    period = period.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    together = {
        START: F.min(SEQUENCE).over(period),
        CHANGES: F.collect_list(CHANGES).over(period),
    }
    return found.withColumns(together).where("__mirrorlake_ends")


def _as_events(old: DataFrame, columns: list[str], dimension: Dimension) -> DataFrame:
    """The changes that rows of the table stand for."""
    ordered = Window.partitionBy(*map(quote, dimension.keys)).orderBy(START)
    follows = "__mirrorlake_follows"
    old = old.withColumn(follows, F.lead(START).over(ordered))
    start, end = F.col(START), F.col(END)
    values = [name for name in columns if name not in dimension.keys]

    def event(at: Column, is_delete: bool, value: Callable[[str], Column]) -> Column:
        kind = F.lit(is_delete).alias(IS_DELETE)
        return F.struct(at.alias(SEQUENCE), kind, *[value(name).alias(name) for name in values])

    def said(name: str) -> Column:
        """A column's value if the row's own change brought it."""
        value = F.col(quote(name))
        if not dimension.ignore_null_updates:
            return value
        return F.when(~F.array_contains(INHERITED, name), value)

    if dimension.track_history is None:
        upserts = F.array(F.when(end.isNull() | (start != end), event(start, False, said)))
    else:
        upserts = F.transform(CHANGES, lambda c: event(c[SEQUENCE], False, lambda name: c[name]))
    is_deleted = end.isNotNull() & ~F.col(follows).eqNullSafe(end)
    gone = F.when(is_deleted, event(end, True, lambda name: F.col(quote(name))))
    events = F.array_compact(F.concat(upserts, F.array(gone)))
    kept = [F.col(quote(key)) for key in dimension.keys]
    found = old.select(*kept, F.explode(events).alias("event"))
    return found.select(
        *kept,
        *[F.col("event")[name].alias(name) for name in (*values, SEQUENCE, IS_DELETE)],
        F.lit(0).cast("bigint").alias(TIE),
        F.lit(False).alias(IS_NEW),
    )


def _difference(old: DataFrame, wanted: DataFrame, keys: Sequence[str]) -> DataFrame:
    """What has to be written: rows to put there, and rows to remove (marked as deletes)."""
    rows = wanted.withColumn(RESERVED[0], F.lit("insert")).unionByName(
        old.withColumn(RESERVED[0], F.lit("delete"))
    )
    marked = rows.withColumns({RESERVED[1]: F.lit(0), RESERVED[2]: F.lit(0)})
    found = net_changes(marked, [*keys, START], unique=range(1))
    kept = found.where(F.col(RESERVED[0]) != "update_preimage")
    gone = (F.col(RESERVED[0]) == "delete").alias(IS_DELETE)
    return kept.select(*[F.col(quote(name)) for name in wanted.columns], gone)


def _merge(rows: DataFrame, path: str, keys: Sequence[str]) -> None:
    names = [quote(name) for name in rows.columns if name != IS_DELETE]
    merge_into(
        rows,
        path,
        f"{same_key(keys)} AND t.{START} = s.{START}",
        f"""
        WHEN MATCHED AND s.{IS_DELETE} THEN DELETE
        WHEN MATCHED THEN UPDATE SET {", ".join(f"{name} = s.{name}" for name in names)}
        WHEN NOT MATCHED AND NOT s.{IS_DELETE}
        THEN INSERT ({", ".join(names)}) VALUES ({", ".join(f"s.{name}" for name in names)})
        """,
    )
