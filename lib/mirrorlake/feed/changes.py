"""Ranges of a change feed: which versions two ends mean, whether the feed holds them, and bridges.

A range is looked at before it is read, so that a refusal says which version is to blame and how to
get past it. Both ends are included.

What the feed can't give is bridged by comparing versions. Every row names its origin then: `feed`;
`row ids` where two versions were compared by their rows' stable ids; `snapshots` where they were
compared by keys, or as bags of rows. A compared gap is one step: its rows carry the gap's last
version, and what was done and undone within it does not show.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import reduce
from typing import Literal

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from mirrorlake.delta.actions import Places
from mirrorlake.delta.commits import State, Timeline, read_states
from mirrorlake.delta.snapshot import physical_name
from mirrorlake.delta.table import TableHandle
from mirrorlake.delta.timestamps import (
    parse_session_timestamp,
    timestamp_text,
    to_milliseconds,
)
from mirrorlake.errors import FeedError, UsageError
from mirrorlake.feed.doctor import Diagnosis, examine, span_text
from mirrorlake.feed.schema import (
    COMMIT_TIMESTAMP,
    COMMIT_VERSION,
    FEED_COLUMNS,
    RESERVED,
    read_feed,
)
from mirrorlake.history.diff import CHANGE_TYPE, Match, choose_match, diff_rows, is_tracked
from mirrorlake.mirror.options import declared_keys
from mirrorlake.spark.sql import literal, quote

End = int | str | datetime
Outside = Literal["error", "clip"]
BEYOND_CONF = "spark.databricks.delta.changeDataFeed.timestampOutOfRange.enabled"
ORIGIN = "_change_origin"
_FEED, _ROW_IDS, _SNAPSHOTS = "feed", "row ids", "snapshots"
_IN_ORDER = ("delete", "update_preimage", "update_postimage", "insert")


@dataclass(frozen=True)
class Span:
    """A range of versions, both ends included; empty if it starts after its end."""

    start: int
    end: int

    @property
    def is_empty(self) -> bool:
        """Whether no version is in it."""
        return self.start > self.end


def readable_span(
    table: TableHandle,
    timeline: Timeline,
    start: End,
    end: End | None,
    beyond_latest: Outside | None = None,
    before_feed: Outside = "error",
) -> Span:
    """The versions that two ends mean, all of which the feed holds.

    Raises:
        FeedError: it doesn't; with what to do.
        UsageError: the ends make no sense.
    """
    span = resolve_span(table.spark, timeline, start, end, beyond_latest)
    if span.is_empty:
        return span
    found = examine(table, timeline, span.start, span.end, files=False)
    if not found.blocking:
        return span
    if before_feed == "clip" and found.readable and found.readable[-1][1] == span.end:
        return Span(*found.readable[-1])
    raise refusal(found)


def key_columns(table: TableHandle, keys: Sequence[str] | None) -> tuple[str, ...]:
    """The columns that tell a table's rows apart.

    Raises:
        UsageError: none are given and none are declared, or one isn't in the table.
    """
    snapshot = table.snapshot()
    chosen = declared_keys(snapshot.properties) if keys is None else tuple(keys)
    if not chosen:
        raise UsageError(
            f"The table {table.name} declares no keys.", hint="say which columns they are: keys."
        )
    known = {name.lower(): name for name in snapshot.schema}
    for key in chosen:
        if key.lower() not in known:
            raise UsageError(f"The table {table.name} has no column {key}.", column=key)
    return tuple(known[key.lower()] for key in chosen)


def resolve_span(
    spark: SparkSession,
    timeline: Timeline,
    start: End,
    end: End | None,
    beyond_latest: Outside | None = None,
) -> Span:
    """The versions that two ends mean.

    Raises:
        FeedError: an end beyond the latest version, unless that is clipped.
        UsageError: an end that is not a version, nor a timestamp, or a start after the end.
    """
    if beyond_latest is None:
        setting = spark.conf.get(BEYOND_CONF, "false") or "false"
        beyond_latest = "clip" if setting.lower() == "true" else "error"
    first, first_given = _resolve(spark, timeline, start, is_start=True)
    last, last_given = (
        (timeline.latest, "") if end is None else _resolve(spark, timeline, end, is_start=False)
    )
    for version, given in ((first, first_given), (last, last_given)):
        if version > timeline.latest and beyond_latest == "error":
            newest = timestamp_text(timeline.times[-1])
            raise FeedError(
                f"{given} is beyond the latest version, {timeline.latest} of {newest}.",
                hint=f"stay within it, or SET {BEYOND_CONF} = true (--beyond clip) to get no rows"
                " for such a start, and all up to the latest for such an end.",
            )
    by_moments = "moment" in first_given + last_given  # no commit between two moments is no error
    if last < first <= timeline.latest and not by_moments:
        raise UsageError(
            f"The range starts at version {first}, after its end {last}.", hint="swap the two."
        )
    return Span(first, min(last, timeline.latest))


def _resolve(
    spark: SparkSession, timeline: Timeline, given: End, *, is_start: bool
) -> tuple[int, str]:
    if isinstance(given, str) and re.fullmatch(r"-?\d{1,18}", given):
        given = int(given)
    if isinstance(given, int):
        if given < 0:
            raise UsageError(f"{given} is no version.", hint="versions start at 0.")
        return given, f"Version {given}"
    zone = spark.conf.get("spark.sql.session.timeZone", "UTC") or "UTC"
    moment = to_milliseconds(parse_session_timestamp(given, zone))
    said = f"The moment {given}"
    beyond = moment > timeline.times[-1]
    if is_start:
        return timeline.at_or_after(moment), said
    version = timeline.at_or_before(moment)
    if version < timeline.versions[0]:
        raise FeedError(
            f"{said} is before the oldest version, {timeline.versions[0]} of"
            f" {timestamp_text(timeline.times[0])}.",
            hint="choose a later end.",
        )
    return (timeline.latest + 1 if beyond else version), said


def nothing(table: TableHandle) -> DataFrame:
    """No rows, with the feed's columns."""
    nulls = (f"CAST(NULL AS {kind}) AS {quote(name)}" for name, kind in FEED_COLUMNS.items())
    return table.rows().limit(0).selectExpr("*", *nulls)


