"""Read a table's data files from its log, on the driver: live and removed files, deletion vectors.

Delta keeps a removed file until VACUUM deletes it, so that older versions can be read. The newest
checkpoint and the commits after it name every file removed within the retention.

A deletion vector is an array of 32-bit Roaring bitmaps in their portable serialisation. It is
stored in a file of its own or, if it is tiny, in the log.

With row tracking, a file has the id of its first row, and the following rows are numbered from
there. Rows that were moved from another file carry their ids in hidden columns. Source: the Delta
transaction log protocol.
"""

from __future__ import annotations

import base64
import json
import re
import struct
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, unquote, urlsplit
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mirrorlake.delta.commits import read_commit_info
from mirrorlake.delta.log_files import (
    Action,
    checkpoint_files,
    commit_path,
    parse_actions,
    read_actions,
)
from mirrorlake.errors import DataFileError
from mirrorlake.storage.files import Storage

_THREADS = 16
# As Hadoop prints them, with one slash: `file:/…`.
HADOOP_URI = re.compile(r"[a-z][a-z0-9+.-]*:/", re.IGNORECASE)
# What only ever writes new rows; any other operation may carry rows and their ids along.
_NEW_ROWS = ("WRITE", "STREAMING UPDATE", "CREATE TABLE AS SELECT")
_KEPT = ("path", "partitionValues", "size", "stats", "deletionVector")
Positions = npt.NDArray[np.int64]
Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_B85 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_TO_B85 = str.maketrans(Z85, _B85)
_UUID_TEXT = 20
_MAGIC = 1_681_511_377


def file_actions(
    storage: Storage, table_path: str, first: int, last: int
) -> Iterator[tuple[int, str, Action]]:
    """Each `remove` and then each `add` of a range of commits, with its version and kind."""
    for version in range(first, last + 1):
        found = read_actions(storage, commit_path(table_path, version), ("add", "remove"))
        for kind, action in sorted(found, key=lambda pair: pair[0] == "add"):
            yield version, kind, action


@dataclass(frozen=True)
class Removed:
    """A file that a version had and a later one has not.

    Attributes:
        files: all that reading it needs, its deletion vector's file the last one: relative to the
            table's folder, or full URIs for files that lie elsewhere.
        at: when it was removed, milliseconds since 1970.
    """

    files: tuple[str, ...]
    at: int

    @classmethod
    def of(cls, action: Action) -> Removed:
        """The file of an action."""
        path, vector = unquote(action["path"]), vector_path(action.get("deletionVector"))
        files = (path,) if vector is None else (path, vector)
        return cls(files, int(action.get("deletionTimestamp") or 0))


def recent_removals(storage: Storage, table_path: str, newest: int) -> list[Removed]:
    """The files whose removal the newest checkpoint and the commits after it tell of."""
    version, paths = checkpoint_files(storage, table_path)
    told = (r for path in paths for _, r in read_actions(storage, path, ("remove",)))
    found = {removed.files: removed for removed in map(Removed.of, told)}
    for _, kind, action in file_actions(storage, table_path, version + 1, newest):
        removed = Removed.of(action)
        found.pop(removed.files, None)
        if kind == "remove":
            found[removed.files] = removed
    return list(found.values())


def removed_since(storage: Storage, table_path: str, version: int, newest: int) -> list[Removed]:
    """The files that a version has and the newest has not: the cost is the commits in between."""
    first: dict[tuple[str, ...], str] = {}
    last: dict[tuple[str, ...], tuple[str, Removed]] = {}
    for _, kind, action in file_actions(storage, table_path, version + 1, newest):
        removed = Removed.of(action)
        first.setdefault(removed.files, kind)
        last[removed.files] = (kind, removed)
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


