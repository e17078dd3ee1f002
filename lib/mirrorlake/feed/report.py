"""A range of a table's change feed, to be looked at: what stands in the way, then what changed.

Unlike `Changes.read` it refuses nothing that it can show in part: what can't be read is in the
doctor's findings and in the notes. Nothing is written.

Changes of single rows are told in words: `n: 40 → 35` instead of an old row and a new one. Only
rows that were fetched are told; columns and texts are cut, so that a row of 500 columns still fits
a page.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from mirrorlake.delta.commits import CommitLog, Timeline, read_versions
from mirrorlake.delta.table import TableHandle
from mirrorlake.errors import UsageError
from mirrorlake.feed.changes import ORIGIN, Span, bridge, in_order, key_columns, resolve_span
from mirrorlake.feed.doctor import Diagnosis, examine, span_text
from mirrorlake.feed.net import net_changes
from mirrorlake.feed.schema import RESERVED, read_feed
from mirrorlake.mirror.options import declared_keys
from mirrorlake.results import Result, TextTable, moment_text
from mirrorlake.spark.sql import query_errors, quote

if TYPE_CHECKING:
    from mirrorlake.show.chart import Chart

Row = Mapping[str, Any]
COLUMNS = ("version", "made (UTC)", "change", "what")
KINDS = {"inserted": "insert", "updated": "update_postimage", "deleted": "delete"}
_KIND, _VERSION, _MOMENT = RESERVED
_OLD, _NEW = "update_preimage", "update_postimage"
_MOST_EVENTS = 50
_MOST_BARS = 60
_MOST_COLUMNS = 8
_MOST_LETTERS = 40


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

    def plot(self, by: Literal["version", "kind"] = "version") -> Chart:
        """Plot the changed rows.

        Args:
            by: `version` for the rows inserted, updated and deleted in each version, where many
                versions share a bar; `kind` to compare the raw counts with the net ones.
        """
        return self._plot_kinds() if by == "kind" else self._plot_versions()

    def _plot_kinds(self) -> Chart:
        from mirrorlake.show.plots import plot_bars

        bars = {f"{kind}, raw": count for kind, count in self.raw.items()}
        bars |= {f"{kind}, net": count for kind, count in self.net.items()}
        return plot_bars(bars, title=f"Changes of {self.table}", label="rows")

    def _plot_versions(self) -> Chart:
        from mirrorlake.show.chart import count_ticks, finish_chart, say, stack_bars, start_chart

        lines = self.by_version.rows
        step = max(1, -(-len(lines) // _MOST_BARS))
        groups = [lines[at : at + step] for at in range(0, len(lines), step)]
        with start_chart(f"Changes of {self.table} by version") as (chart, axes):
            if not groups:
                return say(chart, "no version's changes can be read")
            begins = [group[0][0] for group in groups]
            places = [begin + (step - 1) / 2 for begin in begins]
            series = {
                kind: [float(sum(line[3 + number] for line in group)) for group in groups]
                for number, kind in enumerate(KINDS)
            }
            tops = stack_bars(axes, places, series, 0.8 * step)
            axes.set_xlim(begins[0] - 0.6, begins[-1] + step - 0.4)
            axes.set_ylim(0, max(1.0, 1.05 * max(tops)))
            axes.set_xlabel("version" if step == 1 else f"version, {step} in each bar")
            count_ticks(axes.xaxis, axes.yaxis)
            axes.grid(visible=False, axis="x")
            finish_chart(chart, axes, "rows", len(KINDS))
        return chart

    def __repr__(self) -> str:
        if self.shown_from is None or self.shown_to is None:
            return f"{self.table}: no change can be read; {' '.join(self.notes)}"
        span = span_text((self.shown_from, self.shown_to), "version")
        return f"{self.table}, {span}: {sum(self.raw.values()):,} changes"


@query_errors()
def report_changes(
    table: TableHandle,
    start: str,
    end: str,
    newest: int,
    *,
    keys: Sequence[str],
    where: str,
    across_gaps: bool,
) -> FeedReport:
    """Looks at a range of a table's feed.

    Arguments and errors are those of `Changes.report`.
    """
    timeline = read_versions(table.storage, table.name.table_path)
    if newest < 1:
        raise UsageError(f"{newest} versions can't be shown.", hint="1 or more.")
    has_keys = bool(keys or declared_keys(table.snapshot().properties))
    chosen = key_columns(table, list(keys) or None) if has_keys else ()
    span = _asked(table, timeline, start, end, newest)
    found = examine(table, timeline, span.start, span.end, files=True)
    notes: list[str] = []
    readable = span if across_gaps else _readable(found, notes)
    counts: dict[int, dict[str, Any]] = {}
    net: dict[str, int] = {}
    followed, told = "", TextTable(COLUMNS, ())
    if readable is not None:
        if across_gaps and found.blocking:
            rows = bridge(table, timeline, found).drop(ORIGIN)
        else:
            rows = read_feed(table.spark, table.path, readable.start, readable.end)
        if where.strip():
            rows = rows.where(where)
        counted = changes_by_version(rows).collect()
        counts = {line[_VERSION]: line.asDict() for line in counted}
        if chosen:
            (line,) = net_changes(rows, chosen).agg(*_count_kinds()).collect()
            net = line.asDict()
        else:
            notes.append("The table declares no keys, so there is no net result: name them.")
        if counts:
            followed, told = _follow(rows, chosen, where)
    return FeedReport(
        table=str(table.name),
        start=span.start,
        end=span.end,
        shown_from=None if readable is None else readable.start,
        shown_to=None if readable is None else readable.end,
        diagnosis=found,
        by_version=_by_version(table, readable, counts),
        raw={kind: sum(line[kind] for line in counts.values()) for kind in KINDS},
        net=net,
        keys=chosen,
        followed=followed,
        timeline=told,
        notes=tuple(notes),
    )


def _asked(table: TableHandle, timeline: Timeline, start: str, end: str, newest: int) -> Span:
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


def changes_by_version(rows: DataFrame) -> DataFrame:
    """When each version was made, and how many rows it inserted, updated and deleted."""
    changed = rows.where(F.col(_KIND) != _OLD)
    return changed.groupBy(_VERSION).agg(F.max(_MOMENT).alias("made (UTC)"), *_count_kinds())


def _count_kinds() -> list[Column]:
    return [F.count_if(F.col(_KIND) == feed).alias(kind) for kind, feed in KINDS.items()]


def _follow(rows: DataFrame, keys: Sequence[str], where: str) -> tuple[str, TextTable]:
    """The history of the key that changed most often; without keys what the predicate finds."""
    followed = where if where.strip() else ""
    if keys:
        columns = [F.col(quote(key)) for key in keys]
        tally = rows.groupBy(*columns).agg(F.countDistinct(_VERSION).alias("versions"))
        (most,) = tally.orderBy(F.desc("versions"), *columns).limit(1).collect()
        for column, value in zip(columns, most, strict=False):
            rows = rows.where(column.eqNullSafe(F.lit(value)))
        followed = ", ".join(f"{k} {short(v)}" for k, v in zip(keys, most, strict=False))
    if not followed:
        return "", TextTable(COLUMNS, ())
    found = as_texts(in_order(rows, keys).limit(_MOST_EVENTS + 1)).collect()
    told = tell_changes([dict(zip(rows.columns, row, strict=True)) for row in found], keys=keys)
    return followed, TextTable(COLUMNS, told.rows[:_MOST_EVENTS], more=len(found) > _MOST_EVENTS)


def _by_version(
    table: TableHandle, span: Span | None, counts: dict[int, dict[str, Any]]
) -> TextTable:
    columns = ("version", "made (UTC)", "operation", *KINDS)
    if span is None:
        return TextTable(columns, ())
    log = CommitLog(table.storage, table.name.table_path)
    commits = {one.version: one for one in log.read(span.end, span.end - span.start + 1).commits}
    rows = []
    for version in range(span.start, span.end + 1):
        commit, line = commits.get(version), counts.get(version, {})
        made = "" if commit is None else moment_text(str(commit.timestamp))
        what = "" if commit is None else commit.operation
        rows.append((version, made, what, *(line.get(kind, 0) for kind in KINDS)))
    return TextTable(columns, tuple(rows))


def tell_changes(rows: Iterable[Row], *, keys: Sequence[str] = ()) -> TextTable:
    """One line for each change of a row.

    Args:
        rows: changes as a feed has them, ordered by version; one key's or one row's.
        keys: columns that say which row it is; they come first.

    Returns:
        Version, time, `insert`, `update`, `delete` (or another kind, as it is), and the values: of
        an update only those that changed, old and new.

    Example:
        >>> old = {"id": 1, "n": 4, "_change_type": "update_preimage", "_commit_version": 2}
        >>> new = old | {"n": 5, "_change_type": "update_postimage"}
        >>> tell_changes([old, new], keys=["id"]).rows
        ((2, '', 'update', 'id 1: n 4 → 5'),)
    """
    lines: list[tuple[Any, ...]] = []
    for version, some in groupby(rows, key=lambda row: row[_VERSION]):
        group = list(some)
        old = [row for row in group if row[_KIND] == _OLD]
        new = [row for row in group if row[_KIND] == _NEW]
        paired = len(old) == len(new) == 1
        for row in group:
            if row[_KIND] == _OLD and paired:
                continue
            before = old[0] if paired and row[_KIND] == _NEW else None
            kind = "update" if before is not None else str(row[_KIND])
            lines.append(
                (version, moment_text(str(row.get(_MOMENT) or "")), kind, _what(row, before, keys))
            )
    return TextTable(COLUMNS, tuple(lines))


def _what(row: Row, before: Row | None, keys: Sequence[str]) -> str:
    names = [name for name in row if not name.startswith("_") and name not in keys]
    which = ", ".join(f"{name} {short(row[name])}" for name in keys if name in row)
    if before is None:
        parts = [f"{name} {short(row[name])}" for name in names]
    else:
        parts = [
            f"{name} {short(before[name])} → {short(row[name])}"
            for name in [*keys, *names]
            if name in row and before.get(name) != row[name]
        ]
    more = len(parts) - _MOST_COLUMNS
    text = ", ".join(parts[:_MOST_COLUMNS]) + (f" and {more} more columns" if more > 0 else "")
    return ": ".join(part for part in (which, text or "as it was") if part)


def as_texts(rows: DataFrame) -> DataFrame:
    """The same rows with moments as text: Python would turn them into its own time zone."""
    return rows.select(
        *[
            F.col(quote(name)).cast("string").alias(name)
            if kind.startswith("timestamp")
            else F.col(quote(name))
            for name, kind in rows.dtypes
        ]
    )


def short(value: Any) -> str:
    """A value as people read it, cut where it is long.

    Example:
        >>> short(None), short("a" * 50)[-3:]
        ('NULL', 'aa…')
    """
    if value is None:
        return "NULL"
    text = str(value)
    return text if len(text) <= _MOST_LETTERS else text[: _MOST_LETTERS - 1] + "…"
