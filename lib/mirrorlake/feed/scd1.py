"""Type 1: the latest row a key, merged in one commit; deletes are remembered in a second table.

That table, `<name>__tombstones`, keeps each key's last delete and the last emptying of all. It is
written first: a run that is killed between the two is made good by running the batch again.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from mirrorlake.feed.dimension import (
    IS_DELETE,
    IS_TRUNCATE,
    SEQUENCE,
    SEQUENCES,
    TIE,
    Dimension,
    first_of_each,
    merge_into,
    ready_table,
    same_key,
    table_or_none,
)
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
    names = ", ".join(map(quote, graves.columns))
    values = ", ".join(f"s.{quote(name)}" for name in graves.columns)
    merge_into(
        graves,
        path + TOMBSTONES,
        same,
        f"""
        WHEN MATCHED AND s.{SEQUENCE} > t.{SEQUENCE} THEN UPDATE SET {SEQUENCE} = s.{SEQUENCE}
        WHEN NOT MATCHED THEN INSERT ({names}) VALUES ({values})
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
    names = [quote(name) for name in [*columns, SEQUENCE]]
    merge_into(
        last,
        path,
        same_key(keys),
        f"""
        WHEN MATCHED AND s.{IS_DELETE} AND s.{SEQUENCE} > t.{SEQUENCE} THEN DELETE
        WHEN MATCHED AND NOT s.{IS_DELETE} AND s.{SEQUENCE} > t.{SEQUENCE}
        THEN UPDATE SET {", ".join(f"{name} = s.{name}" for name in names)}
        WHEN NOT MATCHED AND NOT s.{IS_DELETE}
        THEN INSERT ({", ".join(names)}) VALUES ({", ".join(f"s.{name}" for name in names)})
        """,
    )


def _merge_columns(rows: DataFrame, path: str, columns: list[str], keys: Sequence[str]) -> None:
    """The last value of each column decides, since the key's last delete."""
    values = [name for name in columns if name not in keys]
    rows = first_of_each(rows, keys, (IS_DELETE, TIE))
    deleted = F.max(F.when(F.col(IS_DELETE), F.col(SEQUENCE)))
    floors = rows.groupBy(*map(quote, keys)).agg(F.greatest(deleted, F.max(_FLOOR)).alias(_FLOOR))
    alive = (
        rows.drop(_FLOOR)
        .alias("e")
        .join(
            floors.alias("f"),
            F.expr(same_key(keys, "e", "f")),
        )
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
    names = [quote(name) for name in [*keys, *values, SEQUENCE, SEQUENCES]]
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
        THEN INSERT ({", ".join(names)}) VALUES ({", ".join(f"s.{name}" for name in names)})
        """,
    )