class Places:
    """Where a table's files lie: mostly in its own folder, a clone's in another's.

    Args:
        storage: the lake's files.
        table_path: the table's folder, relative to its root.
    """

    def __init__(self, storage: Storage, table_path: str) -> None:
        self._own = storage
        self._table_path = table_path
        self._others: dict[str, Storage] = {}

    def place(self, path: str) -> tuple[Storage, str]:
        """The storage that has a file, and the file's path in it."""
        if not HADOOP_URI.match(path) and not path.startswith("/"):
            return self._own, f"{self._table_path}/{path}"
        if path.lower().startswith("file:"):
            path = "/" + path[5:].lstrip("/")
        if path.startswith("/"):
            folder, name = "/", path[1:]
        else:
            parts = urlsplit(path)
            folder, name = f"{parts.scheme}://{parts.netloc}", parts.path.lstrip("/")
        if folder not in self._others:
            self._others[folder] = Storage(folder)
        return self._others[folder], name

    def exists(self, path: str) -> bool:
        """Whether a file is there that the log names, URL-encoded."""
        storage, file = self.place(unquote(path))
        return storage.exists(file)


class LiveFiles:
    """The files of a table's versions; what was read of its log is not read again.

    Args:
        storage: the lake's files.
        table_path: the table's folder, relative to its root.
    """

    def __init__(self, storage: Storage, table_path: str) -> None:
        self._storage = storage
        self._table_path = table_path
        self._version: int | None = None
        self._live: dict[tuple[str, str], Action] = {}

    def of(self, version: int) -> list[Action]:
        """The `add` actions of a version's files, with `records`, its rows without deleted ones.

        After an earlier version only the commits in between are read.
        """
        live, at = self._live, self._version
        if at is None or at > version:
            at, paths = checkpoint_files(self._storage, self._table_path, version)
            live = {}
            for path in paths:
                for _, action in read_actions(self._storage, path, ("add",)):
                    if not action.get("stats"):  # a table may keep them as columns only
                        parsed = action.get("stats_parsed") or {}
                        action["stats"] = json.dumps({"numRecords": parsed.get("numRecords", 0)})
                    live[_key(action)] = action
        for _, kind, action in file_actions(self._storage, self._table_path, at + 1, version):
            key = _key(action)
            live.pop(key, None)
            if kind == "add":
                live[key] = action
        for action in live.values():
            if "records" not in action:
                stats, vector = action.get("stats"), action.get("deletionVector")
                known = json.loads(stats).get("numRecords", 0) if stats else 0
                action["records"] = known - vector.get("cardinality", 0) if vector else known
        self._live, self._version = live, version
        return list(live.values())


def live_files(storage: Storage, table_path: str, version: int) -> list[Action]:
    """The same as `LiveFiles.of`, of one version."""
    return LiveFiles(storage, table_path).of(version)


def _key(action: Action) -> tuple[str, str]:
    return action["path"], vector_id(action.get("deletionVector"))


def named_files(storage: Storage, path: str) -> Iterator[str]:
    """The paths of the data files of which a file of the log may tell values."""
    name = path.rpartition("/")[2]
    if name.startswith("."):  # Spark's own checksums
        return
    if name.endswith(".parquet"):
        yield from (add["path"] for _, add in read_actions(storage, path, ("add.path",)))
    elif name.endswith(".json") and name[:20].isdecimal():
        for _, action in read_actions(storage, path, ("add", "remove")):
            if action.get("stats"):
                yield action["path"]
    elif name.endswith(".crc"):
        checksum = json.loads(storage.read(path))
        yield from (added["path"] for added in checksum.get("allFiles") or ())


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
        return _key(self.action)

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
        kept["stats"] = self.stats.get(path) or stats or "{}"
        records = json.loads(kept["stats"]).get("numRecords")
        first, version = int(action["baseRowId"]), int(action["defaultRowCommitVersion"])
        return DataFile(kept, first, version, records, carries)


@dataclass(frozen=True)
class FileChange:
    """A file that a version brought (`side` 1) or took away (-1)."""

    version: int
    side: int
    file: DataFile


