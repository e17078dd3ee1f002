"""A Delta table's log, read without Spark: the newest version, its schema, properties and txns.

Commands that need no data (`status`, `publish`) stay as quick as a file listing this way, and the
mirror learns the last applied number under Spark Connect too. The cost is the commits since the
last checkpoint, not the history. Source: the Delta transaction log protocol.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import pyarrow.parquet as pq

from mirrorlake.names import TABLES, TableName
from mirrorlake.storage import Storage

ROW_TRACKING = "delta.enableRowTracking"
ROW_ID_COLUMN = "delta.rowTracking.materializedRowIdColumnName"
ROW_VERSION_COLUMN = "delta.rowTracking.materializedRowCommitVersionColumnName"
OPEN_TAG = "mirrorlake.vorder"
"""What the log says of a file whose rows this project has ordered: the sort key, as JSON."""
PHYSICAL_NAME = "delta.columnMapping.physicalName"
_WANTED = ("metaData", "protocol", "txn")
# version.checkpoint.parquet, version.checkpoint.part.parts.parquet, version.checkpoint.uuid.parquet
# or .json; Spark leaves `.….parquet.crc` files beside them on local disks.
CHECKPOINT = re.compile(
    r"(?P<version>\d{20})\.checkpoint"
    r"(\.(?P<part>\d{10})\.(?P<parts>\d{10})|\.(?P<uuid>[0-9A-Fa-f-]{36}))?\.(parquet|json)",
    re.ASCII,
)


@dataclass
class Snapshot:
    """The newest state of a table, without its files."""

    version: int = -1
    metadata: dict[str, Any] = field(default_factory=dict)
    protocol: dict[str, Any] = field(default_factory=dict)
    txns: dict[str, int] = field(default_factory=dict)

    @property
    def properties(self) -> dict[str, str]:
        """The table's properties."""
        return dict(self.metadata.get("configuration") or {})

    @property
    def schema(self) -> dict[str, Any]:
        """The schema as Spark's JSON: column name to type (a name, or a nested document)."""
        return {entry["name"]: entry["type"] for entry in self.schema_document["fields"]}

    @property
    def schema_document(self) -> dict[str, Any]:
        """The whole schema as Spark's JSON."""
        document: dict[str, Any] = json.loads(self.metadata["schemaString"])
        return document

    def apply(self, action: dict[str, Any]) -> None:
        """Takes one action of the log into account."""
        if metadata := action.get("metaData"):
            self.metadata = dict(metadata)
            # Parquet hands maps over as lists of pairs.
            self.metadata["configuration"] = dict(metadata.get("configuration") or {})
        if protocol := action.get("protocol"):
            self.protocol = dict(protocol)
        if txn := action.get("txn"):
            self.txns[txn["appId"]] = txn["version"]


def read_snapshot(storage: Storage, table_path: str, version: int | None = None) -> Snapshot | None:
    """A snapshot of the Delta table in a folder, or None if there is no table.

    Args:
        storage: the lake's files.
        table_path: the table's folder.
        version: which one; by default, or beyond the end, the newest.
    """
    log = f"{table_path}/_delta_log"
    snapshot = Snapshot()
    last = _last_checkpoint(storage, log)
    if version is not None and last is not None and last["version"] > version:
        last = _find_checkpoint(storage, log, version)
    if last is None and not storage.exists(f"{log}/{0:020d}.json"):
        last = _find_checkpoint(storage, log, version)
        if last is None:
            return None
    if last is not None:
        for action in _checkpoint_actions(storage, log, last):
            snapshot.apply(action)
        snapshot.version = last["version"]
    while snapshot.version != version:
        try:
            commit = storage.read(f"{log}/{snapshot.version + 1:020d}.json")
        except FileNotFoundError:
            return snapshot
        for line in commit.splitlines():
            # The adds and removes of a large commit need not be parsed.
            if line[2:12].startswith((b"metaData", b"protocol", b"txn")):
                snapshot.apply(json.loads(line))
        snapshot.version += 1
    return snapshot


def physical_name(field: dict[str, Any]) -> str:
    """What the files call a column that Spark's JSON describes."""
    return str((field.get("metadata") or {}).get(PHYSICAL_NAME) or field["name"])


def physical_names(metadata: dict[str, Any]) -> dict[str, str]:
    """Top-level columns of the log's `metaData`: the table's name to the files' name."""
    fields = json.loads(metadata["schemaString"])["fields"]
    return {field["name"]: physical_name(field) for field in fields}


def find_newest(storage: Storage, table_path: str) -> int | None:
    """The newest version's number, or None if there is no table.

    Reads no commit: it leaps ahead from the last checkpoint and halves the last leap, so the cost
    is the logarithm of the commits since then.
    """
    log = f"{table_path}/_delta_log"

    def is_there(version: int) -> bool:
        return storage.exists(f"{log}/{version:020d}.json")

    last = _last_checkpoint(storage, log)
    if last is None and not is_there(0):
        last = _find_checkpoint(storage, log)
        if last is None:
            return None
    low = 0 if last is None else int(last["version"])
    leap = 1
    while is_there(low + leap):
        low, leap = low + leap, leap * 2
    high = low + leap
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if is_there(middle) else (low, middle)
    return low


