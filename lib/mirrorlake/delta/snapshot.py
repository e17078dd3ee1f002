"""Read a table's snapshot without Spark: version, schema, properties and transaction ids.

Commands that need no data (`status`, `publish`) are therefore as fast as a file listing, and the
mirror finds the last applied number under Spark Connect too. The cost grows with the commits since
the last checkpoint, not with the history.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

from mirrorlake.delta.log_files import (
    commit_path,
    dropped_in_place,
    find_checkpoint,
    has_log,
    is_dropped,
    read_actions,
)
from mirrorlake.errors import TableNotFoundError, UsageError
from mirrorlake.names import TABLES, StageName, TableName, safe_column, stages_folder
from mirrorlake.storage.files import Storage

FILE_RETENTION = "delta.deletedFileRetentionDuration"
LOG_RETENTION = "delta.logRetentionDuration"
_RETENTIONS = {FILE_RETENTION: "interval 7 days", LOG_RETENTION: "interval 30 days"}
FEED = "delta.enableChangeDataFeed"
ROW_TRACKING = "delta.enableRowTracking"
VECTORS = "delta.enableDeletionVectors"
ROW_ID_COLUMN = "delta.rowTracking.materializedRowIdColumnName"
ROW_VERSION_COLUMN = "delta.rowTracking.materializedRowCommitVersionColumnName"
OPEN_TAG = "mirrorlake.vorder"
"""The tag of a file that this project wrote in V-Order; its value is the sort key, as JSON."""
MICROSOFT_TAG = "VORDER"
VORDER = "mirrorlake.vorder"
"""The property of a table that asks for files in V-Order. Open Delta refuses to set Fabric's."""
FABRIC_VORDER = ("delta.parquet.vorder.enabled", "delta.parquet.vorder.default")
PARTITION_TAG = "mirrorlake.partition.policy"
"""The tag of a file that contains one partition of a policy, so that it must not be merged."""
PHYSICAL_NAME = "delta.columnMapping.physicalName"
_COLUMN_ID = '"delta.columnMapping.id":'


@dataclass
class Snapshot:
    """The state of a table in one version, without its files."""

    version: int = -1
    metadata: dict[str, Any] = field(default_factory=dict)
    protocol: dict[str, Any] = field(default_factory=dict)
    txns: dict[str, int] = field(default_factory=dict)

    @property
    def properties(self) -> dict[str, str]:
        """The table's properties."""
        return dict(self.metadata.get("configuration") or {})

    def retention(self, name: str) -> str:
        """Return one of the table's two retention periods, or Delta's default for it."""
        return self.properties.get(name, _RETENTIONS[name])

    @property
    def schema_document(self) -> dict[str, Any]:
        """The schema as Spark's JSON."""
        document: dict[str, Any] = json.loads(self.metadata["schemaString"])
        return document

    @property
    def fields(self) -> list[dict[str, Any]]:
        """The columns as Spark's JSON."""
        fields: list[dict[str, Any]] = self.schema_document["fields"]
        return fields

    @property
    def schema(self) -> dict[str, Any]:
        """The schema as Spark's JSON: column name to type (a name, or a nested document)."""
        return {entry["name"]: entry["type"] for entry in self.fields}

    @property
    def partition_columns(self) -> list[str]:
        """The partition columns, whose values are folders."""
        return list(self.metadata.get("partitionColumns") or ())

    @property
    def writer_features(self) -> tuple[str, ...]:
        """The features that a writer must support, by the protocol's names."""
        return tuple(self.protocol.get("writerFeatures") or ())

    @property
    def reader_features(self) -> tuple[str, ...]:
        """The features that a reader must support, by the protocol's names."""
        return tuple(self.protocol.get("readerFeatures") or ())

    @property
    def has_feed(self) -> bool:
        """Whether the change data feed records this version's changes."""
        return self.properties.get(FEED, "false").lower() == "true"

    @property
    def has_vectors(self) -> bool:
        """Whether rows may be deleted by deletion vectors."""
        return self.properties.get(VECTORS, "false").lower() == "true"

    @property
    def checkpoint_interval(self) -> int:
        """The number of versions from one checkpoint to the next."""
        return int(self.properties.get("delta.checkpointInterval", "10"))

    @property
    def requires_vectors(self) -> bool:
        """Whether readers must support deletion vectors."""
        return "deletionVectors" in self.reader_features

    @property
    def wants_vorder(self) -> bool:
        """Whether the table asks for files in V-Order, by our property or by one of Fabric's."""
        return any(
            self.properties.get(name, "").lower() == "true" for name in (VORDER, *FABRIC_VORDER)
        )

    @property
    def is_mapped(self) -> bool:
        """Whether columns have other names in the files (column mapping)."""
        return self.properties.get("delta.columnMapping.mode", "none") != "none"

    @property
    def has_dropped_columns(self) -> bool:
        """Whether a column id was assigned that no column has now, nested columns included."""
        assigned = int(self.properties.get("delta.columnMapping.maxColumnId", 0))
        # The colon distinguishes the key from a column of that name.
        return str(self.metadata["schemaString"]).count(_COLUMN_ID) < assigned


