"""What each commit of a table did, read from its log without Spark.

A listing gives versions and moments; a commit's own file gives the rest. The cost follows the
range that is looked at, not the table. Source: the Delta transaction log protocol.
"""

from __future__ import annotations

import bisect
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from mirrorlake.delta.timestamps import to_milliseconds
from mirrorlake.delta_log import read_commit_info, read_snapshot
from mirrorlake.storage import Storage

_COMMIT = re.compile(r"(\d{20})\.json", re.ASCII)
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.(?:.*\.)?(?:parquet|json)", re.ASCII)
_FILE_ACTIONS = ("add", "remove", "cdc")


@dataclass(frozen=True)
class Timeline:
    """The versions that the log still holds, and when each was committed.

    Attributes:
        first: the oldest version whose changes can still be read.
        latest: the newest version.
        versions: all that have a commit file, ascending.
        times: their moments in milliseconds since 1970, strictly ascending.
    """

    first: int
    latest: int
    versions: tuple[int, ...]
    times: tuple[int, ...]

    def time(self, version: int) -> int:
        """A version's moment, milliseconds since 1970."""
        return self.times[bisect.bisect_left(self.versions, version)]

    def at_or_after(self, moment: int) -> int:
        """The first version committed then or later; the one after the latest if there is none."""
        index = bisect.bisect_left(self.times, moment)
        return self.versions[index] if index < len(self.versions) else self.latest + 1

    def at_or_before(self, moment: int) -> int:
        """The last version committed then or earlier; the one before the oldest if none is."""
        index = bisect.bisect_right(self.times, moment)
        return self.versions[index - 1] if index else self.versions[0] - 1


@dataclass(frozen=True)
class Commit:
    """One commit.

    Attributes:
        operation: as the history has it, `UPDATE` for example.
        parameters: of the operation.
        metadata: the table's metadata if this commit wrote them.
        files: paths of what its changes are read from, relative to the table; only if asked for.
        size: bytes of those files, as far as the log knows.
        changed: whether some of them are change files.
        note: what the writer added as `userMetadata`.
    """

    version: int
    operation: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] | None = None
    files: tuple[str, ...] = ()
    size: int = 0
    changed: bool = False
    note: str = ""


@dataclass(frozen=True)
class State:
    """A version of a table: its commit, and the metadata that hold after it."""

    commit: Commit
    metadata: dict[str, Any]

    @property
    def version(self) -> int:
        """The version's number."""
        return self.commit.version

    @property
    def properties(self) -> dict[str, str]:
        """The table's properties."""
        return dict(self.metadata.get("configuration") or {})

    @property
    def fields(self) -> list[dict[str, Any]]:
        """The columns as Spark's JSON describes them."""
        fields: list[dict[str, Any]] = json.loads(self.metadata["schemaString"])["fields"]
        return fields

    @property
    def life(self) -> str | None:
        """Which life of its folder a mirrored table was filled from; None if others wrote this."""
        try:
            note = json.loads(self.commit.note or "{}")
        except ValueError:
            return None
        return note.get("incarnation") if isinstance(note, dict) else None

    @property
    def has_feed(self) -> bool:
        """Whether this version's changes are recorded."""
        return self.properties.get("delta.enableChangeDataFeed", "false").lower() == "true"

    @property
    def is_mapped(self) -> bool:
        """Whether columns are known by other names in the files."""
        return self.properties.get("delta.columnMapping.mode", "none") != "none"


def read_versions(storage: Storage, table_path: str) -> Timeline:
    """The table's versions and moments, by a listing of its log.

    Args:
        storage: the lake's files.
        table_path: the table's folder; it holds a table.
    """
    names = storage.list(f"{table_path}/_delta_log").files
    commits = [(int(m[1]), e) for e in names if (m := _COMMIT.fullmatch(e.name))]
    checkpoints = {int(m[1]) for e in names if (m := _CHECKPOINT.fullmatch(e.name))}
    # What lies before a hole in the numbers can't be replayed.
    held = [commits[-1]]
    for commit in reversed(commits[:-1]):
        if commit[0] != held[-1][0] - 1:
            break
        held.append(commit)
    held.reverse()
    versions = tuple(version for version, _ in held)
    oldest = versions[0]
    starts = [max(c, oldest) for c in checkpoints if c >= oldest - 1]
    first = 0 if oldest == 0 else min(starts, default=oldest)
    newest = read_snapshot(storage, table_path)
    in_commit = newest is not None and newest.properties.get("delta.enableInCommitTimestamps")
    times: list[int] = []
    for version, entry in held:
        moment = to_milliseconds(entry.modified)
        if in_commit == "true":
            info = read_commit_info(storage, table_path, version)
            moment = int(info.get("inCommitTimestamp", moment))
        # Delta moves a commit that seems to be older than the one before it.
        times.append(max(moment, times[-1] + 1) if times else moment)
    return Timeline(first, versions[-1], versions, tuple(times))


def read_commit(storage: Storage, table_path: str, version: int, *, files: bool = False) -> Commit:
    """One commit.

    Args:
        storage: the lake's files.
        table_path: the table's folder.
        version: which; the log holds it.
        files: read also which files its changes come from.
    """
    info: dict[str, Any] = {}
    metadata: dict[str, Any] | None = None
    found: dict[str, list[dict[str, Any]]] = {kind: [] for kind in _FILE_ACTIONS}
    for line in storage.read(f"{table_path}/_delta_log/{version:020d}.json").splitlines():
        # The adds and removes of a large commit need not be parsed.
        kind = line[2:13].split(b'"')[0].decode()
        if kind == "commitInfo":
            info = json.loads(line)[kind]
        elif kind == "metaData":
            metadata = json.loads(line)[kind]
        elif files and kind in _FILE_ACTIONS:
            action = json.loads(line)[kind]
            if kind == "cdc" or action.get("dataChange", True):
                found[kind].append(action)
    used = found["cdc"] or [*found["add"], *found["remove"]]
    return Commit(
        version,
        info.get("operation", ""),
        info.get("operationParameters") or {},
        metadata,
        tuple(action["path"] for action in used),
        sum(action.get("size") or 0 for action in used),
        bool(found["cdc"]),
        info.get("userMetadata") or "",
    )


def read_states(
    storage: Storage, table_path: str, start: int, end: int, *, files: bool = False
) -> Iterator[State]:
    """The versions of a range, both ends included, ascending.

    Args:
        storage: the lake's files.
        table_path: the table's folder.
        start: the first version; the log holds what it needs.
        end: the last version.
        files: read also which files the changes come from.
    """
    snapshot = read_snapshot(storage, table_path, version=start)
    assert snapshot is not None, start
    metadata = snapshot.metadata
    for version in range(start, end + 1):
        commit = read_commit(storage, table_path, version, files=files)
        metadata = commit.metadata or metadata
        yield State(commit, metadata)
