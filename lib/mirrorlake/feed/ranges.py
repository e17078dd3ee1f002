"""Read a range of a change feed: its versions, its rows, its gaps and its net changes.

A range is checked before it is read, so that an error names the version that can't be read, and a
way around it. Both ends of a range are included.

`bridge` compares versions where the feed can't be read. Each row then names its origin: `feed`;
`row ids` if two versions were compared by the stable ids of their rows; `snapshots` if they were
compared by keys, or as whole rows. A gap is compared as one step: its rows have the gap's last
version, and changes that cancel out within the gap are missing.

`net_changes` returns one outcome per key. A change adds a row (+1) or removes one (-1). There are
two strategies, and both shuffle once, by key. If a key identifies one row, as a table's declared
keys do, the outcome is the first row that was removed and the last one that was added. One pass
over the key's changes finds both and proves that there are no others. Otherwise, changes are summed
by the whole row: rows that were inserted and deleted, or changed and changed back, sum up to 0. The
order does not matter, and duplicates are counted. `tests/helpers/feed_model.py` is the reference.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import reduce
from typing import Literal

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.types import StructType

from mirrorlake.delta.actions import Places, encode, live_files, vector_path
from mirrorlake.delta.commits import State, Timeline, read_states
from mirrorlake.delta.snapshot import missing_column, physical_name
from mirrorlake.delta.table import TableHandle
from mirrorlake.delta.timestamps import parse_session_timestamp, timestamp_text, to_milliseconds
from mirrorlake.errors import FeedError, UsageError
from mirrorlake.feed.doctor import UNSAFE_CONF, Diagnosis, examine, find_breaks, span_text
from mirrorlake.history.diff import (
    CHANGE_TYPE,
    COMMIT_TIMESTAMP,
    COMMIT_VERSION,
    FEED_COLUMNS,
    RESERVED,
    Match,
    choose_match,
    diff_rows,
    is_tracked,
)
from mirrorlake.mirror.options import declared_keys
from mirrorlake.names import HIDDEN, quote, split_names
from mirrorlake.results import counted
from mirrorlake.spark.jvm import feed_scan, has_gateway
from mirrorlake.spark.older import VARIANTS
from mirrorlake.spark.rewrite import whole_hash
from mirrorlake.spark.sql import literal, setting

End = int | str | datetime
Outside = Literal["error", "clip"]
BEYOND_CONF = "spark.databricks.delta.changeDataFeed.timestampOutOfRange.enabled"
ORIGIN = "_change_origin"
_FEED, _ROW_IDS, _SNAPSHOTS = "feed", "row ids", "snapshots"
_IN_ORDER = ("delete", "update_preimage", "update_postimage", "insert")
_KIND, _VERSION, _TIMESTAMP = RESERVED
_COUNT, _BEFORE, _AFTER = (f"{HIDDEN}{name}" for name in ("count", "before", "after"))
_PRINT, _MARK, _FIRST, _LAST, _BALANCE = (
    f"{HIDDEN}{name}" for name in ("print", "mark", "first", "last", "balance")
)
_PRINT_BITS = 40  # with 22 bits for the position in a range, a mark fits a BIGINT


@dataclass(frozen=True)
class Span:
    """A range of versions, both ends included; empty if it starts after its end."""

    start: int
    end: int

    @property
    def is_empty(self) -> bool:
        """True if the range contains no version."""
        return self.start > self.end


def readable_span(
    table: TableHandle,
    timeline: Timeline,
    start: End,
    end: End | None,
    beyond_latest: Outside | None = None,
    before_feed: Outside = "error",
) -> Span:
    """Return the range between two ends, after a check that the feed contains all of it.

    Raises:
        FeedError: the feed lacks a part of the range; the hint names a fix.
        UsageError: an end is invalid.
    """
    span = resolve_span(table.spark, timeline, start, end, beyond_latest)
    if span.is_empty:
        return span
    found = examine(table, timeline, span.start, span.end, files=False)
    if not found.blocking:
        return span
    if before_feed == "clip" and found.readable and found.readable[-1][1] == span.end:
        return Span(*found.readable[-1])
    raise range_error(found)


def read_unread(table: TableHandle, timeline: Timeline, start: int, end: int) -> DataFrame:
    """Return the changes that a consumer has not read, also if types were widened meanwhile.

    Raises:
        FeedError: the feed lacks a part of the range; the hint names a fix.
    """
    spark, found = table.spark, examine(table, timeline, start, end, files=False)
    if not found.blocking:
        return read_feed(spark, table.path, start, end)
    if not has_gateway(spark) or not _is_only_widened(table, timeline, found):
        raise range_error(found)
    # Delta refuses any change of a type, even if the new one can store all values of the old one.
    with setting(spark, UNSAFE_CONF, "true"):
        return read_feed(spark, table.path, start, end)


def _is_only_widened(table: TableHandle, timeline: Timeline, found: Diagnosis) -> bool:
    """Return whether the only obstacles of a range are types that were widened since."""
    if any(finding.rule != "schema" for finding in found.blocking):
        return False
    *older, latest = read_states(table.storage, table.name.table_path, found.start, timeline.latest)
    breaks = [one for state in older for one in find_breaks(state.fields, latest.fields)]
    return bool(breaks) and all(one.widens for one in breaks)


def key_columns(table: TableHandle, keys: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the columns that identify a row, as the table spells them.

    Raises:
        UsageError: no keys are given or declared, or a key is not a column.
    """
    snapshot = table.snapshot()
    chosen = declared_keys(snapshot.properties) if keys is None else split_names(keys)
    if not chosen:
        raise UsageError(
            f"The table {table.name} declares no keys.",
            hint="pass the key columns as keys (--keys).",
        )
    known = {name.lower(): name for name in snapshot.schema}
    for key in chosen:
        if key.lower() not in known:
            raise missing_column(table.name, key, snapshot)
    return tuple(known[key.lower()] for key in chosen)


