"""Slowly changing dimensions: how changes and snapshots become a table of type 1 or type 2.

The semantics are those of Databricks' AUTO CDC and AUTO CDC FROM SNAPSHOT. Changes may be late and
in any order: the sequence of each decides. A delete is remembered, so that a late update does not
bring a row back. Keys may be composite and NULL. The result depends only on which changes were
applied, not on how they were split into batches, so applying a batch twice changes nothing.

Of two changes of a key with the same sequence, an upsert wins over a delete, and of two upserts the
one that the table already contains.

Type 1 keeps the latest row of each key and merges it in one commit. Deletes are remembered in a
second table, `<name>__tombstones`, with each key's last delete and the last truncation. It is
written first: if a run is killed between the two commits, applying the batch again completes it.

Type 2 computes the periods of the changed keys again and commits the differences. The rows of a
key in the table are its changes so far: each row is an upsert at its start, and an end at which no
other row starts is a delete. With tracked columns a row contains several changes; it keeps them,
because a late change may split them. Together with the new changes, ordered by sequence, they give
the key's periods; only rows that differ are written. A delete that ends no period is kept as an
empty period, with `__START_AT` equal to `__END_AT`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import reduce

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from mirrorlake.delta.exchange import (
    ACTION,
    DELETE,
    REPLACE,
    ROW,
    UPDATE_SETTINGS,
    few_tasks,
    new_names,
    update_any,
)
from mirrorlake.delta.table import column_types
from mirrorlake.errors import UsageError
from mirrorlake.feed.ranges import net_changes
from mirrorlake.history.diff import CHANGE_TYPE, COMMIT_TIMESTAMP, COMMIT_VERSION, RESERVED
from mirrorlake.history.write import create_table, extend_table
from mirrorlake.names import quote
from mirrorlake.spark.jvm import MOST_BROADCAST, can_exchange, transaction
from mirrorlake.spark.older import to_arrow
from mirrorlake.spark.rewrite import whole_hash
from mirrorlake.spark.sql import delta_name, literal, retry_conflicts, temporary_view

FEED_DELETE = f"{CHANGE_TYPE} = 'delete'"
START, END = "__START_AT", "__END_AT"  # type 2: a row's period
SEQUENCE = "__SEQUENCE"  # type 1: the sequence of the row's last change
SEQUENCES = "__SEQUENCES"  # type 1, NULLs ignored: the sequence of each column's last value
INHERITED = "__INHERITED"  # type 2, NULLs ignored: columns whose value is from the period before
CHANGES = "__CHANGES"  # type 2, tracked columns: the changes that a period contains
OWN = (START, END, SEQUENCE, SEQUENCES, INHERITED, CHANGES)
# Columns of changes while they are processed; they are never stored.
IS_DELETE, IS_TRUNCATE, TIE = "__mirrorlake_delete", "__mirrorlake_truncate", "__mirrorlake_tie"
IS_NEW = "__mirrorlake_new"
_NOT_FOUND = (
    "DELTA_TABLE_NOT_FOUND",
    "PATH_NOT_FOUND",
    "DELTA_PATH_DOES_NOT_EXIST",
    "DELTA_MISSING_DELTA_TABLE",
)
TOMBSTONES = "__tombstones"
TRUNCATE = "__TRUNCATE"  # whether a tombstone is that of a truncation
_HASH, _OLD_HASH = "__mirrorlake_hash", "__mirrorlake_old_hash"
# False: rows that are partitioned by some of a join's keys are not shuffled again.
_ALL_KEYS = "spark.sql.requireAllClusterKeysForCoPartition"
_FLOOR = "__mirrorlake_floor"  # the sequence of the last delete; older changes have no effect


@dataclass(frozen=True)
class Dimension:
    """The options of a dimension, which `Table.dimension` describes.

    Without `sequence_by`, the changes are rows of a change feed, ordered by version.
    """

    keys: tuple[str, ...]
    sequence_by: str | None = None
    stored_as: int = 1
    ignore_null_updates: bool = False
    apply_as_deletes: str | None = None
    apply_as_truncates: str | None = None
    columns: tuple[str, ...] | None = None
    except_columns: tuple[str, ...] = ()
    track_history_columns: tuple[str, ...] | None = None
    track_history_except_columns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.stored_as not in (1, 2):
            raise UsageError(
                f"A dimension can't be stored as type {self.stored_as}.", hint="choose 1 or 2."
            )
        if self.stored_as == 1 and self.is_tracked:
            raise UsageError(
                "Type 1 has no history, so no columns can be tracked.",
                hint="use stored_as=2 (--stored-as 2).",
            )
        if self.stored_as == 2 and self.apply_as_truncates:
            raise UsageError(
                "Type 2 keeps the history, so it can't be truncated.",
                hint="use stored_as=1 (--stored-as 1).",
            )
        if self.track_history_columns is not None and self.track_history_except_columns:
            raise UsageError(
                "Columns to track and columns not to track are both given.",
                hint="give only one of track_history_columns and track_history_except_columns.",
            )

    @property
    def is_tracked(self) -> bool:
        """Whether only some of the columns start a new period."""
        return self.track_history_columns is not None or bool(self.track_history_except_columns)

    @property
    def own_columns(self) -> set[str]:
        """The columns of the dimension's table that are not data."""
        if self.stored_as == 1:
            return {SEQUENCE, SEQUENCES} if self.ignore_null_updates else {SEQUENCE}
        if self.is_tracked:
            return {START, END, CHANGES}
        return {START, END, INHERITED} if self.ignore_null_updates else {START, END}

    def data_columns(self, changes: DataFrame) -> list[str]:
        """Return the columns of a change that the table keeps.

        Raises:
            UsageError: there are no keys, a named column does not exist, a key or a tracked column
                is left out, or a column has the name of one of the table's own columns.
        """
        if not self.keys:
            raise UsageError(
                "A dimension needs keys.", hint="name the columns that identify a row."
            )
        known = {name.lower(): name for name in changes.columns}
        wanted = list(self.columns or changes.columns)
        tracked = [*(self.track_history_columns or ()), *self.track_history_except_columns]
        named = [*self.keys, *wanted, *self.except_columns, *tracked]
        for name in named:
            if name.lower() not in known:
                raise UsageError(
                    f"The changes have no column {name}.",
                    hint=f"choose from {', '.join(changes.columns)}.",
                    column=name,
                )
        left_out = {name.lower() for name in self.except_columns}
        kept = [known[n.lower()] for n in wanted if n.lower() not in left_out]
        if missing := [k for k in self.keys if known[k.lower()] not in kept]:
            raise UsageError(f"The key column {missing[0]} is left out.", column=missing[0])
        if missing := [name for name in tracked if known[name.lower()] not in kept]:
            raise UsageError(f"The tracked column {missing[0]} is left out.", column=missing[0])
        if clash := [name for name in kept if name in OWN]:
            raise UsageError(
                f"The column name {clash[0]} is reserved for the dimension.",
                hint="rename the column, or leave it out with except_columns.",
                column=clash[0],
            )
        return kept