def delta_tables(storage: Storage, *, but: Collection[TableName] = ()) -> list[TableName]:
    """The Delta tables of a lake, ordered by name.

    Args:
        storage: the lake's files.
        but: tables that are known: nobody looks into their folders.
    """
    found: list[TableName] = []
    for folder in storage.list(TABLES).folders:
        if TableName(None, folder) in but:
            continue
        inner = storage.list(f"{TABLES}/{folder}").folders
        if "_delta_log" in inner:
            found.append(TableName(None, folder))
            continue
        for name in inner:
            if TableName(folder, name) in but:
                continue
            if "_delta_log" in storage.list(f"{TABLES}/{folder}/{name}").folders:
                found.append(TableName(folder, name))
    return sorted(found, key=lambda table: (table.schema or "", table.name))


def versions(storage: Storage, table_path: str) -> list[int]:
    """The versions whose commits the log still has, rising."""
    names = (entry.name for entry in storage.list(f"{table_path}/_delta_log").files)
    return sorted(int(name[:20]) for name in names if re.fullmatch(r"\d{20}\.json", name))


def read_commit_info(storage: Storage, table_path: str, version: int) -> dict[str, Any]:
    """The `commitInfo` of one version; empty if the log no longer holds it."""
    try:
        commit = storage.open(f"{table_path}/_delta_log/{version:020d}.json")
    except FileNotFoundError:
        return {}
    with commit:
        for line in commit:  # it comes first, before perhaps a million files
            if line.startswith(b'{"commitInfo"'):
                info: dict[str, Any] = json.loads(line)["commitInfo"]
                return info
    return {}


def _last_checkpoint(storage: Storage, log: str) -> dict[str, Any] | None:
    """The pointer to a checkpoint; a broken one is as good as none, says the protocol."""
    try:
        found = storage.read_json(f"{log}/_last_checkpoint")
    except ValueError:
        return None
    return found if isinstance(found, dict) and isinstance(found.get("version"), int) else None


def _find_checkpoint(
    storage: Storage, log: str, newest: int | None = None
) -> dict[str, Any] | None:
    """The newest whole checkpoint by its name, up to a version where one is given."""
    found = [CHECKPOINT.fullmatch(entry.name) for entry in storage.list(log).files]
    known = (m for m in found if m and (newest is None or int(m["version"]) <= newest))
    matches = sorted(known, key=lambda m: m["version"], reverse=True)
    for match in matches:
        version = int(match["version"])
        if newest is not None and version > newest:
            continue
        if match["uuid"]:
            return {"version": version, "v2Checkpoint": {"path": match[0]}}
        if not match["parts"]:
            return {"version": version}
        alike = [
            m for m in matches if (m["version"], m["parts"]) == (match["version"], match["parts"])
        ]
        if len(alike) == int(match["parts"]):  # a writer may have died between two parts
            return {"version": version, "parts": int(match["parts"])}
    return None


def checkpoint_files(
    storage: Storage, table_path: str, version: int | None = None
) -> tuple[int, list[str]]:
    """A checkpoint's version, and the names of all its files in the log's folder.

    Args:
        storage: the lake's files.
        table_path: the table's folder.
        version: the newest version that counts; by default the last checkpoint is taken.

    Returns:
        -1 and no names if there is none; sidecars are among the names.
    """
    log = f"{table_path}/_delta_log"
    last = _last_checkpoint(storage, log)
    if version is not None and (last is None or last["version"] > version):
        last = _find_checkpoint(storage, log, version)
    if last is None:
        return -1, []
    names = _checkpoint_names(last)
    sidecars = []
    for name in names if last.get("v2Checkpoint") else []:
        for action in _read_actions(storage, f"{log}/{name}", ("sidecar",)):
            if "sidecar" in action:
                sidecars.append(f"_sidecars/{action['sidecar']['path']}")
    return last["version"], names + sidecars


def _checkpoint_names(last: dict[str, Any]) -> list[str]:
    version = last["version"]
    if v2 := last.get("v2Checkpoint"):
        return [v2["path"]]
    if parts := last.get("parts"):
        return [
            f"{version:020d}.checkpoint.{i + 1:010d}.{parts:010d}.parquet" for i in range(parts)
        ]
    return [f"{version:020d}.checkpoint.parquet"]


def _checkpoint_actions(storage: Storage, log: str, last: dict[str, Any]) -> list[dict[str, Any]]:
    names = _checkpoint_names(last)
    return [action for name in names for action in _read_actions(storage, f"{log}/{name}", _WANTED)]


def _read_actions(storage: Storage, path: str, wanted: tuple[str, ...]) -> list[dict[str, Any]]:
    """The wanted kinds of actions of a checkpoint's file."""
    if path.endswith(".json"):
        return [json.loads(line) for line in storage.read(path).splitlines()]
    actions: list[dict[str, Any]] = []
    with storage.open(path) as source, pq.ParquetFile(source) as checkpoint:
        columns = [name for name in wanted if name in checkpoint.schema_arrow.names]
        for group in range(checkpoint.num_row_groups):
            rows = checkpoint.read_row_group(group, columns=columns)
            for column in rows.column_names:
                kept = rows.column(column).drop_null()
                actions += [{column: value} for value in kept.to_pylist()]
    return actions
