"""Compare two versions of a table: the changed rows with a change type, as a change feed has them.

Rows are matched by row id if both versions have row tracking. Otherwise they are matched by key,
or, without keys, as whole rows. An equal row in both versions is no change. If rows are equal,
their numbers count. The comparison collects no rows on the driver.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T

from mirrorlake.delta.snapshot import ROW_TRACKING, Snapshot, read_snapshot
from mirrorlake.delta.table import TableHandle
from mirrorlake.delta.timestamps import parse_utc_timestamp
from mirrorlake.errors import UsageError
from mirrorlake.history.versions import (
    check_integer,
    check_version,
    find_readable_range,
    version_at,
)
from mirrorlake.landing.metadata import incarnations
from mirrorlake.mirror.options import declared_keys
from mirrorlake.names import (
    CHANGE_COLUMNS,
    TableName,
    quote,
    sortable_columns,
    spelled,
    split_names,
)
from mirrorlake.results import Result, TextTable
from mirrorlake.show.changed_cells import narrow_changes

CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP = RESERVED = CHANGE_COLUMNS
FEED_COLUMNS = {CHANGE_TYPE: "STRING", COMMIT_VERSION: "BIGINT", COMMIT_TIMESTAMP: "TIMESTAMP"}
INSERT, DELETE = "insert", "delete"
BEFORE, AFTER = "update_preimage", "update_postimage"
_SIDE, _ROW, _SAME, _RANK, _ID = "_side", "_row", "_same", "_rank", "_id"
_OLD, _NEW = -1, 1


class Match(str, Enum):
    """The ways to match rows of two versions."""

    ROW_ID = "row-id"
    KEY = "key"
    ROW = "row"


def choose_match(
    before: dict[str, str], after: dict[str, str], *, recreated: bool = False
) -> tuple[Match, tuple[str, ...]]:
    """Return the best way to match rows of two versions, and the columns to match by.

    Args:
        before: the table properties of the older version.
        after: the table properties of the newer version.
        recreated: whether the table was deleted and created again in between, so that all ids are
            new.
    """
    if is_tracked(before) and is_tracked(after) and not recreated:
        return Match.ROW_ID, ()
    keys = declared_keys(after)
    if keys and declared_keys(before) in ((), keys):  # keys may be declared later
        return Match.KEY, keys
    return Match.ROW, ()


def is_recreated(before: Snapshot | None, after: Snapshot | None) -> bool:
    """Return whether a mirrored table's folder was deleted and created again in between."""
    lives = incarnations(before)
    return bool(lives) and lives != incarnations(after)


def changed_columns(before: Snapshot | None, after: Snapshot | None) -> list[str]:
    """Return the columns added between two versions (with `+`) and those removed (with `-`)."""
    then, now = (snapshot.schema if snapshot else {} for snapshot in (before, after))
    came = [f"+{name}" for name in now if name not in then]
    return came + [f"-{name}" for name in then if name not in now]


def is_tracked(properties: dict[str, str]) -> bool:
    """Return whether the rows of a version have ids, according to its table properties."""
    return properties.get(ROW_TRACKING, "false").lower() == "true"


def readable_snapshots(table: TableHandle, *versions: int) -> list[Snapshot | None]:
    """Return the snapshots of versions whose rows can be read.

    Raises:
        VersionError: one of the versions can't be read; the error contains the readable range.
    """
    found = []
    for version in versions:
        check_version(table.storage, table.name, version)
        found.append(read_snapshot(table.storage, table.name.table_path, version))
    return found


