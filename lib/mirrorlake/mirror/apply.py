"""Carries one plan out: one Delta commit, exactly once; and compacts a table now and then.

The commit carries appId = table and incarnation, txnVersion = the plan's last number. With those
set a session skips every further write, so each apply has a session of its own.
"""

from __future__ import annotations

import datetime as dt
import json
import re
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from mirrorlake.delta.create import committing, create_delta, mapping_property
from mirrorlake.delta.snapshot import Snapshot, read_snapshot
from mirrorlake.errors import MirrorlakeError, SchemaError
from mirrorlake.landing.check import FileFacts
from mirrorlake.landing.identity import Identity
from mirrorlake.landing.metadata import Marker, TableMetadata
from mirrorlake.landing.rows import column_statistics
from mirrorlake.mirror.batch import ACTION, APPEND, DELETE, REPLACE, compact_changes, read_batch
from mirrorlake.mirror.options import Step
from mirrorlake.mirror.properties import (
    Target,
    check_keys_known,
    creation_properties,
    is_stale_incarnation,
    keys_property,
    reenable_feed,
    suspend_feed,
)
from mirrorlake.names import file_number
from mirrorlake.spark.session import new_session
from mirrorlake.spark.sql import delta_name, literal, quote, spark_message
from mirrorlake.storage import Storage

_TRIES = 5
CONFLICT = re.compile(
    r"DELTA_(CONCURRENT|METADATA_CHANGED|PROTOCOL_CHANGED)|Concurrent\w*Exception"
)
_FILE = re.compile(r"(\d{20}\.\w+)")
_LONGEST = 500


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


def explain(error: BaseException) -> dict[str, Any]:
    """Any exception as a report's error: message, file, row, column."""
    if isinstance(error, MirrorlakeError):
        return error.as_dict()
    text = spark_message(error)
    named = _FILE.search(text)
    file = named[1] if named and file_number(named[1]) is not None else None
    return {"message": text[:_LONGEST], "file": file, "row": None, "column": None}