def for_feed(dimension: Dimension) -> Dimension:
    """Return a dimension whose changes are rows of a feed, deletes included."""
    given = dimension.apply_as_deletes
    return replace(
        dimension,
        apply_as_deletes=f"{FEED_DELETE} OR ({given})" if given else FEED_DELETE,
        except_columns=(*dimension.except_columns, *RESERVED),
    )


def apply_changes(changes: DataFrame, path: str, dimension: Dimension) -> None:
    """Apply a batch of changes; can be called in `foreachBatch`.

    Args:
        changes: one row per change, in any order; preimages of a change feed are ignored.
        path: the folder or URI of the dimension's table, which is created if it does not exist.
        dimension: the options.

    Raises:
        UsageError: the options name columns that do not exist.
    """
    if CHANGE_TYPE in changes.columns:
        changes = changes.where(f"{CHANGE_TYPE} <> 'update_preimage'")
    columns = dimension.data_columns(changes)
    spelled = {name.lower(): name for name in columns}
    dimension = replace(dimension, keys=tuple(spelled[key.lower()] for key in dimension.keys))
    if dimension.track_history_except_columns:
        untracked = {name.lower() for name in dimension.track_history_except_columns}
        tracked = [n for n in columns if n.lower() not in untracked and n not in dimension.keys]
        dimension = replace(
            dimension,
            track_history_columns=tuple(tracked),
            track_history_except_columns=(),
        )
    events = _events(changes, columns, dimension)
    apply = apply_type_1 if dimension.stored_as == 1 else apply_type_2
    apply(events, path, columns, dimension)


