"""Commit one batch to its Delta table exactly once: by append, MERGE or a transaction of its own.

The commit carries `appId` (table and incarnation) and `txnVersion` (the last number of the plan).
A session in which these are set skips every further write, so each commit uses a new session.

The mirror's own transaction (`exchange_batch`) looks up the rows of the changed keys once. It marks
the old rows in deletion vectors, and writes the new rows as new files. Its cost therefore depends
on the changes, not on the size of the files with old rows. If the table has no deletion vectors, it
rewrites these files. The commit also contains the change feed that MERGE would write. Rows keep
their row ids. MERGE handles every other case.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from mirrorlake.delta import key_search
from mirrorlake.delta.exchange import (
    ACTION,
    APPEND,
    DELETE,
    FEW_SHUFFLES,
    REPLACE,
    ROW,
    UPDATE_SETTINGS,
    RowUpdate,
    can_update,
    count_rows,
    few_tasks,
    new_names,
)
from mirrorlake.delta.log_files import Action
from mirrorlake.delta.snapshot import (
    FEED,
    MAPPING_FIX,
    Snapshot,
    mapping_problem,
    physical_names,
    read_snapshot,
)
from mirrorlake.delta.table import (
    OWN_TABLE,
    ROW_LIMIT,
    committing,
    create_delta,
    mapping_property,
)
from mirrorlake.errors import OtherDeltaError, SchemaError
from mirrorlake.landing.metadata import Marker
from mirrorlake.mirror.batch import (
    KEPT,
    SEARCHED,
    Bounds,
    collapse_changes,
    file_limits,
    key_bounds,
    key_conditions,
    may_match,
    read_batch,
    require_values,
    search_condition,
    value_or_error,
    wide_bounds,
)
from mirrorlake.mirror.next_batch import Batch, TableContext, check_keys_known
from mirrorlake.mirror.options import (
    INCARNATION_PROPERTY,
    Step,
    has_partitioning_policy,
    keys_property,
)
from mirrorlake.names import quote
from mirrorlake.spark.jvm import (
    MOST_BROADCAST,
    can_exchange,
    repeatable,
    transaction,
)
from mirrorlake.spark.session import new_session
from mirrorlake.spark.sql import (
    delta_name,
    literal,
    retry_conflicts,
    temporary_view,
)

_log = logging.getLogger(__name__)
_REWRITE_SHARE = 0.25  # of the rows in the touched files
_REWRITE_BYTES = 16 * 2**20  # below this size, the commit costs more than writing the bytes
_FEW_ROWS = 150_000
_ONE_TASK_ROWS, _ONE_TASK_FILES = 20_000, 8
_MANY_ROWS = 10_000  # of the table: if there are fewer, shuffling all of them is cheap
# Spark reads a row group in one task. By default, a narrow table has groups of 8,000,000 rows.
_ROWS_A_GROUP = 2_000_000
_SEARCHED_KEYS = 100  # the time of a search grows with the number of keys
_SETTINGS = UPDATE_SETTINGS | {
    # With the default of 128 MiB, a few long tasks leave cores idle.
    "spark.sql.files.maxPartitionBytes": str(32 * 2**20),
    # Only keys of changes are broadcast, never rows of the table.
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.parquet.pushdown.inFilterThreshold": str(_SEARCHED_KEYS),
    # Otherwise the searched keys would be part of the code that Spark compiles in each cycle.
    "spark.sql.optimizer.inSetConversionThreshold": "0",
    "spark.sql.optimizer.inSetSwitchThreshold": "0",
}
_BROADCAST_BYTES = 64 * 2**20
# Spark before 4.0 rejects WITH SCHEMA EVOLUTION; Delta 4.0 rejects a new column with it.
_NO_EVOLUTION = re.compile(r"PARSE_SYNTAX_ERROR|DELTA_MERGE_UNRESOLVED_EXPRESSION")
_EVOLVES = "spark.databricks.delta.schema.autoMerge.enabled"  # set in the commit's own session
_FEED_RESTS = "mirrorlake.feedRests"  # the mirror has switched the feed off for one commit
_MARKS = "spark.databricks.delta.merge.deletionVectors.persistent"


def writer_session(spark: SparkSession) -> SparkSession:
    """Return a session that writes row groups of limited size."""
    session = new_session(spark)
    session.conf.set(ROW_LIMIT, str(_ROWS_A_GROUP))
    return session


def write_batch(
    spark: Callable[[], SparkSession], batch: Batch, done: Callable[[Step], None]
) -> None:
    """Create the table or add missing properties, then commit the data of a batch.

    Args:
        spark: returns a Spark session; called only when one is needed.
        batch: the batch to commit; it has no data if the table is only declared.
        done: called after every finished step.
    """
    at, columns = batch.at, batch.target.columns
    if mapping_property(columns) and not (at.snapshot and at.snapshot.is_mapped):
        table, problem = at.identity.table, mapping_problem(columns)
        _log.warning("%s: %s Hint: %s", table, problem, MAPPING_FIX)
    if at.snapshot is None:
        # Version 0 has all properties and no rows, so that feed and row ids cover every row.
        check_keys_known(at.metadata.keys, batch.target)
        made_for = {INCARNATION_PROPERTY: at.identity.incarnation}
        wanted = batch.properties | OWN_TABLE | made_for | keys_property(at.metadata)
        create_delta(new_session(spark()), at.path, columns, wanted)
        done(Step.CREATED)
    else:
        _set_properties(spark, at, _new_properties(at.snapshot, batch))
    if batch.plan is None and not at.recreated:
        return
    # Delta skips a commit if its `txnVersion` is already in the log.
    retry_conflicts(lambda: _apply_batch(spark(), batch))
    done(Step.COMMITTED)
    if at.recreated:
        found = read_snapshot(at.storage, at.identity.table.table_path)
        _set_properties(spark, at, _reenable_feed(found.properties) if found else {})


def _new_properties(snapshot: Snapshot, batch: Batch) -> dict[str, str]:
    """Return properties to add to an existing table, for new keys, column names and types."""
    known, at, columns = snapshot.properties, batch.at, batch.target.columns
    wanted = batch.properties | mapping_property(columns)
    if batch.target.widened:
        wanted["delta.enableTypeWidening"] = "true"
    if "timestamp_ntz" in columns.values() and "timestampNtz" not in snapshot.writer_features:
        wanted["delta.feature.timestampNtz"] = "supported"  # Delta enables it only at creation
    wanted |= keys_property(at.metadata)
    if at.recreated:
        wanted |= _suspend_feed(snapshot, columns)
    else:
        wanted |= _reenable_feed(known)
    return {name: value for name, value in wanted.items() if known.get(name) != value}


def _suspend_feed(snapshot: Snapshot, after: dict[str, str]) -> dict[str, str]:
    """Return properties to set before a table is replaced by one with other columns.

    With column mapping, Delta can't drop columns and write rows in one commit while the change feed
    is enabled. The feed can't be read across that commit in any case.

    Args:
        snapshot: the current snapshot.
        after: the columns after the commit, with their types.
    """
    mapped = snapshot.is_mapped or mapping_property(after)
    drops = any(after.get(name) != str(kind) for name, kind in snapshot.schema.items())
    if mapped and drops and snapshot.properties.get(FEED) == "true":
        return {FEED: "false", _FEED_RESTS: "true"}
    return {}


def _reenable_feed(known: dict[str, str]) -> dict[str, str]:
    """Return properties that enable the change feed again after such a commit."""
    return {FEED: "true", _FEED_RESTS: "false"} if known.get(_FEED_RESTS) == "true" else {}


def _set_properties(
    spark: Callable[[], SparkSession], at: TableContext, properties: dict[str, str]
) -> None:
    """Set properties of an existing table, in a commit before that of the data."""
    if not properties:
        return
    listed = ", ".join(f"{literal(name)} = {literal(value)}" for name, value in properties.items())
    new_session(spark()).sql(f"ALTER TABLE {delta_name(at.path)} SET TBLPROPERTIES ({listed})")


def _apply_batch(spark: SparkSession, batch: Batch) -> None:
    """Commit the planned files to the existing table; do nothing if they are already committed."""
    session, at = writer_session(spark), batch.at
    markers = {marker for marker, count in batch.rows.items() if count}
    ordered = bool(markers - {Marker.INSERT})
    rows = read_batch(session, batch, ordered=ordered)
    if not ordered:
        _write(rows, batch)
        return
    keys = check_keys_known(at.metadata.keys, batch.target)
    unchanged = tuple(sorted({name for file in batch.facts for name in file.unchanged}))
    if _is_small(batch, _ONE_TASK_ROWS) and len(batch.facts) <= _ONE_TASK_FILES:
        rows = rows.coalesce(1)
    changes = collapse_changes(rows, keys, markers, unchanged)
    if at.recreated:
        kept = changes.where(changes[ACTION].isin(REPLACE, APPEND))
        _write(
            require_values(kept, unchanged).drop(ACTION) if unchanged else kept.drop(ACTION), batch
        )
        return
    bounds = key_bounds(
        (file.bounds for file in batch.facts if file.skipped is None), keys, batch.target
    )
    collapsed = Changes(changes, keys, unchanged, bounds)
    if not exchange_batch(session, collapsed, batch):
        _merge(session, collapsed, batch)


def _write(rows: DataFrame, batch: Batch) -> None:
    options = {
        "txnAppId": batch.at.identity.app_id,
        "txnVersion": str(batch.last),
        "userMetadata": json.dumps(batch.note),
    }
    mode = "append"
    if batch.at.recreated:
        mode = "overwrite"
        options["overwriteSchema"] = "true"
    elif batch.target.evolved:
        options["mergeSchema"] = "true"
    rows.write.format("delta").options(**options).mode(mode).save(batch.at.path)


def _merge(session: SparkSession, changes: Changes, batch: Batch) -> None:
    names = [quote(name) for name in batch.target.columns]
    updated, inserted = _values(batch, names, changes.unchanged)
    action = f"s.{quote(ACTION)}"
    on = " AND ".join(
        [f"t.{quote(key)} = s.{quote(key)}" for key in changes.keys]
        + key_conditions(changes.bounds, batch.target)
    )
    if can_exchange(session):  # MERGE shall rewrite files, without new deletion vectors
        session.conf.set(_MARKS, "false")
    clauses = f"""
        ON {on} AND {action} <> '{APPEND}'
        WHEN MATCHED AND {action} = '{DELETE}' THEN DELETE
        WHEN MATCHED THEN UPDATE SET {", ".join(f"{n} = {value}" for n, value in updated.items())}
        WHEN NOT MATCHED AND {action} IN ('{REPLACE}', '{APPEND}')
        THEN INSERT ({", ".join(names)}) VALUES ({", ".join(inserted.values())})
    """
    note, app_id = json.dumps(batch.note), batch.at.identity.app_id
    try:
        with temporary_view(changes.rows) as view, committing(session, note, app_id, batch.last):
            statement = f"MERGE INTO {delta_name(batch.at.path)} t USING {view} s {clauses}"
            _run_merge(session, statement, evolves=batch.target.evolved)
    except Exception as error:
        # Delta 4.4 does not escape backticks in names when it writes the change rows of updates.
        ticked = next((name for name in batch.target.columns if "`" in name), None)
        if ticked is None or "INVALID_ATTRIBUTE_NAME_SYNTAX" not in str(error):
            raise
        raise SchemaError(
            f"Delta can't merge changes into a table with a column {ticked!r}.",
            file=batch.facts[0].name,
            column=ticked,
            hint="rename the column to a name without backticks, and publish to a new folder.",
        ) from error


def _run_merge(session: SparkSession, statement: str, *, evolves: bool) -> None:
    if not evolves:
        session.sql(statement)
        return
    try:
        session.sql(statement.replace("MERGE INTO", "MERGE WITH SCHEMA EVOLUTION INTO", 1))
    except Exception as error:
        if not _NO_EVOLUTION.search(str(error)):
            raise
        session.conf.set(_EVOLVES, "true")
        session.sql(statement)


def _values(
    batch: Batch, names: list[str], unchanged: tuple[str, ...]
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the SQL values of each column in MERGE: for updated rows, and for inserted rows."""
    updated = {name: f"s.{name}" for name in names}
    inserted = dict(updated)
    spelled = {name.lower(): name for name in batch.target.columns}
    known = {name.lower() for name in batch.at.columns or batch.target.columns}
    kept = f"s.{quote(KEPT)}"
    for name in unchanged:
        column = quote(spelled[name.lower()])
        inserted[column] = updated[column] = value_or_error(name, f"s.{column}", kept)
        if name.lower() in known:
            is_kept = f"array_contains({kept}, {literal(name)})"
            updated[column] = f"CASE WHEN {is_kept} THEN t.{column} ELSE s.{column} END"
    return updated, inserted