def diff_versions(
    table: TableHandle,
    before: int,
    after: int | None = None,
    *,
    match: Match | str | None = None,
    keys: str | Sequence[str] = (),
) -> DataFrame:
    """Return the rows that changed between two versions of a table; see `diff_rows`.

    Args:
        table: the table.
        before: the older version.
        after: the newer version; by default the newest.
        match: how rows are matched; by default the result of `choose_match`.
        keys: the columns to match by, instead of the table's own keys.

    Raises:
        VersionError: one of the versions can't be read.
        UsageError: the match is unknown or not possible.
    """
    keys = split_names(keys)
    after = table.snapshot().version if after is None else after
    snapshots = readable_snapshots(table, before, after)
    properties = [snapshot.properties if snapshot else {} for snapshot in snapshots]
    best, known = choose_match(*properties, recreated=is_recreated(*snapshots))
    if match is not None:
        try:
            best = Match(match)
        except ValueError as error:
            kinds = ", ".join(one.value for one in Match)
            raise UsageError(
                f"Rows can't be matched by {match!r}.", hint=f"choose one of {kinds}."
            ) from error
    elif keys:
        best = Match.KEY
    if best is Match.KEY:
        known = tuple(keys) or declared_keys(properties[1])
    old, new = (table.rows(int(version)) for version in (before, after))
    return diff_rows(old, new, best, known)


def diff_rows(
    before: DataFrame, after: DataFrame, match: Match, keys: Sequence[str] = ()
) -> DataFrame:
    """Return the rows that changed from one DataFrame to another.

    Args:
        before: the older rows.
        after: the newer rows.
        match: how rows are matched; `ROW_ID` needs rows that are read directly from a Delta table.
        keys: the columns to match by, for `KEY`.

    Returns:
        The columns of the newer rows, then columns that only the older rows have, then
        `_change_type`. This is `insert` or `delete`. An update is two rows: `update_preimage` and
        `update_postimage`. If a row occurs n times more often than before, it is n inserts; if n
        times less often, n deletes.

    Raises:
        UsageError: a key is not a column, or a column has the name `_change_type`.
    """
    columns = list(after.columns)
    known = {name.lower() for name in columns}
    columns += [name for name in before.columns if name.lower() not in known]
    if CHANGE_TYPE in {name.lower() for name in columns}:
        raise UsageError(
            f"A column has the reserved name {CHANGE_TYPE}.", hint="rename the column."
        )
    both = _side(before, columns, _OLD, match).unionAll(_side(after, columns, _NEW, match))
    both = both.withColumn(_SAME, F.struct(*_comparable(both, columns)))
    if match is Match.ROW_ID:
        changes = _by_id(both)
    else:
        changes = _by_row(both, _key_columns(columns, keys) if match is Match.KEY else [])
    return changes.select(f"{_ROW}.*", CHANGE_TYPE)


def _side(rows: DataFrame, columns: list[str], side: int, match: Match) -> DataFrame:
    there = {name.lower(): name for name in rows.columns}
    row = [
        (F.col(quote(there[name.lower()])) if name.lower() in there else F.lit(None)).alias(name)
        for name in columns
    ]
    number = F.col("_metadata.row_id") if match is Match.ROW_ID else F.lit(None).cast("long")
    return rows.select(F.struct(*row).alias(_ROW), F.lit(side).alias(_SIDE), number.alias(_ID))


def _comparable(both: DataFrame, columns: list[str]) -> list[Column]:
    """Return the row's columns in types that Spark can group by."""
    kinds = {field.name: field.dataType for field in both.select(f"{_ROW}.*").schema}
    return [
        _groupable(F.col(f"{_ROW}.{quote(name)}"), kinds[name]).alias(f"c{number}")
        for number, name in enumerate(columns)
    ]


def _groupable(column: Column, kind: T.DataType) -> Column:
    """Return a map as its sorted entries and a variant as JSON, also within other types."""
    text = kind.simpleString()
    if "map<" not in text and "variant" not in text:
        return column
    if isinstance(kind, T.MapType):
        entry = T.StructType().add("key", kind.keyType).add("value", kind.valueType)
        return F.array_sort(_groupable(F.map_entries(column), T.ArrayType(entry)))
    if isinstance(kind, T.ArrayType):
        inner = kind.elementType
        return F.transform(column, lambda element: _groupable(element, inner))
    if isinstance(kind, T.StructType):
        fields = [
            _groupable(column.getField(field.name), field.dataType).alias(f"f{number}")
            for number, field in enumerate(kind)
        ]
        return F.when(column.isNotNull(), F.struct(*fields))
    return F.to_json(F.struct(column))


