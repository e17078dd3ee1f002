"""Carries one plan out: one Delta commit, exactly once; and compacts a table now and then.

The commit carries appId = table and incarnation, txnVersion = the plan's last number. With those
set a session skips every further write, so each apply has a session of its own.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable

from pyspark.sql import DataFrame, SparkSession

from mirrorlake.delta.exchange import MOST_DELETED
from mirrorlake.delta.snapshot import FEED, Snapshot, read_snapshot
from mirrorlake.delta.table import OWN_TABLE, committing, create_delta, mapping_property
from mirrorlake.errors import SchemaError
from mirrorlake.landing.metadata import Marker
from mirrorlake.mirror.batch import (
    ACTION,
    APPEND,
    DELETE,
    KEPT,
    REPLACE,
    compact_changes,
    key_bounds,
    key_conditions,
    read_batch,
    refuse_kept,
    refused,
)
from mirrorlake.mirror.exchange import Changes, exchange_batch
from mirrorlake.mirror.next_batch import Batch, TableContext, check_keys_known
from mirrorlake.mirror.options import Step
from mirrorlake.mirror.properties import INCARNATION_PROPERTY, keys_property
from mirrorlake.spark.jvm import can_exchange
from mirrorlake.spark.session import new_session
from mirrorlake.spark.sql import delta_name, literal, quote, spark_message, temporary_view

_TRIES = 5
CONFLICT = re.compile(
    r"DELTA_(CONCURRENT|METADATA_CHANGED|PROTOCOL_CHANGED)|Concurrent\w*Exception"
)
# How a Spark before 4.0 refuses WITH SCHEMA EVOLUTION, and Delta 4.0 a new column with it.
_UNKNOWN_WORDS = re.compile(r"PARSE_SYNTAX_ERROR|DELTA_MERGE_UNRESOLVED_EXPRESSION")
_EVOLVES = "spark.databricks.delta.schema.autoMerge.enabled"  # the session is this apply's own
_FEED_RESTS = "mirrorlake.feedRests"  # switched off by the mirror, which switches it on again
_MARKS = "spark.databricks.delta.merge.deletionVectors.persistent"


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


# Files of 128 MiB and more are left alone, unless many of their rows are deleted: the cost follows
# what is new, not the table.
_CONFS = {
    "spark.databricks.delta.optimize.maxDeletedRowsRatio": str(MOST_DELETED / 2),
    "spark.databricks.delta.optimize.minFileSize": str(128 * 2**20),
    "spark.databricks.delta.optimize.maxFileSize": str(256 * 2**20),
}


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
