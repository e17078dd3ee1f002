"""A table's commits as its log holds them, without Spark: numbers, moments, what was done.

Everything here looks at single files by their names, so the cost is what is asked for, or the
logarithm of the log, and never its length.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from mirrorlake.delta.timestamps import from_milliseconds, to_milliseconds
from mirrorlake.delta_log import find_newest, read_commit_info
from mirrorlake.storage import Storage
from mirrorlake.text_table import TextTable, html_table

_MILLISECOND = timedelta(milliseconds=1)
_CLOCKS = 5  # versions to look back for a clock that was set back
_DEFAULT_INTERVAL = 10  # versions between two checkpoints


@dataclass(frozen=True)
class Commit:
    """One version.

    Attributes:
        version: counted from 0.
        timestamp: when, UTC; always later than the version before, whatever the clocks said.
        operation: what was done, in Delta's words.
        parameters: with what.
        metrics: how much of it, as Delta counts it: name to number.
        note: what the writer added as `userMetadata`, or None.
    """

    version: int
    timestamp: datetime
    operation: str
    parameters: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)
    note: str | None = None


@dataclass(frozen=True)
class History:
    """Versions, newest first.

    Attributes:
        more: whether the log holds older ones that were not asked for.
    """

    commits: tuple[Commit, ...]
    more: bool = False

    def shown(self) -> TextTable:
        """One row a version, without its moment, which changes from run to run."""
        rows = tuple(
            (commit.version, commit.operation, _short(commit.parameters), _short(commit.metrics))
            for commit in self.commits
        )
        return TextTable(("version", "operation", "parameters", "metrics"), rows, more=self.more)

    def with_moments(self) -> TextTable:
        """The same, with when each version was made."""
        shown = self.shown()
        moments = [f"{commit.timestamp:%Y-%m-%d %H:%M:%S}" for commit in self.commits]
        rows = tuple(
            (row[0], moment, *row[1:]) for row, moment in zip(shown.rows, moments, strict=True)
        )
        return TextTable(("version", "made (UTC)", *shown.columns[1:]), rows, more=self.more)

    def as_dict(self) -> dict[str, Any]:
        """The document that `history --json` prints."""
        columns = ("version", "timestamp", "operation", "parameters", "metrics", "note")
        rows = [
            {name: getattr(commit, name) for name in columns}
            | {"timestamp": commit.timestamp.isoformat(timespec="milliseconds")}
            for commit in self.commits
        ]
        return {"columns": list(columns), "rows": rows}

    def __repr__(self) -> str:
        return repr(self.shown())

    def _repr_html_(self) -> str:
        return html_table(self.shown())


class CommitLog:
    """Looks into one table's log.

    Args:
        storage: the lake's files.
        table_path: the table's folder, relative to the lake's root.
    """

    def __init__(self, storage: Storage, table_path: str) -> None:
        self.storage = storage
        self.table_path = table_path

    def name(self, version: int) -> str:
        """The path of one commit's file."""
        return f"{self.table_path}/_delta_log/{version:020d}.json"

    def newest(self) -> int:
        """The newest version, or -1 if there is no table."""
        found = find_newest(self.storage, self.table_path)
        return -1 if found is None else found

    def earliest(self, newest: int) -> int:
        """The first version whose commit the log still holds; old ones are cut off at the front."""
        if self.storage.exists(self.name(0)):
            return 0
        low, high = 0, newest  # low is missing, high is there
        while high - low > 1:
            middle = (low + high) // 2
            if self.storage.exists(self.name(middle)):
                high = middle
            else:
                low = middle
        return high

    def first_readable(self, newest: int, interval: int = _DEFAULT_INTERVAL) -> int:
        """The first version that the log can still put together: a checkpoint, or version 0.

        Args:
            newest: the newest version.
            interval: the table's versions between two checkpoints.
        """
        first = self.earliest(newest)
        if first == 0:
            return 0
        # The clean-up cuts in front of a checkpoint: it is nearly always the very first look.
        for version in range(first, min(first + interval, newest) + 1):
            if self.storage.exists(
                f"{self.table_path}/_delta_log/{version:020d}.checkpoint.parquet"
            ):
                return version
        names = [entry.name for entry in self.storage.list(f"{self.table_path}/_delta_log").files]
        marks = [
            int(name[:20]) for name in names if ".checkpoint." in name and name[:20].isdecimal()
        ]
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
        entry = self.storage.stat(self.name(version))
        if entry is None:
            return None
        return from_milliseconds(to_milliseconds(entry.modified))

    def first_since(self, moment: datetime, earliest: int, newest: int) -> int:
        """The first version made at a moment or later, or the newest if all are older."""
        low, high = earliest - 1, newest
        while high - low > 1:
            middle = (low + high) // 2
            made = self.raw_timestamp(middle)
            if made is not None and made >= moment:
                high = middle
            else:
                low = middle
        return high

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
            commits.append(_commit(version, made, info))
        last = commits[0].version if commits else 0
        more = last > 0 and self.storage.exists(self.name(last - 1))
        return History(tuple(reversed(commits)), more)


def _commit(version: int, made: datetime, info: dict[str, Any]) -> Commit:
    return Commit(
        version=version,
        timestamp=made,
        operation=str(info.get("operation", "unknown")),
        parameters=dict(info.get("operationParameters") or {}),
        metrics={k: _number(v) for k, v in (info.get("operationMetrics") or {}).items()},
        note=info.get("userMetadata"),
    )


def _number(text: Any) -> Any:
    return int(text) if isinstance(text, str) and text.isdecimal() else text


def _short(values: dict[str, Any]) -> str:
    kept = {k: v for k, v in values.items() if v not in (None, "", "[]", 0) and "Time" not in k}
    text = ", ".join(
        f"{k} {v if isinstance(v, (str, int)) else json.dumps(v)}" for k, v in kept.items()
    )
    return text if len(text) <= 80 else f"{text[:79]}…"
