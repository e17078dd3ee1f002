"""Merging changes into a slowly changing dimension, of either type.

Type 1: the latest row a key, merged in one commit; deletes are remembered in a second table. That
table, `<name>__tombstones`, keeps each key's last delete and the last emptying of all. It is
written first: a run that is killed between the two is made good by running the batch again.

Type 2: the periods of the keys that changed are worked out anew and merged in one commit. A key's
rows in the table are its changes so far: each row is an upsert at its start, and an end that is no
other row's start is a delete. With tracked columns a row is several changes; it keeps them, for a
late one may part them. Together with the new changes, in the order of their sequence, they give the
key's periods; only rows that differ are written. A delete of which no period's end tells is kept as
an empty period, `__START_AT` equal to `__END_AT`.
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
    SEQUENCES,
    START,
    TIE,
    Dimension,
    first_of_each,
    insert_row,
    merge_into,
    ready_table,
    same_key,
    table_or_none,
)
from mirrorlake.feed.net import net_changes
from mirrorlake.feed.schema import COMMIT_TIMESTAMP, COMMIT_VERSION
from mirrorlake.history.diff import CHANGE_TYPE
from mirrorlake.spark.older import to_arrow
from mirrorlake.spark.sql import delta_name, literal, quote

TOMBSTONES = "__tombstones"
_FLOOR = "__mirrorlake_floor"  # what came before is deleted


def apply_type_1(events: DataFrame, path: str, columns: list[str], dimension: Dimension) -> None:
    """Applies changes to a type 1 table; see `apply_changes`."""
    keys = dimension.keys
    shape = events.select(*map(quote, columns), SEQUENCE)
    if dimension.ignore_null_updates:
        values = [name for name in columns if name not in keys]
        shape = shape.withColumn(
            SEQUENCES, F.struct(*[F.col(SEQUENCE).alias(name) for name in values])
        )
    ready_table(shape, path, keys)
    if dimension.apply_as_deletes or dimension.apply_as_truncates:
        _bury(events, path, keys)
    floor = _emptied(events, path) if dimension.apply_as_truncates else None
    rows = _with_floor(events.where(~F.col(IS_TRUNCATE)), path, keys, floor)
    if dimension.ignore_null_updates:
        _merge_columns(rows, path, columns, keys)
    else:
        _merge_rows(rows, path, columns, keys)


def _bury(events: DataFrame, path: str, keys: Sequence[str]) -> None:
    """Remembers deletes: per key the last, and the last of all rows under no key."""
    gone = events.where(F.col(IS_DELETE) | F.col(IS_TRUNCATE))
    key = [F.when(~F.col(IS_TRUNCATE), F.col(quote(k))).alias(k) for k in keys]
    last = gone.groupBy(*key, IS_TRUNCATE).agg(F.max(SEQUENCE).alias(SEQUENCE))
    graves = last.withColumnRenamed(IS_TRUNCATE, "__TRUNCATE")
    ready_table(graves, path + TOMBSTONES, ())
    same = f"{same_key(keys)} AND t.__TRUNCATE = s.__TRUNCATE"
    merge_into(
        graves,
        path + TOMBSTONES,
        same,
        f"""
        WHEN MATCHED AND s.{SEQUENCE} > t.{SEQUENCE} THEN UPDATE SET {SEQUENCE} = s.{SEQUENCE}
        WHEN NOT MATCHED THEN {insert_row(graves.columns)}
        """,
    )


def _emptied(events: DataFrame, path: str) -> Column | None:
    """Removes what the last emptying of all takes; its sequence."""
    spark = events.sparkSession
    graves = spark.read.format("delta").load(path + TOMBSTONES).where("__TRUNCATE")
    (row,) = to_arrow(graves.agg(F.max(SEQUENCE).cast("string").alias("at"))).to_pylist()
    if row["at"] is None:
        return None
    floor = F.lit(row["at"]).cast(events.schema[SEQUENCE].dataType)
    kind = events.schema[SEQUENCE].dataType.simpleString()
    spark.sql(f"DELETE FROM {delta_name(path)} WHERE {SEQUENCE} < CAST('{row['at']}' AS {kind})")
    return floor


def _with_floor(
    events: DataFrame, path: str, keys: Sequence[str], emptied: Column | None
) -> DataFrame:
    """The changes, each with the last delete of its key, if any."""
    graves = table_or_none(events.sparkSession, path + TOMBSTONES)
    if graves is None:
        return events.withColumn(_FLOOR, F.lit(None).cast(events.schema[SEQUENCE].dataType))
    buried = graves.where("NOT __TRUNCATE").select(*map(quote, keys), F.col(SEQUENCE).alias(_FLOOR))
    same = F.expr(same_key(keys, "e", "g"))
    found = events.alias("e").join(buried.alias("g"), same, "left").select("e.*", f"g.{_FLOOR}")
    if emptied is not None:
        found = found.withColumn(_FLOOR, F.greatest(F.col(_FLOOR), emptied))
    return found


def _merge_rows(rows: DataFrame, path: str, columns: list[str], keys: Sequence[str]) -> None:
    """The last change of each key decides."""
    newest = Window.partitionBy(*map(quote, keys)).orderBy(F.desc(SEQUENCE), IS_DELETE, TIE)
    last = rows.withColumn("__rank", F.row_number().over(newest)).where("__rank = 1")
    # A row that was deleted later counts as deleted; at the same moment it counts.
    gone = F.col(IS_DELETE) | F.coalesce(F.col(SEQUENCE) < F.col(_FLOOR), F.lit(False))
    last = last.withColumns(
        {
            IS_DELETE: gone,
            SEQUENCE: F.when(gone, F.greatest(SEQUENCE, _FLOOR)).otherwise(F.col(SEQUENCE)),
        }
    ).select(*map(quote, columns), SEQUENCE, IS_DELETE)
    _merge(last, path, same_key(keys), f"s.{SEQUENCE} > t.{SEQUENCE}")


def _merge_columns(rows: DataFrame, path: str, columns: list[str], keys: Sequence[str]) -> None:
    """The last value of each column decides, since the key's last delete."""
    values = [name for name in columns if name not in keys]
    rows = first_of_each(rows, keys, (IS_DELETE, TIE))
    deleted = F.max(F.when(F.col(IS_DELETE), F.col(SEQUENCE)))
    floors = rows.groupBy(*map(quote, keys)).agg(F.greatest(deleted, F.max(_FLOOR)).alias(_FLOOR))
    alive = (
        rows.drop(_FLOOR)
        .alias("e")
        .join(floors.alias("f"), F.expr(same_key(keys, "e", "f")))
        .select("e.*", f"f.{_FLOOR}")
        .where(~F.col(IS_DELETE) & (F.col(_FLOOR).isNull() | (F.col(SEQUENCE) >= F.col(_FLOOR))))
    )
    at = [F.when(F.col(quote(name)).isNotNull(), F.col(SEQUENCE)) for name in values]
    last = alive.groupBy(*map(quote, keys)).agg(
        F.max(SEQUENCE).alias(SEQUENCE),
        F.struct(*[F.max(a).alias(n) for n, a in zip(values, at, strict=True)]).alias(SEQUENCES),
        *[F.max_by(quote(n), a).alias(n) for n, a in zip(values, at, strict=True)],
    )
    joined = floors.alias("f").join(last.alias("l"), F.expr(same_key(keys, "f", "l")), "left")
    source = joined.select(
        *[F.col(f"f.{quote(key)}") for key in keys],
        *[F.col(f"l.{quote(name)}") for name in values],
        f"l.{SEQUENCE}",
        f"l.{SEQUENCES}",
        f"f.{_FLOOR}",
    )
    # A column's value stays if it is newer than the change's and than the key's last delete.
    sets, kept = [], []
    for name in values:
        t, s = f"t.{SEQUENCES}.{quote(name)}", f"s.{SEQUENCES}.{quote(name)}"
        stays = f"{t} >= coalesce({s}, {t}) AND {t} >= coalesce(s.{_FLOOR}, {t})"
        sets.append(
            f"{quote(name)} = CASE WHEN {stays} THEN t.{quote(name)} ELSE s.{quote(name)} END"
        )
        kept.append(f"{literal(name)}, CASE WHEN {stays} THEN {t} ELSE {s} END")
    names = [*keys, *values, SEQUENCE, SEQUENCES]
    merge_into(
        source,
        path,
        same_key(keys),
        f"""
        WHEN MATCHED AND t.{SEQUENCE} < s.{_FLOOR} AND s.{SEQUENCE} IS NULL THEN DELETE
        WHEN MATCHED THEN UPDATE SET {", ".join(sets)},
            {SEQUENCE} = greatest(t.{SEQUENCE}, s.{SEQUENCE}),
            {SEQUENCES} = named_struct({", ".join(kept)})
        WHEN NOT MATCHED AND s.{SEQUENCE} IS NOT NULL
        THEN {insert_row(names)}
        """,
    )


