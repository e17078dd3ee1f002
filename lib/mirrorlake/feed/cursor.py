"""Track a consumer's position in a change feed, its unread changes and its lag.

The position is a version of the table. Versions only increase (RESTORE adds one), so a position
stays valid; a table that was dropped and recreated is detected. A consumer reads a batch, processes
it and commits. If it is interrupted in between, it reads the same batch again.

Archives and dimensions share the last part of this module: the name of the target, what it
contains, and the report of a run.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from pyspark.sql import DataFrame

from mirrorlake.delta.commits import Timeline, read_commit, read_commit_info, read_versions
from mirrorlake.delta.snapshot import open_snapshot
from mirrorlake.delta.table import TableHandle
from mirrorlake.errors import CheckError, FeedError
from mirrorlake.feed.ranges import Span, empty_feed, read_unread
from mirrorlake.names import TableName, check_part
from mirrorlake.query.catalog import Catalog
from mirrorlake.results import Result, TextTable
from mirrorlake.spark.older import to_arrow
from mirrorlake.storage.files import Storage
from mirrorlake.storage.kept import read_kept

FORMAT = 1
_NO_ROWS = TextTable((), ())


@dataclass(frozen=True)
class Lag:
    """How far a consumer is behind.

    Attributes:
        versions: the number of versions that are not yet consumed.
        seconds: the age of the oldest of them in seconds; 0 if there is none.
    """

    versions: int
    seconds: float


@dataclass(frozen=True)
class FeedBatch(Span):
    """The changes of a range of complete versions; empty if no version is new.

    A batch of versions without changes is not empty.

    Attributes:
        start: the first version.
        end: the last version; committing the batch moves the cursor there.
        rows: the changes.
    """

    rows: DataFrame

    def __repr__(self) -> str:
        return "nothing new" if self.is_empty else f"versions {self.start} to {self.end}"


class Cursor:
    """The position of a named consumer in a table's change feed.

    Args:
        table: the table.
        consumer: the consumer's name, unique among the table's consumers.
        start: the first version to read if the consumer has no position yet.

    Raises:
        InvalidNameError: the name is not valid as a file name.
    """

    def __init__(self, table: TableHandle, consumer: str, *, start: int = 0) -> None:
        check_part(consumer)
        self.table = table
        self.consumer = consumer
        self._start = start
        self._path = f"{table.name.feeds_path}/{consumer}.json"

    def __repr__(self) -> str:
        lag = self.lag
        return f"{self.consumer}: at version {self.position}, {lag.versions} behind"

    @property
    def position(self) -> int:
        """The last consumed version; the version before `start` if nothing is consumed yet.

        Raises:
            FeedError: the position belongs to an earlier table of the same name.
            FormatError: the stored position has a newer format.
        """
        kept = read_kept(self.table.storage, self._path, FORMAT)
        if kept is None:
            return self._start - 1
        if kept["table_id"] != table_id(self.table):
            raise FeedError(
                f"The table {self.table.name} was recreated since {self.consumer} last read it.",
                hint="process the table's rows again, then call cursor.move(version).",
            )
        return int(kept["version"])

    @property
    def lag(self) -> Lag:
        """How far the consumer is behind."""
        return lag_of(read_versions(self.table.storage, self.table.name.table_path), self.position)

    def read(
        self,
        *,
        end: int | None = None,
        max_files: int | None = None,
        max_bytes: int | None = None,
    ) -> FeedBatch:
        """Return the changes since the position; an empty batch if there are none.

        Args:
            end: the last version to read, if it exists already.
            max_files: the most files to read. A version is never split, and at least one is read.
            max_bytes: the most bytes to read, likewise.

        Raises:
            FeedError: the feed no longer contains the next version; the hint names a fix.

        Example:
            >>> lake.table("sales").changes.cursor("billing").read().rows.show()  # doctest: +SKIP
        """
        table = self.table
        timeline = read_versions(table.storage, table.name.table_path)
        start = self.position + 1
        last = timeline.latest if end is None else min(end, timeline.latest)
        if start > last:
            return FeedBatch(start, last, empty_feed(table))
        if max_files is not None or max_bytes is not None:
            last = self._bounded(start, last, max_files, max_bytes)
        return FeedBatch(start, last, read_unread(table, timeline, start, last))

    def commit(self, batch: FeedBatch) -> None:
        """Move the position to the end of a batch."""
        if not batch.is_empty:
            self.move(batch.end)

    def move(self, version: int) -> None:
        """Set the position to a version; the next read starts after it.

        Args:
            version: the last version that counts as consumed.

        Raises:
            FormatError: the stored position has a newer format.
        """
        with suppress(ValueError, TypeError):  # a broken position may be overwritten
            read_kept(self.table.storage, self._path, FORMAT)
        self.table.storage.write_json(self._path, self._document(version))

    def for_each(
        self,
        work: Callable[[FeedBatch], None],
        *,
        end: int | None = None,
        max_files: int | None = None,
        max_bytes: int | None = None,
    ) -> int:
        """Read, process and commit batches until nothing is new.

        Args:
            work: called with each batch; it must be idempotent, because a batch can come twice.
            end: the last version to read.
            max_files: the most files per batch.
            max_bytes: the most bytes per batch.

        Returns:
            The number of batches.

        Example:
            >>> lake.table("sales").changes.cursor("billing").for_each(print)  # doctest: +SKIP
            versions 3 to 5
            1
        """
        count = 0
        while not (batch := self.read(end=end, max_files=max_files, max_bytes=max_bytes)).is_empty:
            work(batch)
            self.commit(batch)
            count += 1
        return count

    def _document(self, version: int) -> dict[str, Any]:
        return {"format": FORMAT, "table_id": table_id(self.table), "version": version}

    def _bounded(self, start: int, last: int, max_files: int | None, max_bytes: int | None) -> int:
        files = size = 0
        path = self.table.name.table_path
        for version in range(start, last + 1):
            commit = read_commit(self.table.storage, path, version, files=True)
            files, size = files + len(commit.files), size + commit.size
            too_many = max_files is not None and files > max_files
            too_large = max_bytes is not None and size > max_bytes
            if version > start and (too_many or too_large):
                return version - 1
        return last


def table_id(table: TableHandle) -> str:
    """Return Delta's id of a table, which changes when the table is recreated."""
    return str(table.snapshot().metadata["id"])