def file_changes(
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
    for version in range(start, end + 1):
        info = read_commit_info(storage, table_path, version)
        fresh = info.get("operation") in _NEW_ROWS
        for _, kind, action in file_actions(storage, table_path, version, version):
            found = history.data_file(action, carries=not fresh or kind == "remove")
            if found is not None and action.get("dataChange", True):
                yield FileChange(version, 1 if kind == "add" else -1, found)


def encode(path: str) -> str:
    """A path as logs have it: URL-encoded."""
    return quote(path, safe="/:=")


def rewrite_paths(storage: Storage, table_path: str, old: str, new: str) -> None:
    """Puts full paths right in the one commit that a shallow clone has.

    Args:
        storage: the lake's files.
        table_path: the clone's folder.
        old: the folder that was moved, in full, as Hadoop prints it.
        new: where it is now.
    """
    commit = commit_path(table_path, 0)
    lines = []
    for line in storage.read(commit).splitlines():
        for _, add in parse_actions([line], ("add",)):
            add["path"] = _moved(add["path"], old, new)
            vector = add.get("deletionVector")
            if vector and vector["storageType"] == "p":
                vector["pathOrInlineDv"] = _moved(vector["pathOrInlineDv"], old, new)
            line = json.dumps({"add": add}, separators=(",", ":")).encode()
        lines.append(line)
    storage.write(commit, b"\n".join(lines) + b"\n")
    # Checksums and the checkpoint are of what it was before; none of them has to be there.
    log = commit.rpartition("/")[0]
    for entry in storage.list(log).files:
        if f"{log}/{entry.name}" != commit:
            storage.delete(f"{log}/{entry.name}")


def _moved(path: str, old: str, new: str) -> str:
    """A URL-encoded path of the log, at its new place if it was below the old one."""
    decoded = re.sub("^file:/+", "file:/", unquote(path))
    if not decoded.startswith(f"{old}/"):
        return path
    return quote(new + decoded[len(old) :], safe="/:")


def vector_path(vector: dict[str, Any] | None) -> str | None:
    """The file that holds a deletion vector; None if there is none, or if it stands in the log.

    Example:
        >>> vector_path({"storageType": "u", "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^"})
        'ab/deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin'
    """
    if not vector or vector["storageType"] == "i":
        return None
    where = str(vector["pathOrInlineDv"])
    if vector["storageType"] == "p":
        return unquote(where)
    prefix, number = where[:-_UUID_TEXT], UUID(bytes=decode_z85(where[-_UUID_TEXT:]))
    return f"{prefix}/deletion_vector_{number}.bin".lstrip("/")


def vector_id(vector: dict[str, Any] | None) -> str:
    """What tells a file's deletion vectors apart; empty if there is none."""
    if not vector:
        return ""
    parts = (vector.get(part) for part in ("storageType", "pathOrInlineDv", "offset"))
    return "".join("" if part is None else str(part) for part in parts)


def deleted_positions(
    place: Callable[[str], tuple[Storage, str]], vector: dict[str, Any]
) -> Positions:
    """The positions of the rows that a vector takes, counted from 0 and ordered.

    Args:
        place: the storage that has a file of the table, and the file's path in it.
        vector: an `add`'s `deletionVector`.

    Raises:
        DataFileError: it is not a vector of the protocol.
    """
    size = vector["sizeInBytes"]
    path = vector_path(vector)
    if path is None:
        return parse_vector(decode_z85(vector["pathOrInlineDv"])[:size])
    storage, file = place(path)
    start = vector.get("offset", 1)
    data = storage.read_range(file, start, start + 4 + size)
    if struct.unpack_from(">i", data)[0] != size:
        raise DataFileError("A deletion vector is not as long as the log says.", file=path)
    return parse_vector(data[4:])


def without_deleted(
    rows: pa.Table, place: Callable[[str], tuple[Storage, str]], vector: dict[str, Any] | None
) -> pa.Table:
    """All rows of a data file but those that its vector takes.

    Args:
        rows: of the whole file, in its order.
        place: see `deleted_positions`.
        vector: its `add`'s `deletionVector`; None if it has none.
    """
    if not vector:
        return rows
    keep = np.ones(rows.num_rows, bool)
    keep[deleted_positions(place, vector)] = False
    return rows.filter(pa.array(keep))


def parse_vector(data: bytes) -> Positions:
    """The positions in a serialised array of bitmaps."""
    from pyroaring import BitMap64  # only who reads vectors needs it

    magic = int.from_bytes(data[:4], "little", signed=True)
    if magic != _MAGIC:
        raise DataFileError(f"A deletion vector starts with {magic}, not {_MAGIC}.")
    try:
        return np.asarray(BitMap64.deserialize(data[4:]).to_array(), np.int64)
    except ValueError as error:
        raise DataFileError(f"A deletion vector is broken: {error}.") from error


def decode_z85(text: str) -> bytes:
    """The bytes of a text in ZeroMQ's form of base 85."""
    return base64.b85decode(text.translate(_TO_B85))
