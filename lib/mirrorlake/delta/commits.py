"""A table's commits as its log holds them, without Spark: numbers, timestamps, what was done.

Source: the Delta transaction log protocol.
"""

from __future__ import annotations

import bisect
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from mirrorlake.delta.commit_figures import RowsChanged, describe_commit, rows_changed
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
from mirrorlake.results import Result, TextTable
from mirrorlake.storage.files import Storage

if TYPE_CHECKING:
    import pandas as pd

    from mirrorlake.show.chart import Chart

_MILLISECOND = timedelta(milliseconds=1)
_MOST_BARS, _MOST_LABELS = 40, 20
_CLOCKS = 5  # versions to look back for a clock that was set back
_DEFAULT_INTERVAL = 10  # versions between two checkpoints
_KINDS = ("commitInfo", "metaData")
_FILE_KINDS = ("add", "remove", "cdc")


@dataclass(frozen=True)
class Commit:
    """One commit.

    Attributes:
        version: counted from 0.
        timestamp: when, UTC; always later than the version before, whatever the clocks said. None
            where only the commit itself was read.
        operation: what was done, in Delta's words: `UPDATE` for example.
        parameters: with what.
        metrics: how much of it, as Delta counts it: name to number.
        note: what the writer added as `userMetadata`, or None.
        metadata: the table's metadata if this commit wrote them.
        files: paths of what its changes are read from, relative to the table; only if asked for.
        size: bytes of those files, as far as the log knows.
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
        """How many rows it inserted, updated and deleted, where its writer said so."""
        return rows_changed(self.operation, self.metrics)

    @property
    def description(self) -> str:
        """What the operation did, in a few words; empty if its name says it all."""
        return describe_commit(self.operation, self.parameters, self.metrics, self.note)


@dataclass(frozen=True)
class History(Result):
    """Versions, newest first.

    Attributes:
        more: whether the log holds older ones that were not asked for.
    """

    commits: tuple[Commit, ...]
    more: bool = False

    def shown(self) -> TextTable:
        """One row a version: when it was made, by what, and how many rows that changed."""
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

    def plot(self) -> Chart | None:
        """Draw the rows that each version inserted, updated and deleted.

        Returns:
            A chart of the newest 40 versions at most; None if no version records such rows.
        """
        from mirrorlake.show.plots import plot_stacks

        commits = self.commits[:_MOST_BARS][::-1]
        series = {
            kind: [getattr(commit.rows, kind) or 0 for commit in commits]
            for kind in ("inserted", "updated", "deleted")
            if any(getattr(commit.rows, kind) for commit in commits)
        }
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
        """The document that `history --json` prints."""
        columns = ("version", "timestamp", "operation", "parameters", "metrics", "note")
        rows = [{name: getattr(commit, name) for name in columns} for commit in self.commits]
        for row in rows:
            row["timestamp"] = row["timestamp"].isoformat(timespec="milliseconds")
        return {"columns": list(columns), "rows": rows}

    def __repr__(self) -> str:
        return repr(self.shown())


@dataclass(frozen=True)
class Timeline:
    """The versions that the log still holds, and when each was committed.

    Attributes:
        first: the oldest version whose changes can still be read.
        versions: all that have a commit file.
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
        """A version's timestamp, milliseconds since 1970."""
        return self.times[self.versions.index(version)]

    def at_or_after(self, moment: int) -> int:
        """The first version committed then or later; the one after the latest if there is none."""
        return self.versions.start + bisect.bisect_left(self.times, moment)

    def at_or_before(self, moment: int) -> int:
        """The last version committed then or earlier; the one before the oldest if none is."""
        return self.versions.start + bisect.bisect_right(self.times, moment) - 1


@dataclass(kw_only=True)
class State(Snapshot):
    """A version of a table: the metadata that hold after its commit, and the commit."""

    commit: Commit

    @property
    def incarnation(self) -> str | None:
        """Which incarnation of its folder a mirrored table was filled from; None of others'."""
        return parse_note(self.commit.note).get("incarnation")


