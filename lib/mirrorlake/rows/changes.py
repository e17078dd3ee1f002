"""Read rows with their ids: the rows of a version, of some files, and the changes of a range.

A change feed lacks the ids. So changes are computed from the files that each commit added and
removed: a row that is in both, with two commit versions, was updated. This needs no feed; its cost
grows with the changes and not with the table, and it pairs each old row with its new one. For
versions in which rows had no ids, the feed is read, without ids.

The files belong to many versions, but a query reads one. So the files are listed in a small Delta
log of their own, and Delta reads them through it. Delta supports deletion vectors, partitions,
renamed columns and widened types. The hidden id columns are ordinary columns there, so Parquet's
statistics can skip row groups without a wanted id. Such a log contains no values of columns, except
those of partitions. It is named by its content, and the next one deletes it after a day.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from mirrorlake.delta.actions import (
    DataFile,
    FileChange,
    FileHistory,
    Places,
    encode,
    file_changes,
    vector_path,
)
from mirrorlake.delta.commits import Timeline, read_versions
from mirrorlake.delta.files import hadoop_path
from mirrorlake.delta.log_files import Action, commit_path, encode_actions
from mirrorlake.delta.snapshot import (
    PHYSICAL_NAME,
    ROW_ID_COLUMN,
    ROW_VERSION_COLUMN,
    Snapshot,
    read_snapshot,
)
from mirrorlake.delta.table import TableHandle
from mirrorlake.errors import FeedError, UsageError
from mirrorlake.feed.changes import Changes
from mirrorlake.feed.ranges import End, Outside, resolve_span
from mirrorlake.history.diff import RESERVED
from mirrorlake.history.versions import check_version
from mirrorlake.names import ROW_FILES, quote
from mirrorlake.rows.tracking import check_tracked, read_tracking
from mirrorlake.spark.older import metadata_column
from mirrorlake.storage.files import Storage

ID_NAMES = ("_row_id", "_row_commit_version")
_THREADS = 16
_VERSION, _SIDE = "__mirrorlake_version", "__mirrorlake_side"
ROW, FILE = "__mirrorlake_row", "__mirrorlake_file"
ROW_ID, ROW_VERSION = "__mirrorlake_row_id", "__mirrorlake_row_version"
_FIRST, _DEFAULT = "__mirrorlake_first_id", "__mirrorlake_default_version"
_KEPT_DAYS = 1
_MODE, _NUMBERED = "delta.columnMapping.mode", "delta.columnMapping.maxColumnId"


def read_with_ids(
    table: TableHandle, *, version: int | None = None, names: Sequence[str] = ID_NAMES
) -> DataFrame:
    """Return the rows of a version, each with its id and the version that last changed it.

    Args:
        table: the table.
        version: the version; by default the newest.
        names: the names of these two columns, in case the table has columns of the same name.

    Raises:
        UsageError: the version's rows have no ids, or a column has one of the names.
        VersionError: that version can't be read.
    """
    if version is not None:
        check_version(table.storage, table.name, version)
    snapshot = read_snapshot(table.storage, table.name.table_path, version) or table.snapshot()
    check_tracked(table, snapshot)
    taken = {name.lower() for name in snapshot.schema}
    if clash := [name for name in names if name.lower() in taken]:
        raise UsageError(
            f"The table {table.name} has a column {clash[0]} of its own.",
            hint="give other names, such as names=('id_of_row', 'version_of_row').",
            column=clash[0],
        )
    reader = table.spark.read.format("delta")
    rows = (reader if version is None else reader.option("versionAsOf", version)).load(table.path)
    hidden = metadata_column(rows)
    return rows.withColumns(
        {
            names[0]: hidden.getField("row_id"),
            names[1]: hidden.getField("row_commit_version"),
        }
    )


def read_row_changes(
    table: TableHandle, start: End, end: End | None = None, *, beyond_latest: Outside | None = None
) -> DataFrame:
    """Return the changes of a range of versions, each with its row's id.

    Args:
        table: the table.
        start: the first version or timestamp, as for `Changes.read`.
        end: the last version or timestamp; by default the newest version.
        beyond_latest: as for `Changes.read`.

    Returns:
        The columns of `Changes.read`, then `_row_id` and `_row_commit_version`, which are NULL in
        versions whose rows had no ids or other ones than now. Rows that a RESTORE or a rewrite does
        not change are not included.

    Raises:
        FeedError: files of the range are missing, or the feed is needed and can't be read.
        UsageError: an end is invalid.
    """
    timeline = read_versions(table.storage, table.name.table_path)
    span = resolve_span(table.spark, timeline, start, end, beyond_latest)
    tracking = read_tracking(table)
    numbered, readable = tracking.numbered_from, tracking.readable_from
    first = max(span.start, span.end + 1 if numbered is None else numbered + (numbered > 0))
    parts = []
    if span.start < first or span.is_empty:
        last = min(span.end, first - 1)
        plain = Changes(table).read(span.start, last, beyond_latest="clip")
        parts.append(plain.selectExpr("*", *(f"CAST(NULL AS BIGINT) AS {n}" for n in ID_NAMES)))
    if first <= span.end:
        if first <= readable and readable > tracking.first:
            raise FeedError(
                f"A column of {table.name} changed its type in version {readable}, so older files"
                " can't be read with the present columns.",
                hint=f"start after version {readable}.",
            )
        snapshot = table.snapshot()
        path = table.name.table_path
        uses = list(file_changes(table.storage, path, first, span.end, FileHistory()))
        if lost := unreadable_changes(table, uses):
            last = max(use.version for use in lost)
            raise FeedError(
                f"Files that version {last} of {table.name} added or removed are missing, because a"
                " VACUUM deleted them.",
                hint=f"start after version {last}.",
            )
        rows = read_file_rows(table, snapshot, files_of(uses))
        parts.append(as_changes(rows, uses, timeline))
    return parts[0] if len(parts) == 1 else parts[0].unionByName(parts[1], allowMissingColumns=True)


def unreadable_changes(table: TableHandle, uses: Iterable[FileChange]) -> list[FileChange]:
    """Return the changes that can't be read, because the file that they add or remove is missing.

    The file of its deletion vector counts, too.
    """
    names = list(dict.fromkeys(name for use in uses for name in use.file.names))
    with ThreadPoolExecutor(_THREADS) as pool:
        found = pool.map(Places(table.storage, table.name.table_path).exists, names)
        missing = {name for name, there in zip(names, found, strict=True) if not there}
    return [use for use in uses if missing & set(use.file.names)]


def files_of(uses: Iterable[FileChange]) -> list[DataFile]:
    """Return the distinct files that commits added and removed."""
    return list({use.file.key: use.file for use in uses}.values())


def as_changes(rows: DataFrame, uses: Sequence[FileChange], timeline: Timeline) -> DataFrame:
    """Return the changes of commits, from the files that they added and removed.

    Args:
        rows: the rows of the files, as `read_file_rows` returns them for `files_of(uses)`.
        uses: the files that the commits added and removed.
        timeline: the table's versions.
    """
    numbers = {file.key: number for number, file in enumerate(files_of(uses))}
    places = [
        (numbers[use.file.key], use.version, use.side, timeline.time(use.version)) for use in uses
    ]
    schema = f"{FILE} int, {_VERSION} bigint, {_SIDE} int, at bigint"
    used = F.broadcast(rows.sparkSession.createDataFrame(places, schema))
    state = F.struct(F.col(ROW), F.col(ROW_VERSION))
    found = (
        rows.join(used, FILE)
        .groupBy(_VERSION, ROW_ID, "at")
        .agg(
            F.max(F.when(F.col(_SIDE) < 0, 1)).alias("was"),
            F.max(F.when(F.col(_SIDE) > 0, 1)).alias("is"),
            F.min_by(state, _SIDE).alias("old"),
            F.max_by(state, _SIDE).alias("new"),
        )
    )
    both = F.col("was").isNotNull() & F.col("is").isNotNull()
    same = both & F.col(f"old.{ROW_VERSION}").eqNullSafe(F.col(f"new.{ROW_VERSION}"))

    def change(kind: str, side: str) -> Column:
        return F.struct(F.lit(kind).alias(RESERVED[0]), F.col(side).alias("state"))

    changes = (
        F.when(both, F.array(change("update_preimage", "old"), change("update_postimage", "new")))
        .when(F.col("is").isNotNull(), F.array(change("insert", "new")))
        .otherwise(F.array(change("delete", "old")))
    )
    each = found.where(~same).select(_VERSION, ROW_ID, "at", F.explode(changes).alias("change"))
    return each.select(
        f"change.state.{ROW}.*",
        f"change.{RESERVED[0]}",
        F.col(_VERSION).alias(RESERVED[1]),
        F.timestamp_millis("at").alias(RESERVED[2]),
        F.col(ROW_ID).alias(ID_NAMES[0]),
        F.col(f"change.state.{ROW_VERSION}").alias(ID_NAMES[1]),
    )


def read_file_rows(
    table: TableHandle,
    snapshot: Snapshot,
    files: Sequence[DataFile],
    ids: Sequence[int] | None = None,
    *,
    lists: Storage | None = None,
) -> DataFrame:
    """Return the live rows of files.

    Args:
        table: the table.
        snapshot: the version whose columns are read, and whose row ids are used.
        files: the files, in the order of their numbers.
        ids: only rows with these ids; other data is skipped as far as possible.
        lists: where to store the log, readable by Spark; by default in the lake.

    Returns:
        The row as a struct of the table's columns, its id, its commit version, and the number of
        its file in `files`, under the names defined in this module.

    Raises:
        UsageError: the table has no row ids.
    """
    if ROW_ID_COLUMN not in snapshot.properties:  # dropped meanwhile
        raise UsageError(
            f"The rows of {table.name} have no ids.",
            hint="enable row tracking with table.row_tracking.enable().",
        )
    path = _write_log(table, snapshot, files, lists or table.storage)
    rows = table.spark.read.format("delta").load(path)
    hidden = _hidden_names(snapshot)
    own, changed = (F.col(quote(name)) for name in hidden)
    place = metadata_column(rows).getField("row_index")
    counted = F.col(_FIRST) + place
    if ids is None:
        found = rows.withColumns({ROW_ID: F.coalesce(own, counted)})
    else:
        # Parquet's statistics only support plain comparisons. Rows that never moved have their
        # ids by position, and are in few files.
        born = rows.where(own.isNull() & counted.isin(*ids)).withColumn(ROW_ID, counted)
        near = [n for n, file in enumerate(files) if any(map(file.holds, ids))]
        carried = rows.where(own.isin(*ids)).withColumn(ROW_ID, own)
        found = carried.unionByName(born.where(F.col(FILE).isin(*near)))
    return found.select(
        F.struct(*[F.col(quote(name)) for name in snapshot.schema]).alias(ROW),
        ROW_ID,
        F.coalesce(changed, F.col(_DEFAULT)).alias(ROW_VERSION),
        FILE,
    )


def _hidden_names(snapshot: Snapshot) -> tuple[str, str]:
    properties = snapshot.properties
    return properties[ROW_ID_COLUMN], properties[ROW_VERSION_COLUMN]


def _write_log(
    table: TableHandle, snapshot: Snapshot, files: Sequence[DataFile], lists: Storage
) -> str:
    """Write a temporary Delta log for these files and return its full path."""
    base = encode(hadoop_path(table.storage, table.name.table_path))
    actions = [
        {"protocol": _protocol(snapshot)},
        {"metaData": _metadata(snapshot)},
        *({"add": _add(file, number, base)} for number, file in enumerate(files)),
    ]
    data = encode_actions(actions)
    today = datetime.now(timezone.utc).date()
    for day in lists.list(ROW_FILES).folders:
        if day < (today - timedelta(days=_KEPT_DAYS)).isoformat():
            lists.delete_folder(f"{ROW_FILES}/{day}")
    folder = f"{ROW_FILES}/{today.isoformat()}/{hashlib.sha256(data).hexdigest()[:32]}"
    lists.create(commit_path(folder, 0), data)
    return lists.path(folder)


def _protocol(snapshot: Snapshot) -> Action:
    """Return the protocol to read all files; old ones may need more than the newest version."""
    features = set(snapshot.reader_features)
    if snapshot.is_mapped:
        features.add("columnMapping")
    features.add("deletionVectors")  # required for the position of a row in its file
    both = {f"{side}Features": sorted(features) for side in ("reader", "writer")}
    return {"minReaderVersion": 3, "minWriterVersion": 7} | both


def _metadata(snapshot: Snapshot) -> Action:
    """Return the table's columns, the hidden ones, and facts of each file as partition columns."""
    schema: dict[str, Any] = snapshot.schema_document
    highest = int(snapshot.properties.get(_NUMBERED, 0))
    facts = {FILE: "integer", _FIRST: "long", _DEFAULT: "long"}
    for name, kind in (dict.fromkeys(_hidden_names(snapshot), "long") | facts).items():
        highest += 1
        physical = {"delta.columnMapping.id": highest, PHYSICAL_NAME: name}
        field = {"name": name, "type": kind, "nullable": True}
        schema["fields"].append(field | {"metadata": physical if snapshot.is_mapped else {}})
    # Both mapping modes use the same names in files, and hidden columns have no field id.
    mode = {_MODE: "name", _NUMBERED: str(highest)} if snapshot.is_mapped else {}
    return {
        "id": snapshot.metadata["id"],
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps(schema),
        "partitionColumns": [*(snapshot.metadata.get("partitionColumns") or ()), *facts],
        "configuration": mode,
    }


def _add(file: DataFile, number: int, base: str) -> Action:
    action = file.action
    facts = {FILE: number, _FIRST: file.first_id, _DEFAULT: file.commit_version}
    vector = action.get("deletionVector")
    found = {
        "path": _absolute(action["path"], base),
        "partitionValues": dict(action.get("partitionValues") or {})
        | {name: str(value) for name, value in facts.items()},
        "size": action.get("size") or 0,
        "modificationTime": 0,
        "dataChange": True,
        # Without the least and greatest values of columns: `forget` must not find them here.
        "stats": json.dumps({} if file.records is None else {"numRecords": file.records}),
    }
    where = vector_path(vector)
    if vector and where is not None:
        vector = vector | {"storageType": "p", "pathOrInlineDv": _absolute(encode(where), base)}
    return found | ({"deletionVector": vector} if vector else {})


def _absolute(path: str, base: str) -> str:
    is_full = "://" in path or path.startswith(("file:/", "/"))
    return path if is_full else f"{base}/{path}"
