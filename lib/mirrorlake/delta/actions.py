"""Read a table's data files from its log, on the driver: live and removed files, deletion vectors.

Delta keeps a removed file until VACUUM deletes it, so that older versions can be read. A checkpoint
and the commits after it name every file removed within the retention before the checkpoint.

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
from datetime import timedelta
from typing import Any
from urllib.parse import quote, unquote, urlsplit
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mirrorlake.delta.commits import first_version, read_commit_info
from mirrorlake.delta.log_files import (
    Action,
    checkpoint_files,
    commit_path,
    parse_actions,
    read_actions,
)
from mirrorlake.delta.snapshot import FILE_RETENTION, Snapshot
from mirrorlake.delta.timestamps import parse_interval
from mirrorlake.errors import DataFileError
from mirrorlake.storage.files import Storage

_THREADS = 16
SLACK = 3_600_000  # milliseconds; the clocks of two writers may differ by this much
# Hadoop prints URIs with one slash: `file:/…`.
HADOOP_URI = re.compile(r"[a-z][a-z0-9+.-]*:/", re.IGNORECASE)
# Operations that write new rows only; any other may move rows with their ids.
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
    """Yield each `remove` and then each `add` of a range of commits, with its version and kind."""
    for version in range(first, last + 1):
        found = read_actions(storage, commit_path(table_path, version), ("add", "remove"))
        for kind, action in sorted(found, key=lambda pair: pair[0] == "add"):
            yield version, kind, action


@dataclass(frozen=True)
class Removed:
    """A file that one version has and a later one lacks.

    Attributes:
        files: the paths needed to read it, its deletion vector's file last: relative to the table's
            folder, or full URIs of files stored elsewhere.
        at: when it was removed, in milliseconds since 1970.
    """

    files: tuple[str, ...]
    at: int

    @classmethod
    def of(cls, action: Action) -> Removed:
        """Return the file of an action."""
        path, vector = unquote(action["path"]), vector_path(action.get("deletionVector"))
        files = (path,) if vector is None else (path, vector)
        return cls(files, int(action.get("deletionTimestamp") or 0))


def removals(
    storage: Storage, table_path: str, oldest: int, newest: int
) -> Iterator[list[Removed]]:
    """Yield the files removed after the version `oldest`, in batches, the newest batch first.

    A batch has the files named by a checkpoint and the commits after it. Only as many checkpoints
    are read as batches are consumed.
    """
    while newest > oldest:
        version, paths = checkpoint_files(storage, table_path, newest)
        found: dict[tuple[str, ...], Removed] = {}
        kept = timedelta()
        for path in paths if version > oldest else ():
            for kind, action in read_actions(storage, path, ("remove", "metaData")):
                if kind == "metaData":
                    kept = parse_interval(Snapshot(metadata=action).retention(FILE_RETENTION))
                else:
                    removed = Removed.of(action)
                    found[removed.files] = removed
        for _, kind, action in file_actions(storage, table_path, version + 1, newest):
            removed = Removed.of(action)
            found.pop(removed.files, None)
            if kind == "remove":
                found[removed.files] = removed
        yield list(found.values())
        if version <= oldest:
            return
        # The checkpoint lacks files that were removed before its retention.
        since = written_at(storage, table_path, version) + SLACK - kept // timedelta(milliseconds=1)

        def is_named(removing: int, since: int = since) -> bool:
            return written_at(storage, table_path, removing) >= since

        newest = oldest if is_named(oldest) else first_version(oldest, version - 1, is_named)


def written_at(storage: Storage, table_path: str, version: int) -> int:
    """Return the time of a commit by its writer's clock, in milliseconds since 1970."""
    # In a copied table, the time of a commit's file is that of the copy.
    return int(read_commit_info(storage, table_path, version).get("timestamp") or 0)


def removed_since(storage: Storage, table_path: str, version: int, newest: int) -> list[Removed]:
    """Return the files that `version` has and `newest` lacks.

    The cost grows with the number of commits between the two versions.
    """
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
    """Return the paths of removed files that no longer exist.

    Only files in the table's own folder are checked.
    """
    names = sorted({name for entry in removed for name in entry.files if "://" not in name})
    own = [name for name in names if not name.startswith(("/", "file:"))]

    def gone(some: list[str]) -> list[str]:
        return [name for name in some if not storage.exists(f"{table_path}/{name}")]

    # One share per thread: a task costs more than one check.
    with ThreadPoolExecutor(_THREADS) as pool:
        found = pool.map(gone, [own[thread::_THREADS] for thread in range(_THREADS)])
        return sorted(name for names in found for name in names)


