"""A consumer's place in a feed: what it has read, what is new, how far it is behind.

The place is a version of the table. Versions only grow, a RESTORE makes one more, so a place stays
good; a table that was dropped and made again is noticed. A consumer reads, does its work, and then
commits; killed in between, it reads the same again. At the end: what a run of an archive or of a
dimension starts with, and tells of itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame

from mirrorlake.delta.commits import Timeline, read_commit, read_versions
from mirrorlake.delta.table import TableHandle
from mirrorlake.errors import FeedError
from mirrorlake.feed.changes import Span, nothing, readable_span
from mirrorlake.feed.schema import enable_feed, read_feed
from mirrorlake.names import STATE, TableName, as_table, check_part
from mirrorlake.results import Result, TextTable
from mirrorlake.storage.kept import read_kept

FORMAT = 1
_NO_ROWS = TextTable((), ())


@dataclass(frozen=True)
class Lag:
    """How far a consumer is behind.

    Attributes:
        versions: commits not yet consumed.
        seconds: age of the oldest of them; 0 if there is none.
    """

    versions: int
    seconds: float


@dataclass(frozen=True)
class Batch(Span):
    """Whole versions of a feed; empty if none is new, one without changes is.

    Attributes:
        start: the first version.
        end: the last version, the place to commit.
        rows: their changes.
    """

    rows: DataFrame

    def __repr__(self) -> str:
        return "nothing new" if self.is_empty else f"versions {self.start} to {self.end}"


class Cursor:
    """A named consumer's place in one table's feed.

    Args:
        table: the table.
        consumer: the consumer's name, one of its own for each.
        start: the version to begin with when the consumer has no place yet.

    Raises:
        InvalidNameError: a name that can't be a file's.
    """

    def __init__(self, table: TableHandle, consumer: str, *, start: int = 0) -> None:
        check_part(consumer)
        self.table = table
        self.consumer = consumer
        self._start = start
        self._path = f"{consumer_folder(table.name)}/{consumer}.json"

    def __repr__(self) -> str:
        lag = self.lag
        return f"{self.consumer}: at version {self.position}, {lag.versions} behind"

    @property
    def position(self) -> int:
        """The last consumed version; the one before the start if nothing was consumed yet.

        Raises:
            FeedError: the place belongs to another table of the same name.
            FormatError: it is of a newer format.
        """
        kept = read_kept(self.table.storage, self._path, FORMAT)
        if kept is None:
            return self._start - 1
        if kept["table_id"] != table_id(self.table):
            raise FeedError(
                f"The table {self.table.name} was made again since {self.consumer} read it.",
                hint="take its rows anew, then cursor.move(version).",
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
    ) -> Batch:
        """The changes since the place; an empty batch if there are none.

        Args:
            end: the last version to read, if it is there already.
            max_files: most files to read; a version is never split, and one is always taken.
            max_bytes: most bytes to read, likewise.

        Raises:
            FeedError: the feed no longer holds what follows the place; with what to do.
        """
        table = self.table
        timeline = read_versions(table.storage, table.name.table_path)
        start = self.position + 1
        last = timeline.latest if end is None else min(end, timeline.latest)
        if start > last:
            return Batch(start, last, nothing(table))
        if max_files is not None or max_bytes is not None:
            last = self._bounded(start, last, max_files, max_bytes)
        span = readable_span(table, timeline, start, last)
        return Batch(span.start, span.end, read_feed(table.spark, table.path, span.start, span.end))

    def commit(self, batch: Batch) -> None:
        """Says that a batch's work is done."""
        if not batch.is_empty:
            self.move(batch.end)

    def move(self, version: int) -> None:
        """Sets the place: what follows this version is new.

        Raises:
            FormatError: the place is of a newer format.
        """
        with suppress(ValueError, TypeError):  # what is broken may be replaced
            read_kept(self.table.storage, self._path, FORMAT)
        document = {"format": FORMAT, "table_id": table_id(self.table), "version": version}
        self.table.storage.write_json(self._path, document)

    def for_each(
        self,
        work: Callable[[Batch], None],
        *,
        end: int | None = None,
        max_files: int | None = None,
        max_bytes: int | None = None,
    ) -> int:
        """Reads, works and commits until nothing is new.

        Args:
            work: is called with each batch; must stand being called twice with the same one.
            end: the last version to read.
            max_files: most files a batch.
            max_bytes: most bytes a batch.

        Returns:
            How many batches there were.
        """
        count = 0
        while not (batch := self.read(end=end, max_files=max_files, max_bytes=max_bytes)).is_empty:
            work(batch)
            self.commit(batch)
            count += 1
        return count

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


def consumer_folder(name: TableName) -> str:
    """Where the places of a table's consumers lie, relative to the lake's root."""
    return f"{STATE}/feeds/{name.place}"


def table_id(table: TableHandle) -> str:
    """What tells a table from another one made in its place."""
    return str(table.snapshot().metadata["id"])


def lag_of(timeline: Timeline, position: int) -> Lag:
    """How far a place is behind the latest version."""
    new = [v for v in timeline.versions if v > position]
    if not new:
        return Lag(0, 0.0)
    age = time.time() - timeline.time(new[0]) / 1000
    return Lag(timeline.latest - position, round(max(0.0, age), 3))


@dataclass(frozen=True)
class FollowReport(Result):
    """What became of an archive or a dimension.

    Attributes:
        table: whose feed.
        into: the archive or dimension.
        did: what the run did, or would do, in words.
        why_not: why nothing was done; empty if something was, or nothing was new.
        facts: figures by name, in order.
        details: of an archive its newest versions, of a dimension its keys with most periods.
        periods: of a type 2 dimension those keys' periods: first version, and the version that
            ended it or None.
        newest: the newest version of the table.
    """

    table: str
    into: str
    did: str = ""
    why_not: str = ""
    facts: dict[str, int] = field(default_factory=dict)
    details: TextTable = _NO_ROWS
    periods: dict[str, tuple[tuple[int, int | None], ...]] = field(default_factory=dict)
    newest: int = 0

    def shown(self) -> TextTable:
        """What was done, and the figures."""
        rows: list[tuple[Any, ...]] = [("table", self.table), ("into", self.into)]
        rows.append(("why nothing was done", self.why_not) if self.why_not else ("done", self.did))
        rows += [(name, f"{value:,}") for name, value in self.facts.items()]
        return TextTable(("what", "value"), tuple(rows))

    def __repr__(self) -> str:
        return f"{self.table} → {self.into}: {self.why_not or self.did}"


def report_run(table: TableHandle, into: TableName, did: str = "", **found: Any) -> FollowReport:
    """What a run did for an archive or dimension `into` of a table; `found` are more attributes."""
    return FollowReport(str(table.name), str(into), did, newest=table.snapshot().version, **found)


def follow_or_why_not(table: TableHandle, *, enable: bool) -> str:
    """Why a table's feed can't be followed; empty if it is on, or `enable` has switched it on."""
    if table.snapshot().has_feed:
        return ""
    if enable:
        enable_feed(table)
        return ""
    return (
        f"The change feed of {table.name} is off: there is nothing to follow. Set enable_feed to"
        " switch it on; changes are recorded from then on."
    )


def target_name(table: TableHandle, into: str, pattern: str) -> TableName:
    """The name of an archive or dimension; by default the table's own, put into a pattern."""
    if into.strip():
        return as_table(into.strip())
    return TableName(table.name.schema, pattern.format(table.name.name))