def refusal(found: Diagnosis) -> FeedError:
    """Why a range can't be read."""
    first = found.blocking[0]
    ranges = ", ".join(span_text(span) for span in found.readable) or "none"
    more = f" (and {len(found.blocking) - 1} more findings)" if len(found.blocking) > 1 else ""
    return FeedError(
        f"The feed of {found.table} can't be read from version {found.start} to {found.end}:"
        f" {first.message}{more}",
        hint=f"{first.fix.rstrip('.')}. Readable: {ranges}. `doctor` tells all.",
        column=first.column,
    )


def in_order(
    changes: DataFrame, keys: Sequence[str] = (), kinds: Sequence[str] = _IN_ORDER
) -> DataFrame:
    """The changes by version, then key; each old row before its new one.

    Args:
        changes: with the feed's columns.
        keys: the columns to order each version's by.
        kinds: the kinds of changes, in their order.
    """
    listed = ", ".join(map(literal, kinds))
    kind = F.expr(f"array_position(array({listed}), {quote(CHANGE_TYPE)})")
    return changes.orderBy(COMMIT_VERSION, *[F.col(quote(key)) for key in keys], kind)


@dataclass(frozen=True)
class RangePart(Span):
    """A part of a range: read from the feed, or by comparing its ends."""

    by_feed: bool


def bridge(table: TableHandle, timeline: Timeline, found: Diagnosis) -> DataFrame:
    """The changes of a diagnosed range, gaps included, with the columns of its last version.

    Args:
        table: the table.
        timeline: its versions.
        found: what was found about the range, its files included.

    Returns:
        What `Changes.read` returns, and the column `_change_origin`.

    Raises:
        FeedError: no version is readable on one side of a gap.
    """
    segments = plan_segments(found, lambda version: _is_whole(table, version))
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


