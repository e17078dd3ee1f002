"""Two versions of a table that a person asked for, by number or moment, and what changed between.

What can't be compared is said, not raised: a table of one version, rows without an order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mirrorlake.delta.snapshot import read_snapshot
from mirrorlake.delta.timestamps import parse_utc_timestamp
from mirrorlake.errors import UsageError
from mirrorlake.history.diff import (
    CHANGE_TYPE,
    choose_match,
    count_changes,
    diff_versions,
    is_made_anew,
)
from mirrorlake.history.versions import check_version, find_readable_range, version_at
from mirrorlake.mirror.properties import declared_keys
from mirrorlake.names import TableName
from mirrorlake.results import Result, TextTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from mirrorlake.delta.table import Table
    from mirrorlake.history.restore import Restore
    from mirrorlake.lake_table import LakeTable


@dataclass(frozen=True)
class VersionPair:
    """Two versions of one table, the older first; `note` says why they are the same, if so."""

    table: TableName
    before: int
    after: int
    note: str = ""

    def __repr__(self) -> str:
        return f"{self.table}: versions {self.before} and {self.after}"


def choose_versions(
    table: Table,
    from_version: int = -1,
    to_version: int = -1,
    *,
    from_time: str = "",
    to_time: str = "",
) -> VersionPair:
    """The two versions that a notebook's parameters name; both can be read.

    Args:
        table: which table.
        from_version: the older one; -1 for the one before the newer.
        to_version: the newer one; -1 for the newest.
        from_time: a moment (UTC where it has no zone) instead of `from_version`.
        to_time: a moment instead of `to_version`.

    Raises:
        UsageError: the first is after the second, or a version and a moment are given for one.
        VersionError: one of them can't be read; with the range that can.

    Example:
        >>> choose_versions(lake.table("sales"), 2, 5)  # doctest: +SKIP
        sales: versions 2 and 5
    """
    storage, name = table.storage, table.name
    newest = table.snapshot().version
    after = _version(table, to_version, to_time, newest)
    before = _version(table, from_version, from_time, after - 1)
    if before > after:
        raise UsageError(
            f"Version {before} is after version {after}.", hint="exchange the two ends."
        )
    check_version(storage, name, after)
    if from_version < 0 and not from_time:
        earliest = find_readable_range(storage, name).earliest
        if before < earliest:
            return VersionPair(name, after, after, f"Version {after} is the oldest that is left.")
    check_version(storage, name, before)
    return VersionPair(name, before, after, "" if before < after else "Both ends are one version.")


def _version(table: Table, version: int, time: str, other: int) -> int:
    if time and version != -1:
        raise UsageError("Give either a version or a moment.", hint="leave the version at -1.")
    if time:
        return version_at(table.storage, table.name, parse_utc_timestamp(time))
    if version < -1:
        raise UsageError(f"There is no version {version}.", hint="versions count from 0.")
    return other if version == -1 else version


@dataclass(frozen=True)
class Difference(Result):
    """What changed between two versions.

    Attributes:
        pair: the versions.
        by: how rows were matched, in words.
        counts: rows `added`, `removed` and `changed`.
        columns: names of columns that came, with `+`, or went, with `-`.
        rows: the first of the changes, ordered by the columns that rows are matched by.
    """

    pair: VersionPair
    by: str = ""
    counts: dict[str, int] | None = None
    columns: tuple[str, ...] = ()
    rows: TextTable | None = None

    def shown(self) -> TextTable:
        """The counts, one row; or why there are none."""
        if self.counts is None:
            return TextTable(("note",), ((self.pair.note,),))
        columns = ("from", "to", *self.counts, "columns", "rows matched")
        found: tuple[Any, ...] = tuple(self.counts.values())
        names = " ".join(self.columns)
        return TextTable(columns, ((self.pair.before, self.pair.after, *found, names, self.by),))

    def __repr__(self) -> str:
        if self.counts is None:
            return self.pair.note
        return f"{self.pair!r}: " + ", ".join(f"{n:,} {what}" for what, n in self.counts.items())


def plan_restore(table: LakeTable, version: int, *, apply: bool = False) -> Restore | NotAsked:
    """What restoring a table to a version would do, and with `apply` doing it.

    Args:
        table: which table.
        version: the version to come back; -1 for none.
        apply: do it; otherwise it is only said.

    Raises:
        VersionError: the version can't be read any more, or never was.
        QueryError: Delta refused it.
    """
    if version == -1:
        return NotAsked()
    return table.restore(version, apply=apply)


@dataclass(frozen=True)
class NotAsked(Result):
    """No version was named to come back to."""

    applied: bool = False

    def shown(self) -> TextTable:
        """That."""
        return TextTable(("note",), ((repr(self),),))

    def __repr__(self) -> str:
        return "No version was named to come back to."


def find_difference(
    table: Table, pair: VersionPair, *, keys: Sequence[str] = (), limit: int = 10
) -> Difference:
    """What changed between two versions: counted, and the first rows.

    Args:
        table: which table.
        pair: the versions.
        keys: the columns to match rows by; by default the table's own keys, and if it has none as
            `diff_versions` chooses.
        limit: most rows to show.

    Raises:
        QueryError: Spark failed.
    """
    from mirrorlake.show.tables import show_rows  # built on top of this package

    if pair.note:
        return Difference(pair)
    path = table.name.table_path
    old, new = (read_snapshot(table.storage, path, v) for v in (pair.before, pair.after))
    then, now = (snapshot.schema if snapshot else {} for snapshot in (old, new))
    columns = [f"+{name}" for name in now if name not in then]
    columns += [f"-{name}" for name in then if name not in now]
    settings = [snapshot.properties if snapshot else {} for snapshot in (old, new)]
    declared = declared_keys(settings[1])
    if not keys and all(key in names for key in declared for names in (then, now)):
        keys = declared
    match, known = choose_match(*settings, made_anew=is_made_anew(old, new))
    by = (
        f"by {', '.join(keys or known)}" if keys or known else f"by {match.value.replace('-', ' ')}"
    )
    rows = diff_versions(table, pair.before, pair.after, keys=keys).cache()
    try:
        counts = count_changes(rows)
        shown = show_rows(rows, order_by=_order(rows, keys or known), limit=limit)
    finally:
        rows.unpersist()
    return Difference(pair, by, counts, tuple(columns), shown)


def _order(rows: DataFrame, keys: Sequence[str]) -> list[str]:
    """Columns that order the rows as far as that goes; Spark can't order by maps and variants."""
    from mirrorlake.spark.sql import quote

    kinds = dict(rows.dtypes)
    spelled = {name.lower(): name for name in kinds}
    first = list(dict.fromkeys(spelled[k.lower()] for k in keys if k.lower() in spelled))
    sortable = [
        name
        for name, kind in kinds.items()
        if name != CHANGE_TYPE and "map<" not in kind and "variant" not in kind
    ]
    names = [*first, *(name for name in sortable if name not in first)][: len(first) + 8]
    if not first:
        return [*map(quote, names), quote(CHANGE_TYPE)]
    # A row as it was stands before the row as it is.
    rest = map(quote, names[len(first) :])
    return [*map(quote, first), f"{quote(CHANGE_TYPE)} DESC", *rest]