@dataclass(frozen=True)
class Changes:
    """The collapsed changes of a batch.

    Attributes:
        rows: the result of `collapse_changes`.
        keys: the key columns as the table spells them.
        unchanged: columns that some update leaves unchanged.
        bounds: the known bounds of the keys.
    """

    rows: DataFrame
    keys: tuple[str, ...]
    unchanged: tuple[str, ...]
    bounds: Bounds


def exchange_batch(session: SparkSession, changes: Changes, batch: Batch) -> bool:
    """Commit a batch in the mirror's own transaction, if it can do this.

    It marks old rows in deletion vectors. If the table has no deletion vectors, or if rewriting is
    cheaper, it rewrites the files with changed rows.

    Returns:
        True if the batch is committed, now or by an earlier attempt. If false, use MERGE.

    Raises:
        ConflictError: Another writer changed rows at the same time.
    """
    try:
        return _exchange(session, changes, batch)
    except OtherDeltaError:
        return False  # nothing is committed: this Delta lacks the methods for it
    except Exception as error:
        if (why := key_search.failure(error)) is None:
            raise
        table = batch.at.identity.table
        _log.warning("%s: DuckDB failed, so Spark searches the changed keys: %s", table, why)
        return _exchange(session, changes, batch, with_duckdb=False)


