"""Reads a range across what the feed can't give, by comparing versions there.

Every row names its origin: `feed`; `row ids` where two versions were compared by their rows'
stable ids; `snapshots` where they were compared by keys, or as bags of rows. A compared gap is one
step: its rows carry the gap's last version, and what was done and undone within it does not show.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from mirrorlake.delta.actions import Places
from mirrorlake.delta.commits import State, Timeline, read_states
from mirrorlake.delta.snapshot import physical_name
from mirrorlake.delta.table import Table
from mirrorlake.errors import FeedError
from mirrorlake.feed.doctor import Diagnosis, span_text
from mirrorlake.feed.schema import RESERVED, read_feed
from mirrorlake.history.diff import CHANGE_TYPE, Match, choose_match, diff_rows, is_tracked
from mirrorlake.spark.sql import quote

ORIGIN = "_change_origin"
FEED, ROW_IDS, SNAPSHOTS = "feed", "row ids", "snapshots"


@dataclass(frozen=True)
class Segment:
    """A part of a range: read from the feed, or by comparing its ends."""

    start: int
    end: int
    by_feed: bool


def bridge(table: Table, timeline: Timeline, found: Diagnosis) -> DataFrame:
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


def plan_segments(found: Diagnosis, is_whole: Callable[[int], bool]) -> list[Segment]:
    """Cuts a range into what the feed gives and the gaps between versions that can be read.

    Args:
        found: the range and its readable parts.
        is_whole: whether a version's rows can still be read; asked as rarely as possible.

    Raises:
        FeedError: no version is readable on one side of a gap.
    """
    segments: list[Segment] = []
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
            segments.append(Segment(low + 1, high, by_feed=False))
            start = max(start, high + 1)
        at = max(at, start)
        if start <= end:
            segments.append(Segment(start, end, by_feed=True))
            at = end + 1
    return segments


def _lost(found: Diagnosis, start: int, end: int, side: str) -> FeedError:
    return FeedError(
        f"The changes of {found.table} in version {span_text((start, end))} are lost: the feed"
        f" can't be read there, and no version {side} it in the range is whole.",
        hint="read the ranges that `doctor` names one by one, or start with the newest version's"
        " rows as inserts.",
    )


def _is_whole(table: Table, version: int) -> bool:
    """Whether all files of a version are there, and Delta lets us read them."""
    if version < 0:
        return True
    try:
        files = table.rows(version).inputFiles()
    except Exception:  # refused, or its log is gone: as good as lost
        return False
    places = Places(table.storage, table.name.table_path)
    return all(map(places.exists, files))


def _from_feed(table: Table, segment: Segment, state: State, last: State) -> DataFrame:
    feed = read_feed(table.spark, table.path, segment.start, segment.end)
    return _aligned(feed, state, last, RESERVED).withColumn(ORIGIN, F.lit(FEED))


def _compared(
    table: Table, timeline: Timeline, segment: Segment, states: dict[int, State], last: State
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
    marks = (
        F.lit(segment.end).cast("bigint"),
        F.timestamp_millis(F.lit(timeline.time(segment.end))),
        F.lit(ROW_IDS if match is Match.ROW_ID else SNAPSHOTS),
    )
    return rows.withColumns(dict(zip((*RESERVED[1:], ORIGIN), marks, strict=True)))


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