def apply_type_2(events: DataFrame, path: str, columns: list[str], dimension: Dimension) -> None:
    """Applies changes to a type 2 table; see `apply_changes`."""
    keys = dimension.keys
    new = events.drop(IS_TRUNCATE).withColumn(IS_NEW, F.lit(True))
    shape = periods(first_of_each(new, keys, (IS_DELETE, TIE)), columns, dimension)
    target = ready_table(shape, path, [*keys, START])
    known = target.alias("t").join(new.alias("s"), F.expr(same_key(keys)), "left_semi")
    old = known.select(*map(quote, shape.columns)).persist()
    try:
        events = _as_events(old, columns, dimension).unionByName(new)
        together = first_of_each(events, keys, (IS_DELETE, IS_NEW, TIE))
        wanted = periods(together, columns, dimension)
        same = f"{same_key(keys)} AND t.{START} = s.{START}"
        _merge(_difference(old, wanted, keys), path, same)
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
    found = events.withColumns({name: F.when(~gone, F.col(quote(name))) for name in values})
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
    after_delete = "__mirrorlake_after_delete"
    found = found.withColumns(
        {
            START: F.col(SEQUENCE),
            END: F.lead(SEQUENCE).over(ordered),
            after_delete: F.coalesce(F.lag(gone).over(ordered), F.lit(True)),
        }
    )
    lone = F.col(after_delete)
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
    rows = wanted.withColumn(CHANGE_TYPE, F.lit("insert")).unionByName(
        old.withColumn(CHANGE_TYPE, F.lit("delete"))
    )
    marked = rows.withColumns({COMMIT_VERSION: F.lit(0), COMMIT_TIMESTAMP: F.lit(0)})
    found = net_changes(marked, [*keys, START], unique=range(1))
    kept = found.where(F.col(CHANGE_TYPE) != "update_preimage")
    gone = (F.col(CHANGE_TYPE) == "delete").alias(IS_DELETE)
    return kept.select(*[F.col(quote(name)) for name in wanted.columns], gone)


def _merge(rows: DataFrame, path: str, same: str, newer: str = "true") -> None:
    """Puts rows in the place of the same ones, if newer, and removes what is marked as deleted."""
    names = [name for name in rows.columns if name != IS_DELETE]
    sets = ", ".join(f"{quote(name)} = s.{quote(name)}" for name in names)
    merge_into(
        rows,
        path,
        same,
        f"""
        WHEN MATCHED AND s.{IS_DELETE} AND {newer} THEN DELETE
        WHEN MATCHED AND {newer} THEN UPDATE SET {sets}
        WHEN NOT MATCHED AND NOT s.{IS_DELETE} THEN {insert_row(names)}
        """,
    )