def apply_snapshot(snapshot: DataFrame, path: str, dimension: Dimension, sequence: int) -> None:
    """Apply a complete snapshot: rows that differ are changed, and missing rows are deleted.

    Args:
        snapshot: all current rows, one per key.
        path: the folder or URI of the dimension's table, which is created if it does not exist.
        dimension: the options; the sequence and the conditions are not used.
        sequence: the snapshot's sequence, greater than that of any earlier snapshot.

    Raises:
        UsageError: NULLs are to be ignored, but in a snapshot a NULL is a value.
    """
    if dimension.ignore_null_updates:
        raise UsageError(
            "A snapshot contains complete rows, so a NULL in it is a value and can't be ignored.",
            hint="leave ignore_null_updates out, or apply changes instead of snapshots.",
        )
    columns = dimension.data_columns(snapshot)
    spark = snapshot.sparkSession
    rows = snapshot.select(*map(quote, columns)).withColumn(CHANGE_TYPE, F.lit("insert"))
    current = table_or_none(spark, path)
    if current is not None:
        # Types are widened now, because Delta refuses to read the rows after a later change.
        shape = snapshot.select(*map(quote, columns))
        if CHANGES in current.columns:
            shape = shape.withColumn(CHANGES, F.array(F.struct(*map(quote, columns))))
        extend_table(spark, path, current.schema, shape.schema)
        current = spark.read.format("delta").load(path)
        if dimension.stored_as == 2:
            current = current.where(F.col(END).isNull())
        old = current.select(*map(quote, columns)).withColumn(CHANGE_TYPE, F.lit("delete"))
        rows = rows.unionByName(old)
    marks = {COMMIT_VERSION: F.lit(sequence).cast("bigint"), COMMIT_TIMESTAMP: F.lit(None)}
    changes = net_changes(
        rows.withColumns(marks),
        dimension.keys,
        unique=range(sequence, sequence + 1),
        source="snapshot",
        hint="remove the duplicates, or choose keys that identify one row.",
    )
    how = Dimension(
        dimension.keys,
        stored_as=dimension.stored_as,
        track_history_columns=dimension.track_history_columns,
        track_history_except_columns=dimension.track_history_except_columns,
    )
    apply_changes(changes, path, for_feed(how))


def _events(changes: DataFrame, columns: list[str], dimension: Dimension) -> DataFrame:
    """Return the changes with their sequence and kind."""
    order = dimension.sequence_by or COMMIT_VERSION
    sequence = F.expr(order)
    is_null = F.raise_error(F.lit(f"{order} is NULL in a change"))
    checked = F.when(sequence.isNull(), is_null).otherwise(sequence)
    data = [F.col(quote(name)) for name in columns]
    return changes.select(
        *data,
        checked.alias(SEQUENCE),
        F.expr(f"coalesce({dimension.apply_as_deletes or 'false'}, false)").alias(IS_DELETE),
        F.expr(f"coalesce({dimension.apply_as_truncates or 'false'}, false)").alias(IS_TRUNCATE),
        F.xxhash64(*data).alias(TIE),
    )


def apply_type_1(events: DataFrame, path: str, columns: list[str], dimension: Dimension) -> None:
    """Apply changes to a type 1 table; see `apply_changes`."""
    keys = dimension.keys
    shape = events.select(*map(quote, columns), SEQUENCE)
    if dimension.ignore_null_updates:
        values = [name for name in columns if name not in keys]
        shape = shape.withColumn(
            SEQUENCES, F.struct(*[F.col(SEQUENCE).alias(name) for name in values])
        )
    ready_table(shape, path, keys)
    if dimension.apply_as_deletes or dimension.apply_as_truncates:
        _write_tombstones(events, path, keys)
    floor = _apply_truncates(events, path) if dimension.apply_as_truncates else None
    rows = _with_last_delete(events.where(~F.col(IS_TRUNCATE)), path, keys, floor)
    if dimension.ignore_null_updates:
        _merge_columns(rows, path, columns, keys)
    else:
        _merge_rows(rows, path, columns, keys)