def resolve_span(
    spark: SparkSession,
    timeline: Timeline,
    start: End,
    end: End | None,
    beyond_latest: Outside | None = None,
) -> Span:
    """Return the range of versions between two ends.

    Raises:
        FeedError: an end is beyond the newest version, unless such ends are clipped.
        UsageError: an end is neither a version nor a timestamp, or the start is after the end.
    """
    if beyond_latest is None:
        setting = spark.conf.get(BEYOND_CONF, "false") or "false"
        beyond_latest = "clip" if setting.lower() == "true" else "error"
    first, first_given = _resolve(spark, timeline, start, is_start=True)
    last, last_given = (
        (timeline.latest, "") if end is None else _resolve(spark, timeline, end, is_start=False)
    )
    for version, given, fix in (
        (first, first_given, f"choose a start up to version {timeline.latest}"),
        (last, last_given, "leave out the end to read up to the newest version"),
    ):
        if version > timeline.latest and beyond_latest == "error":
            newest = timestamp_text(timeline.times[-1])
            raise FeedError(
                f"{given} is beyond the newest version, {timeline.latest} of {newest}.",
                hint=f"{fix}. To read only the existing versions, SET {BEYOND_CONF} = true in SQL,"
                " or pass beyond_latest='clip' to changes.read, changes.net or row_tracking.changes"
                " (--beyond clip).",
            )
    # Between two timestamps there may be no commit; that is an empty range.
    by_timestamp = "timestamp" in first_given + last_given
    if last < first <= timeline.latest and not by_timestamp:
        raise UsageError(
            f"The range starts at version {first}, after its end {last}.", hint="swap the two ends."
        )
    return Span(first, min(last, timeline.latest))


def _resolve(
    spark: SparkSession, timeline: Timeline, given: End, *, is_start: bool
) -> tuple[int, str]:
    if isinstance(given, str) and re.fullmatch(r"-?\d{1,18}", given):
        given = int(given)
    if isinstance(given, int):
        if given < 0:
            raise UsageError(f"There is no version {given}.", hint="versions start at 0.")
        return given, f"Version {given}"
    zone = spark.conf.get("spark.sql.session.timeZone", "UTC") or "UTC"
    at = to_milliseconds(parse_session_timestamp(given, zone))
    named = f"The timestamp {given}"
    beyond = at > timeline.times[-1]
    if is_start:
        return timeline.at_or_after(at), named
    version = timeline.at_or_before(at)
    if version < timeline.versions[0]:
        raise FeedError(
            f"{named} is before the oldest version, {timeline.versions[0]} of"
            f" {timestamp_text(timeline.times[0])}.",
            hint="choose a later end.",
        )
    return (timeline.latest + 1 if beyond else version), named


def read_feed(spark: SparkSession, path: str, start: int, end: int) -> DataFrame:
    """Return Delta's own feed of a range that can be read.

    Args:
        spark: the session. With Spark Connect, Delta's data source is used, at half the speed.
        path: the full path of the table's folder.
        start: the first version.
        end: the last version.
    """
    reader = spark.read.format("delta").option("readChangeFeed", "true")
    rows = reader.option("startingVersion", start).option("endingVersion", end).load(path)
    return feed_scan(rows, start, end) if has_gateway(spark) else rows


