"""The class behind `Table.changes`: read, stream, diagnose and report a change feed.

Delta ignores an end version in streams, and its `excludeRegex` also excludes change files, which
loses updates and deletes. `Changes.stream` respects an end and never excludes change files.

A report shows a range to people. Unlike `Changes.read`, it returns the part that can be read; the
diagnosis and the notes name the rest. It describes changes of single rows in words, `n: 40 → 35`
instead of a preimage and a postimage. Columns and texts are cut, so that a row of 500 columns fits
on a page. Nothing is written.
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
from mirrorlake.feed.cursor import Cursor
from mirrorlake.feed.doctor import Diagnosis, enable_feed, examine, span_text
from mirrorlake.feed.ranges import (
    ORIGIN,
    End,
    Outside,
    Span,
    bridge,
    empty_feed,
    in_order,
    key_columns,
    net_changes,
    range_error,
    read_feed,
    readable_span,
    resolve_span,
)
from mirrorlake.history.diff import COMMIT_VERSION, RESERVED
from mirrorlake.mirror.options import declared_keys
from mirrorlake.names import is_reserved, quote, split_names
from mirrorlake.results import Result, TextTable, counted, moment_text, optional_figure
from mirrorlake.spark.sql import query_errors

if TYPE_CHECKING:
    from mirrorlake.show.chart import Chart


Row = Mapping[str, Any]
COLUMNS = ("version", "made (UTC)", "change", "what")
KINDS = {"inserted": "insert", "updated": "update_postimage", "deleted": "delete"}
_KIND, _VERSION, _TIMESTAMP = RESERVED
_OLD, _NEW = "update_preimage", "update_postimage"
_MOST_EVENTS = 50
_MOST_BARS = 60
_MOST_COLUMNS = 8
_MOST_LETTERS = 40
ALLOWED = ("allowSourceColumnRename", "allowSourceColumnDrop", "allowSourceColumnTypeChange")


class Changes:
    """The change feed of a table, as `table.changes` returns it.

    A row of the feed has the table's columns, `_change_type` (insert, update_preimage,
    update_postimage, delete), `_commit_version` and `_commit_timestamp`. The ends of a range are
    versions, or timestamps `yyyy-MM-dd[ HH:mm:ss[.SSS]]` in the session's time zone; both ends are
    included.

    Args:
        table: the table.
    """

    def __init__(self, table: TableHandle) -> None:
        self._table = table

    def read(
        self,
        start: End,
        end: End | None = None,
        *,
        across_gaps: bool = False,
        beyond_latest: Outside | None = None,
        before_feed: Outside = "error",
    ) -> DataFrame:
        """Return all changes of a range of versions.

        Args:
            start: the first version, or a timestamp for the first version at or after it.
            end: the last version, or a timestamp for the last version at or before it; by default
                the newest version.
            across_gaps: compare versions where the feed can't be read; each row then has its origin
                in `_change_origin`.
            beyond_latest: `error` or `clip` for ends beyond the newest version; by default the
                setting `spark.databricks.delta.changeDataFeed.timestampOutOfRange.enabled` decides.
            before_feed: `error`, or `clip` to start where the readable feed starts.

        Raises:
            FeedError: the feed lacks a part of the range; the hint names a fix.
            UsageError: an end is neither a version nor a timestamp, or the start is after the end.

        Example:
            >>> lake.table("sales").changes.read(3, 5).show()  # doctest: +SKIP
        """
        return self._read(start, end, across_gaps, beyond_latest, before_feed)[0]

    def net(
        self,
        start: End,
        end: End | None = None,
        *,
        keys: str | Sequence[str] | None = None,
        across_gaps: bool = False,
        beyond_latest: Outside | None = None,
        before_feed: Outside = "error",
    ) -> DataFrame:
        """Return one outcome per key over a range; changes that cancel each other out are omitted.

        Args:
            start: as for `read`.
            end: as for `read`.
            keys: the key columns, as a sequence or separated by commas; by default those that the
                table's publisher declared. Declared keys are assumed to identify rows, which is
                faster; the job fails if they don't.
            across_gaps: as for `read`.
            beyond_latest: as for `read`.
            before_feed: as for `read`.

        Raises:
            FeedError: as for `read`.
            UsageError: as for `read`; or no keys are given or declared, or a key is not a column.

        Example:
            >>> lake.table("sales").changes.net(3, 5, keys=["id"]).show()  # doctest: +SKIP
        """
        chosen = key_columns(self._table, keys)
        rows, span = self._read(start, end, across_gaps, beyond_latest, before_feed)
        # Declared keys are assumed to identify rows; given ones may be any columns.
        unique = range(span.start, span.end + 1) if keys is None else None
        return net_changes(rows.drop(ORIGIN), chosen, unique=unique)

    def _read(
        self, start: End, end: End | None, across: bool, beyond: Outside | None, before: Outside
    ) -> tuple[DataFrame, Span]:
        table = self._table
        timeline = read_versions(table.storage, table.name.table_path)
        if not across:
            span = readable_span(table, timeline, start, end, beyond, before)
            if span.is_empty:
                return empty_feed(table), span
            return read_feed(table.spark, table.path, span.start, span.end), span
        span = resolve_span(table.spark, timeline, start, end, beyond)
        if span.is_empty:
            return empty_feed(table).selectExpr("*", f"CAST(NULL AS STRING) AS {ORIGIN}"), span
        found = examine(table, timeline, span.start, span.end, files=True)
        return bridge(table, timeline, found), span

    def stream(
        self,
        start: End | None = None,
        end: End | None = None,
        *,
        max_files: int | None = None,
        max_bytes: str | None = None,
        exclude_regex: str | None = None,
        schema_tracking: str | None = None,
    ) -> DataFrame:
        """Return the changes as a Structured Streaming source.

        Args:
            start: the first version or timestamp, at most the version after the newest; a later
                start is empty if the setting of `read`'s `beyond_latest` allows it. By default the
                stream starts with the newest version's rows as inserts, and then continues with
                changes.
            end: the last version or timestamp; later changes are left out. (Delta itself ignores an
                end in streams.) Use it with `availableNow` triggers. To continue after it, start a
                stream with a new checkpoint at the next version.
            max_files: the most files in a micro-batch. Changed rows of a version stay together; a
                version that only inserts rows may be split between files. `Cursor.for_each` has the
                same limit and never splits a version.
            max_bytes: the approximate amount of data in a micro-batch, such as `"64m"`.
            exclude_regex: a regular expression for data files to skip, by their path within the
                table. Change files are never skipped.
            schema_tracking: a folder within the checkpoint's folder, which lets a stream continue
                after columns were renamed, dropped or widened. At such a change the stream stops
                once and must be restarted.

        Raises:
            FeedError: the feed can't be read from the start; the hint names a fix.
            UsageError: an end is invalid.

        Example:
            >>> lake.table("sales").changes.stream(3).writeStream  # doctest: +SKIP
        """
        table = self._table
        reader = table.spark.readStream.format("delta").option("readChangeFeed", "true")
        options = {
            "maxFilesPerTrigger": max_files,
            "maxBytesPerTrigger": max_bytes,
            "excludeRegex": exclude_regex and keep_change_files(exclude_regex),
            "schemaTrackingLocation": schema_tracking,
        }
        if schema_tracking is not None:  # without these, every start after the change fails
            options |= dict.fromkeys(ALLOWED, "always")
        given = {name: value for name, value in options.items() if value is not None}
        reader = reader.options(**given)
        if start is None:
            if end is not None:
                raise UsageError(
                    "A stream with an end needs a start.",
                    hint="set start=0, or read the newest rows with table.read().",
                )
            return reader.load(table.path)
        timeline = read_versions(table.storage, table.name.table_path)
        latest = timeline.latest
        # A consumer that has read everything continues with the version after the newest.
        from_now = str(start) == str(latest + 1)
        span = resolve_span(table.spark, timeline, latest if from_now else start, end, None)
        first = span.start + from_now
        found = examine(table, timeline, min(span.start, latest), latest, files=False)
        passable = {"schema"} if schema_tracking else set()
        if any(finding.rule not in passable for finding in found.blocking):
            raise range_error(found)
        # Delta refuses to start after the newest version, and to continue from a checkpoint with
        # another start than before. So the stream starts one version earlier and filters it out.
        before = max(min(first - 1, latest), timeline.first)
        if before < first and examine(table, timeline, before, before, files=False).blocking:
            before = first
        rows = reader.option("startingVersion", before).load(table.path)
        if before < first:
            rows = rows.where(F.col(COMMIT_VERSION) >= first)
        return rows if end is None else rows.where(F.col(COMMIT_VERSION) <= span.end)

    def cursor(self, consumer: str, *, start: int = 0) -> Cursor:
        """Return a consumer's position in the feed, which is stored in the lake.

        Args:
            consumer: the consumer's name.
            start: the first version to read if the consumer has no position yet.

        Example:
            >>> lake.table("sales").changes.cursor("billing").lag  # doctest: +SKIP
            Lag(versions=2, seconds=61.5)
        """
        return Cursor(self._table, consumer, start=start)

    def enable(self, *, rename_reserved: bool = False) -> int:
        """Enable the change feed; do nothing if it is on.

        Args:
            rename_reserved: rename columns whose names are reserved for the change feed.

        Returns:
            The first version whose changes can be read.

        Raises:
            FeedError: a column has a reserved name.

        Example:
            >>> lake.table("sales").changes.enable()  # doctest: +SKIP
            7
        """
        return enable_feed(self._table, rename_reserved=rename_reserved)

    def diagnose(self, start: int | None = None, end: int | None = None) -> Diagnosis:
        """Return the findings about the feed, and the ranges of versions that can be read.

        Args:
            start: the first version; by default 0.
            end: the last version; by default the newest.

        Raises:
            UsageError: the range starts after its end, or there is no such version.

        Example:
            >>> lake.table("sales").changes.diagnose().readable  # doctest: +SKIP
            ((0, 7),)
        """
        table = self._table
        timeline = read_versions(table.storage, table.name.table_path)
        first, last = start or 0, timeline.latest if end is None else min(end, timeline.latest)
        if not 0 <= first <= timeline.latest + 1:
            raise UsageError(
                f"There is no version {first} of {table.name}.",
                hint=f"choose a start from 0 to {timeline.latest}.",
            )
        if first > last and end is not None:
            raise UsageError(
                f"The range starts at version {first}, after its end {end}.",
                hint="swap the two ends.",
            )
        return examine(table, timeline, first, last, files=True)

    def report(
        self,
        start: str = "",
        end: str = "",
        *,
        newest: int = 100,
        keys: str | Sequence[str] = (),
        where: str = "",
        across_gaps: bool = False,
    ) -> FeedReport:
        """Return an overview of a range: findings, changes by version and kind, one key's history.

        Unlike `read`, it returns the part that can be read instead of failing.

        Args:
            start: the first version, or a timestamp; empty for the newest versions.
            end: the last version, or a timestamp; empty for the newest.
            newest: the number of versions, if `start` is empty.
            keys: as for `net`.
            where: a SQL predicate; only changed rows that match it are counted. The raw result
                counts an update if its new row matches. In the net result, a row that no longer
                matches is deleted, and a row that matches only now is inserted.
            across_gaps: as for `read`.

        Raises:
            FeedError: an end is beyond the newest version.
            UsageError: an end is invalid, or a key is not a column.
            QueryError: Spark refused the predicate.

        Example:
            >>> lake.table("sales").changes.report(where="id = 7").timeline  # doctest: +SKIP
        """
        return report_changes(
            self._table, start, end, newest, keys=keys, where=where, across_gaps=across_gaps
        )


def keep_change_files(regex: str) -> str:
    """Return a regular expression that matches the same paths, except those of change files.

    Change files have a folder of their own; with column mapping, only their name differs.

    Example:
        >>> import re
        >>> guarded = keep_change_files("parquet")
        >>> paths = ("a.parquet", "_change_data/cdc-0.parquet", "xY/cdc-0.parquet")
        >>> [bool(re.search(guarded, path)) for path in paths]
        [True, False, False]
    """
    return rf"^(?!(?:.*/)?(?:_change_data/|cdc-[^/]*$))(?=.*(?:{regex}))"


@dataclass(frozen=True)
class FeedReport(Result):
    """An overview of a range of a change feed.

    Attributes:
        table: the table's name.
        start, end: the versions of the range.
        shown_from, shown_to: the versions whose changes are counted; None if none can be read.
        diagnosis: the findings about the range.
        by_version: one row per version: time, operation, rows inserted, updated and deleted.
        raw: rows inserted, updated and deleted; every change counts.
        net: the same with one outcome per key; empty without keys.
        keys: the key columns.
        followed: the key whose history is in `timeline`.
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
        """Return the number of raw and net changes of each kind, then the notes."""
        rows: list[tuple[Any, ...]] = [
            (f"rows {kind}", f"{count:,}", f"{self.net[kind]:,}" if self.net else "")
            for kind, count in self.raw.items()
        ]
        rows += [("note", note, "") for note in self.notes]
        return TextTable(("what", "raw", "net"), tuple(rows))

    @optional_figure
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
            return f"{self.table}: no changes can be read; {' '.join(self.notes)}"
        span = span_text((self.shown_from, self.shown_to), "version")
        return f"{self.table}, {span}: {counted(sum(self.raw.values()), 'change')}"