def _write_tombstones(events: DataFrame, path: str, keys: Sequence[str]) -> None:
    """Store deletes as tombstones: the last one of each key, and the last truncation."""
    deletes = events.where(F.col(IS_DELETE) | F.col(IS_TRUNCATE))
    key = [F.when(~F.col(IS_TRUNCATE), F.col(quote(k))).alias(k) for k in keys]
    last = deletes.groupBy(*key, IS_TRUNCATE).agg(F.max(SEQUENCE).alias(SEQUENCE))
    tombstones = last.withColumnRenamed(IS_TRUNCATE, TRUNCATE)
    ready_table(tombstones, path + TOMBSTONES, ())
    same = f"{same_key(keys)} AND t.{TRUNCATE} = s.{TRUNCATE}"
    merge_into(
        tombstones,
        path + TOMBSTONES,
        same,
        f"""
        WHEN MATCHED AND s.{SEQUENCE} > t.{SEQUENCE} THEN UPDATE SET {SEQUENCE} = s.{SEQUENCE}
        WHEN NOT MATCHED THEN {insert_row(tombstones.columns)}
        """,
    )


def _apply_truncates(events: DataFrame, path: str) -> Column | None:
    """Delete the rows before the last truncation, and return its sequence."""
    spark = events.sparkSession
    tombstones = spark.read.format("delta").load(path + TOMBSTONES).where(TRUNCATE)
    (row,) = to_arrow(tombstones.agg(F.max(SEQUENCE).cast("string").alias("at"))).to_pylist()
    if row["at"] is None:
        return None
    floor = F.lit(row["at"]).cast(events.schema[SEQUENCE].dataType)
    kind = events.schema[SEQUENCE].dataType.simpleString()
    spark.sql(f"DELETE FROM {delta_name(path)} WHERE {SEQUENCE} < CAST('{row['at']}' AS {kind})")
    return floor


def _with_last_delete(
    events: DataFrame, path: str, keys: Sequence[str], emptied: Column | None
) -> DataFrame:
    """Return the changes, each with the sequence of its key's last delete, if any."""
    tombstones = table_or_none(events.sparkSession, path + TOMBSTONES)
    if tombstones is None:
        return events.withColumn(_FLOOR, F.lit(None).cast(events.schema[SEQUENCE].dataType))
    deletes = tombstones.where(f"NOT {TRUNCATE}").select(
        *map(quote, keys), F.col(SEQUENCE).alias(_FLOOR)
    )
    same = F.expr(same_key(keys, "e", "g"))
    found = events.alias("e").join(deletes.alias("g"), same, "left").select("e.*", f"g.{_FLOOR}")
    if emptied is not None:
        found = found.withColumn(_FLOOR, F.greatest(F.col(_FLOOR), emptied))
    return found


def _merge_rows(rows: DataFrame, path: str, columns: list[str], keys: Sequence[str]) -> None:
    """Merge the last change of each key."""
    newest = Window.partitionBy(*map(quote, keys)).orderBy(F.desc(SEQUENCE), IS_DELETE, TIE)
    last = rows.withColumn("__rank", F.row_number().over(newest)).where("__rank = 1")
    # A later delete removes the row. With equal sequences, the row is kept.
    is_deleted = F.col(IS_DELETE) | F.coalesce(F.col(SEQUENCE) < F.col(_FLOOR), F.lit(False))
    last = last.withColumns(
        {
            IS_DELETE: is_deleted,
            SEQUENCE: F.when(is_deleted, F.greatest(SEQUENCE, _FLOOR)).otherwise(F.col(SEQUENCE)),
        }
    ).select(*map(quote, columns), SEQUENCE, IS_DELETE)
    _merge(last, path, same_key(keys), f"s.{SEQUENCE} > t.{SEQUENCE}")


