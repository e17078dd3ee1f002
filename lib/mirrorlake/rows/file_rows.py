"""The rows of chosen data files with their ids, whichever versions the files belong to.

A query of a version reads a table; what is asked here concerns a few files of many versions. So the
files are listed in a small Delta log of their own, and Delta reads them by it: it knows about
deletion vectors, partitions, renamed columns and widened types. The ids' hidden columns are
ordinary columns there, which lets Parquet's statistics skip what does not have a wanted id. Such a
log holds no data, is named by its content, and is deleted a day later.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from mirrorlake.delta.actions import DataFile, encode
from mirrorlake.delta.files import hadoop_path
from mirrorlake.delta.log_files import Action, commit_path, encode_actions
from mirrorlake.delta.snapshot import PHYSICAL_NAME, ROW_ID_COLUMN, ROW_VERSION_COLUMN, Snapshot
from mirrorlake.delta.table import Table
from mirrorlake.delta.vectors import vector_path
from mirrorlake.names import STATE
from mirrorlake.spark.older import metadata_column
from mirrorlake.spark.sql import quote
from mirrorlake.storage import Storage

ROW, FILE = "__mirrorlake_row", "__mirrorlake_file"
ROW_ID, ROW_VERSION = "__mirrorlake_row_id", "__mirrorlake_row_version"
_FIRST, _DEFAULT = "__mirrorlake_first_id", "__mirrorlake_default_version"
_FOLDER = f"{STATE}/row-files"
_KEPT_DAYS = 1
_MODE, _NUMBERED = "delta.columnMapping.mode", "delta.columnMapping.maxColumnId"


def read_file_rows(
    table: Table,
    snapshot: Snapshot,
    files: Sequence[DataFile],
    ids: Sequence[int] | None = None,
    *,
    lists: Storage | None = None,
) -> DataFrame:
    """The live rows of files.

    Args:
        table: whose files.
        snapshot: the version whose columns are read, and whose numbering the ids are of.
        files: which, in the order of their numbers.
        ids: only the rows of these ids; whatever else can be skipped is not read.
        lists: where to put the log, as Spark sees it too; by default into the lake.

    Returns:
        The row as a struct of the table's columns, its id, its commit version, and its file's
        number in `files`, under this module's names.
    """
    path = _write_log(table, snapshot, files, lists or table.storage)
    rows = table.spark.read.format("delta").load(path)
    hidden = _hidden_names(snapshot)
    own, changed = (F.col(quote(name)) for name in hidden)
    place = metadata_column(rows).getField("row_index")
    counted = F.col(_FIRST) + place
    if ids is None:
        found = rows.withColumns({ROW_ID: F.coalesce(own, counted)})
    else:
        # Only a plain comparison lets Parquet's statistics skip; rows not moved are in few files.
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


def _write_log(table: Table, snapshot: Snapshot, files: Sequence[DataFile], lists: Storage) -> str:
    """A log of these files, in a folder that its content names; the folder, full."""
    base = encode(hadoop_path(table.storage, table.name.table_path))
    actions = [
        {"protocol": _protocol(snapshot)},
        {"metaData": _metadata(snapshot)},
        *({"add": _add(file, number, base)} for number, file in enumerate(files)),
    ]
    data = encode_actions(actions)
    today = datetime.now(timezone.utc).date()
    for day in lists.list(_FOLDER).folders:
        if day < (today - timedelta(days=_KEPT_DAYS)).isoformat():
            lists.delete_folder(f"{_FOLDER}/{day}")
    folder = f"{_FOLDER}/{today.isoformat()}/{hashlib.sha256(data).hexdigest()[:32]}"
    lists.create(commit_path(folder, 0), data)
    return lists.path(folder)


def _protocol(snapshot: Snapshot) -> Action:
    """What reading the files asks for: older ones may need more than the newest version does."""
    features = set(snapshot.reader_features)
    if snapshot.is_mapped:
        features.add("columnMapping")
    features.add("deletionVectors")  # Delta gives a row's place in its file only together with it
    both = {f"{side}Features": sorted(features) for side in ("reader", "writer")}
    return {"minReaderVersion": 3, "minWriterVersion": 7} | both


def _metadata(snapshot: Snapshot) -> Action:
    """The table's columns, then the hidden ones, then a file's own facts as partition columns."""
    schema: dict[str, Any] = snapshot.schema_document
    highest = int(snapshot.properties.get(_NUMBERED, 0))
    facts = {FILE: "integer", _FIRST: "long", _DEFAULT: "long"}
    for name, kind in (dict.fromkeys(_hidden_names(snapshot), "long") | facts).items():
        highest += 1
        physical = {"delta.columnMapping.id": highest, PHYSICAL_NAME: name}
        field = {"name": name, "type": kind, "nullable": True}
        schema["fields"].append(field | {"metadata": physical if snapshot.is_mapped else {}})
    # Files name columns alike in both modes, and hidden columns have no field id.
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
        "stats": action["stats"],
    }
    where = vector_path(vector)
    if vector and where is not None:
        vector = vector | {"storageType": "p", "pathOrInlineDv": _absolute(encode(where), base)}
    return found | ({"deletionVector": vector} if vector else {})


def _absolute(path: str, base: str) -> str:
    is_full = "://" in path or path.startswith(("file:/", "/"))
    return path if is_full else f"{base}/{path}"