@query_errors()
def report_changes(
    table: TableHandle,
    start: str,
    end: str,
    newest: int,
    *,
    keys: str | Sequence[str],
    where: str,
    across_gaps: bool,
) -> FeedReport:
    """Return an overview of a range of a feed; see `Changes.report`."""
    timeline = read_versions(table.storage, table.name.table_path)
    if newest < 1:
        raise UsageError(f"{newest} versions can't be shown.", hint="set newest to 1 or more.")
    has_keys = bool(keys or declared_keys(table.snapshot().properties))
    chosen = key_columns(table, split_names(keys) or None) if has_keys else ()
    span = _requested_span(table, timeline, start, end, newest)
    found = examine(table, timeline, span.start, span.end, files=True)
    notes: list[str] = []
    readable = span if across_gaps else _readable_part(found, notes)
    counts: dict[int, dict[str, Any]] = {}
    net: dict[str, int] = {}
    followed, events = "", TextTable(COLUMNS, ())
    if readable is not None:
        if across_gaps and found.blocking:
            rows = bridge(table, timeline, found).drop(ORIGIN)
        else:
            rows = read_feed(table.spark, table.path, readable.start, readable.end)
        if where.strip():
            rows = rows.where(where)
        counts = {line[_VERSION]: line.asDict() for line in changes_by_version(rows).collect()}
        if chosen:
            (line,) = net_changes(rows, chosen).agg(*_count_kinds()).collect()
            net = line.asDict()
        else:
            notes.append(
                "The table declares no keys, so there is no net result. Name them with keys."
            )
        if counts:
            followed, events = _follow_key(rows, chosen, where)
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
        timeline=events,
        notes=tuple(notes),
    )


