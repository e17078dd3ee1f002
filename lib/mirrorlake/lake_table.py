"""A table with all its verbs, one line each; the packages behind them do the work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from pyspark.sql import DataFrame

from mirrorlake.errors import UsageError
from mirrorlake.feed.changes import End, Outside
from mirrorlake.feed.cursor import Cursor
from mirrorlake.feed.findings import Diagnosis
from mirrorlake.history.compact import Compaction
from mirrorlake.history.diff import Match
from mirrorlake.history.restore import Restore
from mirrorlake.history.vacuum import Vacuum
from mirrorlake.history.versions import ReadableRange
from mirrorlake.layout.analysis import Analysis
from mirrorlake.layout.partitioning.scan import Scan
from mirrorlake.layout.partitioning.table_policy import TablePolicy
from mirrorlake.layout.vorder import VOrderReport
from mirrorlake.rows.row_history import RowHistory
from mirrorlake.rows.tracking import FeatureChange, Tracking
from mirrorlake.spark.sql import literal
from mirrorlake.table import Table


class LakeTable(Table):
    """One Delta table of a lake, as `Lake.table` hands it out."""

    def as_of(
        self, *, version: int | None = None, timestamp: str | datetime | None = None
    ) -> DataFrame:
        """The rows as they were.

        Args:
            version: the table's version, from 0.
            timestamp: a moment, as ISO 8601 text (UTC where it has no zone) or a datetime.

        Raises:
            UsageError: neither or both are given, or the text is no moment.
            VersionError: it can't be read; with the range that can, and why not further.
        """
        from mirrorlake.history.versions import check_when, is_enforced, parse_moment

        if version is not None and timestamp is None:
            when: int | datetime = int(version)
            clause = f"VERSION AS OF {when}"
        elif timestamp is not None and version is None:
            when = parse_moment(timestamp)
            clause = f"TIMESTAMP AS OF {literal(when.isoformat())}"
        else:
            raise UsageError("Give either a version or a timestamp.")
        check_when(self.storage, self.name, when, enforced=is_enforced(self.spark))
        return self.spark.sql(f"SELECT * FROM {self.sql_name} {clause}")

    def history(self, limit: int | None = None) -> DataFrame:
        """One row a version, newest first, as `DESCRIBE HISTORY` has them."""
        most = "" if limit is None else f" LIMIT {int(limit)}"
        return self.spark.sql(f"DESCRIBE HISTORY {self.sql_name}{most}")

    def readable_range(self) -> ReadableRange:
        """Which versions can be read, and why not older ones."""
        from mirrorlake.history.versions import find_readable_range, is_enforced

        return find_readable_range(self.storage, self.name, enforced=is_enforced(self.spark))

    def diff(
        self,
        before: int,
        after: int | None = None,
        *,
        match: Match | str | None = None,
        keys: Sequence[str] = (),
    ) -> DataFrame:
        """What changed between two versions, a row a change; see `history.diff.diff_rows`.

        Args:
            before: the older version.
            after: the newer one; by default the newest.
            match: `row-id`, `key` or `row`; by default the first that both versions allow.
            keys: the columns to match by, instead of the table's own keys.
        """
        from mirrorlake.history.diff import diff_versions

        return diff_versions(self, before, after, match=match, keys=keys)

    def restore(self, version: int, *, dry_run: bool = True) -> Restore:
        """Makes the table what it was at a version, by a new commit; a dry run by default."""
        from mirrorlake.history.restore import restore_table

        return restore_table(self.spark, self.storage, self.name, version, dry_run=dry_run)

    def optimize(
        self,
        *,
        where: str | None = None,
        target_bytes: int | None = None,
        zorder_by: Sequence[str] = (),
        vorder: bool = False,
        dry_run: bool = True,
    ) -> Compaction:
        """Puts small files together; a dry run by default, see `history.compact`.

        With `vorder` the rows within the files are ordered next, where they are not yet, by a
        commit of its own: whoever is killed before it has a compacted table, and orders it by
        asking again.
        """
        from mirrorlake.history.compact import DEFAULT_TARGET, optimize_table

        done = optimize_table(
            self.spark,
            self.storage,
            self.name,
            where=where,
            target_bytes=target_bytes or DEFAULT_TARGET,
            zorder_by=zorder_by,
            dry_run=dry_run,
        )
        if not vorder:
            return done
        ordered = self.vorder(apply=not dry_run, where=where).ordered
        return replace(done, files_ordered=ordered, version=self.snapshot().version)

    def reorg(self, *, dry_run: bool = True) -> Compaction:
        """Rewrites files with deleted rows or dropped columns; a dry run by default."""
        from mirrorlake.history.compact import reorg_table

        return reorg_table(self.spark, self.storage, self.name, dry_run=dry_run)

    def vacuum(
        self,
        *,
        retention_hours: float | None = None,
        feed_hours: float | None = None,
        allow_short: bool = False,
        dry_run: bool = True,
    ) -> Vacuum:
        """Deletes files that nobody needs; a dry run by default, see `history.vacuum`."""
        from mirrorlake.history.vacuum import vacuum_table

        return vacuum_table(
            self.spark,
            self.storage,
            self.name,
            retention_hours=retention_hours,
            feed_hours=feed_hours,
            allow_short=allow_short,
            dry_run=dry_run,
        )

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

    def analyze(
        self, *, version: int | None = None, scan: bool = True, exact: bool = False
    ) -> Analysis:
        """What a version's files are like; see `layout.analysis.analyze_table`."""
        from mirrorlake.layout.analysis import analyze_table

        return analyze_table(
            self.spark, self.storage, self.name, version=version, scan=scan, exact=exact
        )

    def vorder(
        self,
        *,
        apply: bool = False,
        sort_by: Sequence[str] = (),
        again: bool = False,
        where: str | None = None,
    ) -> VOrderReport:
        """Orders the rows within files; a dry run unless told. See `layout.vorder.vorder_table`."""
        from mirrorlake.layout.vorder import vorder_table

        return vorder_table(
            self.spark,
            self.storage,
            self.name,
            apply=apply,
            sort_by=sort_by,
            again=again,
            where=where,
        )

    @property
    def partitioning(self) -> TablePolicy:
        """The table's partitioning policy and its verbs; see `layout.partitioning`."""
        from mirrorlake.layout.partitioning.table_policy import TablePolicy

        return TablePolicy(self)

    def read(self, where: str | None = None) -> DataFrame:
        """The table's rows, or those of a predicate, read from no more files than it needs."""
        return super().read() if where is None else self.scan(where).rows

    def scan(self, where: str | None = None) -> Scan:
        """The same, with the files that are read; see `layout.partitioning.scan`."""
        from mirrorlake.layout.partitioning.scan import scan_table

        return scan_table(self, where)

    @property
    def row_tracking(self) -> Tracking:
        """Whether rows have ids, since when, and how far they can be trusted."""
        from mirrorlake.rows.tracking import read_tracking

        return read_tracking(self)

    def enable_row_tracking(self, *, dry_run: bool = False) -> FeatureChange:
        """Gives all rows ids; a dry run says what that commits. See `rows/tracking.py`."""
        from mirrorlake.rows.tracking import enable_tracking

        return enable_tracking(self, dry_run=dry_run)

    def disable_row_tracking(self, *, apply: bool = False) -> FeatureChange:
        """Hides the ids; the feature stays. Says so, or does it. See `rows/tracking.py`."""
        from mirrorlake.rows.tracking import disable_tracking

        return disable_tracking(self, apply=apply)

    def drop_row_tracking(self, *, apply: bool = False) -> FeatureChange:
        """Takes the feature out of the protocol; says so, or does it. See `rows/tracking.py`."""
        from mirrorlake.rows.tracking import drop_tracking

        return drop_tracking(self, apply=apply)

    def with_row_ids(
        self,
        *,
        version: int | None = None,
        names: tuple[str, str] = ("_row_id", "_row_commit_version"),
    ) -> DataFrame:
        """The rows, each with its id and the version that last changed it; see `rows/ids.py`."""
        from mirrorlake.rows.ids import read_with_ids

        return read_with_ids(self, version=version, names=names)

    def row_changes(
        self, start: End, end: End | None = None, *, beyond_latest: Outside | None = None
    ) -> DataFrame:
        """The changes of a range with the ids of their rows; see `rows/changes.py`."""
        from mirrorlake.rows.changes import read_row_changes

        return read_row_changes(self, start, end, beyond_latest=beyond_latest)

    def row_history(
        self, *, key: Any = None, row_id: int | None = None, start: int | None = None
    ) -> RowHistory:
        """Everything that happened to one row, by its key or its id; see `rows/row_history.py`."""
        from mirrorlake.rows.row_history import read_row_history

        return read_row_history(self, key=key, row_id=row_id, start=start)