def missing_table(
    name: object,
    *,
    hint: str = "run `mirror` after publishing, or look at `status` for its error.",
) -> TableNotFoundError:
    """Return the error for a table that does not exist."""
    return TableNotFoundError(f"There is no table {name} in the lake.", hint=hint)


def missing_column(table: TableName, column: str, snapshot: Snapshot) -> UsageError:
    """Return the error for a column that a table does not have."""
    return UsageError(
        f"The table {table} has no column {column}.",
        hint=f"its columns are {', '.join(snapshot.schema)}.",
        column=column,
    )


def open_snapshot(storage: Storage, name: TableName) -> Snapshot:
    """Return the newest version of an existing table.

    Raises:
        TableNotFoundError: the table does not exist, or no longer.
    """
    snapshot = read_snapshot(storage, name.table_path)
    if snapshot is None:
        raise missing_table(name)
    return snapshot


def read_snapshot(
    storage: Storage, table_path: str, version: int | None = None, *, dropped: bool = False
) -> Snapshot | None:
    """Return a snapshot of the Delta table in a folder, or None without a table.

    Args:
        storage: the lake's files.
        table_path: the table's folder.
        version: the version; by default, or beyond the end, the newest.
        dropped: also read a table that was dropped in place.
    """
    if not dropped and is_dropped(storage, table_path):
        return None
    at, paths = find_checkpoint(storage, table_path, version)
    snapshot = Snapshot()

    def apply(path: str) -> None:
        # The adds and removes of a large commit are not parsed.
        for kind, action in read_actions(storage, path, ("metaData", "protocol", "txn")):
            if kind == "metaData":
                snapshot.metadata = action
            elif kind == "protocol":
                snapshot.protocol = action
            else:
                snapshot.txns[action["appId"]] = action["version"]

    for path in paths:
        apply(path)
    snapshot.version = at
    while snapshot.version != version:
        try:
            apply(commit_path(table_path, snapshot.version + 1))
        except FileNotFoundError:
            break
        snapshot.version += 1
    return snapshot if snapshot.version >= 0 else None


MAPPING_FIX = (
    "publish to a new table with safe_names=True, or make that the lake's default"
    " (defaults --safe-names)."
)

VECTOR_READERS = (
    "delta-rs' to_pandas, Daft and DataFusion raise an error on deletion vectors;"
    " mirror and defaults --no-deletion-vectors create tables without them"
)


def mapping_problem(columns: Iterable[str]) -> str:
    """Return which readers can't read a table with column mapping, and which column needs it."""
    unsafe = next((name for name in columns if safe_column(name) != name), None)
    why = "" if unsafe is None else f" because of the name of column {unsafe!r}"
    return (
        f"The table uses Delta's column mapping{why}. delta-rs' to_pandas reads NULL in every"
        " column or, with deletion vectors, raises an error, and Polars refuses the table."
    )


def physical_name(field: dict[str, Any]) -> str:
    """Return the name that a column, given as Spark's JSON, has in the files."""
    return str((field.get("metadata") or {}).get(PHYSICAL_NAME) or field["name"])


def physical_names(metadata: dict[str, Any]) -> dict[str, str]:
    """Return the names of top-level columns in the files, by their names in the table.

    Args:
        metadata: the log's `metaData`.
    """
    return {field["name"]: physical_name(field) for field in Snapshot(metadata=metadata).fields}


def delta_tables(storage: Storage, *, but: Collection[TableName] = ()) -> list[TableName]:
    """Return the Delta tables of a lake, ordered by name.

    Args:
        storage: the lake's files.
        but: known tables, whose folders are not listed.
    """
    found: list[TableName] = []
    hidden = {*but, *dropped_in_place(storage)}
    for folder in storage.list(TABLES).folders:
        if TableName(None, folder) in hidden:
            continue
        inner = storage.list(f"{TABLES}/{folder}").folders
        if "_delta_log" in inner:
            if has_log(storage, f"{TABLES}/{folder}"):
                found.append(TableName(None, folder))
            continue
        for name in inner:
            if TableName(folder, name) in hidden:
                continue
            path = f"{TABLES}/{folder}/{name}"
            if "_delta_log" in storage.list(path).folders and has_log(storage, path):
                found.append(TableName(folder, name))
    return sorted(found, key=lambda table: (table.schema or "", table.name))


def stages_of(storage: Storage, view: TableName) -> list[StageName]:
    """Return the hidden tables of a view; empty for any other table, such as a stage."""
    if isinstance(view, StageName):
        return []
    numbers = sorted(map(int, storage.list(stages_folder(view)).folders))
    stages = [StageName(view.schema, view.name, number) for number in numbers]
    # An interrupted drop can leave the folder of a stage without a log.
    return [stage for stage in stages if read_snapshot(storage, stage.table_path)]