class Places:
    """Resolver of the paths in a table's log: a clone's files may be stored in another folder.

    Args:
        storage: the lake's files.
        table_path: the table's folder, relative to the lake's root.
    """

    def __init__(self, storage: Storage, table_path: str) -> None:
        self._own = storage
        self._table_path = table_path
        self._others: dict[str, Storage] = {}

    def place(self, path: str) -> tuple[Storage, str]:
        """Return the storage that contains a file, and the file's path in it."""
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
        """Check whether a file exists, given its URL-encoded path in the log."""
        storage, file = self.place(unquote(path))
        return storage.exists(file)


class LiveFiles:
    """The live files of a table's versions; commits that were read are not read again.

    Args:
        storage: the lake's files.
        table_path: the table's folder, relative to the lake's root.
    """

    def __init__(self, storage: Storage, table_path: str) -> None:
        self._storage = storage
        self._table_path = table_path
        self._version: int | None = None
        self._live: dict[tuple[str, str], Action] = {}

    def of(self, version: int) -> list[Action]:
        """Return the `add` actions of a version's files.

        Each action also has `records`, the file's rows without deleted ones. If an earlier version
        was read before, only the commits in between are read.
        """
        live, at = self._live, self._version
        if at is None or at > version:
            at, paths = checkpoint_files(self._storage, self._table_path, version)
            live = {}
            for path in paths:
                for _, action in read_actions(self._storage, path, ("add",)):
                    if not action.get("stats"):  # a table may store them as columns only
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
    """Return the `add` actions of one version's files; see `LiveFiles.of`."""
    return LiveFiles(storage, table_path).of(version)


def _key(action: Action) -> tuple[str, str]:
    return action["path"], vector_id(action.get("deletionVector"))


def named_files(storage: Storage, path: str) -> Iterator[str]:
    """Yield the paths of the data files whose values a file of the log may contain."""
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
    """One data file with one deletion vector, or none.

    Attributes:
        action: its log entry: path, partitionValues, size, stats, deletionVector.
        first_id: the id of its first row.
        commit_version: the version that last changed the rows without a commit version of their
            own.
        records: rows in the file, deleted ones included; None if unknown.
        carries: whether its rows may carry ids of their own.
    """

    action: Action
    first_id: int
    commit_version: int
    records: int | None
    carries: bool

    @property
    def key(self) -> tuple[str, str]:
        """The path and the deletion vector's id, which together identify the file."""
        return _key(self.action)

    @property
    def stats(self) -> dict[str, Any]:
        """The file's statistics in the log; empty if it has none."""
        found: dict[str, Any] = json.loads(self.action.get("stats") or "{}")
        return found

    @property
    def names(self) -> tuple[str, ...]:
        """The files needed to read it, URL-encoded as in the log."""
        vector = vector_path(self.action.get("deletionVector"))
        path = self.action["path"]
        return (path,) if vector is None else (path, encode(vector))

    def holds(self, row_id: int) -> bool:
        """Check whether the row with an id may be in the file, by the range of its row ids."""
        last = float("inf") if self.records is None else self.first_id + self.records
        return self.first_id <= row_id < last


@dataclass
class FileHistory:
    """Facts about files, collected from commits in their order.

    Attributes:
        carries: whether a file's rows may carry ids, by path.
        stats: the most complete statistics of a file, by path; a `remove` may lack them.
    """

    carries: dict[str, bool] = field(default_factory=dict)
    stats: dict[str, str] = field(default_factory=dict)

    def data_file(self, action: Action, *, carries: bool = True) -> DataFile | None:
        """Return the file of an action, or None if its rows have no ids."""
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
    """A file that a version added (`side` 1) or removed (-1)."""

    version: int
    side: int
    file: DataFile


def file_changes(
    storage: Storage, table_path: str, start: int, end: int, history: FileHistory
) -> Iterator[FileChange]:
    """Yield the files that a range of versions added or removed as a change of data, ascending.

    Args:
        storage: the lake's files.
        table_path: the table's folder.
        start: the first version.
        end: the last version.
        history: facts about files; they are completed while reading.
    """
    for version in range(start, end + 1):
        info = read_commit_info(storage, table_path, version)
        fresh = info.get("operation") in _NEW_ROWS
        for _, kind, action in file_actions(storage, table_path, version, version):
            found = history.data_file(action, carries=not fresh or kind == "remove")
            if found is not None and action.get("dataChange", True):
                yield FileChange(version, 1 if kind == "add" else -1, found)


def last_removal(
    storage: Storage, table_path: str, files: Iterable[DataFile], start: int, end: int
) -> int | None:
    """Return the last version of a range that removed one of the files; None if none did.

    Unlike `file_changes`, this includes versions that only moved rows to other files.
    """
    keys = {file.key for file in files}
    found = file_actions(storage, table_path, start, end)
    removed = (version for version, kind, a in found if kind == "remove" and _key(a) in keys)
    return max(removed, default=None)


