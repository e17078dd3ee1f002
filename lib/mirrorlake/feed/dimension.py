"""The operation behind `Table.dimension`: update a slowly changing dimension from a table.

The changes are read from the table's change feed, or from snapshots; `scd` merges them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from mirrorlake.delta.commits import Timeline, read_versions
from mirrorlake.delta.files import total
from mirrorlake.delta.snapshot import Snapshot, open_snapshot, read_snapshot
from mirrorlake.delta.table import TableHandle
from mirrorlake.errors import FeedError, UsageError
from mirrorlake.feed.changes import as_texts, short
from mirrorlake.feed.cursor import (
    FORMAT,
    Cursor,
    FeedBatch,
    Figures,
    FollowReport,
    feed_error,
    is_restored,
    newest_in,
    target_name,
)
from mirrorlake.feed.doctor import examine
from mirrorlake.feed.ranges import Span, key_columns
from mirrorlake.feed.scd import (
    END,
    FEED_DELETE,
    OWN,
    SEQUENCE,
    START,
    TOMBSTONES,
    TRUNCATE,
    Dimension,
    apply_changes,
    apply_snapshot,
    for_feed,
)
from mirrorlake.history.diff import CHANGE_TYPE, COMMIT_TIMESTAMP, COMMIT_VERSION, RESERVED
from mirrorlake.history.write import check_own
from mirrorlake.mirror.options import declared_keys
from mirrorlake.mirror.trash import drop_table, make_room
from mirrorlake.names import TableName, quote
from mirrorlake.results import TextTable, optional_figure
from mirrorlake.spark.sql import query_errors
from mirrorlake.storage.kept import read_kept

if TYPE_CHECKING:
    from mirrorlake.show.chart import Chart


_MOST_KEYS, _MOST_PERIODS = 12, 40  # shown
_LETTERS = 32
_ONLY_FOR_CHANGES = (
    *("sequence_by", "ignore_null_updates", "apply_as_deletes", "apply_as_truncates"),
)


@query_errors()
def follow_feed(
    source: TableHandle,
    into: TableName,
    *,
    keys: Sequence[str] | None = None,
    stored_as: int = 1,
    dry_run: bool = False,
) -> FeedBatch:
    """Bring a dimension up to date with a table's feed; see `Lake.update_dimension`."""
    dimension = for_feed(Dimension(key_columns(source, keys), stored_as=stored_as))
    if error := feed_error(source):
        raise error
    position = _Position(source, into, dimension)
    return _follow(position, into, dimension, dry_run=dry_run)


def _follow(
    cursor: _Position, into: TableName, dimension: Dimension, *, dry_run: bool
) -> FeedBatch:
    """Apply the new changes of the feed, and return them."""
    batch = cursor.read()
    if not batch.is_empty and not dry_run:
        cursor.begin()
        apply_changes(_as_changes(batch.rows, dimension), _path(cursor.table, into), dimension)
        cursor.commit(batch)
    return batch


@dataclass(frozen=True, repr=False, kw_only=True)
class DimensionReport(FollowReport):
    """The result of updating a dimension.

    Attributes:
        start: the first version that was new.
        end: the last version that is applied now.
        newest: the table's newest version.
    """

    start: int
    end: int
    newest: int

    @property
    def periods(self) -> dict[str, tuple[tuple[int, int | None], ...]]:
        """The periods of the keys in `details`: the first version, and the one that ended it."""
        return self.figures.periods

    def as_dict(self) -> dict[str, Any]:
        """Return the document that `--json` prints."""
        return {
            "table": self.table,
            "into": self.into,
            "start": self.start,
            "end": self.end,
            "did": self.did,
            "applied": self.applied,
            "why_not": self.why_not,
        }

    @optional_figure
    def plot(self) -> Chart:
        """Plot the periods of a type 2 dimension: one line per key, one bar per period."""
        from mirrorlake.show.chart import COLOURS, ROW_INCHES, count_ticks, say, start_chart

        periods = self.periods
        height = 1.3 + 1.3 * ROW_INCHES * max(4, len(periods))
        with start_chart(f"Periods of {self.into}", height) as (chart, axes):
            if not periods:
                return say(chart, "there are no periods to show")
            end = self.newest + 1
            for place, some in enumerate(periods.values()):
                for number, (start, stop) in enumerate(some):
                    axes.barh(
                        place,
                        (end if stop is None else stop) - start,
                        left=start,
                        height=0.7,
                        color=COLOURS[number % 2 * 5],
                        edgecolor="white",
                        hatch="" if stop is not None else "//",
                    )
            names = [n if len(n) <= _LETTERS else n[: _LETTERS - 1] + "…" for n in periods]
            axes.set_yticks(range(len(periods)), names)
            axes.set_xlim(min(some[0][0] for some in periods.values()), end)
            axes.invert_yaxis()
            axes.tick_params(axis="y", length=0)
            axes.grid(visible=False, axis="y")
            count_ticks(axes.xaxis)
            axes.set_xlabel(f"version of {self.table}; hatched: current")
        return chart


