"""A table's row tracking: `lake.table(…).row_tracking`."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame

from mirrorlake.delta.table import TableHandle
from mirrorlake.feed.changes import End, Outside
from mirrorlake.rows.changes import read_row_changes, read_with_ids
from mirrorlake.rows.row_history import (
    RowHistory,
    RowIds,
    RowReport,
    read_row_history,
    read_row_ids,
    report_row,
)
from mirrorlake.rows.tracking import FeatureChange, Tracking, change_tracking, read_tracking


class RowTracking:
    """Stable row ids: whether there are any, and what they tell.

    Args:
        table: whose rows.
    """

    def __init__(self, table: TableHandle) -> None:
        self._table = table

    def __repr__(self) -> str:
        return repr(self.status())

    def _repr_html_(self) -> str:
        return self.status()._repr_html_()

    def status(self) -> Tracking:
        """Whether rows have ids, since when, and how far they can be trusted.

        Example:
            >>> lake.table("stock").row_tracking.status()  # doctest: +SKIP
            stock: rows tracked, ids kept since version 0, 0 warnings
        """
        return read_tracking(self._table)

    def enable(self, *, dry_run: bool = False) -> FeatureChange:
        """Gives all rows ids; no data file is rewritten.

        Args:
            dry_run: only say what it would commit.

        Returns:
            The commits, and the files that are listed once more with ids.

        Raises:
            QueryError: Delta refused it.

        Example:
            >>> lake.table("notes").row_tracking.enable(dry_run=True)  # doctest: +SKIP
        """
        return change_tracking(self._table, "enable", dry_run=dry_run)

    def disable(self, *, apply: bool = False) -> FeatureChange:
        """Hides the ids: they can't be relied on afterwards. The feature stays in the protocol.

        Args:
            apply: do it; by default it is only said.

        Example:
            >>> lake.table("notes").row_tracking.disable()  # doctest: +SKIP
        """
        return change_tracking(self._table, "disable", dry_run=not apply)

    def drop(self, *, apply: bool = False) -> FeatureChange:
        """Takes the feature, and all ids, out of the table.

        Args:
            apply: do it; by default it is only said.

        Raises:
            QueryError: Delta refused it, as while the log still holds commits that need it.

        Example:
            >>> lake.table("notes").row_tracking.drop()  # doctest: +SKIP
        """
        return change_tracking(self._table, "drop", dry_run=not apply)

    def read(
        self,
        *,
        version: int | None = None,
        names: tuple[str, str] = ("_row_id", "_row_commit_version"),
    ) -> DataFrame:
        """The rows, each with its id and the version that last changed it.

        Args:
            version: the table's version; by default the newest.
            names: what the two columns are called.

        Raises:
            UsageError: rows are not tracked at that version, or a column has such a name.

        Example:
            >>> lake.table("stock").row_tracking.read(version=3).show()  # doctest: +SKIP
        """
        return read_with_ids(self._table, version=version, names=names)

    def changes(
        self, start: End, end: End | None = None, *, beyond_latest: Outside | None = None
    ) -> DataFrame:
        """The change feed of a range, with the ids of its rows.

        Args:
            start: as for `Table.changes.read`.
            end: as for `Table.changes.read`.
            beyond_latest: as for `Table.changes.read`.

        Raises:
            FeedError: the range can't be read.
            UsageError: rows are not tracked.

        Example:
            >>> lake.table("stock").row_tracking.changes(1, 4).show()  # doctest: +SKIP
        """
        return read_row_changes(self._table, start, end, beyond_latest=beyond_latest)

    def history(
        self, *, key: Any = None, row_id: int | None = None, start: int | None = None
    ) -> RowHistory:
        """Everything that happened to one row.

        Args:
            key: the row's key: a value, or a dict of column and value.
            row_id: the row's id, instead of a key.
            start: the first version to look at; by default the first that can be read.

        Raises:
            UsageError: neither or both are given, or rows are not tracked.

        Example:
            >>> lake.table("stock").row_tracking.history(key={"id": 7})  # doctest: +SKIP
        """
        return read_row_history(self._table, key=key, row_id=row_id, start=start)

    def by_version(self, label: str, *, first: int = 1) -> RowIds:
        """Return the ids and commit versions of a small table's rows in each version.

        Args:
            label: the column that names the rows; its values are unique in each version.
            first: the first version; rows have ids in it and in all later versions.

        Returns:
            One row per row of the table, at most 200, with a column per version, and `.plot()`.

        Raises:
            UsageError: rows are not tracked in one of the versions.

        Example:
            >>> lake.table("stock").row_tracking.by_version("item").plot()  # doctest: +SKIP
        """
        return read_row_ids(self._table, label, first=first)

    def report(self, key: str = "", *, enable: bool = False) -> RowReport:
        """One row's history in words, and how far it can be told; the lake stays as it is.

        Args:
            key: a value of the one declared key column, or JSON `{"column": value}`; by default
                the row that changed last.
            enable: switch row tracking on, where it is off.

        Raises:
            UsageError: the key is none, or names a column that is not there.

        Example:
            >>> lake.table("stock").row_tracking.report("bolt").events  # doctest: +SKIP
        """
        return report_row(self._table, key, enable=enable)
