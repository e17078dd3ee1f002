"""Read a table's commits without Spark: versions, timestamps, operations and rows changed.

Writers name the same metrics differently: Delta on Spark writes `numTargetRowsInserted`, delta-rs
`num_target_rows_inserted`. A metric that a writer did not record is unknown, not zero. Source: the
Delta transaction log protocol.
"""

from __future__ import annotations

import bisect
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from mirrorlake.delta.log_files import (
    Action,
    commit_path,
    find_checkpoint,
    list_log,
    parse_actions,
    read_actions,
)
from mirrorlake.delta.snapshot import Snapshot, read_snapshot
from mirrorlake.delta.timestamps import from_milliseconds, to_milliseconds
from mirrorlake.results import Result, TextTable, optional_figure
from mirrorlake.storage.files import Storage

if TYPE_CHECKING:
    import pandas as pd

    from mirrorlake.show.chart import Chart

_MILLISECOND = timedelta(milliseconds=1)
_MOST_BARS, _MOST_LABELS = 40, 20
_CLOCKS = 5  # versions to read before one, to detect a clock that was set back
_DEFAULT_INTERVAL = 10  # versions between two checkpoints
_KINDS = ("commitInfo", "metaData")
_FILE_KINDS = ("add", "remove", "cdc")
_INSERTED: Final = ("numTargetRowsInserted", "numOutputRows", "numAddedRows")
_UPDATED: Final = ("numTargetRowsUpdated", "numUpdatedRows")
_DELETED: Final = ("numTargetRowsDeleted", "numDeletedRows")
_WRITES: Final = ("WRITE", "STREAMING UPDATE", "COPY INTO", "CLONE")
_CREATES: Final = ("CREATE", "REPLACE", "CREATE OR REPLACE")
_KEEPS_ROWS: Final = (
    "OPTIMIZE", "REORG", "VACUUM", "SET", "UNSET", "ADD", "CHANGE", "RENAME", "DROP COLUMNS",
    "UPGRADE", "CLUSTER BY", "CONVERT", "COMPUTE",
)  # fmt: skip
_EXPRESSION_ID: Final = re.compile(r"#\d+L?\b")
_MOST: Final = 60


@dataclass(frozen=True)
class Commit:
    """One commit.

    Attributes:
        version: the version, counted from 0.
        timestamp: when it was committed, in UTC, always later than the version before even if a
            clock was set back. None if only the commit itself was read.
        operation: Delta's name of the operation, such as `UPDATE`.
        parameters: the operation's parameters.
        metrics: the operation's metrics, by Delta's names.
        note: the writer's `userMetadata`, or None.
        metadata: the table's metadata if this commit wrote them.
        files: paths of the files from which its changes are read, relative to the table; empty
            unless requested.
        size: bytes of those files, as far as the log contains their sizes.
    """

    version: int
    timestamp: datetime | None = None
    operation: str = "unknown"
    parameters: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)
    note: str | None = None
    metadata: dict[str, Any] | None = None
    files: tuple[str, ...] = ()
    size: int = 0

    @property
    def rows(self) -> RowsChanged:
        """The rows that it inserted, updated and deleted, as far as its writer recorded them."""
        return rows_changed(self.operation, self.metrics)

    @property
    def description(self) -> str:
        """What the operation did, in a few words; empty if its name says it all."""
        return describe_commit(self.operation, self.parameters, self.metrics, self.note)