@query_errors()
def update_dimension(
    table: TableHandle,
    into: str,
    options: Dimension,
    *,
    from_snapshot: bool = False,
    dry_run: bool = False,
) -> DimensionReport:
    """Bring a dimension up to date with a table; see `Table.dimension`."""
    target = target_name(table, into, "dim_{}")
    timeline = read_versions(table.storage, table.name.table_path)
    report = partial(
        DimensionReport,
        table=str(table.name),
        into=str(target),
        newest=timeline.latest,
        applied=not dry_run,
    )
    keys = options.keys or declared_keys(table.snapshot().properties)
    if not keys:
        why = (
            f"The table {table.name} declares no keys. Hint: pass the key columns as keys (--keys)."
        )
        return report(why_not=why, applied=False, start=0, end=-1)
    dimension = replace(options, keys=key_columns(table, keys))
    if dimension.sequence_by is None:
        dimension = for_feed(dimension)
    else:
        dimension = replace(dimension, except_columns=(*options.except_columns, *RESERVED))
    if from_snapshot:
        _refuse_for_snapshots(options)
    elif error := feed_error(table):
        return report(why_not=str(error), applied=False, start=0, end=-1)
    cursor = _Position(table, target, dimension)
    if from_snapshot or (cursor.position < 0 and _lacks_changes(table, timeline)):
        span = Span(cursor.position + 1, timeline.latest)
        did = "nothing new" if span.is_empty else f"the rows of version {span.end}"
        if not from_snapshot:
            did += ", because the feed does not reach back to version 0"
        if not span.is_empty and not dry_run:
            cursor.begin()
            _apply_rows(table, timeline, _path(table, target), dimension)
            cursor.move(span.end)
    else:
        try:
            batch = _follow(cursor, target, dimension, dry_run=dry_run)
        except FeedError as error:
            hint = "compare the newest rows once, with from_snapshot=True (--from-snapshot)."
            raise FeedError(error.message, hint=hint, column=error.column) from error
        span, did = batch, repr(batch)
    if dry_run:
        did = did if span.is_empty else f"would take {did}"
        return report(did=did, start=span.start, end=span.end)
    read_figures = partial(_read_figures, table, target, dimension)
    return report(did=did, read_figures=read_figures, start=span.start, end=span.end)


def _refuse_for_snapshots(options: Dimension) -> None:
    """Refuse options that apply only to changes.

    Raises:
        UsageError: one of them is given.
    """
    for name in _ONLY_FOR_CHANGES:
        if getattr(options, name):
            raise UsageError(
                f"A snapshot contains rows and not changes, so {name} does not apply to it.",
                hint=f"leave out {name}, or use the change feed instead of snapshots.",
            )


def _path(table: TableHandle, target: TableName) -> str:
    return table.storage.path(target.table_path)


def _lacks_changes(table: TableHandle, timeline: Timeline) -> bool:
    """Return whether the feed lacks changes since version 0."""
    return bool(examine(table, timeline, 0, timeline.latest, files=True).blocking)


def _as_changes(feed: DataFrame, dimension: Dimension) -> DataFrame:
    """Return the rows of a feed that are changes of the dimension.

    A row that was deleted from the table is a change only if the dimension's condition includes it.
    A table of events, for example, loses old events, and these must not be applied again.
    """
    is_delete = dimension.apply_as_deletes or "false"
    return feed.where(f"NOT {FEED_DELETE} OR coalesce({is_delete}, false)")


def _apply_rows(table: TableHandle, timeline: Timeline, path: str, dimension: Dimension) -> None:
    """Apply the newest version's rows as a snapshot, or as changes with their own sequence."""
    marks = {
        CHANGE_TYPE: F.lit("insert"),
        COMMIT_VERSION: F.lit(timeline.latest).cast("bigint"),
        COMMIT_TIMESTAMP: F.timestamp_millis(F.lit(timeline.time(timeline.latest))),
    }
    rows = table.rows(timeline.latest).withColumns(marks)
    if dimension.sequence_by is not None:
        apply_changes(rows, path, dimension)
        return
    for condition in (dimension.apply_as_deletes, dimension.apply_as_truncates):
        rows = rows.where(f"NOT coalesce({condition or 'false'}, false)")
    left_out = tuple(name for name in dimension.except_columns if name not in RESERVED)
    how = replace(dimension, except_columns=left_out)
    apply_snapshot(rows.drop(*RESERVED), path, how, timeline.latest)


