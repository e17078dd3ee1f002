"""Commit one batch to its Delta table exactly once: by append, MERGE or deletion vectors.

The commit carries `appId` (table and incarnation) and `txnVersion` (the last number of the plan).
A session in which these are set skips every further write, so each commit uses a new session.

The mirror's own transaction (`exchange_batch`) costs as much as the changes, not as much as the
files that they touch. It looks up the rows of the changed keys once, marks the old rows in deletion
vectors and writes the new rows as new files. The commit also contains the change feed that MERGE
would write. Updated rows keep their row ids. MERGE handles every other case.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from mirrorlake.delta.exchange import (
    LARGE_ROWS,
    MOST_DELETED,
    count_rows,
    exchange_rows,
    mark_rows,
    placed_rows,
)
from mirrorlake.delta.log_files import Action
from mirrorlake.delta.snapshot import (
    FEED,
    ROW_ID_COLUMN,
    ROW_VERSION_COLUMN,
    VECTORS,
    Snapshot,
    physical_names,
    read_snapshot,
)
from mirrorlake.delta.table import OWN_TABLE, committing, create_delta, mapping_property
from mirrorlake.errors import OtherDeltaError, SchemaError
from mirrorlake.landing.metadata import Marker
from mirrorlake.mirror.batch import (
    ACTION,
    APPEND,
    DELETE,
    KEPT,
    REPLACE,
    Bounds,
    compact_changes,
    file_limits,
    key_bounds,
    key_conditions,
    may_match,
    read_batch,
    refuse_kept,
    refused,
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
    DeltaTransaction,
    can_exchange,
    rows_among,
    transaction,
)
from mirrorlake.spark.session import new_session
from mirrorlake.spark.sql import delta_name, literal, spark_message, temporary_view

_REWRITE_SHARE = 0.25  # of the rows in the touched files
_REWRITE_BYTES = 16 * 2**20  # below it a commit costs more than the bytes do
_FEW_ROWS, _FEW_SHUFFLES = 150_000, 8
_SHUFFLES = "spark.sql.shuffle.partitions"
_SETTINGS = {
    # A table's rows and its feed's lie in folders of their own: else they are sorted by them.
    "spark.sql.maxConcurrentOutputFileWriters": "8",
    # What is kept is read once or twice, within seconds.
    "spark.sql.inMemoryColumnarStorage.compressed": "false",
    # By default a small file counts as one of 4 MiB, and two large ones end up in one task.
    "spark.sql.files.openCostInBytes": str(128 * 2**10),
}
_BROADCAST_BYTES = 64 * 2**20
# Of a writer: any other may ask for values, or actions, that are not written here.
_FEATURES = frozenset(
    (
        "appendOnly", "changeDataFeed", "checkConstraints", "checkpointProtection", "clustering",
        "columnMapping", "deletionVectors", "domainMetadata", "inCommitTimestamp", "invariants",
        "rowTracking", "timestampNtz", "typeWidening", "v2Checkpoint", "vacuumProtocolCheck",
        "variantType",
    )
)  # fmt: skip
_CHANGE_TYPE = "_change_type"
_KIND, _NEW, _HIT = "__mirrorlake_kind", "__mirrorlake_new_", "__mirrorlake_hit_"
_BEFORE, _AFTER, _DELETED, _INSERTED = "update_preimage", "update_postimage", "delete", "insert"
_TABLE = ""  # the kind of a row that goes into the table itself
_TRIES = 5
CONFLICT = re.compile(
    r"DELTA_(CONCURRENT|METADATA_CHANGED|PROTOCOL_CHANGED)|Concurrent\w*Exception"
)
# How a Spark before 4.0 refuses WITH SCHEMA EVOLUTION, and Delta 4.0 a new column with it.
_UNKNOWN_WORDS = re.compile(r"PARSE_SYNTAX_ERROR|DELTA_MERGE_UNRESOLVED_EXPRESSION")
_EVOLVES = "spark.databricks.delta.schema.autoMerge.enabled"  # the session is this apply's own
_FEED_RESTS = "mirrorlake.feedRests"  # switched off by the mirror, which switches it on again
_MARKS = "spark.databricks.delta.merge.deletionVectors.persistent"
# Files of 128 MiB and more are left alone, unless many of their rows are deleted: the cost follows
# what is new, not the table.
_CONFS = {
    "spark.databricks.delta.optimize.maxDeletedRowsRatio": str(MOST_DELETED / 2),
    "spark.databricks.delta.optimize.minFileSize": str(128 * 2**20),
    "spark.databricks.delta.optimize.maxFileSize": str(256 * 2**20),
}


def commit_with_retries(commit: Callable[[], None]) -> None:
    """Runs a commit again when another writer of the table, an OPTIMIZE perhaps, was quicker.

    That is safe: a commit whose txnVersion the log has already is skipped by Delta.
    """
    for attempt in range(1, _TRIES + 1):
        try:
            commit()
            return
        except Exception as error:
            if attempt == _TRIES or not CONFLICT.search(spark_message(error)):
                raise
            time.sleep(0.2 * 2**attempt)


def compact(spark: SparkSession, path: str) -> bool:
    """Compacts a Delta table; no row changes, and readers notice nothing.

    Returns:
        False if another writer was quicker: then it is worth another try after the next commit.
    """
    session = new_session(spark)
    for name, value in _CONFS.items():
        session.conf.set(name, value)
    try:
        session.sql(f"OPTIMIZE {delta_name(path)}").collect()
    except Exception as error:
        if CONFLICT.search(spark_message(error)):
            return False
        raise
    return True


def write_batch(
    spark: Callable[[], SparkSession], batch: Batch, done: Callable[[Step], None]
) -> None:
    """Makes version 0, or adds what an existing table lacks; then commits the data.

    Args:
        spark: called when a session is needed.
        batch: what to commit; a table that is only declared has no data, unless it replaces one.
        done: is called after every finished step.
    """
    at = batch.at
    if at.snapshot is None:
        # Version 0: no rows yet, but all properties, so that feed and row ids cover everything.
        check_keys_known(at.metadata.keys, batch.target)
        made_for = {INCARNATION_PROPERTY: at.identity.incarnation}
        wanted = batch.properties | OWN_TABLE | made_for | keys_property(at.metadata)
        create_delta(new_session(spark()), at.path, batch.target.columns, wanted)
        done(Step.CREATED)
    else:
        _set_properties(spark, at, _new_properties(at.snapshot, batch))
    if batch.plan is None and not at.recreated:
        return
    commit_with_retries(lambda: _apply_batch(spark(), batch))
    done(Step.COMMITTED)
    if at.recreated:
        found = read_snapshot(at.storage, at.identity.table.table_path)
        _set_properties(spark, at, _reenable_feed(found.properties) if found else {})


def _new_properties(snapshot: Snapshot, batch: Batch) -> dict[str, str]:
    """What an existing table lacks: late keys, and what a first odd name or plain clock needs."""
    known, at, columns = snapshot.properties, batch.at, batch.target.columns
    wanted = batch.properties | mapping_property(columns)
    if batch.target.widened:
        wanted["delta.enableTypeWidening"] = "true"
    if "timestamp_ntz" in columns.values() and "timestampNtz" not in snapshot.writer_features:
        wanted["delta.feature.timestampNtz"] = "supported"  # Delta does so at creation only
    wanted |= keys_property(at.metadata)
    if at.recreated:
        wanted |= _suspend_feed(snapshot, columns)
    else:
        wanted |= _reenable_feed(known)
    return {name: value for name, value in wanted.items() if known.get(name) != value}


def _suspend_feed(snapshot: Snapshot, after: dict[str, str]) -> dict[str, str]:
    """What to set before a table is replaced by one of other columns; empty where nothing is.

    With column mapping Delta refuses to drop columns and write rows in one commit while the feed is
    on. No feed can be read across that commit anyway.

    Args:
        snapshot: the table as it is.
        after: the columns it will have, with their types.
    """
    mapped = snapshot.is_mapped or mapping_property(after)
    drops = any(after.get(name) != str(kind) for name, kind in snapshot.schema.items())
    if mapped and drops and snapshot.properties.get(FEED) == "true":
        return {FEED: "false", _FEED_RESTS: "true"}
    return {}


def _reenable_feed(known: dict[str, str]) -> dict[str, str]:
    """What to set after such a commit."""
    return {FEED: "true", _FEED_RESTS: "false"} if known.get(_FEED_RESTS) == "true" else {}


def _set_properties(
    spark: Callable[[], SparkSession], at: TableContext, properties: dict[str, str]
) -> None:
    """Writes properties into an existing table, in a commit before the data's."""
    if not properties:
        return
    listed = ", ".join(f"{literal(name)} = {literal(value)}" for name, value in properties.items())
    new_session(spark()).sql(f"ALTER TABLE {delta_name(at.path)} SET TBLPROPERTIES ({listed})")