def empty_feed(table: TableHandle) -> DataFrame:
    """Return no rows, with the columns of a feed."""
    nulls = (f"CAST(NULL AS {kind}) AS {quote(name)}" for name, kind in FEED_COLUMNS.items())
    return table.rows().limit(0).selectExpr("*", *nulls)


def range_error(found: Diagnosis) -> FeedError:
    """Return the error for a range that can't be read."""
    first = found.blocking[0]
    ranges = ", ".join(span_text(span) for span in found.readable) or "none"
    others = len(found.blocking) - 1
    more = f" (and {counted(others, 'more finding')})" if others else ""
    return FeedError(
        f"The feed of {found.table} can't be read from version {found.start} to {found.end}:"
        f" {first.message}{more}",
        hint=f"{first.fix.rstrip('.')}. Readable: {ranges}. table.changes.diagnose() returns all"
        " findings.",
        column=first.column,
    )


def in_order(
    changes: DataFrame, keys: Sequence[str] = (), kinds: Sequence[str] = _IN_ORDER
) -> DataFrame:
    """Order changes by version and key, each preimage before its postimage.

    Args:
        changes: rows with the columns of a feed.
        keys: the columns by which the rows of a version are ordered.
        kinds: the kinds of changes, in their order.
    """
    listed = ", ".join(map(literal, kinds))
    kind = F.expr(f"array_position(array({listed}), {quote(CHANGE_TYPE)})")
    return changes.orderBy(COMMIT_VERSION, *[F.col(quote(key)) for key in keys], kind)


@dataclass(frozen=True)
class RangePart(Span):
    """A part of a range that is read from the feed, or by comparing its ends."""

    by_feed: bool


def bridge(table: TableHandle, timeline: Timeline, found: Diagnosis) -> DataFrame:
    """Return the changes of a diagnosed range, gaps included, with the columns of its last version.

    Args:
        table: the table.
        timeline: the table's versions.
        found: the diagnosis of the range, including its files.

    Returns:
        The columns of `Changes.read`, and `_change_origin`.

    Raises:
        FeedError: no version can be read before or after a gap.
    """
    segments = plan_segments(found, lambda version: _is_complete(table, version))
    first = max(found.start, timeline.first)
    path = table.name.table_path
    states = {s.version: s for s in read_states(table.storage, path, first, found.end)}
    last = states[found.end]
    parts = (
        _from_feed(table, segment, states[segment.end], last)
        if segment.by_feed
        else _compared(table, timeline, segment, states, last)
        for segment in segments
    )
    return reduce(lambda left, right: left.unionByName(right), parts)


def plan_segments(found: Diagnosis, is_complete: Callable[[int], bool]) -> list[RangePart]:
    """Divide a range into parts that the feed contains, and gaps between versions that can be read.

    Args:
        found: the range and its readable parts.
        is_complete: returns whether a version's rows can be read; called as rarely as possible.

    Raises:
        FeedError: no version can be read before or after a gap.
    """
    segments: list[RangePart] = []
    at = found.start
    for start, end in [*found.readable, (found.end + 1, found.end)]:
        if start > at:
            low, high = at - 1, start - 1
            while low >= 0 and not is_complete(low):
                low -= 1
                if low < found.start - 1:
                    raise _lost_error(found, at, start - 1, "before")
            while not is_complete(high):
                high += 1
                if high > found.end:
                    raise _lost_error(found, at, start - 1, "after")
            segments = [replace(s, end=min(s.end, low)) for s in segments if s.start <= low]
            segments.append(RangePart(low + 1, high, by_feed=False))
            start = max(start, high + 1)
        at = max(at, start)
        if start <= end:
            segments.append(RangePart(start, end, by_feed=True))
            at = end + 1
    return segments


def _lost_error(found: Diagnosis, start: int, end: int, side: str) -> FeedError:
    return FeedError(
        f"The changes of {found.table} in {span_text((start, end), 'version')} are lost: the feed"
        f" can't be read there, and the range has no version {side} it that can be read.",
        hint="read the ranges that table.changes.diagnose() returns one by one, or start with the"
        " newest version's rows as inserts.",
    )


def _is_complete(table: TableHandle, version: int) -> bool:
    """Return whether all files of a version exist, and Delta can read them."""
    if version < 0:
        return True
    try:
        files = table.rows(version).inputFiles()
        adds = live_files(table.storage, table.name.table_path, version)
    except Exception:  # Delta refuses the version, or its log entries no longer exist
        return False
    places = Places(table.storage, table.name.table_path)
    vectors = {path for add in adds if (path := vector_path(add.get("deletionVector")))}
    return all(map(places.exists, [*files, *map(encode, vectors)]))