class _Position(Cursor):
    """The position of a dimension.

    A dimension that was dropped starts again, and one that was restored continues after its own
    rows. Changes may be applied twice, so a position that is too early is safe.

    Args:
        table: the table whose changes are read.
        target: the dimension's name.
        dimension: the options.

    Raises:
        UsageError: the target exists and is not a dimension with these options.
    """

    def __init__(self, table: TableHandle, target: TableName, dimension: Dimension) -> None:
        super().__init__(table, f"dimension {target}")
        self._target = target
        self._dimension = dimension
        self._is_new = _check_target(table, target, dimension) is None

    @cached_property
    def position(self) -> int:
        """The last version that is applied; -1 if it is unknown, or none is."""
        if self._is_new:
            return -1
        storage = self.table.storage
        try:
            position = super().position
        except FeedError as error:  # the table was recreated
            hint = "give another name for the dimension with into (--into)."
            raise FeedError(error.message, hint=hint) from error
        kept = read_kept(storage, self._path, FORMAT)
        if kept is None or not is_restored(storage, self._target, kept):
            return position
        if self._dimension.sequence_by is not None:
            return -1  # the rows do not show the versions
        version = f"greatest({START}, {END})" if self._dimension.stored_as == 2 else SEQUENCE
        return newest_in(TableHandle(self.table.spark, storage, self._target), version)

    def _document(self, version: int) -> dict[str, Any]:
        found = open_snapshot(self.table.storage, self._target)
        return super()._document(version) | {"target_version": found.version}

    def begin(self) -> None:
        """Remove what remains of a dropped dimension, before a new one is written.

        The position is removed last, so that the next call continues after an interruption.
        """
        if not self._is_new:
            return
        storage, target = self.table.storage, self._target
        make_room(storage, target)
        tombstones = TableName(target.schema, f"{target.name}{TOMBSTONES}")
        found = read_snapshot(storage, tombstones.table_path)
        if found is not None and TRUNCATE in found.schema:
            drop_table(storage, tombstones, None)
        make_room(storage, tombstones)
        storage.delete(self._path)


def _check_target(table: TableHandle, target: TableName, dimension: Dimension) -> Snapshot | None:
    """Return the dimension's snapshot, if any; refuse a table without these options.

    Raises:
        UsageError: the table exists, and its own columns are not those of the dimension.
    """
    found = read_snapshot(table.storage, target.table_path)
    if found is None:
        check_own(table.storage, target)
        return None
    own = {*found.schema} & {*OWN}
    if own == dimension.own_columns:
        return found
    if (START if dimension.stored_as == 2 else SEQUENCE) in own:
        raise UsageError(
            f"The dimension {target} was created with other options.",
            hint="give the options of its first run, or another name with into (--into).",
        )
    what = "a dimension of the other type" if {START, SEQUENCE} & own else "not a dimension"
    raise UsageError(
        f"{target} exists and is {what}.", hint="give another name with into (--into)."
    )


@query_errors()
def _read_figures(table: TableHandle, target: TableName, dimension: Dimension) -> Figures:
    """Return the figures of a dimension."""
    if read_snapshot(table.storage, target.table_path) is None:
        return Figures()
    rows = TableHandle(table.spark, table.storage, target).rows()
    if dimension.stored_as == 1:
        return Figures({"rows": rows.count()})
    return _periods(rows, dimension)


def _periods(rows: DataFrame, dimension: Dimension) -> Figures:
    """Return the figures of a type 2 dimension, and the keys with the most periods."""
    columns = [F.col(quote(key)) for key in dimension.keys]
    by_feed = dimension.sequence_by is None
    is_open = F.col(END).isNull()
    by_key = rows.groupBy(*columns).agg(
        F.count(F.lit(1)).alias(f"{START}s"),
        F.count_if(is_open).alias(f"{END}s"),
        F.sort_array(F.collect_list(F.struct(START, END))).alias(START),
    )
    (line,) = by_key.agg(
        F.count(F.lit(1)).alias("keys"),
        total(f"{START}s").alias("periods"),
        total(f"{END}s").alias("keys that are there now"),
        F.coalesce(F.max(f"{START}s"), F.lit(0)).alias("most periods of a key"),
    ).collect()
    some = F.transform(
        F.slice(START, 1, _MOST_PERIODS),
        lambda one: F.struct(one[START].cast("string"), one[END].cast("string")),
    )
    most = as_texts(
        by_key.withColumn(START, some).orderBy(F.desc(f"{START}s"), *columns).limit(_MOST_KEYS)
    )
    found = {
        ", ".join(short(row[i]) for i in range(len(columns))): [tuple(one) for one in row[START]]
        for row in most.collect()
    }
    listed = tuple(
        (key, len(some), ", ".join(f"{a} to {b or 'now'}" for a, b in some[-6:]))
        for key, some in found.items()
    )
    what = "versions" if by_feed else "sequence"
    details = TextTable((", ".join(dimension.keys), "periods", f"{what}, the last six"), listed)
    periods = {
        key: tuple((int(a), None if b is None else int(b)) for a, b in some)
        for key, some in found.items()
        if by_feed  # the axis of the plot has the table's versions
    }
    return Figures(line.asDict(), details, periods)
