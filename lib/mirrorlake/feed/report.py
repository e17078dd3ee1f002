"""A range of a table's change feed, to be looked at: what stands in the way, then what changed.

Unlike `Changes.read` it refuses nothing that it can show in part: what can't be read is in the
doctor's findings and in the notes. Nothing is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from mirrorlake.delta.commits import CommitLog, Timeline, read_versions
from mirrorlake.delta.table import Table
from mirrorlake.errors import UsageError
from mirrorlake.feed.changes import Span, in_order, key_columns, resolve_span
from mirrorlake.feed.doctor import Diagnosis, examine, span_text
from mirrorlake.feed.gaps import ORIGIN, bridge
from mirrorlake.feed.net import net_changes
from mirrorlake.feed.readable import COLUMNS, as_texts, moment_text, short, tell_changes
from mirrorlake.feed.schema import RESERVED, read_feed
from mirrorlake.mirror.properties import declared_keys
from mirrorlake.results import Result, TextTable
from mirrorlake.spark.sql import query_errors, quote

_KIND, _VERSION, _ = RESERVED
KINDS = {"inserted": "insert", "updated": "update_postimage", "deleted": "delete"}
_MOST_EVENTS = 50


@dataclass(frozen=True)
class FeedReport(Result):
    """What a range of a feed holds.

    Attributes:
        table: which table.
        start, end: the versions that were asked about.
        shown_from, shown_to: those whose changes are counted; None if none can be read.
        diagnosis: what the doctor found.
        by_version: one row a version: when, what, rows inserted, updated, deleted.
        raw: rows inserted, updated, deleted, each change counted.
        net: the same, each key counted once; empty without keys.
        keys: the columns that tell rows apart.
        followed: whose history `timeline` is.
        timeline: the changes of one key, in words.
        notes: what is not shown, and why.
    """

    table: str
    start: int
    end: int
    shown_from: int | None
    shown_to: int | None
    diagnosis: Diagnosis
    by_version: TextTable
    raw: dict[str, int]
    net: dict[str, int]
    keys: tuple[str, ...]
    followed: str
    timeline: TextTable
    notes: tuple[str, ...] = ()

    def shown(self) -> TextTable:
        """The figures: each kind of change raw and net, then the notes."""
        rows: list[tuple[Any, ...]] = [
            (f"rows {kind}", f"{count:,}", f"{self.net[kind]:,}" if self.net else "")
            for kind, count in self.raw.items()
        ]
        rows += [("note", note, "") for note in self.notes]
        return TextTable(("what", "raw", "net"), tuple(rows))

    def __repr__(self) -> str:
        if self.shown_from is None or self.shown_to is None:
            return f"{self.table}: no change can be read; {' '.join(self.notes)}"
        span = span_text((self.shown_from, self.shown_to), "version")
        return f"{self.table}, {span}: {sum(self.raw.values()):,} changes"


@query_errors()
def report_changes(
    table: Table,
    *,
    start: str = "",
    end: str = "",
    newest: int = 100,
    keys: Sequence[str] = (),
    where: str = "",
    across_gaps: bool = False,
) -> FeedReport:
    """Looks at a range of a table's feed.

    Arguments and errors are those of `Changes.report`.
    """
    timeline = read_versions(table.storage, table.name.table_path)
    if newest < 1:
        raise UsageError(f"{newest} versions can't be shown.", hint="1 or more.")
    chosen = () if not (keys or _declares(table)) else key_columns(table, list(keys) or None)
    span = _asked(table, timeline, start, end, newest)
    found = examine(table, timeline, span.start, span.end, files=True)
    notes: list[str] = []
    readable = span if across_gaps else _readable(found, notes)
    parts: dict[str, Any] = {"raw": dict.fromkeys(KINDS, 0), "net": {}, "followed": ""}
    parts["timeline"] = TextTable(COLUMNS, ())
    counts: dict[int, dict[str, int]] = {}
    if readable is not None:
        rows = _rows(table, timeline, readable, found, across_gaps=across_gaps)
        if where.strip():
            rows = rows.where(where)
        counts = _count(rows)
        for kind in KINDS:
            parts["raw"][kind] = sum(line.get(kind, 0) for line in counts.values())
        if chosen:
            parts["net"] = _net(rows, chosen)
        else:
            notes.append("The table declares no keys, so there is no net result: name them.")
        parts["followed"], parts["timeline"] = _follow(rows, chosen, where, counts)
    return FeedReport(
        str(table.name),
        span.start,
        span.end,
        None if readable is None else readable.start,
        None if readable is None else readable.end,
        found,
        _by_version(table, readable, counts),
        keys=chosen,
        notes=tuple(notes),
        **parts,
    )


def _declares(table: Table) -> bool:
    return bool(declared_keys(table.snapshot().properties))


def _asked(table: Table, timeline: Timeline, start: str, end: str, newest: int) -> Span:
    given, last = str(start).strip(), str(end).strip() or None
    if given:
        span = resolve_span(table.spark, timeline, given, last)
    else:
        latest = resolve_span(table.spark, timeline, 0, last).end
        span = Span(max(timeline.first, latest - newest + 1, 0), latest)
    if span.is_empty:
        raise UsageError(
            f"No version of {table.name} was committed between {start} and {end}.",
            hint=f"the newest is {timeline.latest}.",
        )
    return span


def _readable(found: Diagnosis, notes: list[str]) -> Span | None:
    """The newest part of a range that the feed holds."""
    blocking = found.blocking
    reserved = any(finding.rule == "reserved-column" for finding in blocking)
    if not blocking:
        return Span(found.start, found.end)
    if reserved or not found.readable:
        notes.append(f"{blocking[0].message} {blocking[0].fix}")
        return None
    last = Span(*found.readable[-1])
    notes.append(
        f"Of {span_text((found.start, found.end), 'version')} only"
        f" {span_text((last.start, last.end))} can be read: the doctor says why."
    )
    return last


def _rows(
    table: Table, timeline: Timeline, span: Span, found: Diagnosis, *, across_gaps: bool
) -> DataFrame:
    if across_gaps and found.blocking:
        return bridge(table, timeline, found).drop(ORIGIN)
    return read_feed(table.spark, table.path, span.start, span.end)


def _count(rows: DataFrame) -> dict[int, dict[str, int]]:
    """Rows by version and kind: at most four lines a version."""
    names = {feed: kind for kind, feed in KINDS.items()}
    counted = rows.groupBy(_VERSION, _KIND).count().where(F.col(_KIND) != "update_preimage")
    counts: dict[int, dict[str, int]] = {}
    for line in counted.collect():
        counts.setdefault(line[_VERSION], {})[names[line[_KIND]]] = line["count"]
    return counts


def _net(rows: DataFrame, keys: Sequence[str]) -> dict[str, int]:
    counted = net_changes(rows, keys).groupBy(_KIND).count().collect()
    by_kind = {line[_KIND]: line["count"] for line in counted}
    return {kind: by_kind.get(feed, 0) for kind, feed in KINDS.items()}


def _follow(
    rows: DataFrame, keys: Sequence[str], where: str, counts: dict[int, dict[str, int]]
) -> tuple[str, TextTable]:
    """The history of the key that changed most often; without keys what the predicate finds."""
    if keys and counts:
        columns = [F.col(quote(key)) for key in keys]
        tally = rows.groupBy(*columns).agg(F.countDistinct(_VERSION).alias("versions"))
        most = tally.orderBy(F.desc("versions"), *columns).limit(1).collect()
        for line in most:
            for key, value in zip(keys, line, strict=False):
                rows = rows.where(F.col(quote(key)).eqNullSafe(F.lit(value)))
            named = ", ".join(f"{k} {short(v)}" for k, v in zip(keys, line, strict=False))
            return named, _told(rows, keys)
    if where.strip() and counts:
        return where, _told(rows, keys)
    return "", TextTable(COLUMNS, ())


def _told(rows: DataFrame, keys: Sequence[str]) -> TextTable:
    found = as_texts(in_order(rows, keys).limit(_MOST_EVENTS + 1)).collect()
    told = tell_changes([dict(zip(rows.columns, row, strict=True)) for row in found], keys=keys)
    return TextTable(told.columns, told.rows[:_MOST_EVENTS], more=len(found) > _MOST_EVENTS)


def _by_version(table: Table, span: Span | None, counts: dict[int, dict[str, int]]) -> TextTable:
    columns = ("version", "made (UTC)", "operation", *KINDS)
    if span is None:
        return TextTable(columns, ())
    log = CommitLog(table.storage, table.name.table_path)
    commits = {one.version: one for one in log.read(span.end, span.end - span.start + 1).commits}
    rows = []
    for version in range(span.start, span.end + 1):
        commit, line = commits.get(version), counts.get(version, {})
        made = "" if commit is None else moment_text(commit.timestamp)
        what = "" if commit is None else commit.operation
        rows.append((version, made, what, *(line.get(kind, 0) for kind in KINDS)))
    return TextTable(columns, tuple(rows))