def _apply_batch(spark: SparkSession, batch: Batch) -> None:
    """Commits the plan's files to the existing table; nothing happens if that is done already."""
    session, at = new_session(spark), batch.at
    markers = {marker for marker, count in batch.rows.items() if count}
    ordered = bool(markers - {Marker.INSERT})
    rows = read_batch(session, batch, ordered=ordered)
    if not ordered:
        _write(rows, batch)
        return
    keys = check_keys_known(at.metadata.keys, batch.target)
    unchanged = tuple(sorted({name for file in batch.facts for name in file.unchanged}))
    changes = compact_changes(rows, keys, markers, unchanged)
    if at.recreated:
        kept = changes.where(changes[ACTION].isin(REPLACE, APPEND))
        _write(refuse_kept(kept, unchanged).drop(ACTION) if unchanged else kept.drop(ACTION), batch)
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
    if can_exchange(session):  # where files are to be written anew, vectors go with them
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
        # Delta 4.4 doesn't double a name's backticks where it writes an update's change rows.
        ticked = next((name for name in batch.target.columns if "`" in name), None)
        if ticked is None or "INVALID_ATTRIBUTE_NAME_SYNTAX" not in str(error):
            raise
        raise SchemaError(
            f"Delta can't merge changes into a table with a column {ticked!r}.",
            file=batch.facts[0].name,
            column=ticked,
            hint="rename the column, without a backtick, and publish into a new folder.",
        ) from error


