"""A consumer's place in a feed: what it has read, what is new, how far it is behind.

The place is a version of the table. Versions only grow, a RESTORE makes one more, so a place stays
good; a table that was dropped and made again is noticed. A consumer reads, does its work, and then
commits; killed in between, it reads the same again. The last part is what archives and dimensions
share: the name of the target, and the report of a run.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from pyspark.sql import DataFrame

from mirrorlake.delta.commits import Timeline, read_commit, read_versions
from mirrorlake.delta.table import TableHandle
from mirrorlake.errors import FeedError
from mirrorlake.feed.ranges import Span, nothing, read_feed, readable_span
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
class FeedBatch(Span):
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
    ) -> FeedBatch:
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
            return FeedBatch(start, last, nothing(table))
        if max_files is not None or max_bytes is not None:
            last = self._bounded(start, last, max_files, max_bytes)
        span = readable_span(table, timeline, start, last)
        return FeedBatch(
            span.start, span.end, read_feed(table.spark, table.path, span.start, span.end)
        )

    def commit(self, batch: FeedBatch) -> None:
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
        work: Callable[[FeedBatch], None],
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
class Figures:
    """What an archive or a dimension contains.

    Attributes:
        facts: figures by name, in order.
        details: the newest versions of an archive; the keys of a dimension with most periods.
        periods: the periods of these keys in a type 2 dimension: the first version of each, and
            the version that ended it or None.
    """

    facts: dict[str, int] = field(default_factory=dict)
    details: TextTable = _NO_ROWS
    periods: dict[str, tuple[tuple[int, int | None], ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class FollowReport(Result):
    """What a run of an archive or a dimension did.

    `facts` and `details` are read from the archive or dimension when they are first asked for.

    Attributes:
        table: the table whose changes were taken.
        into: the archive or dimension.
        did: what the run did, or would do, in words.
        why_not: why nothing was done; empty if something was done, or nothing was new.
        applied: False after a dry run.
        look: reads the figures.
    """

    table: str
    into: str
    did: str = ""
    why_not: str = ""
    applied: bool = True
    look: Callable[[], Figures] = field(default=Figures, compare=False)

    @cached_property
    def figures(self) -> Figures:
        """The contents of the archive or dimension, read once."""
        return self.look()

    @property
    def facts(self) -> dict[str, int]:
        """Figures by name, in order."""
        return self.figures.facts

    @property
    def details(self) -> TextTable:
        """The newest versions of an archive, or the keys of a dimension with most periods."""
        return self.figures.details

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
    """Return the name of an archive or dimension; by default the table's, put into a pattern."""
    if into.strip():
        return as_table(into.strip())
    return TableName(table.name.schema, pattern.format(table.name.name))