def _exchange(
    session: SparkSession, changes: Changes, batch: Batch, *, with_duckdb: bool = True
) -> bool:
    at = batch.at
    if batch.target.evolved or not can_exchange(session):
        return False
    confs, note = _settings(session, batch), json.dumps(batch.note)
    with transaction(session, at.path, note=note, confs=confs, own=False) as txn:
        folder = at.identity.table.table_path
        snapshot = read_snapshot(at.storage, folder, txn.version)
        if snapshot is None or not can_update(snapshot):
            return False
        if has_partitioning_policy(at.storage, at.identity.table):
            return False
        if txn.has_seen(at.identity.app_id, batch.last):
            return True
        names = physical_names(snapshot.metadata)
        live = at.files.of(txn.version)
        limits, bounds = [file_limits(add) for add in live], changes.bounds
        pairs = zip(live, limits, strict=True)
        files = [add for add, known in pairs if may_match(known, bounds, names)]
        rewrites = not snapshot.has_vectors or is_rewrite_cheaper(files, batch.row_count)
        unknown = any(int(add["records"]) < 0 for add in files)
        if rewrites and (unknown or not _is_small(batch, MOST_BROADCAST)):
            return False
        known = wide_bounds(bounds, limits, names, batch.target)
        update = RowUpdate(txn, snapshot, files)
        search = None
        rows = count_rows(files)
        is_searchable = rows >= key_search.MANY_ROWS and len(changes.keys) == 1
        if with_duckdb and is_searchable and _is_small(batch, key_search.MOST_KEYS):
            search = update.key_search(at.storage, folder, changes.keys[0])
        with _Exchange(update, changes, batch, search) as exchange:
            exchange.commit(known, is_large=rows >= _MANY_ROWS, rewrites=rewrites)
    return True