def _run_merge(session: SparkSession, statement: str, *, evolves: bool) -> None:
    if not evolves:
        session.sql(statement)
        return
    try:
        session.sql(statement.replace("MERGE INTO", "MERGE WITH SCHEMA EVOLUTION INTO", 1))
    except Exception as error:
        if not _UNKNOWN_WORDS.search(str(error)):
            raise
        session.conf.set(_EVOLVES, "true")
        session.sql(statement)


def _values(
    batch: Batch, names: list[str], unchanged: tuple[str, ...]
) -> tuple[dict[str, str], dict[str, str]]:
    """What a MERGE sets each column to: of a row that is there, and of one that is not."""
    updated = {name: f"s.{name}" for name in names}
    inserted = dict(updated)
    spelled = {name.lower(): name for name in batch.target.columns}
    known = {name.lower() for name in batch.at.columns or batch.target.columns}
    kept = f"s.{quote(KEPT)}"
    for name in unchanged:
        column = quote(spelled[name.lower()])
        inserted[column] = updated[column] = refused(name, f"s.{column}", kept)
        if name.lower() in known:
            says = f"array_contains({kept}, {literal(name)})"
            updated[column] = f"CASE WHEN {says} THEN t.{column} ELSE s.{column} END"
    return updated, inserted


@dataclass(frozen=True)
class Changes:
    """A batch's collapsed changes.

    Attributes:
        rows: as `compact_changes` gives them.
        keys: the key columns in the table's spelling.
        unchanged: the columns that some update leaves as they are.
        bounds: of the keys, as far as they are known.
    """

    rows: DataFrame
    keys: tuple[str, ...]
    unchanged: tuple[str, ...]
    bounds: Bounds


def exchange_batch(session: SparkSession, changes: Changes, batch: Batch) -> bool:
    """Commits a batch by deletion vectors, if the table has them and it is the cheaper way.

    Returns:
        Whether the batch is committed, now or by an earlier try; if not, it is MERGE's.

    Raises:
        ConflictError: another writer changed rows meanwhile.
    """
    try:
        return _exchange(session, changes, batch)
    except OtherDeltaError:
        return False  # nothing is committed without the methods that commit


