"""The data files that a table's log names, with what row tracking says about each.

A file has the id of its first row; rows that were not moved there count on from it. Rows that were
carry their ids in hidden columns of the file. Source: the Delta transaction log protocol, "Row
Tracking".
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote

import pyarrow.parquet as pq

from mirrorlake.delta_log import checkpoint_files, read_commit_info
from mirrorlake.history.commits import CommitLog
from mirrorlake.history.tombstones import file_actions, vector_path
from mirrorlake.storage import Storage

Action = dict[str, Any]
# What only ever writes new rows; any other operation may carry rows and their ids along.
_NEW_ROWS = ("WRITE", "STREAMING UPDATE", "CREATE TABLE AS SELECT")
_KEPT = ("path", "partitionValues", "size", "stats", "deletionVector")


@dataclass(frozen=True)
class DataFile:
    """One data file under one deletion vector.

    Attributes:
        action: what the log says of it: path, partitionValues, size, stats, deletionVector.
        first_id: the id of its first row.
        commit_version: the version that last changed the rows that do not carry their own.
        records: rows in the file, deleted ones included; None if nobody knows.
        carries: whether rows in it may carry ids of their own.
    """

    action: Action
    first_id: int
    commit_version: int
    records: int | None
    carries: bool

    @property
    def key(self) -> tuple[str, str]:
        """What tells it from others: the path, and the deletion vector."""
        vector = self.action.get("deletionVector") or {}
        parts = (vector.get(name, "") for name in ("storageType", "pathOrInlineDv", "offset"))
        return self.action["path"], "".join(map(str, parts))

    @property
    def stats(self) -> dict[str, Any]:
        """What the log knows about its values; maybe nothing."""
        found: dict[str, Any] = json.loads(self.action.get("stats") or "{}")
        return found

    @property
    def names(self) -> tuple[str, ...]:
        """The files that reading it needs, URL-encoded as the log names them."""
        vector = vector_path(self.action.get("deletionVector"))
        path = self.action["path"]
        return (path,) if vector is None else (path, encode(vector))

    def holds(self, row_id: int) -> bool:
        """Whether the row of an id may be in it, by the numbers of its rows."""
        last = float("inf") if self.records is None else self.first_id + self.records
        return self.first_id <= row_id < last


@dataclass
class FileHistory:
    """What commits said about files, read in their order.

    Attributes:
        carries: by path, whether rows in it may carry ids.
        stats: by path, the fullest statistics; a removal need not repeat them.
    """

    carries: dict[str, bool] = field(default_factory=dict)
    stats: dict[str, str] = field(default_factory=dict)

    def data_file(self, action: Action, *, carries: bool = True) -> DataFile | None:
        """A file of an action, or None if its rows have no ids."""
        path = action["path"]
        carries = self.carries.setdefault(path, carries)
        stats = action.get("stats")
        if stats and "minValues" in stats:
            self.stats[path] = stats
        if action.get("baseRowId") is None:
            return None
        kept = {name: action[name] for name in _KEPT if action.get(name) is not None}
        kept |= {"stats": self.stats.get(path) or stats or "{}"}
        found = DataFile(
            kept, int(action["baseRowId"]), int(action["defaultRowCommitVersion"]), None, carries
        )
        return replace(found, records=found.stats.get("numRecords"))


@dataclass(frozen=True)
class FileChange:
    """A file that a version brought (`side` 1) or took away (-1)."""

    version: int
    side: int
    file: DataFile


def read_uses(
    storage: Storage, table_path: str, start: int, end: int, history: FileHistory
) -> Iterator[FileChange]:
    """The files that versions of a range brought or took as a change of data, ascending.

    Args:
        storage: the lake's files.
        table_path: the table's folder.
        start: the first version.
        end: the last version.
        history: what is known of files; it is added to.
    """
    log = CommitLog(storage, table_path)
    for version in range(start, end + 1):
        info = read_commit_info(storage, table_path, version)
        fresh = info.get("operation") in _NEW_ROWS
        actions = list(file_actions(storage, log.name(version)))
        for kind, action in sorted(actions, key=lambda found: found[0] == "add"):
            found = history.data_file(action, carries=not fresh or kind == "remove")
            if found is not None and action.get("dataChange", True):
                yield FileChange(version, 1 if kind == "add" else -1, found)


def encode(path: str) -> str:
    """A path as logs have it: URL-encoded."""
    return quote(path, safe="/:=")


def live_files(storage: Storage, table_path: str, version: int) -> list[Action]:
    """The `add` actions of a version's files, with `records`, its rows without deleted ones."""
    at, names = checkpoint_files(storage, table_path, version)
    live: dict[tuple[str, str], Action] = {}

    def put(kind: str, action: Action) -> None:
        vector = action.get("deletionVector") or {}
        key = (action["path"], f"{vector.get('pathOrInlineDv')}{vector.get('offset')}")
        live.pop(key, None)
        if kind == "add":
            live[key] = action

    for name in names:
        for action in _checkpoint_adds(storage, f"{table_path}/_delta_log/{name}"):
            put("add", action)
    log = CommitLog(storage, table_path)
    for number in range(at + 1, version + 1):
        actions = list(file_actions(storage, log.name(number)))
        for kind, action in sorted(actions, key=lambda found: found[0] == "add"):
            put(kind, action)
    for action in live.values():
        known = json.loads(action.get("stats") or "{}").get("numRecords", 0)
        action["records"] = known - (action.get("deletionVector") or {}).get("cardinality", 0)
    return list(live.values())


def _checkpoint_adds(storage: Storage, path: str) -> Iterator[Action]:
    if path.endswith(".json"):
        yield from (action for kind, action in file_actions(storage, path) if kind == "add")
        return
    with storage.open(path) as source, pq.ParquetFile(source) as checkpoint:
        if "add" not in checkpoint.schema_arrow.names:
            return
        for group in range(checkpoint.num_row_groups):
            rows = checkpoint.read_row_group(group, columns=["add"])
            for action in rows.column("add").drop_null().to_pylist():
                # Parquet hands maps over as lists of pairs.
                action["partitionValues"] = dict(action.get("partitionValues") or {})
                if not action.get("stats"):  # a table may keep them as columns only
                    parsed = action.get("stats_parsed") or {}
                    action["stats"] = json.dumps({"numRecords": parsed.get("numRecords", 0)})
                yield action