class CommitLog:
    """Looks into one table's log.

    It looks at single files by their names, so the cost is what is asked for, or the logarithm of
    the log, and never its length.

    Args:
        storage: the lake's files.
        table_path: the table's folder, relative to the lake's root.
    """

    def __init__(self, storage: Storage, table_path: str) -> None:
        self.storage = storage
        self.table_path = table_path

    def has(self, version: int) -> bool:
        """Whether the log holds a commit."""
        return self.storage.exists(commit_path(self.table_path, version))

    def newest(self) -> int:
        """The newest version, or -1 if there is no table."""
        found = find_newest(self.storage, self.table_path)
        return -1 if found is None else found

    def earliest(self, newest: int) -> int:
        """The first version whose commit the log still holds; old ones are cut off at the front."""
        return 0 if self.has(0) else _first(0, newest, self.has)

    def first_readable(self, newest: int, interval: int = _DEFAULT_INTERVAL) -> int:
        """The first version that the log can still put together: a checkpoint, or version 0.

        Args:
            newest: the newest version.
            interval: the table's versions between two checkpoints.
        """
        first = self.earliest(newest)
        if first == 0:
            return 0
        log = f"{self.table_path}/_delta_log"
        # The clean-up cuts in front of a checkpoint: it is nearly always the very first look.
        for version in range(first, min(first + interval, newest) + 1):
            if self.storage.exists(f"{log}/{version:020d}.checkpoint.parquet"):
                return version
        marks = list_log(self.storage, self.table_path).checkpoints
        return min((mark for mark in marks if mark >= first), default=newest)

    def raw_timestamp(self, version: int) -> datetime | None:
        """When a commit says it was made, UTC; None if the log no longer holds it."""
        return self._timestamp(version, read_commit_info(self.storage, self.table_path, version))

    def timestamp(self, version: int) -> datetime | None:
        """When a version was made, UTC, and later than those just before it."""
        around = self.read(version, _CLOCKS).commits
        return around[0].timestamp if around else None

    def _timestamp(self, version: int, info: dict[str, Any]) -> datetime | None:
        if (own := info.get("inCommitTimestamp")) is not None:
            return from_milliseconds(int(own))
        entry = self.storage.stat(commit_path(self.table_path, version))
        return None if entry is None else from_milliseconds(to_milliseconds(entry.modified))

    def first_since(self, moment: datetime, earliest: int, newest: int) -> int:
        """The first version made at a moment or later, or the newest if all are older."""

        def is_since(version: int) -> bool:
            made = self.raw_timestamp(version)
            return made is not None and made >= moment

        return _first(earliest - 1, newest, is_since)

    def read(self, newest: int, limit: int) -> History:
        """The newest versions down from one, at most `limit` of them."""
        found: list[tuple[int, datetime, dict[str, Any]]] = []
        for version in range(newest, max(-1, newest - limit), -1):
            info = read_commit_info(self.storage, self.table_path, version)
            made = self._timestamp(version, info)
            if made is None:  # the log is cut off here
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
    """The newest version's number, or None if there is no table.

    Reads no commit: it leaps ahead from the last checkpoint and halves the last leap, so the cost
    is the logarithm of the commits since then.
    """

    def is_gone(version: int) -> bool:
        return not storage.exists(commit_path(table_path, version))

    low, _ = find_checkpoint(storage, table_path)
    leap = 1
    while not is_gone(low + leap):
        low, leap = low + leap, leap * 2
    found = _first(low, low + leap, is_gone) - 1
    return found if found >= 0 else None


def versions(storage: Storage, table_path: str) -> list[int]:
    """The versions whose commits the log still has, rising."""
    return list(list_log(storage, table_path).commits)


def read_versions(storage: Storage, table_path: str) -> Timeline:
    """The table's versions and timestamps, by a listing of its log.

    Where timestamps are in the commits, each is opened.

    Args:
        storage: the lake's files.
        table_path: the table's folder; it holds a table.
    """
    log = list_log(storage, table_path)
    oldest = latest = max(log.commits)
    while oldest - 1 in log.commits:  # what lies before a hole in the numbers can't be replayed
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
        # Delta moves a commit that seems to be older than the one before it.
        times.append(max(moment, times[-1] + 1) if times else moment)
    return Timeline(first, held, tuple(times))


def read_commit_info(storage: Storage, table_path: str, version: int) -> dict[str, Any]:
    """The `commitInfo` of one version; empty if the log no longer holds it."""
    try:
        commit = storage.open(commit_path(table_path, version))
    except FileNotFoundError:
        return {}
    with commit:  # it comes first, before perhaps a million files
        return next((info for _, info in parse_actions(commit, ("commitInfo",))), {})


def parse_note(text: str | None) -> dict[str, Any]:
    """A commit's `userMetadata` where it is a JSON object; empty for other people's."""
    try:
        note = json.loads(text or "{}")
    except ValueError:
        return {}
    return note if isinstance(note, dict) else {}


def read_commit(storage: Storage, table_path: str, version: int, *, files: bool = False) -> Commit:
    """One commit.

    Args:
        storage: the lake's files.
        table_path: the table's folder.
        version: which; the log holds it.
        files: read also which files its changes come from.
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
        yield State(version, metadata, commit=commit)


def _first(low: int, high: int, is_so: Callable[[int], bool]) -> int:
    """The first version after `low` of which something is so, by halves; `high` at the latest."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_so(middle) else (middle, high)
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