def _requested_span(
    table: TableHandle, timeline: Timeline, start: str, end: str, newest: int
) -> Span:
    given, last = str(start).strip(), str(end).strip() or None
    if given:
        span = resolve_span(table.spark, timeline, given, last)
    else:
        latest = resolve_span(table.spark, timeline, 0, last).end
        span = Span(max(timeline.first, latest - newest + 1, 0), latest)
    if span.is_empty:
        raise UsageError(
            f"No version of {table.name} was committed between {start} and {end}.",
            hint=f"the newest version is {timeline.latest}.",
        )
    return span


def _readable_part(found: Diagnosis, notes: list[str]) -> Span | None:
    """Return the newest part of a range that the feed contains."""
    blocking = found.blocking
    reserved = any(finding.rule == "reserved-column" for finding in blocking)
    if not blocking:
        return Span(found.start, found.end)
    if reserved or not found.readable:
        notes.append(f"{blocking[0].message} Hint: {blocking[0].fix}")
        return None
    last = Span(*found.readable[-1])
    notes.append(
        f"Of {span_text((found.start, found.end), 'version')} only"
        f" {span_text((last.start, last.end))} can be read. The diagnosis has the reason."
    )
    return last


def changes_by_version(rows: DataFrame) -> DataFrame:
    """Return each version's timestamp, and its inserted, updated and deleted rows."""
    changed = rows.where(F.col(_KIND) != _OLD)
    return changed.groupBy(_VERSION).agg(F.max(_TIMESTAMP).alias("made (UTC)"), *_count_kinds())