def _merge_columns(rows: DataFrame, path: str, columns: list[str], keys: Sequence[str]) -> None:
    """Merge the last value of each column since its key's last delete."""
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
    # A column keeps its value if that is newer than the change and than the key's last delete.
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
    """Apply changes to a type 2 table; see `apply_changes`."""
    new = events.drop(IS_TRUNCATE).withColumn(IS_NEW, F.lit(True)).persist()
    try:
        shape = periods(first_of_each(new, dimension.keys, (IS_DELETE, TIE)), columns, dimension)
        target = ready_table(shape, path, [*dimension.keys, START])
        changes = _TypeTwoChanges(new, columns, dimension)
        # Only MERGE casts values to other types of the table.
        types, wanted = column_types(target.schema), column_types(shape.schema)
        fits = all(types.get(name) == kind for name, kind in wanted.items())

        def commit() -> None:
            if not (fits and changes.update(path)):
                changes.merge(path)

        retry_conflicts(commit)
    finally:
        new.unpersist()


class _TypeTwoChanges:
    """Changes of a type 2 table.

    Args:
        new: the cached changes.
        columns: the data columns.
        dimension: the options.
    """

    def __init__(self, new: DataFrame, columns: list[str], dimension: Dimension) -> None:
        self._new = new
        self._columns = columns
        self._dimension = dimension
        self._period = [*dimension.keys, START]
        is_null = reduce(Column.__or__, [F.col(quote(key)).isNull() for key in dimension.keys])
        (found,) = new.agg(F.count("*").alias("all"), F.count_if(is_null).alias("null")).collect()
        self._count = found["all"]
        self._equal = "<=>" if found["null"] else "="  # without NULLs, keys are compared faster

    def update(self, path: str) -> bool:
        """Commit the changes in a transaction of Delta's own; return False if MERGE is needed."""
        spark, period = self._new.sparkSession, self._period
        if not can_exchange(spark):
            return False
        settings = UPDATE_SETTINGS | {_ALL_KEYS: "false"}
        if self._count <= MOST_BROADCAST:
            settings |= few_tasks(spark)
        with transaction(spark, path, confs=settings, own=False) as txn:
            update = update_any(txn, path)
            if update is None:
                return False
            with self._difference(update.rows()) as (found, values):
                old = found.where(F.col(ROW).isNotNull()).select(*map(quote, period))
                update.commit(
                    found,
                    value=lambda name: values.get(name.lower(), quote(name)),
                    unchanged=lambda rows: self._matched(rows, old, period, "left_anti"),
                    rewrites=not txn.has_vectors,
                    inserts=True,
                    expected=2 * self._count,
                )
        return True

    def merge(self, path: str) -> None:
        """Commit the changes by MERGE."""
        table = self._new.sparkSession.read.format("delta").load(path)
        with self._difference(table) as (found, values):
            is_delete = F.col(ACTION) == DELETE
            made = [
                F.expr(f"IF({IS_DELETE}, {quote(name)}, {values[name.lower()]}) AS {quote(name)}")
                for name in table.columns
                if name.lower() in values
            ]
            rows = found.withColumn(IS_DELETE, is_delete).select(*made, IS_DELETE)
            _merge(rows, path, same_key(self._period))

    def _matched(
        self, rows: DataFrame, others: DataFrame, keys: Sequence[str], how: str
    ) -> DataFrame:
        """Return the rows whose keys others have (`left_semi`) or do not have (`left_anti`)."""
        if self._count <= MOST_BROADCAST:
            others = F.broadcast(others)
        same = F.expr(same_key(keys, equal=self._equal))
        return rows.alias("t").join(others.alias("s"), same, how)

    @contextmanager
    def _difference(self, table: DataFrame) -> Iterator[tuple[DataFrame, dict[str, str]]]:
        """Compute the periods that the changes add, change or remove.

        Args:
            table: the table's rows; further columns are kept.

        Yields:
            The cached differences: the old row or NULLs, the new values or NULLs, and an `ACTION`.
            Then the columns of the new values, by the lowercase names of the table's columns.
        """
        keys = self._dimension.keys
        # All steps need a key's rows in one partition, so each row is shuffled once.
        by_key = [F.col(quote(key)) for key in keys]
        matched = self._matched(table, self._new, keys, "left_semi")
        old = matched.repartition(*by_key).persist()
        try:
            new = self._new.repartition(*by_key)
            events = _as_events(old, self._columns, self._dimension).unionByName(new)
            together = first_of_each(events, keys, (IS_DELETE, IS_NEW, TIE))
            wanted = periods(together, self._columns, self._dimension)
            values = new_names(wanted.columns)
            compared = old.select(*map(quote, wanted.columns))
            marked = old.withColumn(_OLD_HASH, whole_hash(compared, row_ids=False))
            made = wanted.select(
                *[F.col(quote(name)).alias(value) for name, value in values.items()],
                whole_hash(wanted, row_ids=False).alias(_HASH),
            )
            same = [f"{quote(name)} {self._equal} {values[name]}" for name in self._period]
            both = marked.join(made, F.expr(" AND ".join(same)), "full_outer")
            action = F.when(F.col(_HASH).isNull(), DELETE).otherwise(REPLACE)
            differs = both.where(~F.col(_HASH).eqNullSafe(F.col(_OLD_HASH)))
            found = differs.withColumn(ACTION, action).drop(_HASH, _OLD_HASH).persist()
            try:
                yield found, {name.lower(): value for name, value in values.items()}
            finally:
                found.unpersist()
        finally:
            old.unpersist()