def _from_feed(table: TableHandle, segment: RangePart, state: State, last: State) -> DataFrame:
    feed = read_feed(table.spark, table.path, segment.start, segment.end)
    return _align(feed, state, last, RESERVED).withColumn(ORIGIN, F.lit(_FEED))


def _compared(
    table: TableHandle,
    timeline: Timeline,
    segment: RangePart,
    states: dict[int, State],
    last: State,
) -> DataFrame:
    """Return the difference between the version before a gap and the version at its end."""
    after = states[segment.end]
    new = _align(table.rows(after.version), after, last)
    match = Match.ROW
    if segment.start == 0:
        rows = new.withColumn(CHANGE_TYPE, F.lit("insert"))
    else:
        then = segment.start - 1
        (before,) = read_states(table.storage, table.name.table_path, then, then)
        inside = [s for v, s in states.items() if segment.start <= v <= segment.end]
        match, keys = _match([before, *inside], list(last.schema))
        old = _align(table.rows(before.version), before, last)
        rows = diff_rows(old, new, match, keys)
    return rows.withColumns(
        {
            COMMIT_VERSION: F.lit(segment.end).cast("bigint"),
            COMMIT_TIMESTAMP: F.timestamp_millis(F.lit(timeline.time(segment.end))),
            ORIGIN: F.lit(_ROW_IDS if match is Match.ROW_ID else _SNAPSHOTS),
        }
    )


def _match(states: Sequence[State], columns: Sequence[str]) -> tuple[Match, tuple[str, ...]]:
    """Return the best way to match rows of the first and the last of some versions."""
    first, last = states[0].properties, states[-1].properties
    incarnations = {state.incarnation for state in states if state.incarnation is not None}
    is_recreated = len(incarnations) > 1 or not all(
        is_tracked(state.properties) for state in states
    )
    match, keys = choose_match(first, last, recreated=is_recreated)
    if match is Match.KEY and not set(keys) <= set(columns):
        return Match.ROW, ()
    return match, keys


def _align(rows: DataFrame, state: State, last: State, more: Sequence[str] = ()) -> DataFrame:
    """Return rows with another version's columns, which are found by their physical names."""
    found = {physical_name(field).lower(): field["name"] for field in state.fields}
    types = {f.name: f.dataType for f in StructType.fromJson(last.schema_document)}
    columns = []
    for field in last.fields:
        name = found.get(physical_name(field).lower())
        value = F.lit(None) if name is None else F.col(quote(name))
        columns.append(value.cast(types[field["name"]]).alias(field["name"]))
    return rows.select(*columns, *more)


def net_changes(
    changes: DataFrame,
    keys: Sequence[str],
    *,
    unique: range | None = None,
    source: str = "feed",
    hint: str = "pass the key columns as keys (--keys); then all rows are counted.",
) -> DataFrame:
    """Return the changes from before a range to after it, one outcome per key.

    Args:
        changes: the rows of a feed, complete for each version that they contain.
        keys: the columns that identify a row; NULL is a value like any other.
        unique: the range's versions; give them for speed if no key ever has two rows at a time.
            Sums of 40-bit hashes check this: the job fails with the names of the key columns if
            it is not true. Rows with nested values are summed in any case.
        source: what the rows are from, for this error.
        hint: the fix of this error.

    Returns:
        The same columns. A new key has an `insert`, a removed key a `delete`. A key whose row
        differs has an `update_preimage` with the row before the range, and an `update_postimage`
        with the row after it. A key with several rows before or after has deletes and inserts.
        `_commit_version` and `_commit_timestamp` are those of the key's last change.
    """
    # Spark's hashes ignore NULLs in nested values: [1, NULL] and [NULL, 1] have the same hash.
    nested = (T.ArrayType, T.MapType, T.StructType, *VARIANTS)
    is_nested = any(isinstance(field.dataType, nested) for field in changes.schema.fields)
    data = [quote(name) for name in changes.columns if name not in RESERVED]
    sign = F.when(F.col(_KIND).isin("insert", "update_postimage"), 1).otherwise(-1)
    signed = changes.select(*data, _VERSION, _TIMESTAMP, sign.alias(_COUNT))
    if unique is None or is_nested or 2 * len(unique) > 2 ** (63 - _PRINT_BITS):
        rows = _of_any_rows(signed, data, keys)
    else:
        several = (
            f"The {source} has several rows of one key ({', '.join(keys)}) at the same time, so a"
            f" key has no single outcome. Hint: {hint}"
        )
        rows = _of_unique_keys(signed, data, keys, unique.start, several)
    return rows.select(*[quote(name) for name in changes.columns])


