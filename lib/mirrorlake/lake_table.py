"""A table with all its verbs, one line each; the packages behind them do the work."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from mirrorlake.errors import UsageError
from mirrorlake.spark.sql import literal
from mirrorlake.table import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

    from mirrorlake.feed.changes import End, Outside
    from mirrorlake.feed.cursor import Cursor
    from mirrorlake.feed.findings import Diagnosis


class LakeTable(Table):
    """One Delta table of a lake, as `Lake.table` hands it out."""

    def as_of(
        self, *, version: int | None = None, timestamp: str | datetime | None = None
    ) -> DataFrame:
        """The rows as they were.

        Args:
            version: the table's version, from 0.
            timestamp: a moment, as text that Spark can cast, or a datetime.

        Raises:
            UsageError: neither or both are given.
        """
        if (version is None) == (timestamp is None):
            raise UsageError("Give either a version or a timestamp.")
        if version is not None:
            return self.spark.sql(f"SELECT * FROM {self.sql_name} VERSION AS OF {int(version)}")
        moment = timestamp.isoformat() if isinstance(timestamp, datetime) else str(timestamp)
        at = literal(moment)
        return self.spark.sql(f"SELECT * FROM {self.sql_name} TIMESTAMP AS OF {at}")

    def history(self) -> DataFrame:
        """One row a version, newest first, as `DESCRIBE HISTORY` has them."""
        return self.spark.sql(f"DESCRIBE HISTORY {self.sql_name}")

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns that tell rows apart, as their publisher declared them; maybe none."""
        from mirrorlake.feed.schema import declared_keys

        return declared_keys(self.snapshot().properties)

    def changes(
        self,
        start: End,
        end: End | None = None,
        *,
        net: bool = False,
        keys: Sequence[str] | None = None,
        across_gaps: bool = False,
        beyond_latest: Outside | None = None,
        before_feed: Outside = "error",
    ) -> DataFrame:
        """What changed from one version or moment to another, both included; see `read_changes`."""
        from mirrorlake.feed.changes import read_changes

        return read_changes(
            self,
            start,
            end,
            net=net,
            keys=keys,
            across_gaps=across_gaps,
            beyond_latest=beyond_latest,
            before_feed=before_feed,
        )

    def stream_changes(
        self,
        start: End | None = None,
        end: End | None = None,
        *,
        max_files: int | None = None,
        max_bytes: str | None = None,
        exclude_regex: str | None = None,
        schema_tracking: str | None = None,
    ) -> DataFrame:
        """The changes as a stream, by default the present rows first; see `feed/streams.py`."""
        from mirrorlake.feed.streams import stream_changes

        return stream_changes(
            self,
            start,
            end,
            max_files=max_files,
            max_bytes=max_bytes,
            exclude_regex=exclude_regex,
            schema_tracking=schema_tracking,
        )

    def cursor(self, consumer: str, *, start: int = 0) -> Cursor:
        """A consumer's place in the change feed; see `feed/cursor.py`."""
        from mirrorlake.feed.cursor import Cursor

        return Cursor(self, consumer, start=start)

    def enable_feed(self, *, rename_reserved: bool = False) -> int:
        """Switches the change feed on; the first version with changes. See `feed/enable.py`."""
        from mirrorlake.feed.enable import enable_feed

        return enable_feed(self, rename_reserved=rename_reserved)

    def diagnose(self, start: int | None = None, end: int | None = None) -> Diagnosis:
        """What stands in the way of reading the change feed; see `feed/doctor.py`."""
        from mirrorlake.feed.doctor import diagnose

        return diagnose(self, start, end)
