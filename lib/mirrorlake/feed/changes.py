"""Ranges of a change feed: which versions two ends mean, and whether the feed holds them.

A range is looked at before it is read, so that a refusal says which version is to blame and how to
get past it. Both ends are included.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from mirrorlake.delta.commits import Timeline
from mirrorlake.delta.table import Table
from mirrorlake.delta.timestamps import (
    parse_session_timestamp,
    timestamp_text,
    to_milliseconds,
)
from mirrorlake.errors import FeedError, UsageError
from mirrorlake.feed.doctor import Diagnosis, examine, span_text
from mirrorlake.feed.schema import FEED_COLUMNS, RESERVED
from mirrorlake.mirror.properties import declared_keys
from mirrorlake.spark.sql import literal, quote

_IN_ORDER = ("delete", "update_preimage", "update_postimage", "insert")

End = int | str | datetime
Outside = Literal["error", "clip"]
BEYOND_CONF = "spark.databricks.delta.changeDataFeed.timestampOutOfRange.enabled"


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
    table: Table,
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


def key_columns(table: Table, keys: Sequence[str] | None) -> tuple[str, ...]:
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


def nothing(table: Table) -> DataFrame:
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
    kind = F.expr(f"array_position(array({listed}), {quote(RESERVED[0])})")
    return changes.orderBy(RESERVED[1], *[F.col(quote(key)) for key in keys], kind)