def plan_segments(found: Diagnosis, is_whole: Callable[[int], bool]) -> list[RangePart]:
    """Cuts a range into what the feed gives and the gaps between versions that can be read.

    Args:
        found: the range and its readable parts.
        is_whole: whether a version's rows can still be read; asked as rarely as possible.

    Raises:
        FeedError: no version is readable on one side of a gap.
    """
    segments: list[RangePart] = []
    at = found.start
    for start, end in [*found.readable, (found.end + 1, found.end)]:
        if start > at:
            low, high = at - 1, start - 1
            while low >= 0 and not is_whole(low):
                low -= 1
                if low < found.start - 1:
                    raise _lost(found, at, start - 1, "before")
            while not is_whole(high):
                high += 1
                if high > found.end:
                    raise _lost(found, at, start - 1, "after")
            segments = [replace(s, end=min(s.end, low)) for s in segments if s.start <= low]
            segments.append(RangePart(low + 1, high, by_feed=False))
            start = max(start, high + 1)
        at = max(at, start)
        if start <= end:
            segments.append(RangePart(start, end, by_feed=True))
            at = end + 1
    return segments


def _lost(found: Diagnosis, start: int, end: int, side: str) -> FeedError:
    return FeedError(
        f"The changes of {found.table} in version {span_text((start, end))} are lost: the feed"
        f" can't be read there, and no version {side} it in the range is whole.",
        hint="read the ranges that `doctor` names one by one, or start with the newest version's"
        " rows as inserts.",
    )


def _is_whole(table: TableHandle, version: int) -> bool:
    """Whether all files of a version are there, and Delta lets us read them."""
    if version < 0:
        return True
    try:
        files = table.rows(version).inputFiles()
    except Exception:  # refused, or its log is gone: as good as lost
        return False
    places = Places(table.storage, table.name.table_path)
    return all(map(places.exists, files))


def _from_feed(table: TableHandle, segment: RangePart, state: State, last: State) -> DataFrame:
    feed = read_feed(table.spark, table.path, segment.start, segment.end)
    return _aligned(feed, state, last, RESERVED).withColumn(ORIGIN, F.lit(_FEED))


def _compared(
    table: TableHandle,
    timeline: Timeline,
    segment: RangePart,
    states: dict[int, State],
    last: State,
) -> DataFrame:
    """The difference of the versions before and at the end of a gap."""
    after = states[segment.end]
    new = _aligned(table.rows(after.version), after, last)
    match = Match.ROW
    if segment.start == 0:
        rows = new.withColumn(CHANGE_TYPE, F.lit("insert"))
    else:
        then = segment.start - 1
        (before,) = read_states(table.storage, table.name.table_path, then, then)
        inside = [s for v, s in states.items() if segment.start <= v <= segment.end]
        match, keys = _match([before, *inside], list(last.schema))
        old = _aligned(table.rows(before.version), before, last)
        rows = diff_rows(old, new, match, keys)
    return rows.withColumns(
        {
            COMMIT_VERSION: F.lit(segment.end).cast("bigint"),
            COMMIT_TIMESTAMP: F.timestamp_millis(F.lit(timeline.time(segment.end))),
            ORIGIN: F.lit(_ROW_IDS if match is Match.ROW_ID else _SNAPSHOTS),
        }
    )


def _match(states: Sequence[State], columns: Sequence[str]) -> tuple[Match, tuple[str, ...]]:
    """How the first and the last of some versions are compared best."""
    first, last = states[0].properties, states[-1].properties
    lives = {state.incarnation for state in states if state.incarnation is not None}
    anew = len(lives) > 1 or not all(is_tracked(state.properties) for state in states)
    match, keys = choose_match(first, last, made_anew=anew)
    if match is Match.KEY and not set(keys) <= set(columns):
        return Match.ROW, ()
    return match, keys


def _aligned(rows: DataFrame, state: State, last: State, more: Sequence[str] = ()) -> DataFrame:
    """One version's rows with another version's columns, known by their physical names."""
    found = {physical_name(field).lower(): field["name"] for field in state.fields}
    types = {f.name: f.dataType for f in StructType.fromJson(last.schema_document)}
    columns = []
    for field in last.fields:
        name = found.get(physical_name(field).lower())
        value = F.lit(None) if name is None else F.col(quote(name))
        columns.append(value.cast(types[field["name"]]).alias(field["name"]))
    return rows.select(*columns, *more)