def _key_columns(columns: list[str], keys: Sequence[str]) -> list[str]:
    names = {name.lower(): name for name in columns}
    if not keys or any(key.lower() not in names for key in keys):
        raise UsageError(
            f"Rows can't be matched by the columns {', '.join(keys) or '(none)'}.",
            hint=f"choose one or more of {', '.join(columns)}.",
        )
    return [names[key.lower()] for key in keys]


def _by_id(both: DataFrame) -> DataFrame:
    """Return the old and new state of each row id, if they differ."""
    found = _paired(both, [_ID], _SAME)
    same = F.col(f"old{_SAME}").eqNullSafe(F.col(f"new{_SAME}"))
    return _unfold(found.where((F.col("low") == F.col("high")) | ~same))


def _by_row(both: DataFrame, keys: list[str]) -> DataFrame:
    """Cancel equal rows, and pair a key's remaining old and new rows as updates."""
    net = both.groupBy(_SAME).agg(F.sum(_SIDE).alias("net"), F.first(_ROW).alias(_ROW))
    times = F.explode(F.sequence(F.lit(1), F.abs("net").cast("int")))
    left = net.where("net <> 0").select(_ROW, _SAME, F.signum("net").alias(_SIDE), times)
    if not keys:
        change = F.when(F.col(_SIDE) > 0, INSERT).otherwise(DELETE)
        return left.withColumn(CHANGE_TYPE, change)
    by = [F.col(f"{_ROW}.{quote(key)}") for key in keys]
    order = Window.partitionBy(*by, F.col(_SIDE)).orderBy(_SAME)
    named = [column.alias(f"k{number}") for number, column in enumerate(by)]
    ranked = left.select(_ROW, _SIDE, *named, F.row_number().over(order).alias(_RANK))
    return _unfold(_paired(ranked, [*(f"k{number}" for number in range(len(by))), _RANK]))


def _paired(rows: DataFrame, by: list[str], *more: str) -> DataFrame:
    """Put the old and the new state of a row into one row; `low` and `high` mark the two states."""
    return rows.groupBy(*by).agg(
        F.min(_SIDE).alias("low"),
        F.max(_SIDE).alias("high"),
        *[F.min_by(column, _SIDE).alias(f"old{column}") for column in (_ROW, *more)],
        *[F.max_by(column, _SIDE).alias(f"new{column}") for column in (_ROW, *more)],
    )


def _unfold(found: DataFrame) -> DataFrame:
    """Return one or two rows for each pair: the old state and the new state."""

    def change(kind: str, row: str) -> Column:
        return F.struct(F.lit(kind).alias(CHANGE_TYPE), F.col(row).alias(_ROW))

    old, new = f"old{_ROW}", f"new{_ROW}"
    changes = (
        F.when(F.col("low") < F.col("high"), F.array(change(BEFORE, old), change(AFTER, new)))
        .when(F.col("low") > 0, F.array(change(INSERT, new)))
        .otherwise(F.array(change(DELETE, old)))
    )
    return found.select(F.explode(changes).alias("change")).select("change.*")


def count_changes(changes: DataFrame) -> dict[str, int]:
    """Return the number of rows by kind of change: `added`, `removed` and `changed`."""
    counted = {row[0]: row[1] for row in changes.groupBy(CHANGE_TYPE).count().collect()}
    names = {"added": INSERT, "removed": DELETE, "changed": AFTER}
    return {name: counted.get(kind, 0) for name, kind in names.items()}


@dataclass(frozen=True)
class VersionPair:
    """Two versions of one table; if they are the same version, `note` is the reason."""

    table: TableName
    before: int
    after: int
    note: str = ""

    def __repr__(self) -> str:
        return f"{self.table}: versions {self.before} and {self.after}"