def periods(events: DataFrame, columns: list[str], dimension: Dimension) -> DataFrame:
    """Return the periods that result from changes.

    Args:
        events: all changes of the keys, one per key and sequence.
        columns: the data columns.
        dimension: the options.
    """
    keys = [F.col(quote(key)) for key in dimension.keys]
    ordered = Window.partitionBy(*keys).orderBy(SEQUENCE)
    is_delete = F.col(IS_DELETE)
    values = [name for name in columns if name not in dimension.keys]
    found = events.withColumns({name: F.when(~is_delete, F.col(quote(name))) for name in values})
    extra: list[Column] = []
    if dimension.track_history_columns is not None:
        change = F.struct(SEQUENCE, *[F.col(quote(name)) for name in values])
        found = found.withColumn(CHANGES, F.when(~is_delete, change))
        extra.append(F.col(CHANGES))
    if dimension.ignore_null_updates:
        life = "__mirrorlake_life"
        found = found.withColumn(life, F.sum(is_delete.cast("int")).over(ordered))
        alive = Window.partitionBy(*keys, life).orderBy(SEQUENCE)
        are_null = F.array_compact(
            F.array(*[F.when(F.col(quote(name)).isNull(), F.lit(name)) for name in values])
        )
        found = found.withColumn(INHERITED, are_null)
        found = found.withColumns(
            {name: F.last(quote(name), ignorenulls=True).over(alive) for name in values}
        )
        found = found.withColumn(INHERITED, F.array_except(INHERITED, are_null))
        if dimension.track_history_columns is None:
            extra.append(F.col(INHERITED))
    after_delete = "__mirrorlake_after_delete"
    found = found.withColumns(
        {
            START: F.col(SEQUENCE),
            END: F.lead(SEQUENCE).over(ordered),
            after_delete: F.coalesce(F.lag(is_delete).over(ordered), F.lit(True)),
        }
    )
    lone = F.col(after_delete)
    if dimension.track_history_columns is not None:
        found = _tracked(found, dimension, lone)
    kept = found.where(~is_delete | lone)
    end = F.when(is_delete, F.col(START)).otherwise(F.col(END)).alias(END)
    return kept.select(*[F.col(quote(name)) for name in columns], START, end, *extra)