def _of_unique_keys(
    signed: DataFrame, data: Sequence[str], keys: Sequence[str], start: int, several: str
) -> DataFrame:
    """Return net changes of keys that have one row at a time, whose changes therefore form a chain.

    Each row is removed before the next one is added, so everything between the first and the last
    row cancels out. The print of a row is its hash. The sum of a chain's prints, with the
    signs of the changes, equals that of its ends. A mark is the position of a change (even for a
    removal, odd for an addition), followed by the print.
    """
    over_key = f"OVER (PARTITION BY {', '.join(map(quote, keys))})"
    place = f"2L * ({_VERSION} - {start}) + IF({_COUNT} > 0, 1, 0)"
    hashed = whole_hash(signed.select(*data), row_ids=False)
    marked = signed.withColumn(_PRINT, F.shiftrightunsigned(hashed, 64 - _PRINT_BITS)).selectExpr(
        *data,
        *(_TIMESTAMP, _COUNT),
        f"shiftleft({place}, {_PRINT_BITS}) | {_PRINT} AS {_MARK}",
        f"{_COUNT} * {_PRINT} AS {_PRINT}",
    )
    found = marked.selectExpr(
        *data,
        *(_COUNT, _MARK),
        f"min({_MARK}) {over_key} AS {_FIRST}",
        f"max({_MARK}) {over_key} AS {_LAST}",
        f"try_sum({_PRINT}) {over_key} AS {_BALANCE}",
        f"max({_TIMESTAMP}) {over_key} AS {_TIMESTAMP}",
    )
    went, came = (f"({mark} & {2**_PRINT_BITS - 1}L)" for mark in (_FIRST, _LAST))
    had = f"shiftright({_FIRST}, {_PRINT_BITS}) % 2 = 0"  # a row before the range
    has = f"shiftright({_LAST}, {_PRINT_BITS}) % 2 = 1"  # a row after it
    is_chain = f"{_BALANCE} <=> IF({has}, {came}, 0) - IF({had}, {went}, 0)"
    is_end = f"{_MARK} = IF({_COUNT} < 0, {_FIRST}, {_LAST})"
    is_same = f"{had} AND {has} AND {went} = {came}"
    broken = F.raise_error(F.lit(several)).cast("boolean")
    kept = F.when(F.expr(is_chain), F.expr(f"{is_end} AND NOT ({is_same})")).otherwise(broken)
    kind = _kind(F.expr(f"{had} AND {has}"), F.col(_COUNT)).alias(_KIND)
    version = F.expr(f"{start} + shiftright({_LAST}, {_PRINT_BITS + 1}) AS {_VERSION}")
    return found.where(kept).select(*data, kind, version, _TIMESTAMP)


def _of_any_rows(signed: DataFrame, data: Sequence[str], keys: Sequence[str]) -> DataFrame:
    """Sum the changes by the whole row; partitioning by key first saves a second shuffle."""
    key_columns = [F.col(quote(name)) for name in keys]
    count = F.col(_COUNT)
    by_row = (
        signed.repartition(*key_columns)
        .groupBy(*data)
        .agg(
            F.sum(count).alias(_COUNT),
            F.max(_VERSION).alias(_VERSION),
            F.max(_TIMESTAMP).alias(_TIMESTAMP),
        )
    )
    key = Window.partitionBy(*key_columns)
    outcome = by_row.withColumns(
        {
            _BEFORE: F.sum(F.greatest(-count, F.lit(0))).over(key),
            _AFTER: F.sum(F.greatest(count, F.lit(0))).over(key),
            _VERSION: F.max(_VERSION).over(key),
            _TIMESTAMP: F.max(_TIMESTAMP).over(key),
        }
    ).where(count != 0)
    name = _kind((F.col(_BEFORE) == 1) & (F.col(_AFTER) == 1), count).alias(_KIND)
    repeated = F.explode(F.sequence(F.lit(1), F.abs(count))).alias(_COUNT)
    return outcome.select(*data, name, _VERSION, _TIMESTAMP, repeated)


def _kind(is_update: Column, count: Column) -> Column:
    return (
        F.when(is_update & (count < 0), "update_preimage")
        .when(is_update, "update_postimage")
        .when(count < 0, "delete")
        .otherwise("insert")
    )
