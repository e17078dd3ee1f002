"""What the explorer shows of a table and its versions, read from the log alone, without Spark."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any
from urllib.parse import unquote

from mirrorlake.delta.actions import live_files
from mirrorlake.delta.commits import Commit, CommitLog
from mirrorlake.delta.log_files import commit_path, read_actions
from mirrorlake.delta.snapshot import OPEN_TAG, Snapshot
from mirrorlake.errors import TableNotFoundError
from mirrorlake.mirror.properties import declared_keys
from mirrorlake.names import TableName
from mirrorlake.results import TextTable, size_text
from mirrorlake.storage.files import Storage


def columns_of(snapshot: Snapshot) -> TextTable:
    """The columns: name, type, whether they may be NULL, and what they are for."""
    keys = {key.lower() for key in declared_keys(snapshot.properties)}
    parts = set(snapshot.partition_columns)
    rows = []
    for field in snapshot.fields:
        name, kind = field["name"], field["type"]
        roles = ["key"] * (name.lower() in keys) + ["partition"] * (name in parts)
        shown = kind if isinstance(kind, str) else _nested(kind)
        comment = (field.get("metadata") or {}).get("comment", "")
        rows.append((name, shown, bool(field.get("nullable", True)), ", ".join(roles), comment))
    return TextTable(("column", "type", "nullable", "role", "comment"), tuple(rows))


def _nested(kind: dict[str, Any]) -> str:
    if kind["type"] == "array":
        return f"array<{_type(kind['elementType'])}>"
    if kind["type"] == "map":
        return f"map<{_type(kind['keyType'])},{_type(kind['valueType'])}>"
    inner = (f"{field['name']}:{_type(field['type'])}" for field in kind.get("fields", ()))
    return f"struct<{','.join(inner)}>"


def _type(kind: Any) -> str:
    return kind if isinstance(kind, str) else _nested(kind)


def protocol_of(snapshot: Snapshot) -> str:
    """What readers and writers must know."""
    found = snapshot.protocol
    text = f"reader {found.get('minReaderVersion')}, writer {found.get('minWriterVersion')}"
    features = sorted({*snapshot.reader_features, *snapshot.writer_features})
    return f"{text}: {', '.join(features)}" if features else text


@dataclass(frozen=True)
class LiveFile:
    """A data file of a version, as the log has it.

    Attributes:
        path: as the log has it, decoded.
        rows: without deleted ones.
        deleted: by a deletion vector.
        values: the partition's values, as text.
        ordered: whether its rows are in V-Order.
    """

    path: str
    size: int
    rows: int
    deleted: int
    values: str
    ordered: bool


_KEPT: dict[tuple[str, TableName, str, int], list[LiveFile]] = {}
_MOST_KEPT = 2


def files_of(storage: Storage, table: TableName, snapshot: Snapshot) -> list[LiveFile]:
    """The files of a version, the largest first; those looked at last are kept, for all tabs."""
    key = (storage.root, table, str(snapshot.metadata.get("id")), snapshot.version)
    found = _KEPT.get(key)
    if found is None:
        found = _read_files(storage, table, snapshot.version)
        while len(_KEPT) >= _MOST_KEPT:
            _KEPT.pop(next(iter(_KEPT)))
        _KEPT[key] = found
    return found


def _read_files(storage: Storage, table: TableName, version: int) -> list[LiveFile]:
    found = [
        LiveFile(
            unquote(action["path"]),
            int(action.get("size") or 0),
            int(action["records"]),
            int((action.get("deletionVector") or {}).get("cardinality", 0)),
            _values(action),
            OPEN_TAG in (action.get("tags") or {}),
        )
        for action in live_files(storage, table.table_path, version)
    ]
    return sorted(found, key=lambda file: (-file.size, file.path))


def _values(action: dict[str, Any]) -> str:
    values = action.get("partitionValues")
    if not values:
        return ""
    return ", ".join(f"{name}={value}" for name, value in dict(values).items())


def summary_of(files: Sequence[LiveFile]) -> dict[str, Any]:
    """Figures of some files."""
    sizes = [file.size for file in files]
    found: dict[str, Any] = {
        "files": len(files),
        "rows": sum(file.rows for file in files),
        "size": size_text(sum(sizes)),
        "rows deleted by vectors": sum(file.deleted for file in files),
    }
    if sizes:
        found["smallest, median, largest file"] = ", ".join(
            size_text(size) for size in (min(sizes), median(sizes), max(sizes))
        )
        found["files in V-Order"] = sum(file.ordered for file in files)
    return found


@dataclass(frozen=True)
class VersionFacts:
    """One version: its commit, and the files that came and went with it.

    Attributes:
        came, went: path and size of each.
    """

    commit: Commit
    came: tuple[tuple[str, int], ...]
    went: tuple[tuple[str, int], ...]


def read_version(storage: Storage, table: TableName, version: int) -> VersionFacts:
    """One version of a table; the cost is its own commit and a few before it.

    Raises:
        TableNotFoundError: the log no longer holds it.
    """
    commits = CommitLog(storage, table.table_path).read(version, 1).commits
    if not commits:
        raise TableNotFoundError(
            f"The log of {table} no longer holds version {version}.", hint="choose a newer one."
        )
    found: dict[str, list[tuple[str, int]]] = {"add": [], "remove": []}
    for kind, action in read_actions(
        storage, commit_path(table.table_path, version), ("add", "remove")
    ):
        found[kind].append((unquote(action["path"]), int(action.get("size") or 0)))
    return VersionFacts(commits[0], tuple(found["add"]), tuple(found["remove"]))


def properties_of(snapshot: Snapshot) -> TextTable:
    """The table's properties, in the order of their names."""
    shown = [(name, _short(value)) for name, value in sorted(snapshot.properties.items())]
    return TextTable(("property", "value"), tuple(shown))


def _short(value: str) -> str:
    try:
        text = json.dumps(json.loads(value), ensure_ascii=False)
    except ValueError:
        text = value
    return text if len(text) <= 300 else f"{text[:299]}…"