# Files of 128 MiB and more are left alone: the cost follows what is new, not the table.
_CONFS = {
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


@dataclass(frozen=True)
class Work:
    """All that one commit needs to know.

    Attributes:
        identity: whose files they are.
        storage: the lake's files.
        path: the Delta table, full path.
        files: the plan's files, in order.
        target: the table's columns after the commit.
        metadata: what the folder declares.
        snapshot: the table as it is, or None.
        note: what the commit's userMetadata says.
        retention: properties that say how long the table keeps its past.
    """

    identity: Identity
    storage: Storage
    path: str
    files: tuple[FileFacts, ...]
    target: Target
    metadata: TableMetadata
    snapshot: Snapshot | None
    note: dict[str, Any]
    retention: dict[str, str] = field(default_factory=dict)

    @property
    def last(self) -> int:
        """The last file's number; 0 where there is only a declared schema."""
        return self.files[-1].number if self.files else 0

    @property
    def recreated(self) -> bool:
        """Whether the table there belongs to an earlier incarnation of the folder."""
        return is_stale_incarnation(self.snapshot, self.identity)

    @property
    def rows(self) -> Counter[Marker]:
        """Rows by operation, over all files."""
        return sum((file.rows for file in self.files), Counter())


def write_work(
    spark: Callable[[], SparkSession],
    work: Work,
    done: Callable[[Step], None],
    *,
    data: bool = True,
) -> None:
    """Makes version 0, or adds what an existing table lacks; then commits the data.

    Args:
        spark: called when a session is needed.
        work: what to commit.
        done: is called after every finished step.
        data: whether there is a data commit; a table that is only declared has none.
    """
    if work.snapshot is None:
        _create_table(spark(), work)
        done(Step.CREATED)
    elif missing := _new_properties(work):
        _set_properties(spark(), work, missing)
    if not data:
        return
    commit_with_retries(lambda: _apply_work(spark(), work))
    done(Step.COMMITTED)
    if work.recreated:
        found = read_snapshot(work.storage, work.identity.table.table_path)
        if found and (properties := reenable_feed(found.properties)):
            _set_properties(spark(), work, properties)


def _create_table(spark: SparkSession, work: Work) -> None:
    """Version 0: no rows yet, but all properties, so that feed and row ids cover everything."""
    check_keys_known(work.metadata.keys, work.target)
    properties = creation_properties(work.metadata, work.identity.incarnation)
    wanted = work.retention | properties
    create_delta(new_session(spark), work.path, work.target.columns, wanted)


def _new_properties(work: Work) -> dict[str, str]:
    """What an existing table lacks: late keys, and what a first odd name or plain clock needs."""
    known = work.snapshot.properties if work.snapshot else {}
    features = work.snapshot.writer_features if work.snapshot else ()
    wanted = work.retention | mapping_property(work.target.columns)
    if work.target.widened:
        wanted["delta.enableTypeWidening"] = "true"
    if "timestamp_ntz" in work.target.columns.values() and "timestampNtz" not in features:
        wanted["delta.feature.timestampNtz"] = "supported"  # Delta does so at creation only
    wanted |= keys_property(work.metadata)
    if work.snapshot is not None and work.recreated:
        before = {name: str(kind) for name, kind in work.snapshot.schema.items()}
        wanted |= suspend_feed(known, before, work.target.columns)
    else:
        wanted |= reenable_feed(known)
    return {name: value for name, value in wanted.items() if known.get(name) != value}


def _set_properties(spark: SparkSession, work: Work, properties: dict[str, str]) -> None:
    """Writes properties into an existing table, in a commit before the data's."""
    listed = ", ".join(f"{literal(name)} = {literal(value)}" for name, value in properties.items())
    new_session(spark).sql(f"ALTER TABLE {delta_name(work.path)} SET TBLPROPERTIES ({listed})")


def _apply_work(spark: SparkSession, work: Work) -> None:
    """Commits the plan's files to the existing table; nothing happens if that is done already."""
    session = new_session(spark)
    markers = {marker for marker, count in work.rows.items() if count}
    ordered = bool(markers - {Marker.INSERT})
    batch = read_batch(
        session,
        work.storage.root,
        work.files,
        work.target,
        default=work.metadata.default_marker,
        ordered=ordered,
    )
    if not ordered:
        _write(batch, work)
        return
    keys = check_keys_known(work.metadata.keys, work.target)
    changes = compact_changes(batch, keys, markers)
    if work.recreated:
        kept = changes.where(changes[ACTION].isin(REPLACE, APPEND))
        _write(kept.drop(ACTION), work)
        return
    _merge(session, changes, keys, work)


def _write(rows: DataFrame, work: Work) -> None:
    options = {
        "txnAppId": work.identity.app_id,
        "txnVersion": str(work.last),
        "userMetadata": json.dumps(work.note),
    }
    mode = "append"
    if work.recreated:
        mode = "overwrite"
        options["overwriteSchema"] = "true"
    elif work.target.evolved:
        options["mergeSchema"] = "true"
    rows.write.format("delta").options(**options).mode(mode).save(work.path)


def _merge(session: SparkSession, changes: DataFrame, keys: tuple[str, ...], work: Work) -> None:
    view = f"changes_{uuid.uuid4().hex}"
    changes.createOrReplaceTempView(view)
    names = [quote(name) for name in work.target.columns]
    action = f"s.{quote(ACTION)}"
    paths = [file.source for file in work.files]
    on = " AND ".join(
        [f"t.{quote(key)} = s.{quote(key)}" for key in keys]
        + key_conditions(work.storage, paths, keys, work.target)
    )
    evolution = "WITH SCHEMA EVOLUTION " if work.target.evolved else ""
    statement = f"""
        MERGE {evolution}INTO {delta_name(work.path)} t USING {view} s
        ON {on} AND {action} <> '{APPEND}'
        WHEN MATCHED AND {action} = '{DELETE}' THEN DELETE
        WHEN MATCHED THEN UPDATE SET {", ".join(f"{name} = s.{name}" for name in names)}
        WHEN NOT MATCHED AND {action} IN ('{REPLACE}', '{APPEND}')
        THEN INSERT ({", ".join(names)}) VALUES ({", ".join(f"s.{name}" for name in names)})
    """
    try:
        with committing(session, json.dumps(work.note), work.identity.app_id, work.last):
            session.sql(statement)
    except Exception as error:
        # Delta 4.4 doesn't double a name's backticks where it writes an update's change rows.
        ticked = next((name for name in work.target.columns if "`" in name), None)
        if ticked is None or "INVALID_ATTRIBUTE_NAME_SYNTAX" not in str(error):
            raise
        raise SchemaError(
            f"Delta can't merge changes into a table with a column {ticked!r}.",
            file=work.files[0].name,
            column=ticked,
            hint="rename the column, without a backtick, and publish into a new folder.",
        ) from error
    finally:
        session.catalog.dropTempView(view)


_READERS = 8
_SUFFIX = {"byte": "Y", "short": "S", "integer": "", "long": "L"}
_TYPES = {**dict.fromkeys(_SUFFIX, int), "date": dt.date, "string": str}
# Texts without escapes, variables or letters of any other alphabet: no doubt how they compare.
_PLAIN = re.compile(r"[\w .:/@+-]{0,200}", re.ASCII)
_Bounds = tuple[Any, Any]


def key_conditions(
    storage: Storage, paths: Iterable[str], keys: tuple[str, ...], target: Target
) -> list[str]:
    """What is true of a row `t` of the table if one of the files' rows can match it.

    Args:
        storage: the lake's files.
        paths: the batch's files.
        keys: the key columns in the table's spelling.
        target: the table's columns.

    Returns:
        One condition for each key column whose bounds all footers tell; often none.
    """
    known = [key for key in keys if target.columns[key] in _TYPES]
    if not known:
        return []
    with ThreadPoolExecutor(_READERS) as pool:
        files = list(pool.map(lambda path: _read_bounds(storage, path, known), paths))
    conditions = []
    for key in known:
        kind = target.columns[key]
        bounds = [found for file in files for found in file[key]]
        if not bounds or not all(isinstance(end, _TYPES[kind]) for pair in bounds for end in pair):
            continue
        low = _literal(min(pair[0] for pair in bounds), kind)
        high = _literal(max(pair[1] for pair in bounds), kind)
        if low is not None and high is not None:
            conditions.append(f"t.{quote(key)} BETWEEN {low} AND {high}")
    return conditions


def _read_bounds(storage: Storage, path: str, keys: list[str]) -> dict[str, list[_Bounds]]:
    """Each row group's smallest and largest value; a None among them where it is not known."""
    found: dict[str, list[_Bounds]] = {key: [] for key in keys}
    try:
        with storage.open(path) as source, pq.ParquetFile(source) as parquet:
            for number in range(parquet.num_row_groups):
                group = parquet.metadata.row_group(number)
                if group.num_rows:
                    for key in keys:
                        found[key].append(_group_bounds(group, key))
    except (pa.ArrowException, OSError, ValueError, OverflowError):
        # A text file, a date beyond the calendar, or something that Spark will complain about.
        return {key: [(None, None)] for key in keys}
    return found


def _group_bounds(group: Any, key: str) -> _Bounds:
    statistics = column_statistics(group, key)
    if statistics is None or not statistics.has_min_max:
        return None, None
    return statistics.min, statistics.max


def _literal(value: Any, kind: str) -> str | None:
    """A bound as SQL of the column's own type, so that it is compared without a cast."""
    if kind in _SUFFIX:
        return f"{value}{_SUFFIX[kind]}"
    if kind == "date":
        return f"DATE'{value.isoformat()}'"
    return literal(value) if _PLAIN.fullmatch(value) else None