def _count_kinds() -> list[Column]:
    return [F.count_if(F.col(_KIND) == feed).alias(kind) for kind, feed in KINDS.items()]


def _follow_key(rows: DataFrame, keys: Sequence[str], where: str) -> tuple[str, TextTable]:
    """Return the history of the key that changed most often; without keys, that of `where`."""
    followed = where if where.strip() else ""
    if keys:
        columns = [F.col(quote(key)) for key in keys]
        tally = rows.groupBy(*columns).agg(F.countDistinct(_VERSION).alias("versions"))
        (most,) = as_texts(tally.orderBy(F.desc("versions"), *columns).limit(1)).collect()
        for column, value, field in zip(columns, most, tally.schema, strict=False):
            rows = rows.where(column.eqNullSafe(F.lit(value).cast(field.dataType)))
        followed = ", ".join(f"{k} {short(v)}" for k, v in zip(keys, most, strict=False))
    if not followed:
        return "", TextTable(COLUMNS, ())
    found = as_texts(in_order(rows, keys).limit(_MOST_EVENTS + 1)).collect()
    events = describe_changes(
        [dict(zip(rows.columns, row, strict=True)) for row in found], keys=keys
    )
    return followed, TextTable(COLUMNS, events.rows[:_MOST_EVENTS], more=len(found) > _MOST_EVENTS)


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
        committed = "" if commit is None else moment_text(str(commit.timestamp))
        what = "" if commit is None else commit.operation
        rows.append((version, committed, what, *(line.get(kind, 0) for kind in KINDS)))
    return TextTable(columns, tuple(rows))


