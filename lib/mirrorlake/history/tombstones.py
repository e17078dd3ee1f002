"""What a table's log says of files that were removed, without Spark, and which of them are gone.

Delta keeps a removed file for a while, so that older versions can be read; VACUUM ends that. The
newest checkpoint and the commits after it name every file removed within that while.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote
from uuid import UUID

import pyarrow.parquet as pq

from mirrorlake.delta_log import checkpoint_files
from mirrorlake.history.commits import CommitLog
from mirrorlake.storage import Storage

Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_B85 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_TO_B85 = str.maketrans(Z85, _B85)
_THREADS = 16


@dataclass(frozen=True)
class Removed:
    """A file that a version had and a later one has not.

    Attributes:
        path: relative to the table's folder, or a full URI for files that lie elsewhere.
        vector: the file of its deletion vector, likewise, or None.
        at: when it was removed, milliseconds since 1970.
    """

    path: str
    vector: str | None
    at: int

    @property
    def files(self) -> tuple[str, ...]:
        """All files that reading it needs."""
        return (self.path,) if self.vector is None else (self.path, self.vector)


def vector_path(vector: dict[str, Any] | None) -> str | None:
    """The file that holds a deletion vector; None if there is none, or if it stands in the log.

    Source: the Delta transaction log protocol, "Deletion Vectors".

    Example:
        >>> vector_path({"storageType": "u", "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^"})
        'ab/deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin'
    """
    if not vector or vector["storageType"] == "i":
        return None
    where = str(vector["pathOrInlineDv"])
    if vector["storageType"] == "p":
        return unquote(where)
    prefix, encoded = where[:-20], where[-20:]
    number = UUID(bytes=base64.b85decode(encoded.translate(_TO_B85)))
    return f"{prefix}/deletion_vector_{number}.bin".lstrip("/")


def recent_removals(storage: Storage, table_path: str, newest: int) -> list[Removed]:
    """The files whose removal the newest checkpoint and the commits after it tell of."""
    version, names = checkpoint_files(storage, table_path)
    found = {
        (removed.path, removed.vector): removed
        for name in names
        for removed in _of_checkpoint(storage, f"{table_path}/_delta_log/{name}")
    }
    log = CommitLog(storage, table_path)
    for number in range(version + 1, newest + 1):
        for kind, action in file_actions(storage, log.name(number)):
            removed = _removed(action)
            found.pop((removed.path, removed.vector), None)
            if kind == "remove":
                found[removed.path, removed.vector] = removed
    return list(found.values())


def removed_since(storage: Storage, table_path: str, version: int, newest: int) -> list[Removed]:
    """The files that a version has and the newest has not: the cost is the commits in between."""
    log = CommitLog(storage, table_path)
    first: dict[tuple[str, str | None], str] = {}
    last: dict[tuple[str, str | None], tuple[str, Removed]] = {}
    for number in range(version + 1, newest + 1):
        for kind, action in file_actions(storage, log.name(number)):
            removed = _removed(action)
            key = (removed.path, removed.vector)
            first.setdefault(key, kind)
            last[key] = (kind, removed)
    return [
        removed
        for key, (kind, removed) in last.items()
        if kind == "remove" and first[key] == "remove"
    ]


def missing_files(storage: Storage, table_path: str, removed: Iterable[Removed]) -> list[str]:
    """Those files that are no longer there; only the table's own folder is looked at."""
    names = sorted({name for entry in removed for name in entry.files if "://" not in name})
    own = [name for name in names if not name.startswith(("/", "file:"))]

    def gone(some: list[str]) -> list[str]:
        return [name for name in some if not storage.exists(f"{table_path}/{name}")]

    # A share of them for each thread: a task costs more than a look.
    with ThreadPoolExecutor(_THREADS) as pool:
        found = pool.map(gone, [own[thread::_THREADS] for thread in range(_THREADS)])
        return sorted(name for names in found for name in names)


def file_actions(storage: Storage, name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The `add` and `remove` actions of one file of the log, in its order."""
    for line in storage.read(name).splitlines():
        for kind in ("add", "remove"):
            if line.startswith(f'{{"{kind}":'.encode()):
                yield kind, json.loads(line)[kind]


def _removed(action: dict[str, Any]) -> Removed:
    vector = vector_path(action.get("deletionVector"))
    return Removed(unquote(action["path"]), vector, int(action.get("deletionTimestamp") or 0))


def _of_checkpoint(storage: Storage, path: str) -> Iterator[Removed]:
    if path.endswith(".json"):
        for kind, action in file_actions(storage, path):
            if kind == "remove":
                yield _removed(action)
        return
    with storage.open(path) as source, pq.ParquetFile(source) as checkpoint:
        if "remove" not in checkpoint.schema_arrow.names:
            return
        for group in range(checkpoint.num_row_groups):
            rows = checkpoint.read_row_group(group, columns=["remove"])
            for action in rows.column("remove").drop_null().to_pylist():
                yield _removed(action)