def encode(path: str) -> str:
    """Return a path URL-encoded, as logs contain it."""
    return quote(path, safe="/:=")


def rewrite_paths(storage: Storage, table_path: str, old: str, new: str) -> None:
    """Replace full paths in the single commit of a shallow clone after its source has moved.

    Args:
        storage: the lake's files.
        table_path: the clone's folder.
        old: the previous folder of the source, in full, as Hadoop prints it.
        new: the source's current folder.
    """

    def move(add: Action) -> None:
        add["path"] = _moved(add["path"], old, new)
        vector = add.get("deletionVector")
        if vector and vector["storageType"] == "p":
            vector["pathOrInlineDv"] = _moved(vector["pathOrInlineDv"], old, new)

    rewrite_files(storage, table_path, move)


def rewrite_files(storage: Storage, table_path: str, change: Callable[[Action], None]) -> None:
    """Change the `add` actions in the single commit of a shallow clone."""
    commit = commit_path(table_path, 0)
    lines = []
    for line in storage.read(commit).splitlines():
        for _, add in parse_actions([line], ("add",)):
            change(add)
            line = json.dumps({"add": add}, separators=(",", ":")).encode()
        lines.append(line)
    storage.write(commit, b"\n".join(lines) + b"\n")
    # Checksums and checkpoints describe the previous actions, and a table needs none of them.
    log = commit.rpartition("/")[0]
    for entry in storage.list(log).files:
        if f"{log}/{entry.name}" != commit:
            storage.delete(f"{log}/{entry.name}")


def _moved(path: str, old: str, new: str) -> str:
    """Return a URL-encoded path, with the new folder if the path was below the old one."""
    decoded = re.sub("^file:/+", "file:/", unquote(path))
    if not decoded.startswith(f"{old}/"):
        return path
    return quote(new + decoded[len(old) :], safe="/:")


def vector_path(vector: dict[str, Any] | None) -> str | None:
    """Return the file of a deletion vector; None without a vector, or if it is stored in the log.

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
    """Return a text that identifies a deletion vector; empty without a vector."""
    if not vector:
        return ""
    parts = (vector.get(part) for part in ("storageType", "pathOrInlineDv", "offset"))
    return "".join("" if part is None else str(part) for part in parts)


def deleted_positions(
    place: Callable[[str], tuple[Storage, str]], vector: dict[str, Any]
) -> Positions:
    """Return the positions of the rows that a vector deletes, counted from 0 and ascending.

    Args:
        place: returns the storage that contains a file of the table, and the file's path in it.
        vector: the `deletionVector` of an `add`.

    Raises:
        DataFileError: the file does not contain a deletion vector of the protocol.
    """
    size = vector["sizeInBytes"]
    path = vector_path(vector)
    if path is None:
        return parse_vector(decode_z85(vector["pathOrInlineDv"])[:size])
    storage, file = place(path)
    start = vector.get("offset", 1)
    data = storage.read_range(file, start, start + 4 + size)
    if struct.unpack_from(">i", data)[0] != size:
        raise DataFileError(
            "The length of a deletion vector differs from its length in the log.", file=path
        )
    return parse_vector(data[4:])


def without_deleted(
    rows: pa.Table, place: Callable[[str], tuple[Storage, str]], vector: dict[str, Any] | None
) -> pa.Table:
    """Return the rows of a data file without those that its deletion vector deletes.

    Args:
        rows: all rows of the file, in its order.
        place: as for `deleted_positions`.
        vector: the `deletionVector` of the file's `add`; None if it has none.
    """
    if not vector:
        return rows
    keep = np.ones(rows.num_rows, bool)
    keep[deleted_positions(place, vector)] = False
    return rows.filter(pa.array(keep))


def parse_vector(data: bytes) -> Positions:
    """Return the positions in a serialised array of bitmaps."""
    from pyroaring import BitMap64  # an optional dependency

    magic = int.from_bytes(data[:4], "little", signed=True)
    if magic != _MAGIC:
        raise DataFileError(f"A deletion vector starts with {magic} instead of {_MAGIC}.")
    try:
        return np.asarray(BitMap64.deserialize(data[4:]).to_array(), np.int64)
    except ValueError as error:
        raise DataFileError(f"A deletion vector is broken: {error}.") from error


def decode_z85(text: str) -> bytes:
    """Decode a text in Z85, ZeroMQ's form of base 85."""
    return base64.b85decode(text.translate(_TO_B85))