def _tracked(found: DataFrame, dimension: Dimension, lone: Column) -> DataFrame:
    """Merge changes that affect only untracked columns into the period before them."""
    keys = [F.col(quote(key)) for key in dimension.keys]
    ordered = Window.partitionBy(*keys).orderBy(SEQUENCE)
    tracked = [F.col(quote(name)) for name in dimension.track_history_columns or ()]
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
    """Return the changes that the rows of a dimension represent."""
    ordered = Window.partitionBy(*map(quote, dimension.keys)).orderBy(START)
    follows = "__mirrorlake_follows"
    old = old.withColumn(follows, F.lead(START).over(ordered))
    several = f"The dimension has several rows of one key with the same {START}."
    start = F.when(
        F.col(START).eqNullSafe(F.col(follows)), F.raise_error(F.lit(several))
    ).otherwise(F.col(START))
    end = F.col(END)
    values = [name for name in columns if name not in dimension.keys]

    def event(at: Column, is_delete: bool, value: Callable[[str], Column]) -> Column:
        kind = F.lit(is_delete).alias(IS_DELETE)
        return F.struct(at.alias(SEQUENCE), kind, *[value(name).alias(name) for name in values])

    def own_value(name: str) -> Column:
        """Return a column's value if the row's own change contained it."""
        value = F.col(quote(name))
        if not dimension.ignore_null_updates:
            return value
        return F.when(~F.array_contains(INHERITED, name), value)

    if dimension.track_history_columns is None:
        upserts = F.array(F.when(end.isNull() | (start != end), event(start, False, own_value)))
    else:
        upserts = F.transform(CHANGES, lambda c: event(c[SEQUENCE], False, lambda name: c[name]))
    is_deleted = end.isNotNull() & ~F.col(follows).eqNullSafe(end)
    delete = F.when(is_deleted, event(end, True, lambda name: F.col(quote(name))))
    events = F.array_compact(F.concat(upserts, F.array(delete)))
    kept = [F.col(quote(key)) for key in dimension.keys]
    found = old.select(*kept, F.explode(events).alias("event"))
    return found.select(
        *kept,
        *[F.col("event")[name].alias(name) for name in (*values, SEQUENCE, IS_DELETE)],
        F.lit(0).cast("bigint").alias(TIE),
        F.lit(False).alias(IS_NEW),
    )


def _merge(rows: DataFrame, path: str, same: str, newer: str = "true") -> None:
    """Replace matching rows if the new ones are newer, and remove rows marked as deletes."""
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


def table_or_none(spark: SparkSession, path: str) -> DataFrame | None:
    """Return the rows of the Delta table at a path, or None if it does not exist."""
    try:
        found = spark.read.format("delta").load(path)
        found.schema  # noqa: B018 - a Connect client only then checks whether the table exists
        return found
    except AnalysisException as error:
        if any(condition in str(error) for condition in _NOT_FOUND):
            return None
        raise


def ready_table(rows: DataFrame, path: str, keys: Sequence[str]) -> DataFrame:
    """Return the table at a path, created or extended to have the columns of `rows`."""
    spark = rows.sparkSession
    found = table_or_none(spark, path)
    if found is None:
        create_table(spark, path, column_types(rows.schema), keys=keys)
    else:
        extend_table(spark, path, found.schema, rows.schema)
    return spark.read.format("delta").load(path)


def first_of_each(events: DataFrame, keys: Sequence[str], order: Sequence[str]) -> DataFrame:
    """Return one change per key and sequence: the first in an order."""
    ordered = Window.partitionBy(*map(quote, keys)).orderBy(SEQUENCE, *order)
    previous = "__mirrorlake_previous"
    known = events.withColumn(previous, F.lag(SEQUENCE).over(ordered))
    return known.where(f"{previous} IS NULL OR {previous} <> {SEQUENCE}").drop(previous)


def same_key(keys: Sequence[str], left: str = "t", right: str = "s", *, equal: str = "<=>") -> str:
    """Return the SQL condition that two rows have the same key; NULL equals NULL."""
    return " AND ".join(f"{left}.{quote(key)} {equal} {right}.{quote(key)}" for key in keys)


def merge_into(rows: DataFrame, path: str, on: str, clauses: str) -> None:
    """Merge rows `s` into the table `t` at a path, in one commit."""
    with temporary_view(rows) as view:
        rows.sparkSession.sql(f"MERGE INTO {delta_name(path)} t USING {view} s ON {on} {clauses}")


def insert_row(names: Sequence[str]) -> str:
    """Return the clause of a MERGE that inserts these columns of the source."""
    values = ", ".join(f"s.{quote(name)}" for name in names)
    return f"INSERT ({', '.join(map(quote, names))}) VALUES ({values})"