def describe_changes(rows: Iterable[Row], *, keys: Sequence[str] = ()) -> TextTable:
    """Describe each change of a row in one line.

    Args:
        rows: changes with the columns of a feed, ordered by version, of one key or row.
        keys: the columns that identify the row; they come first.

    Returns:
        Version, time, kind (`insert`, `update`, `delete`, or another kind unchanged) and values; an
        update shows only the values that changed, old and new.

    Example:
        >>> old = {"id": 1, "n": 4, "_change_type": "update_preimage", "_commit_version": 2}
        >>> new = old | {"n": 5, "_change_type": "update_postimage"}
        >>> describe_changes([old, new], keys=["id"]).rows
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
                (
                    version,
                    moment_text(str(row.get(_TIMESTAMP) or "")),
                    kind,
                    _describe_values(row, before, keys),
                )
            )
    return TextTable(COLUMNS, tuple(lines))


def _describe_values(row: Row, before: Row | None, keys: Sequence[str]) -> str:
    names = [name for name in row if not is_reserved(name) and name not in keys]
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
    text = ", ".join(parts[:_MOST_COLUMNS]) + (
        f" and {counted(more, 'more column')}" if more > 0 else ""
    )
    return ": ".join(part for part in (which, text or "unchanged") if part)


def as_texts(rows: DataFrame) -> DataFrame:
    """Return the same rows with timestamps as text; Python would convert their time zone."""
    return rows.select(
        *[
            F.col(quote(name)).cast("string").alias(name)
            if "timestamp" in kind
            else F.col(quote(name))
            for name, kind in rows.dtypes
        ]
    )


def short(value: Any) -> str:
    """Return a value as text, shortened if it is long.

    Example:
        >>> short(None), short("a" * 50)[-3:]
        ('NULL', 'aa…')
    """
    if value is None:
        return "NULL"
    text = str(value)
    return text if len(text) <= _MOST_LETTERS else text[: _MOST_LETTERS - 1] + "…"