def lag_of(timeline: Timeline, position: int) -> Lag:
    """Return how far a position is behind the newest version."""
    new = [v for v in timeline.versions if v > position]
    if not new:
        return Lag(0, 0.0)
    age = time.time() - timeline.time(new[0]) / 1000
    return Lag(timeline.latest - position, round(max(0.0, age), 3))


@dataclass(frozen=True)
class Figures:
    """The contents of an archive or a dimension.

    Attributes:
        facts: figures by name, in order.
        details: the newest versions of an archive, or the keys of a dimension with most periods.
        periods: the periods of these keys in a type 2 dimension: the first version of each, and the
            version that ended it or None.
    """

    facts: dict[str, int] = field(default_factory=dict)
    details: TextTable = _NO_ROWS
    periods: dict[str, tuple[tuple[int, int | None], ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class FollowReport(Result):
    """The result of a run of an archive or a dimension.

    `facts` and `details` are read from the archive or dimension on first access.

    Attributes:
        table: the table whose changes were read.
        into: the archive or dimension.
        did: what the run did, or would do, in words.
        why_not: why nothing was done; empty if something was done, or nothing was new.
        applied: False after a dry run.
        read_figures: reads the figures.
    """

    table: str
    into: str
    did: str = ""
    why_not: str = ""
    applied: bool = True
    read_figures: Callable[[], Figures] = field(default=Figures, compare=False)

    @cached_property
    def figures(self) -> Figures:
        """The contents of the archive or dimension, read once."""
        return self.read_figures()

    @property
    def facts(self) -> dict[str, int]:
        """Figures by name, in order."""
        return self.figures.facts

    @property
    def details(self) -> TextTable:
        """The newest versions of an archive, or the keys of a dimension with the most periods."""
        return self.figures.details

    def check(self) -> None:
        """Raise an error if nothing could be done.

        Raises:
            CheckError: with the reason.
        """
        if self.why_not:
            raise CheckError(self.why_not)

    def shown(self) -> TextTable:
        """Return what was done, and the figures."""
        rows: list[tuple[Any, ...]] = [("table", self.table), ("into", self.into)]
        rows.append(("why nothing was done", self.why_not) if self.why_not else ("done", self.did))
        rows += [(name, f"{value:,}") for name, value in self.facts.items()]
        return TextTable(("what", "value"), tuple(rows))

    def __repr__(self) -> str:
        return f"{self.table} → {self.into}: {self.why_not or self.did}"


def feed_error(table: TableHandle) -> FeedError | None:
    """Return the error to raise if a table's change feed is off, or None if it is on."""
    if table.snapshot().has_feed:
        return None
    return FeedError(
        f"The change feed of {table.name} is off.",
        hint="enable it with table.changes.enable(); changes are recorded from then on.",
    )


def target_name(table: TableHandle, into: str, pattern: str) -> TableName:
    """Return the name of an archive or dimension; by default the pattern with the table's."""
    if into.strip():
        return Catalog(table.storage).existing_or_new(into.strip())
    return TableName(table.name.schema, pattern.format(table.name.name))


def newest_in(target: TableHandle, version: str) -> int:
    """Return the newest version that an archive or dimension contains; -1 if it has no rows.

    Args:
        target: the archive or dimension.
        version: the SQL expression of a row's version.
    """
    (row,) = to_arrow(target.rows().selectExpr(f"max({version}) AS v")).to_pylist()
    return -1 if row["v"] is None else int(row["v"])


def is_restored(storage: Storage, target: TableName, kept: dict[str, Any]) -> bool:
    """Return whether an archive or dimension was restored since its last run ended."""
    newest = open_snapshot(storage, target).version
    since = range(kept.get("target_version", newest) + 1, newest + 1)
    infos = (read_commit_info(storage, target.table_path, version) for version in since)
    return any(info.get("operation") == "RESTORE" for info in infos)