def _exchange(session: SparkSession, changes: Changes, batch: Batch) -> bool:
    at = batch.at
    has_vectors = VECTORS in batch.properties or bool(at.snapshot and at.snapshot.has_vectors)
    if not has_vectors or batch.target.evolved or not can_exchange(session):
        return False
    confs, note = _settings(session, batch), json.dumps(batch.note)
    with transaction(session, at.path, note=note, confs=confs, own=False) as txn:
        folder = at.identity.table.table_path
        snapshot = read_snapshot(at.storage, folder, txn.version)
        if snapshot is None or not _is_fit(snapshot, batch):
            return False
        if txn.has_seen(at.identity.app_id, batch.last):
            return True
        names = physical_names(snapshot.metadata)
        live = at.files.of(txn.version)
        limits, bounds = [file_limits(add) for add in live], changes.bounds
        told = zip(live, limits, strict=True)
        files = [add for add, known in told if may_match(known, bounds, names)]
        if is_rewrite_cheaper(files, batch.row_count):
            return False
        with _Exchange(txn, snapshot, changes, batch) as exchange:
            exchange.commit(files, wide_bounds(bounds, limits, names, batch.target))
    return True


def is_rewrite_cheaper(files: Sequence[Action], changed: int) -> bool:
    """Whether touched files are better written anew than marked, and read with marks from then on.

    Args:
        files: those that may have the rows, as `live_files` gives them.
        changed: how many rows change.
    """
    touched = sum(int(add["size"]) for add in files)
    return touched >= _REWRITE_BYTES and changed > _REWRITE_SHARE * count_rows(files)


def _settings(session: SparkSession, batch: Batch) -> dict[str, str]:
    """What the commit's session works with; few changes need no plan that adapts to their size."""
    if not _is_small(batch):
        return _SETTINGS
    shuffles = min(_FEW_SHUFFLES, int(session.conf.get(_SHUFFLES) or _FEW_SHUFFLES))
    return _SETTINGS | {_SHUFFLES: str(shuffles), "spark.sql.adaptive.enabled": "false"}


def _is_small(batch: Batch, rows: int = _FEW_ROWS) -> bool:
    """Whether the changes are sent to every task, rather than the table be shuffled."""
    size = sum(file.size for file in batch.facts)
    return batch.row_count <= rows and size <= _BROADCAST_BYTES


def _is_fit(snapshot: Snapshot, batch: Batch) -> bool:
    if not snapshot.has_vectors:
        return False
    if snapshot.properties.get("delta.appendOnly", "false").lower() == "true":
        return False
    # Delta's writer of changed rows fails over a backtick, and MERGE says so.
    if any("`" in name for name in snapshot.schema):
        return False
    known = set(snapshot.writer_features) <= _FEATURES
    return known and not has_partitioning_policy(batch.at.storage, batch.at.identity.table)