@dataclass(frozen=True)
class History(Result):
    """Versions of a table, newest first.

    Attributes:
        commits: one entry per version.
        more: whether the log contains older versions that were not requested.
    """

    commits: tuple[Commit, ...]
    more: bool = False

    def shown(self) -> TextTable:
        """Return one row per version: its time, its operation, and the number of rows changed."""
        rows = tuple(
            (
                commit.version,
                f"{commit.timestamp:%Y-%m-%d %H:%M:%S}",
                commit.operation,
                *("" if n is None else n for n in (rows.inserted, rows.updated, rows.deleted)),
                commit.description,
            )
            for commit in self.commits
            for rows in [commit.rows]
        )
        columns = ("version", "made (UTC)", "operation", "inserted", "updated", "deleted", "what")
        return TextTable(columns, rows, more=self.more)

    @optional_figure
    def plot(self) -> Chart | None:
        """Draw the rows that each version inserted, updated and deleted.

        A version whose writer did not count its rows is a gap.

        Returns:
            A chart of the newest 40 versions at most; None if no version records such rows.
        """
        from mirrorlake.show.plots import plot_stacks

        commits = self.commits[:_MOST_BARS][::-1]
        series = {}
        for kind in ("inserted", "updated", "deleted"):
            counts = [getattr(commit.rows, kind) for commit in commits]
            if any(counts):
                series[kind] = [math.nan if count is None else count for count in counts]
        if not series:
            return None
        # The labels of all bars would overlap: every `step`th is shown, the others are blank.
        step = -(-len(commits) // _MOST_LABELS)
        labels = [
            str(commit.version) if n % step == 0 else " " * n for n, commit in enumerate(commits)
        ]
        return plot_stacks(labels, series, title="Rows changed by each version", label="rows")

    def to_pandas(self) -> pd.DataFrame:
        """Return one row per version, with all that its commit records."""
        import pandas as pd

        found = self.as_dict()
        rows = [
            row | {"timestamp": commit.timestamp} | asdict(commit.rows)
            for row, commit in zip(found["rows"], self.commits, strict=True)
        ]
        names = [*found["columns"], *(field.name for field in fields(RowsChanged))]
        return pd.DataFrame(rows, columns=names)

    def as_dict(self) -> dict[str, Any]:
        """Return the document that `history --json` prints."""
        columns = ("version", "timestamp", "operation", "parameters", "metrics", "note")
        rows = [{name: getattr(commit, name) for name in columns} for commit in self.commits]
        for row in rows:
            row["timestamp"] = row["timestamp"].isoformat(timespec="milliseconds")
        return {"columns": list(columns), "rows": rows}

    def __repr__(self) -> str:
        return repr(self.shown())


@dataclass(frozen=True)
class Timeline:
    """The versions whose commits the log still contains, and their timestamps.

    Attributes:
        first: the oldest version whose changes can still be read.
        versions: all versions with a commit file.
        times: their timestamps in milliseconds since 1970, strictly ascending.
    """

    first: int
    versions: range
    times: tuple[int, ...]

    @property
    def latest(self) -> int:
        """The newest version."""
        return self.versions[-1]

    def time(self, version: int) -> int:
        """Return a version's timestamp, in milliseconds since 1970."""
        return self.times[self.versions.index(version)]

    def at_or_after(self, moment: int) -> int:
        """Return the first version committed at or after a timestamp.

        If there is no such version, return the number after the latest.
        """
        return self.versions.start + bisect.bisect_left(self.times, moment)

    def at_or_before(self, moment: int) -> int:
        """Return the last version committed at or before a timestamp.

        If there is no such version, return the number before the oldest.
        """
        return self.versions.start + bisect.bisect_right(self.times, moment) - 1


@dataclass(kw_only=True)
class State(Snapshot):
    """A version of a table: its commit, and the metadata that apply after it."""

    commit: Commit

    @property
    def incarnation(self) -> str | None:
        """The incarnation of the folder from which a mirrored table was filled; None otherwise."""
        return parse_note(self.commit.note).get("incarnation")


class CommitLog:
    """Reader of one table's log.

    It opens single files by their names. The cost grows with the number of versions requested, or
    with the logarithm of the log's length, never with the length itself.

    Args:
        storage: the lake's files.
        table_path: the table's folder, relative to the lake's root.
    """

    def __init__(self, storage: Storage, table_path: str) -> None:
        self.storage = storage
        self.table_path = table_path

    def has(self, version: int) -> bool:
        """Return whether the log contains a version's commit."""
        return self.storage.exists(commit_path(self.table_path, version))

    def newest(self) -> int:
        """Return the newest version, or -1 if the table does not exist."""
        found = find_newest(self.storage, self.table_path)
        return -1 if found is None else found

    def earliest(self, newest: int) -> int:
        """Return the first version whose commit the log still contains."""
        return 0 if self.has(0) else first_version(0, newest, self.has)

    def first_readable(self, newest: int, interval: int = _DEFAULT_INTERVAL) -> int:
        """Return the first version that the log can still reconstruct: a checkpoint, or version 0.

        Args:
            newest: the newest version.
            interval: the table's number of versions between two checkpoints; 10 by default.
        """
        first = self.earliest(newest)
        if first == 0:
            return 0
        log = f"{self.table_path}/_delta_log"
        # Delta's clean-up ends before a checkpoint, so the first version nearly always has one.
        for version in range(first, min(first + interval, newest) + 1):
            if self.storage.exists(f"{log}/{version:020d}.checkpoint.parquet"):
                return version
        marks = list_log(self.storage, self.table_path).checkpoints
        return min((mark for mark in marks if mark >= first), default=newest)

    def raw_timestamp(self, version: int) -> datetime | None:
        """Return a commit's own timestamp in UTC; None if the log no longer contains it."""
        return self._timestamp(version, read_commit_info(self.storage, self.table_path, version))

    def timestamp(self, version: int) -> datetime | None:
        """Return a version's timestamp in UTC, later than those of the versions just before it."""
        around = self.read(version, _CLOCKS).commits
        return around[0].timestamp if around else None

    def _timestamp(self, version: int, info: dict[str, Any]) -> datetime | None:
        if (own := info.get("inCommitTimestamp")) is not None:
            return from_milliseconds(int(own))
        entry = self.storage.stat(commit_path(self.table_path, version))
        return None if entry is None else from_milliseconds(to_milliseconds(entry.modified))

    def first_since(self, moment: datetime, earliest: int, newest: int) -> int:
        """Return the first version committed at or after a timestamp.

        If all versions are older, return the newest.
        """

        def is_since(version: int) -> bool:
            made = self.raw_timestamp(version)
            return made is not None and made >= moment

        return first_version(earliest - 1, newest, is_since)

    def read(self, newest: int, limit: int) -> History:
        """Return at most `limit` versions, from `newest` downwards."""
        found: list[tuple[int, datetime, dict[str, Any]]] = []
        for version in range(newest, max(-1, newest - limit), -1):
            info = read_commit_info(self.storage, self.table_path, version)
            made = self._timestamp(version, info)
            if made is None:  # the log contains no older commit
                break
            found.append((version, made, info))
        commits: list[Commit] = []
        before: datetime | None = None
        for version, made, info in reversed(found):
            if before is not None and made <= before:  # a clock was set back
                made = before + _MILLISECOND
            before = made
            commits.append(_commit(version, info, timestamp=made))
        last = commits[0].version if commits else 0
        return History(tuple(reversed(commits)), last > 0 and self.has(last - 1))


def find_newest(storage: Storage, table_path: str) -> int | None:
    """Return the newest version, or None if the table does not exist.

    No commit is read. The search doubles its steps from the last checkpoint and then bisects the
    last step, so the cost grows with the logarithm of the number of commits since that checkpoint.
    """

    def is_gone(version: int) -> bool:
        return not storage.exists(commit_path(table_path, version))

    low, _ = find_checkpoint(storage, table_path)
    leap = 1
    while not is_gone(low + leap):
        low, leap = low + leap, leap * 2
    found = first_version(low, low + leap, is_gone) - 1
    return found if found >= 0 else None


def versions(storage: Storage, table_path: str) -> list[int]:
    """Return the versions whose commits the log still contains, ascending."""
    return list(list_log(storage, table_path).commits)


def read_versions(storage: Storage, table_path: str) -> Timeline:
    """Return the table's versions and timestamps, from a listing of its log.

    If the table's timestamps are stored in its commits, each commit is opened.

    Args:
        storage: the lake's files.
        table_path: the folder of an existing table.
    """
    log = list_log(storage, table_path)
    oldest = latest = max(log.commits)
    while oldest - 1 in log.commits:  # versions before a gap can't be replayed
        oldest -= 1
    starts = [max(c, oldest) for c in log.checkpoints if c >= oldest - 1]
    first = 0 if oldest == 0 else min(starts, default=oldest)
    newest = read_snapshot(storage, table_path)
    in_commit = newest is not None and newest.properties.get("delta.enableInCommitTimestamps")
    times: list[int] = []
    held = range(oldest, latest + 1)
    for version in held:
        moment = to_milliseconds(log.commits[version].modified)
        if in_commit == "true":
            info = read_commit_info(storage, table_path, version)
            moment = int(info.get("inCommitTimestamp", moment))
        # Delta adjusts the timestamp of a commit that seems older than the one before it.
        times.append(max(moment, times[-1] + 1) if times else moment)
    return Timeline(first, held, tuple(times))


def read_commit_info(storage: Storage, table_path: str, version: int) -> dict[str, Any]:
    """Return one version's `commitInfo`; empty if the log no longer contains it."""
    try:
        commit = storage.open(commit_path(table_path, version))
    except FileNotFoundError:
        return {}
    with commit:  # it is the first action, before up to a million files
        return next((info for _, info in parse_actions(commit, ("commitInfo",))), {})


def parse_note(text: str | None) -> dict[str, Any]:
    """Return a commit's `userMetadata` if it is a JSON object, else an empty dictionary."""
    try:
        note = json.loads(text or "{}")
    except ValueError:
        return {}
    return note if isinstance(note, dict) else {}


def read_commit(storage: Storage, table_path: str, version: int, *, files: bool = False) -> Commit:
    """Read one commit.

    Args:
        storage: the lake's files.
        table_path: the table's folder.
        version: the version; the log must contain it.
        files: also read the files from which its changes are read.
    """
    found: dict[str, list[Action]] = {kind: [] for kind in (*_KINDS, *_FILE_KINDS)}
    # The adds and removes of a large commit need not be parsed.
    kinds = tuple(found) if files else _KINDS
    for kind, action in read_actions(storage, commit_path(table_path, version), kinds):
        if kind in (*_KINDS, "cdc") or action.get("dataChange", True):
            found[kind].append(action)
    used = found["cdc"] or [*found["add"], *found["remove"]]
    return _commit(
        version,
        found["commitInfo"][0] if found["commitInfo"] else {},
        metadata=found["metaData"][0] if found["metaData"] else None,
        files=tuple(action["path"] for action in used),
        size=sum(action.get("size") or 0 for action in used),
    )


def read_states(
    storage: Storage, table_path: str, start: int, end: int, *, files: bool = False
) -> Iterator[State]:
    """Yield the versions of a range, both ends included, ascending.

    Args:
        storage: the lake's files.
        table_path: the table's folder.
        start: the first version; the log must contain what is needed to reconstruct it.
        end: the last version.
        files: also read the files from which the changes are read.
    """
    snapshot = read_snapshot(storage, table_path, version=start)
    assert snapshot is not None, start
    metadata = snapshot.metadata
    for version in range(start, end + 1):
        commit = read_commit(storage, table_path, version, files=files)
        metadata = commit.metadata or metadata
        yield State(version, metadata, commit=commit)


def first_version(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """Bisect for the first version after `low` that satisfies a condition; at most `high`."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _commit(version: int, info: dict[str, Any], **more: Any) -> Commit:
    return Commit(
        version=version,
        operation=str(info.get("operation", "unknown")),
        parameters=dict(info.get("operationParameters") or {}),
        metrics={k: _number(v) for k, v in (info.get("operationMetrics") or {}).items()},
        note=info.get("userMetadata"),
        **more,
    )


def _number(text: Any) -> Any:
    return int(text) if isinstance(text, str) and text.isdecimal() else text


@dataclass(frozen=True)
class RowsChanged:
    """The number of rows that a commit inserted, updated and deleted; None if not recorded."""

    inserted: int | None = None
    updated: int | None = None
    deleted: int | None = None


def rows_changed(operation: str, metrics: Mapping[str, Any]) -> RowsChanged:
    """Return the number of rows that a commit changed, from its metrics.

    Args:
        operation: Delta's name of the operation.
        metrics: the commit's metrics, by the names of Spark or of delta-rs.

    Example:
        >>> rows_changed("DELETE", {"num_deleted_rows": 3})
        RowsChanged(inserted=0, updated=0, deleted=3)
        >>> rows_changed("WRITE", {})
        RowsChanged(inserted=None, updated=0, deleted=None)
    """
    kind = operation.upper()
    known = {_as_spark_names(name): value for name, value in metrics.items()}
    inserted, updated, deleted = (
        next((int(known[name]) for name in names if isinstance(known.get(name), int)), None)
        for names in (_INSERTED, _UPDATED, _DELETED)
    )
    if kind.startswith(_KEEPS_ROWS):
        return RowsChanged(0, 0, 0)
    if kind == "DELETE":
        return RowsChanged(0, 0, deleted)
    if kind == "UPDATE":
        return RowsChanged(0, updated, 0)
    if kind.startswith(_CREATES):
        return RowsChanged(inserted if "SELECT" in kind or inserted else 0, 0, 0)
    if kind.startswith(_WRITES):
        return RowsChanged(inserted, 0, deleted)
    return RowsChanged(inserted, updated, deleted)


def describe_commit(
    operation: str, parameters: Mapping[str, Any], metrics: Mapping[str, Any], note: str | None
) -> str:
    """Describe a commit in a few words; return an empty text if the operation's name is enough.

    Args:
        operation: as for `rows_changed`.
        parameters: the operation's parameters, as in the commit.
        metrics: as for `rows_changed`.
        note: the commit's `userMetadata`.

    Example:
        >>> describe_commit("DELETE", {"predicate": '["(id#12L < 5)"]'}, {}, None)
        '(id < 5)'
    """
    text = _describe_note(note) or _describe_operation(operation.upper(), parameters, metrics)
    text = " ".join(text.split())
    return text if len(text) <= _MOST else f"{text[: _MOST - 1]}…"


def _describe_operation(
    kind: str, parameters: Mapping[str, Any], metrics: Mapping[str, Any]
) -> str:
    """Describe an operation by its parameters and metrics."""
    known = {_as_spark_names(name): value for name, value in metrics.items()}
    if kind.startswith(("OPTIMIZE", "REORG")) and "numRemovedFiles" in known:
        return f"{known['numRemovedFiles']} files became {known.get('numAddedFiles', '?')}"
    if kind.startswith("RESTORE"):
        wanted = parameters.get("version")
        wanted = parameters.get("timestamp", "?") if wanted in (None, "") else f"version {wanted}"
        return f"to {wanted}"
    if kind in ("DELETE", "UPDATE"):
        return _predicate(parameters.get("predicate"))
    if kind.startswith(_WRITES):
        return str(parameters.get("mode") or "").lower()
    if kind.startswith(("SET", "UNSET")):
        return _plain(parameters.get("properties"))
    if kind.startswith(("ADD", "CHANGE", "RENAME", "DROP")):
        return ", ".join(filter(None, map(_plain, parameters.values())))
    return ""


def _describe_note(note: str | None) -> str:
    """Return a note in words.

    The mirror's and the views' notes are described by their numbers; any other text is returned
    whole.
    """
    if not note:
        return ""
    try:
        document = json.loads(note)
    except ValueError:
        return note
    if not isinstance(document, dict):
        return note
    if "incarnation" in document and document.get("last"):
        return f"published files up to {document['last']}"
    if "refresh" in document and "mirrorlake.view" in document:
        return f"refresh {document['refresh']} of the view"
    return ""


def _predicate(text: Any) -> str:
    try:
        parts = json.loads(text) if isinstance(text, str) else text
    except ValueError:
        parts = [text]
    parts = parts if isinstance(parts, list) else [parts]
    return " AND ".join(_EXPRESSION_ID.sub("", str(part)) for part in parts if part)


def _plain(value: Any) -> str:
    """Format JSON objects as `name = value, …`, and columns as their names."""
    try:
        found = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return str(value)
    if isinstance(found, dict) and isinstance(found.get("column"), dict):
        found = found["column"]
    if isinstance(found, dict) and "name" in found:
        return str(found["name"])
    if isinstance(found, dict):
        return ", ".join(f"{name} = {item}" for name, item in found.items())
    if isinstance(found, list):
        return ", ".join(filter(None, map(_plain, found)))
    return "" if found is None else str(found)


def _as_spark_names(name: str) -> str:
    """Convert `num_deleted_rows` to `numDeletedRows`."""
    first, *others = name.split("_")
    return first + "".join(other[:1].upper() + other[1:] for other in others)
