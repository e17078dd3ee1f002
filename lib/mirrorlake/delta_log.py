"""A Delta table's log, read without Spark: the newest version, its schema, properties and txns.

Commands that need no data (`status`, `publish`) stay as quick as a file listing this way, and the
mirror learns the last applied number under Spark Connect too. The cost is the commits since the
last checkpoint, not the history. Source: the Delta transaction log protocol.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

import pyarrow.parquet as pq

from mirrorlake.storage import Storage

_WANTED = ("metaData", "protocol", "txn")
# version.checkpoint.parquet, version.checkpoint.part.parts.parquet, version.checkpoint.uuid.parquet
# or .json; Spark leaves `.….parquet.crc` files beside them on local disks.
_CHECKPOINT = re.compile(
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
        fields = json.loads(self.metadata["schemaString"])["fields"]
        return {entry["name"]: entry["type"] for entry in fields}

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


def read_snapshot(
    storage: Storage, table_path: str, *, version: int | None = None
) -> Snapshot | None:
    """A snapshot of the Delta table in a folder: of one version, or of the newest.

    Returns:
        None if there is no table, or if the log no longer holds what that version needs.
    """
    log = f"{table_path}/_delta_log"
    snapshot = Snapshot()
    last = _last_checkpoint(storage, log) if version is None else None
    if version is not None or (last is None and not storage.exists(f"{log}/{0:020d}.json")):
        last = _find_checkpoint(storage, log, version)
        if last is None and not storage.exists(f"{log}/{0:020d}.json"):
            return None
    if last is not None:
        for action in _checkpoint_actions(storage, log, last):
            snapshot.apply(action)
        snapshot.version = last["version"]
    while snapshot.version != version:
        try:
            commit = storage.read(f"{log}/{snapshot.version + 1:020d}.json")
        except FileNotFoundError:
            return snapshot if version is None else None
        for line in commit.splitlines():
            # The adds and removes of a large commit need not be parsed.
            if line[2:12].startswith((b"metaData", b"protocol", b"txn")):
                snapshot.apply(json.loads(line))
        snapshot.version += 1
    return snapshot


def read_commit_info(storage: Storage, table_path: str, version: int) -> dict[str, Any]:
    """The `commitInfo` of one version; empty if the log no longer holds it."""
    try:
        commit = storage.read(f"{table_path}/_delta_log/{version:020d}.json")
    except FileNotFoundError:
        return {}
    for line in commit.splitlines():
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
    """The newest whole checkpoint by its name, up to a version, if there is any."""
    found = [_CHECKPOINT.fullmatch(entry.name) for entry in storage.list(log).files]
    known = (m for m in found if m and (newest is None or int(m["version"]) <= newest))
    matches = sorted(known, key=lambda m: m["version"], reverse=True)
    for match in matches:
        version = int(match["version"])
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


def _checkpoint_actions(storage: Storage, log: str, last: dict[str, Any]) -> list[dict[str, Any]]:
    version = last["version"]
    if v2 := last.get("v2Checkpoint"):
        names = [v2["path"]]
    elif parts := last.get("parts"):
        names = [
            f"{version:020d}.checkpoint.{i + 1:010d}.{parts:010d}.parquet" for i in range(parts)
        ]
    else:
        names = [f"{version:020d}.checkpoint.parquet"]
    actions: list[dict[str, Any]] = []
    for name in names:
        if name.endswith(".json"):
            lines = storage.read(f"{log}/{name}").splitlines()
            actions += [json.loads(line) for line in lines]
            continue
        with storage.open(f"{log}/{name}") as source, pq.ParquetFile(source) as checkpoint:
            for group in range(checkpoint.num_row_groups):
                rows = checkpoint.read_row_group(group, columns=list(_WANTED))
                for column in rows.column_names:
                    kept = rows.column(column).drop_null()
                    actions += [{column: value} for value in kept.to_pylist()]
    return actions
