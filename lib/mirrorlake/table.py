"""The Delta table of a lake, with all operations on it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Literal

import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from mirrorlake.delta.commits import CommitLog, History
from mirrorlake.delta.table import TableHandle
from mirrorlake.delta.timestamps import parse_utc_timestamp
from mirrorlake.errors import UsageError
from mirrorlake.feed.archive import ArchiveReport, archive_table
from mirrorlake.feed.changes import Changes
from mirrorlake.feed.dimension import DimensionReport, update_dimension
from mirrorlake.feed.scd import Dimension
from mirrorlake.history.diff import (
    Difference,
    Match,
    choose_versions,
    compare_versions,
    diff_versions,
)
from mirrorlake.history.vacuum import Vacuum, vacuum_table
from mirrorlake.history.versions import (
    ReadableRange,
    check_version,
    check_when,
    find_readable_range,
)
from mirrorlake.history.write import Deletion, Restore, delete_rows, restore_table
from mirrorlake.inspection import FilesByVersion, files_by_version
from mirrorlake.layout.analysis import Analysis, analyze_table
from mirrorlake.layout.api import Optimize
from mirrorlake.mirror.options import declared_keys, hide_columns
from mirrorlake.names import split_names
from mirrorlake.partitioning.statistics import Scan, scan_table
from mirrorlake.partitioning.table_policy import TablePolicy
from mirrorlake.rows.row_history import RowTracking
from mirrorlake.spark.older import to_arrow
from mirrorlake.spark.sql import literal, query_errors

_OTHER_NAMES = {
    "count": "read().count()",
    "head": "read().show(5)",
    "show": "read().show()",
    "files": "files_by_version()",
    "columns": "schema.names",
    "properties": "detail()",
}


class Table(TableHandle):
    """A Delta table of a lake, as `Lake.table` returns it.

    `optimize`, `changes`, `row_tracking` and `partitioning` have further methods. A method that
    loses neither rows nor history runs at once; with `dry_run=True`, it only reports what it would
    do. A method that deletes rows or history only reports what it would do; with `apply=True`, it
    runs.
    """

    if not TYPE_CHECKING:  # mypy reports unknown names

        def __getattr__(self, name: str) -> Any:
            """Raise an error that names the right call for the name of another library.

            Raises:
                AttributeError: always; Python calls this only for an unknown name.
            """
            near = get_close_matches(name, (one for one in dir(type(self)) if one[0] != "_"), 1)
            call = _OTHER_NAMES.get(name) or (near[0] if near else None)
            hint = f" Hint: use `{call}`." if call else ""
            raise AttributeError(f"A table has no attribute {name!r}.{hint}")

    @property
    def version(self) -> int:
        """The number of the newest version; needs no Spark.

        Example:
            >>> lake.table("sales").version  # doctest: +SKIP
            7
        """
        return self.snapshot().version

    @property
    def schema(self) -> StructType:
        """The columns and their types; needs no Spark session.

        Example:
            >>> lake.table("sales").schema.names  # doctest: +SKIP
            ['id', 'item', 'n']
        """
        return StructType.fromJson(self.snapshot().schema_document)

    @property
    def keys(self) -> tuple[str, ...]:
        """The key columns that the publisher declared; empty if it declared none.

        Example:
            >>> lake.table("sales").keys  # doctest: +SKIP
            ('id',)
        """
        return declared_keys(self.snapshot().properties)

    def detail(self) -> dict[str, Any]:
        """Return the result of `DESCRIBE DETAIL` as a dict: id, files, bytes, properties, protocol.

        Example:
            >>> lake.table("sales").detail()["numFiles"]  # doctest: +SKIP
            3
        """
        (row,) = self.spark.sql(f"DESCRIBE DETAIL {self.sql_name}").collect()
        return row.asDict(recursive=True)

    @query_errors()
    def read(
        self,
        where: str | None = None,
        *,
        version: int | None = None,
        timestamp: str | datetime | None = None,
        row_ids: bool = False,
    ) -> DataFrame:
        """Return the rows of a version; by default, of the newest one.

        A view's hidden columns are left out.

        Args:
            where: a SQL predicate for the rows. If the table has a partitioning policy, only files
                that can contain such rows are read.
            version: the number of the version, from 0.
            timestamp: read the version that was the newest at this time, also if it is later than
                the last commit. ISO 8601 text (in UTC if it has no zone) or a datetime.
            row_ids: add the columns `_row_id` and `_row_commit_version`, see `row_tracking.read`.
                Not allowed together with `timestamp`.

        Raises:
            UsageError: both `version` and `timestamp` are given, the version is not an integer, or
                the text is not a timestamp.
            VersionError: the version can't be read. The error contains the reason and the versions
                that can be read.
            QueryError: Spark refuses the predicate.

        Example:
            >>> lake.table("sales").read(version=2, where="n > 9").count()  # doctest: +SKIP
            4
        """
        if version is not None and timestamp is not None:
            raise UsageError(
                "Both a version and a timestamp are given.",
                hint="give only one of version and timestamp.",
            )
        if timestamp is not None and row_ids:
            raise UsageError(
                "Row ids can't be read by timestamp.", hint="give a version; history() lists them."
            )
        if timestamp is not None:
            then = check_when(self.storage, self.name, parse_utc_timestamp(timestamp))
            clause = (
                f"TIMESTAMP AS OF {literal(then.isoformat())}"
                if isinstance(then, datetime)
                else f"VERSION AS OF {then}"
            )
            rows = self.spark.sql(f"SELECT * FROM {self.sql_name} {clause}")
        elif version is not None:
            check_version(self.storage, self.name, version)
            rows = self.row_tracking.read(version=version) if row_ids else self.rows(int(version))
        elif row_ids:
            rows = self.row_tracking.read()
        else:
            rows = self.rows() if where is None else self.scan(where).rows
            where = None
        rows = rows if where is None else rows.where(where)
        return hide_columns(rows, lambda: self.snapshot().properties)

    def scan(self, where: str | None = None) -> Scan:
        """Return the rows that satisfy a condition, and the files that are read to find them.

        Args:
            where: a SQL predicate for the rows; by default all.

        Example:
            >>> len(lake.table("sales").scan("id = 7").read)  # doctest: +SKIP
            1
        """
        return scan_table(self, where)

    def to_arrow(
        self, *, version: int | None = None, timestamp: str | datetime | None = None
    ) -> pa.Table:
        """Return all rows as an Arrow table; they must fit in the memory of this process.

        Args:
            version: as for `read`.
            timestamp: as for `read`.

        Example:
            >>> lake.table("sales").to_arrow().num_rows  # doctest: +SKIP
            4
        """
        return to_arrow(self.read(version=version, timestamp=timestamp))

    def to_pandas(
        self, *, version: int | None = None, timestamp: str | datetime | None = None
    ) -> pd.DataFrame:
        """Return all rows as a pandas DataFrame; they must fit in the memory of this process.

        As by Spark's `toPandas`, a column of whole numbers with NULLs becomes one of doubles, which
        store whole numbers up to 2^53 exactly. `to_arrow` keeps the type.

        Args:
            version: as for `read`.
            timestamp: as for `read`.

        Example:
            >>> lake.table("sales").to_pandas(version=2)  # doctest: +SKIP
        """
        return self.read(version=version, timestamp=timestamp).toPandas()

    def history(self, limit: int = 20) -> History:
        """Return the newest versions, with the time, operation and row counts of each commit.

        The counts are the rows that the commit inserted, updated and deleted. Only the commits of
        these versions are read; Spark is not needed.

        Args:
            limit: the largest number of versions to return.

        Returns:
            The versions, newest first: a table in a notebook, `.commits`, `.plot()` and
            `.to_pandas()`.

        Raises:
            UsageError: the limit is less than 1.

        Example:
            >>> lake.table("sales").history(5).commits[0].rows.inserted  # doctest: +SKIP
            12
        """
        if limit < 1:
            raise UsageError(f"{limit} versions can't be shown.", hint="set limit to 1 or more.")
        return CommitLog(self.storage, self.name.table_path).read(self.version, limit)

    def readable_range(self) -> ReadableRange:
        """Return which versions can be read, and why older versions can't.

        Example:
            >>> lake.table("sales").readable_range()  # doctest: +SKIP
            sales: versions 2 to 7; log retention: older commits are no longer in the log …
        """
        return find_readable_range(self.storage, self.name)

    def files_by_version(self, first: int = 0) -> FilesByVersion:
        """Return the data files of each version; needs no Spark.

        Args:
            first: the first version of the result. The method reads all commits from this version
                on.

        Returns:
            A table with one row per file and one column per version. `.plot()` draws it.

        Raises:
            VersionError: the first version does not exist.

        Example:
            >>> lake.table("sales").files_by_version()  # doctest: +SKIP
            sales: 4 files in 3 versions
        """
        return files_by_version(self.storage, self.name, self.version, first)

    def diff(
        self,
        before: int,
        after: int | None = None,
        *,
        match: Match | str | None = None,
        keys: str | Sequence[str] = (),
    ) -> DataFrame:
        """Return the changes between two versions as rows.

        The result has the columns of both versions and `_change_type`. An inserted row appears once
        (`insert`), and so does a deleted row (`delete`). An updated row appears twice: with its
        old values (`update_preimage`) and with its new values (`update_postimage`). If rows are
        matched as whole rows, an update is a `delete` and an `insert`.

        Args:
            before: the older version.
            after: the newer version; by default the newest.
            match: how a row is recognised in the other version: by its row id (`row-id`), by its
                key (`key`), or as a whole row (`row`). By default, the first of these that both
                versions allow. The default of `compare` is the key if the table has one.
            keys: the columns to match by, as a sequence or separated by commas, instead of the
                table's own keys. If `match` is not given, rows are then matched by these columns.

        Raises:
            UsageError: the versions can't be matched that way.
            VersionError: one of the versions can't be read.

        Example:
            >>> lake.table("sales").diff(2, 3).show()  # doctest: +SKIP
        """
        return diff_versions(self, before, after, match=match, keys=keys)

    def compare(
        self,
        before: int | None = None,
        after: int | None = None,
        *,
        before_timestamp: str | datetime | None = None,
        after_timestamp: str | datetime | None = None,
        keys: str | Sequence[str] = (),
        limit: int = 10,
    ) -> Difference:
        """Count the changes between two versions, and return the first `limit` of them.

        Args:
            before: the older version; by default the version before the newer one.
            after: the newer version; by default the newest.
            before_timestamp: ISO 8601 text (UTC if it has no zone) or a datetime, instead of
                `before`; an empty text counts as not given.
            after_timestamp: likewise, instead of `after`.
            keys: the columns to match rows by, as a sequence or separated by commas. By default,
                rows are matched by the table's keys. If it has none, they are matched by row ids
                if both versions have them, and otherwise as whole rows. (`diff` prefers row ids.)
            limit: the largest number of rows to return.

        Returns:
            A result with `.counts`, `.rows` and `.columns`. `diff` returns all changes.

        Raises:
            UsageError: an end has both a version and a timestamp, the first version is after the
                second, or the keys are not columns.
            VersionError: one of the versions can't be read; the error contains the readable range.
            QueryError: Spark failed.

        Example:
            >>> lake.table("sales").compare(2, 5)  # doctest: +SKIP
            sales: versions 2 and 5: 3 added, 0 removed, 1 changed
        """
        pair = choose_versions(
            self,
            before,
            after,
            before_timestamp=before_timestamp,
            after_timestamp=after_timestamp,
        )
        return compare_versions(self, pair, keys=split_names(keys), limit=limit)

    def delete(self, where: str, *, apply: bool = False) -> Deletion:
        """Delete the rows that satisfy a condition; a dry run unless `apply`.

        If publishers fill the table through the landing zone, delete the rows with a publisher
        instead.

        Args:
            where: a SQL predicate for the rows.
            apply: delete the rows. By default, they are only counted.

        Raises:
            UsageError: publishers fill the table, or it is a view.
            QueryError: Spark refused the condition.

        Example:
            >>> lake.table("notes").delete("id < 9")  # doctest: +SKIP
            notes: would delete 8 rows
        """
        return delete_rows(self, where, apply=apply)

    def restore(self, version: int, *, apply: bool = False) -> Restore:
        """Add a new version with the content of an older one; a dry run unless `apply`.

        Args:
            version: the version to restore.
            apply: restore the version. By default, the method only reports the effect.

        Raises:
            UsageError: the version is not an integer.
            VersionError: the version can no longer be read.
            QueryError: Delta refused the restore.

        Example:
            >>> lake.table("sales").restore(2)  # doctest: +SKIP
            would restore sales from version 7 to 2
        """
        return restore_table(self, version, apply=apply)

    def vacuum(
        self,
        *,
        retention_hours: float | None = None,
        feed_hours: float | None = None,
        allow_short: bool = False,
        apply: bool = False,
    ) -> Vacuum:
        """Delete files that are no longer needed; a dry run unless `apply`.

        A file is kept if the newest version, the change feed or a frame (a set of pinned versions)
        needs it. A file is also kept until the retention has passed since it was written, and since
        it was removed from the table.

        Args:
            retention_hours: how long a file is kept after a commit has removed it from the table,
                in hours; by default the table's `delta.deletedFileRetentionDuration`, or seven
                days if it has none.
            feed_hours: how far back the change feed must be readable, in hours; by default the
                table's `mirrorlake.feedRetentionHours`. A value below `retention_hours` has no
                effect.
            allow_short: allow less than the table's own retention.
            apply: delete them; by default the files are only counted.

        Raises:
            RetentionError: the retention is shorter than allowed, or the table's folder contains
                other tables.
            QueryError: Delta failed.

        Example:
            >>> lake.table("sales").vacuum()  # doctest: +SKIP
            sales: would delete 12 files (34,560 bytes), 40 kept
        """
        return vacuum_table(
            self,
            retention_hours=retention_hours,
            feed_hours=feed_hours,
            allow_short=allow_short,
            apply=apply,
        )

    @property
    def optimize(self) -> Optimize:
        """Methods that rewrite files: compact, z_order, vorder, purge; see `Optimize`."""
        return Optimize(self)

    @property
    def changes(self) -> Changes:
        """The change data feed: read, net, stream, cursor, enable, diagnose; see `Changes`."""
        return Changes(self)

    def archive(
        self, into: str = "", *, start: int | None = None, dry_run: bool = False
    ) -> ArchiveReport:
        """Append the new changes of the table's change feed to a table that keeps them permanently.

        Every change is archived once. Safe to interrupt: the next call completes the work.

        Args:
            into: the archive, created by the first call; by default the table's name with
                `_history`.
            start: the version of this table at which a new archive begins. By default 0 if the feed
                is complete from version 0. Otherwise, the archive begins with the rows of the
                newest version, as inserts.
            dry_run: only report which versions are new.

        Returns:
            A report with `.facts`, `.details` and `.plot()`. If the feed is off, nothing is done
            and `.why_not` has the reason.

        Raises:
            FeedError: the feed no longer contains the next version, or the archive belongs to
                another table.

        Example:
            >>> lake.table("sales").archive()  # doctest: +SKIP
            sales → sales_history: 3 new versions, archived up to 7
        """
        return archive_table(self, into, start=start, dry_run=dry_run)

    def dimension(
        self,
        into: str = "",
        *,
        stored_as: Literal[1, 2] = 1,
        keys: str | Sequence[str] | None = None,
        from_snapshot: bool = False,
        sequence_by: str | None = None,
        ignore_null_updates: bool = False,
        apply_as_deletes: str | None = None,
        apply_as_truncates: str | None = None,
        columns: str | Sequence[str] | None = None,
        except_columns: str | Sequence[str] = (),
        track_history_columns: str | Sequence[str] | None = None,
        track_history_except_columns: str | Sequence[str] = (),
        dry_run: bool = False,
    ) -> DimensionReport:
        """Bring a slowly changing dimension up to date with this table.

        By default, the changes are those of the table's change feed, ordered by version. With
        `sequence_by`, each row of the table is one change event, and events can arrive late.
        You can then remove old event rows from the table: the dimension ignores the removal. There
        is one exception: if the removed row satisfies `apply_as_deletes`, the removal is applied as
        a delete of the row's key. With `from_snapshot`, the newest version of the table is compared
        with the dimension; no feed is needed.

        The options have the effects of Databricks' AUTO CDC and AUTO CDC FROM SNAPSHOT, and similar
        names. Give the same options in each run.

        A dimension that was dropped is created again from the beginning. One that was restored to
        an earlier version is completed again.

        Safe to interrupt: the next call completes the work.

        Args:
            into: the dimension, created by the first call; by default `dim_` and the table's name.
            stored_as: 1 keeps the latest row of each key; 2 keeps all rows with their periods, from
                `__START_AT` up to, and excluding, `__END_AT`.
            keys: the columns that identify a row, as a sequence or separated by commas, like the
                other columns; by default those that the table declares.
            from_snapshot: compare the newest version with the dimension, instead of reading the
                feed. Rows that differ are changed, and keys that are missing are deleted.
            sequence_by: a column or SQL expression that orders the changes of a key; never NULL.
            ignore_null_updates: a NULL in a change leaves the column unchanged.
            apply_as_deletes: a SQL condition for changes that delete their key. Without
                `sequence_by`, a row that is deleted from the table always deletes its key, too.
            apply_as_truncates: type 1 only: a SQL condition for changes that delete all older rows
                of the dimension.
            columns: the columns to keep, keys included; by default all.
            except_columns: columns to leave out.
            track_history_columns: type 2 only: the columns whose changes start a new period. Any
                other column contains its latest value of the period. By default, each change of the
                row starts a new period, also an update with equal values.
            track_history_except_columns: type 2 only, instead of `track_history_columns`: the
                columns whose changes do not start a new period.
            dry_run: only report what is new.

        Returns:
            A report with `.facts`, `.details` and `.plot()`. If the feed is off or there are no
            keys, nothing is done and `.why_not` has the reason.

        Raises:
            FeedError: the feed no longer contains the next version.
            UsageError: options contradict each other, a column does not exist, or `into` is a
                table of another kind.
            QueryError: Spark refused an expression.

        Example:
            >>> lake.table("planes").dimension(stored_as=2)  # doctest: +SKIP
            planes → dim_planes: versions 0 to 4
        """
        options = Dimension(
            tuple(split_names(keys or ())),
            sequence_by or None,
            stored_as,
            ignore_null_updates=ignore_null_updates,
            apply_as_deletes=apply_as_deletes,
            apply_as_truncates=apply_as_truncates,
            columns=tuple(split_names(columns or ())) or None,
            except_columns=tuple(split_names(except_columns)),
            track_history_columns=tuple(split_names(track_history_columns or ())) or None,
            track_history_except_columns=tuple(split_names(track_history_except_columns)),
        )
        return update_dimension(self, into, options, from_snapshot=from_snapshot, dry_run=dry_run)

    @property
    def row_tracking(self) -> RowTracking:
        """Row ids that do not change: status, enable, read, changes, history; see `RowTracking`."""
        return RowTracking(self)

    @property
    def partitioning(self) -> TablePolicy:
        """The table's partitioning policy: set, show, run, stats, advise; see `TablePolicy`."""
        return TablePolicy(self)

    def analyze(
        self, *, version: int | None = None, scan: bool = True, exact: bool = False
    ) -> Analysis:
        """Analyze the files of a version: files, row groups, columns and guardrails.

        Args:
            version: the version; by default the newest.
            scan: also read the rows, to count distinct values and runs of equal values. False: read
                only the log and the footers.
            exact: count distinct values exactly. By default, the counts are estimates with an error
                of about 5 %.

        Raises:
            UsageError: the version does not exist.

        Example:
            >>> lake.table("sales").analyze().summary["Row Count"]  # doctest: +SKIP
            328521
        """
        return analyze_table(self, version=version, scan=scan, exact=exact)
