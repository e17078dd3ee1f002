"""A table's change feed: `lake.table(…).changes`, as batches and as a stream.

Delta ignores an end version in streams, and its `excludeRegex` leaves out change files too, so that
updates and deletes are lost. Here an end is kept, and change files can't be excluded.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from mirrorlake.delta.commits import read_versions
from mirrorlake.delta.table import TableHandle
from mirrorlake.errors import UsageError
from mirrorlake.feed.changes import (
    ORIGIN,
    End,
    Outside,
    Span,
    bridge,
    key_columns,
    nothing,
    readable_span,
    refusal,
    resolve_span,
)
from mirrorlake.feed.cursor import Cursor
from mirrorlake.feed.doctor import Diagnosis, examine
from mirrorlake.feed.net import net_changes
from mirrorlake.feed.report import FeedReport, report_changes
from mirrorlake.feed.schema import COMMIT_VERSION, enable_feed, read_feed

_ALLOWED = ("allowSourceColumnRename", "allowSourceColumnDrop", "allowSourceColumnTypeChange")


class Changes:
    """What changed in a table, version by version.

    A row of the feed has the table's columns, `_change_type` (insert, update_preimage,
    update_postimage, delete), `_commit_version` and `_commit_timestamp`. Ends of a range are
    versions, or timestamps `yyyy-MM-dd[ HH:mm:ss[.SSS]]` in the session's time zone; both ends
    are included.

    Args:
        table: whose changes.
    """

    def __init__(self, table: TableHandle) -> None:
        self._table = table

    def read(
        self,
        start: End,
        end: End | None = None,
        *,
        across_gaps: bool = False,
        beyond_latest: Outside | None = None,
        before_feed: Outside = "error",
    ) -> DataFrame:
        """All changes of a range.

        Args:
            start: the first version, or a timestamp: the first version from then on.
            end: the last version, or a timestamp: the last version until then. By default the
                newest.
            across_gaps: compare versions where the feed can't be read; each row then names its
                origin in `_change_origin`.
            beyond_latest: `error` or `clip` ends beyond the newest version; by default what
                Spark's `changeDataFeed.timestampOutOfRange.enabled` says.
            before_feed: `error`, or `clip` to start where the readable feed starts.

        Raises:
            FeedError: the feed doesn't hold the whole range; with the way to mend it.
            UsageError: an end is neither version nor timestamp, or the start is after the end.

        Example:
            >>> lake.table("sales").changes.read(3, 5).show()  # doctest: +SKIP
        """
        return self._read(start, end, across_gaps, beyond_latest, before_feed)[0]

    def net(
        self,
        start: End,
        end: End | None = None,
        *,
        keys: Sequence[str] | None = None,
        across_gaps: bool = False,
        beyond_latest: Outside | None = None,
        before_feed: Outside = "error",
    ) -> DataFrame:
        """One outcome for each key over a range: what cancels out is left out.

        Args:
            start: as for `read`, whose errors it shares.
            end: as for `read`.
            keys: the key columns; by default those that the table's publisher declared. Only
                declared keys are relied on to tell all rows apart, which is quicker; the job
                fails where they don't.
            across_gaps: as for `read`.
            beyond_latest: as for `read`.
            before_feed: as for `read`.

        Raises:
            UsageError: no keys are given and none are declared, or one is not in the table.

        Example:
            >>> lake.table("sales").changes.net(3, 5, keys=["id"]).show()  # doctest: +SKIP
        """
        chosen = key_columns(self._table, keys)
        rows, span = self._read(start, end, across_gaps, beyond_latest, before_feed)
        # Declared keys are relied on to tell rows apart; given ones may be any columns.
        unique = range(span.start, span.end + 1) if keys is None else None
        return net_changes(rows.drop(ORIGIN), chosen, unique=unique)

    def _read(
        self, start: End, end: End | None, across: bool, beyond: Outside | None, before: Outside
    ) -> tuple[DataFrame, Span]:
        table = self._table
        timeline = read_versions(table.storage, table.name.table_path)
        if not across:
            span = readable_span(table, timeline, start, end, beyond, before)
            if span.is_empty:
                return nothing(table), span
            return read_feed(table.spark, table.path, span.start, span.end), span
        span = resolve_span(table.spark, timeline, start, end, beyond)
        if span.is_empty:
            return nothing(table).selectExpr("*", f"CAST(NULL AS STRING) AS {ORIGIN}"), span
        found = examine(table, timeline, span.start, span.end, files=True)
        return bridge(table, timeline, found), span

    def stream(
        self,
        start: End | None = None,
        end: End | None = None,
        *,
        max_files: int | None = None,
        max_bytes: str | None = None,
        exclude_regex: str | None = None,
        schema_tracking: str | None = None,
    ) -> DataFrame:
        """The changes as a Structured Streaming source.

        Args:
            start: the first version or timestamp; up to one after the newest. By default the
                newest version's rows come first, as inserts, and then what changes.
            end: the last version or timestamp: later changes are left out. Delta itself ignores an
                end in streams. For `availableNow` triggers; go on from the version after it with a
                new checkpoint, not with the same one.
            max_files: most files in a micro-batch. Changed rows of a version stay in one; a
                version that only inserts may be split between files. `Cursor.for_each` has the
                same limits and splits no version at all.
            max_bytes: about how much a micro-batch reads, such as `"64m"`.
            exclude_regex: data files to leave out, by their paths within the table. Change files
                are never left out.
            schema_tracking: a folder inside the checkpoint's, which lets a stream go on after
                columns were renamed, dropped or widened; it stops there once, and has to be
                started again.

        Raises:
            FeedError: the feed can't be read from there; with what to do.
            UsageError: the ends make no sense.

        Example:
            >>> lake.table("sales").changes.stream(3).writeStream  # doctest: +SKIP
        """
        table = self._table
        reader = table.spark.readStream.format("delta").option("readChangeFeed", "true")
        options = {
            "maxFilesPerTrigger": max_files,
            "maxBytesPerTrigger": max_bytes,
            "excludeRegex": exclude_regex and keep_change_files(exclude_regex),
            "schemaTrackingLocation": schema_tracking,
        }
        if schema_tracking is not None:  # else Delta stops at every start after such a change
            options |= dict.fromkeys(_ALLOWED, "always")
        given = {name: value for name, value in options.items() if value is not None}
        reader = reader.options(**given)
        if start is None:
            if end is not None:
                raise UsageError(
                    "A stream with an end needs a start.",
                    hint="start at version 0, or read the snapshot as a batch: table.read().",
                )
            return reader.load(table.path)
        timeline = read_versions(table.storage, table.name.table_path)
        latest = timeline.latest
        # One after the latest is what a consumer that has read everything goes on from.
        from_now = str(start) == str(latest + 1)
        span = resolve_span(table.spark, timeline, latest if from_now else start, end, None)
        first = span.start + from_now
        found = examine(table, timeline, span.start, latest, files=False)
        passable = {"schema"} if schema_tracking else set()
        if any(finding.rule not in passable for finding in found.blocking):
            raise refusal(found)
        # Delta refuses to start after the latest version, and to go on from a checkpoint with
        # another start than it was made with: so it starts one before; that version is pruned.
        before = max(first - 1, timeline.first)
        if before < first and examine(table, timeline, before, before, files=False).blocking:
            before = first
        rows = reader.option("startingVersion", before).load(table.path)
        if before < first:
            rows = rows.where(F.col(COMMIT_VERSION) >= first)
        return rows if end is None else rows.where(F.col(COMMIT_VERSION) <= span.end)

    def cursor(self, consumer: str, *, start: int = 0) -> Cursor:
        """A consumer's place in the feed, kept in the lake.

        Args:
            consumer: its name.
            start: the first version that it reads, if it has no place yet.

        Example:
            >>> lake.table("sales").changes.cursor("billing").lag()  # doctest: +SKIP
        """
        return Cursor(self._table, consumer, start=start)

    def enable(self, *, rename_reserved: bool = False) -> int:
        """Switches the feed on.

        Args:
            rename_reserved: rename columns whose names the feed needs for itself.

        Returns:
            The first version whose changes can be read.

        Raises:
            FeedError: a column has a reserved name.

        Example:
            >>> lake.table("sales").changes.enable()  # doctest: +SKIP
            7
        """
        return enable_feed(self._table, rename_reserved=rename_reserved)

    def diagnose(self, start: int | None = None, end: int | None = None) -> Diagnosis:
        """What stands in the way of reading the feed, and the ranges that can be read.

        Args:
            start: the first version asked about; by default the oldest there ever was.
            end: the last version asked about; by default the newest.

        Example:
            >>> lake.table("sales").changes.diagnose().readable  # doctest: +SKIP
            [(0, 7)]
        """
        table = self._table
        timeline = read_versions(table.storage, table.name.table_path)
        last = timeline.latest if end is None else min(end, timeline.latest)
        return examine(table, timeline, start or 0, last, files=True)

    def report(
        self,
        start: str = "",
        end: str = "",
        *,
        newest: int = 100,
        keys: Sequence[str] = (),
        where: str = "",
        across_gaps: bool = False,
    ) -> FeedReport:
        """A range to be looked at: findings, changes by version and kind, one key's history.

        Unlike `read` it refuses nothing that it can show in part.

        Args:
            start: the first version, or a timestamp; empty for the newest versions.
            end: the last version, or a timestamp; empty for the newest.
            newest: how many versions to look at without a start.
            keys: as for `net`.
            where: only changed rows of this predicate, old or new.
            across_gaps: as for `read`.

        Raises:
            FeedError: an end beyond the newest version.
            UsageError: the ends make no sense, or a key is no column.
            QueryError: Spark refuses the predicate.

        Example:
            >>> lake.table("sales").changes.report(where="id = 7").timeline  # doctest: +SKIP
        """
        return report_changes(
            self._table, start, end, newest, keys=keys, where=where, across_gaps=across_gaps
        )


def keep_change_files(regex: str) -> str:
    """A regular expression that finds what another finds, but never in a change file's path.

    Change files have a folder of their own, but under column mapping only a name.

    Example:
        >>> import re
        >>> guarded = keep_change_files("parquet")
        >>> paths = ("a.parquet", "_change_data/cdc-0.parquet", "xY/cdc-0.parquet")
        >>> [bool(re.search(guarded, path)) for path in paths]
        [True, False, False]
    """
    return rf"^(?!(?:.*/)?(?:_change_data/|cdc-[^/]*$))(?=.*(?:{regex}))"