def choose_versions(
    table: TableHandle,
    before: int | None = None,
    after: int | None = None,
    *,
    before_timestamp: str | datetime | None = None,
    after_timestamp: str | datetime | None = None,
) -> VersionPair:
    """Return the two versions to compare, after a check that both can be read.

    Arguments are those of `Table.compare`.

    Raises:
        UsageError: an end has both a version and a timestamp, the first version is after the
            second, or a text is not a timestamp.
        VersionError: one of the versions can't be read. The error contains the range that can be
            read.
    """
    storage, name = table.storage, table.name
    newest = table.snapshot().version
    new = _version_of(table, "after", after, after_timestamp, default=newest)
    old = _version_of(table, "before", before, before_timestamp, default=new - 1)
    if old > new:
        raise UsageError(f"Version {old} is after version {new}.", hint="swap the two versions.")
    check_version(storage, name, new)
    is_chosen = before is not None or before_timestamp
    if not is_chosen and old < find_readable_range(storage, name).earliest:
        return VersionPair(name, new, new, f"Version {new} is the oldest that can be read.")
    check_version(storage, name, old)
    return VersionPair(name, old, new, "" if old < new else "Both ends are the same version.")


def _version_of(
    table: TableHandle,
    end: str,
    version: int | None,
    timestamp: str | datetime | None,
    *,
    default: int,
) -> int:
    """Return the version that one end of a comparison names.

    Raises:
        UsageError: both a version and a timestamp are given, or one of them is invalid.
        VersionError: the timestamp is older than every version that can be read.
    """
    if timestamp:
        if version is not None:
            raise UsageError(
                f"Version {version} and the timestamp {timestamp} are both given for `{end}`.",
                hint=f"give only one of {end} and {end}_timestamp.",
            )
        return version_at(table.storage, table.name, parse_utc_timestamp(timestamp))
    if version is None:
        return default
    check_integer(version)
    if version < 0:
        raise UsageError(f"There is no version {version}.", hint="versions start at 0.")
    return version


@dataclass(frozen=True)
class Difference(Result):
    """The difference between two versions.

    Attributes:
        pair: the versions.
        by: how rows were matched, in words.
        counts: the rows `added`, `removed` and `changed`; None if there is only one version.
        columns: names of added columns (with `+`) and of removed columns (with `-`).
        rows: the first changes, ordered by the columns that rows are matched by; of a wide table,
            the keys and the columns that changed.
    """

    pair: VersionPair
    by: str = ""
    counts: dict[str, int] | None = None
    columns: tuple[str, ...] = ()
    rows: TextTable | None = None

    def shown(self) -> TextTable:
        """Return the counts in one row, or the reason why there are none."""
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


def compare_versions(
    table: TableHandle, pair: VersionPair, *, keys: Sequence[str] = (), limit: int = 10
) -> Difference:
    """Count the changes between two versions; see `Table.compare`."""
    if pair.note:
        return Difference(pair)
    from mirrorlake.spark.dataframes import show_rows

    old, new = readable_snapshots(table, pair.before, pair.after)
    settings = [snapshot.properties if snapshot else {} for snapshot in (old, new)]
    schemas = [snapshot.schema if snapshot else {} for snapshot in (old, new)]
    match, by = choose_match(*settings, recreated=is_recreated(old, new))
    declared = declared_keys(settings[1])
    if keys or (declared and all(key in schema for key in declared for schema in schemas)):
        match, by = Match.KEY, tuple(keys) or declared
    rows = diff_rows(table.rows(pair.before), table.rows(pair.after), match, by).cache()
    try:
        counts = count_changes(rows)
        shown = narrow_changes(show_rows(rows, order_by=_order(rows, by), limit=limit), by)
    finally:
        rows.unpersist()
    matched = f"by {', '.join(by) or match.value.replace('-', ' ')}"
    return Difference(pair, matched, counts, tuple(changed_columns(old, new)), shown)


def _order(rows: DataFrame, keys: Sequence[str]) -> list[str]:
    """Return the columns to order the rows by."""
    first = list(dict.fromkeys(spelled(keys, rows.columns)))
    sortable = [name for name in sortable_columns(rows.dtypes) if name != CHANGE_TYPE]
    names = [*first, *(name for name in sortable if name not in first)][: len(first) + 8]
    if not first:
        return [*map(quote, names), quote(CHANGE_TYPE)]
    # The preimage of an update comes before its postimage.
    rest = map(quote, names[len(first) :])
    return [*map(quote, first), f"{quote(CHANGE_TYPE)} DESC", *rest]