class _Exchange:
    """One try: what is kept in memory meanwhile."""

    def __init__(
        self, txn: DeltaTransaction, snapshot: Snapshot, changes: Changes, batch: Batch
    ) -> None:
        self._txn = txn
        self._batch = batch
        self._columns = tuple(snapshot.schema)
        self._keys = changes.keys
        self._unchanged = {name.lower() for name in changes.unchanged}
        self._has_feed = snapshot.has_feed
        self._ids = [
            snapshot.properties[name]
            for name in (ROW_ID_COLUMN, ROW_VERSION_COLUMN)
            if txn.tracks_rows
        ]
        self._new = {name: f"{_NEW}{place}" for place, name in enumerate(self._columns)}
        columns = [F.col(quote(name)).alias(new) for name, new in self._new.items()]
        kept = [KEPT] if changes.unchanged else []
        self._changes = changes.rows.select(*columns, ACTION, *kept).persist()
        self._frames = [self._changes]

    def __enter__(self) -> _Exchange:
        return self

    def __exit__(self, *_error: object) -> None:
        for frame in self._frames:
            frame.unpersist()

    def commit(self, files: Sequence[Action], bounds: Bounds) -> None:
        """Finds the rows in files, and exchanges them; outside of the bounds no key can match."""
        table = placed_rows(self._txn, files, keep_ids=True)
        self._txn.read_all()
        found = self._find(table, bounds, is_large=count_rows(files) >= LARGE_ROWS)
        self._frames.append(found)
        marked = mark_rows(self._txn, found)
        gone = updated = marked.rows
        if gone and self._batch.rows.get(Marker.DELETE):
            updated = found.where(F.col(ACTION) != DELETE).count()
        parts = [self._changed(found)] if updated or (gone and self._has_feed) else []
        if self._inserts:
            parts.append(self._inserted(found, fed=gone > 0))
        exchange_rows(
            self._txn,
            marked,
            reduce(DataFrame.unionByName, parts) if parts else None,
            expected=self._batch.row_count,
            updated=updated,
            app_id=self._batch.at.identity.app_id,
            number=self._batch.last,
        )

    @property
    def _inserts(self) -> bool:
        """Whether a change can bring a row that was not there."""
        return any(count for marker, count in self._batch.rows.items() if marker != Marker.DELETE)

    def _find(self, table: DataFrame, bounds: Bounds, *, is_large: bool) -> DataFrame:
        """The table's rows that change, each with its change."""
        for condition in key_conditions(bounds, self._batch.target, None):
            table = table.where(condition)
        changes = self._changes.where(F.col(ACTION) != APPEND)
        if is_large:
            new = {key: self._new[key] for key in self._keys}
            table = rows_among(table, changes, new, self._batch.row_count)
        on = [F.col(quote(key)) == F.col(self._new[key]) for key in self._keys]
        return table.join(self._small(changes), reduce(Column.__and__, on)).persist()

    def _small(self, rows: DataFrame) -> DataFrame:
        """One side of a join: few changes are sent to every task of the other."""
        return F.broadcast(rows) if _is_small(self._batch, MOST_BROADCAST) else rows

    def _changed(self, found: DataFrame) -> DataFrame:
        """Updated rows as they become; and with the feed, both kinds before and after."""
        before, after = [_BEFORE, _AFTER] if self._has_feed else [], [_TABLE]
        deleted = [_DELETED] if self._has_feed else []
        kinds = f"IF({ACTION} = '{DELETE}', {_texts(deleted)}, {_texts([*before, *after])})"
        is_old = f"{_KIND} IN ('{_BEFORE}', '{_DELETED}')"

        def value(name: str) -> str:
            stays = is_old
            if name.lower() in self._unchanged:
                stays += f" OR coalesce(array_contains({KEPT}, {literal(name)}), false)"
            return f"IF({stays}, {quote(name)}, {self._new[name]})"

        values = {name: value(name) for name in self._columns}
        ids = {name: f"IF({_KIND} = '{_TABLE}', {quote(name)}, NULL)" for name in self._ids[:1]}
        return self._written(found, kinds, values, ids, found)

    def _inserted(self, found: DataFrame, *, fed: bool) -> DataFrame:
        """New rows: without a key of the table's, or whatever it has."""
        hits = {self._new[key]: f"{_HIT}{place}" for place, key in enumerate(self._keys)}
        there = found.selectExpr(*[f"{new} AS {hit}" for new, hit in hits.items()])
        same = [f"{new} = {hit}" for new, hit in hits.items()]
        wanted = self._changes.where(f"{ACTION} IN ('{REPLACE}', '{APPEND}')")
        on = F.expr(" AND ".join([f"{ACTION} = '{REPLACE}'", *same]))
        rows = wanted.join(self._small(there), on, "left_anti")
        kinds = _texts([_TABLE, _INSERTED] if fed and self._has_feed else [_TABLE])
        values = {
            name: refused(name, new, KEPT) if name.lower() in self._unchanged else new
            for name, new in self._new.items()
        }
        return self._written(rows, kinds, values, {}, found)

    def _written(
        self,
        rows: DataFrame,
        kinds: str,
        values: Mapping[str, str],
        ids: Mapping[str, str],
        found: DataFrame,
    ) -> DataFrame:
        """Rows as a transaction writes them. What it is made of is SQL: it is parsed at once.

        Args:
            rows: what to write, each as often as it has kinds.
            kinds: an array of them.
            values: of the table's columns.
            ids: of the columns that carry row ids, those that a row keeps; the others are new.
            found: has these columns: Delta knows them by what they say of themselves.
        """
        made = [F.expr(f"{value} AS {quote(name)}") for name, value in values.items()]
        for name in self._ids:
            number = F.expr(ids.get(name, "CAST(NULL AS BIGINT)"))
            made.append(number.alias(name, metadata=found.schema[name].metadata))
        change_type = F.expr(f"IF({_KIND} <> '{_TABLE}', {_KIND}, NULL) AS {_CHANGE_TYPE}")
        return rows.selectExpr("*", f"explode({kinds}) AS {_KIND}").select(*made, change_type)


def _texts(kinds: Sequence[str]) -> str:
    """An array of kinds, as SQL."""
    return f"CAST(array({', '.join(map(literal, kinds))}) AS ARRAY<STRING>)"