def is_rewrite_cheaper(files: Sequence[Action], changed: int) -> bool:
    """Return whether rewriting the touched files is cheaper than marking rows as deleted.

    Args:
        files: the files that can have the rows, see `live_files`.
        changed: the number of changed rows.
    """
    touched = sum(int(add["size"]) for add in files)
    return touched >= _REWRITE_BYTES and changed > _REWRITE_SHARE * count_rows(files)


def _settings(session: SparkSession, batch: Batch) -> dict[str, str]:
    """Return the session's settings for the commit; few changes need no adaptive execution."""
    if not _is_small(batch):
        return _SETTINGS
    return _SETTINGS | few_tasks(session, 1 if _is_small(batch, _ONE_TASK_ROWS) else FEW_SHUFFLES)


def _is_small(batch: Batch, rows: int = _FEW_ROWS) -> bool:
    """Return whether the changes are small enough to broadcast them."""
    size = sum(file.size for file in batch.facts)
    return batch.row_count <= rows and size <= _BROADCAST_BYTES


class _Exchange:
    """One attempt to commit; it caches rows in memory until it is closed."""

    def __init__(
        self,
        update: RowUpdate,
        changes: Changes,
        batch: Batch,
        search: key_search.KeySearch | None,
    ) -> None:
        self._update = update
        self._key_search = search
        self._batch = batch
        self._keys = changes.keys
        self._unchanged = {name.lower() for name in changes.unchanged}
        self._new = new_names(update.columns)
        columns = [F.col(quote(name)).alias(new) for name, new in self._new.items()]
        kept = [KEPT] if changes.unchanged else []
        self._frames: list[DataFrame] = []
        self._changes = self._persist(changes.rows.select(*columns, ACTION, *kept))

    def __enter__(self) -> _Exchange:
        return self

    def __exit__(self, *_error: object) -> None:
        for frame in self._frames:
            frame.unpersist()

    def _persist(self, rows: DataFrame) -> DataFrame:
        self._frames.append(rows.persist())
        return rows

    def commit(self, bounds: Bounds, *, is_large: bool, rewrites: bool) -> None:
        """Replace the rows of changed keys.

        Args:
            bounds: the bounds outside which no key can match.
            is_large: whether the files have many rows.
            rewrites: whether to rewrite the files with such rows, instead of marking the rows.
        """
        table = self._search(bounds, is_large=is_large)
        self._update.commit(
            self._join(table),
            value=self._value,
            unchanged=lambda rows: rows.join(self._matching(), self._same, "left_anti"),
            rewrites=rewrites,
            inserts=self._inserts,
            expected=self._batch.row_count,
            once=(self._batch.at.identity.app_id, self._batch.last),
        )

    @property
    def _inserts(self) -> bool:
        """True if a change can insert a row."""
        return any(count for marker, count in self._batch.rows.items() if marker != Marker.DELETE)

    def _search(self, bounds: Bounds, *, is_large: bool) -> DataFrame:
        """Return the table's rows that may change; the arguments are those of `commit`."""
        if self._key_search:
            keys = [row[0] for row in self._matching().collect()]
            return self._key_search.run(self._changes.sparkSession, self._keys[0], keys)
        conditions = key_conditions(bounds, self._batch.target, None)
        # The table's other rows are not shuffled.
        filters = is_large and _is_small(self._batch, MOST_BROADCAST)
        searched = self._searched() if filters else []
        table = reduce(DataFrame.where, [*conditions, *searched], self._update.rows())
        if filters and (not searched or len(self._keys) > 1):
            # Spark evaluates a filter, but not a join, before it computes hidden columns.
            listed = ", ".join(map(quote, self._keys))
            with temporary_view(self._matching()) as view:
                table = table.where(f"({listed}) IN (SELECT * FROM {view})")
        return table

    def _join(self, table: DataFrame) -> DataFrame:
        """Return each change joined with the rows that it changes, or with NULL if it has none."""
        changes = self._changes
        if _is_small(self._batch, _ONE_TASK_ROWS):
            changes = changes.coalesce(1)
        found = changes.join(table, self._same & (F.col(ACTION) != APPEND), "left_outer")
        return repeatable(found) if _is_small(self._batch) else self._persist(found)

    def _searched(self) -> list[str]:
        """Return SQL conditions that search the changed keys, if they are few."""
        columns = self._batch.target.columns
        keys = [key for key in self._keys if columns[key] in SEARCHED]
        if not keys or not _is_small(self._batch, _SEARCHED_KEYS):
            return []
        found = self._changes.select(*[self._new[key] for key in keys]).collect()
        conditions = [
            search_condition(key, {row[place] for row in found}, columns[key])
            for place, key in enumerate(keys)
        ]
        return [condition for condition in conditions if condition]

    @property
    def _same(self) -> Column:
        """The condition that a row of the table has the key of a change."""
        pairs = [F.col(quote(key)) == F.col(self._new[key]) for key in self._keys]
        return reduce(Column.__and__, pairs)

    def _matching(self) -> DataFrame:
        """Return the keys whose rows in the table change."""
        changes = self._changes.where(F.col(ACTION) != APPEND)
        return F.broadcast(changes.select(*[self._new[key] for key in self._keys]))

    def _value(self, name: str) -> str:
        """Return the SQL expression of a column's new value."""
        new = self._new[name]
        if name.lower() not in self._unchanged:
            return new
        keeps = f"coalesce(array_contains({KEPT}, {literal(name)}), false)"
        new = value_or_error(name, new, KEPT)
        return f"IF({quote(ROW)} IS NOT NULL AND {keeps}, {quote(name)}, {new})"
