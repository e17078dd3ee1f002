"""A table's change feed: `lake.table(…).changes`."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame

from mirrorlake.delta.table import Table
from mirrorlake.feed.changes import End, Outside, read_changes
from mirrorlake.feed.cursor import Cursor
from mirrorlake.feed.doctor import diagnose
from mirrorlake.feed.enable import enable_feed
from mirrorlake.feed.findings import Diagnosis
from mirrorlake.feed.streams import stream_changes


class Changes:
    """What changed in a table, version by version.

    A row of the feed has the table's columns, `_change_type` (insert, update_preimage,
    update_postimage, delete), `_commit_version` and `_commit_timestamp`. Ends of a range are
    versions, or timestamps `yyyy-MM-dd[ HH:mm:ss[.SSS]]` in the session's time zone; both ends
    are included.

    Args:
        table: whose changes.
    """

    def __init__(self, table: Table) -> None:
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
        return read_changes(
            self._table,
            start,
            end,
            across_gaps=across_gaps,
            beyond_latest=beyond_latest,
            before_feed=before_feed,
        )

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
        return read_changes(
            self._table,
            start,
            end,
            net=True,
            keys=keys,
            across_gaps=across_gaps,
            beyond_latest=beyond_latest,
            before_feed=before_feed,
        )

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
            start: from which version or timestamp on; by default the present rows come first, as
                inserts.
            end: the last version or timestamp; by default there is no end.
            max_files: most files in a batch; a version is never cut.
            max_bytes: about how much a batch reads, such as `"64m"`.
            exclude_regex: files that are left out, by their paths.
            schema_tracking: a folder in which the stream notes schema changes, so that it can go
                on after columns were renamed or dropped.

        Raises:
            FeedError: the feed doesn't reach back to the start.

        Example:
            >>> lake.table("sales").changes.stream(3).writeStream  # doctest: +SKIP
        """
        return stream_changes(
            self._table,
            start,
            end,
            max_files=max_files,
            max_bytes=max_bytes,
            exclude_regex=exclude_regex,
            schema_tracking=schema_tracking,
        )

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
            start: the first version asked about; by default the first that the log has.
            end: the last version asked about; by default the newest.

        Example:
            >>> lake.table("sales").changes.diagnose().readable  # doctest: +SKIP
            [(0, 7)]
        """
        return diagnose(self._table, start, end)
