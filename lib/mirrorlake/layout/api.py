"""Rewrite a table's files without changing rows (`Table.optimize`), and compare layouts.

V-Order sorts the rows within each file so that the file is smaller and faster to read. The files
remain plain Parquet. Files carry this project's footer key and tag, never Microsoft's. A file that
no order makes smaller stays, with a tag that says so. The work is a Spark job, one file at a time
in each task, and one short commit that changes no data.
"""

from __future__ import annotations

import json
import logging
import statistics
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from mirrorlake.delta.files import tag
from mirrorlake.delta.snapshot import (
    MICROSOFT_TAG,
    OPEN_TAG,
    ROW_ID_COLUMN,
    ROW_VERSION_COLUMN,
    Snapshot,
    open_snapshot,
    physical_names,
)
from mirrorlake.delta.table import TableHandle, row_groups
from mirrorlake.errors import MirrorlakeError, UsageError
from mirrorlake.history.maintenance import DEFAULT_TARGET, Compaction, compact_files, purge_files
from mirrorlake.history.write import write_delta
from mirrorlake.layout.analysis import analyze_table
from mirrorlake.layout.vorder import (
    SORTED_TAG,
    FileOutcome,
    Task,
    order_files,
    ordered_add,
    sort_prefix,
)
from mirrorlake.names import STATE, TableName, quote, split_names
from mirrorlake.results import Result, TextTable, counted, optional_figure, size_text
from mirrorlake.spark.jvm import Add, DeltaTransaction, has_gateway, transaction
from mirrorlake.spark.rewrite import Bounds, Rewrite, Written, rewrite_files, within
from mirrorlake.spark.sql import delta_name
from mirrorlake.storage.files import Storage

if TYPE_CHECKING:
    from mirrorlake.show.chart import Chart


_log = logging.getLogger(__name__)
_REPEATS = 3
TRIED_TAG = f"{OPEN_TAG}.tried"
_NOTE = json.dumps({"mirrorlake": "vorder"})


class Optimize:
    """Operations that improve a table's files, as `lake.table(…).optimize`.

    Each runs at once; with `dry_run=True` it only previews.

    Args:
        table: the table.

    Example:
        >>> lake.table("sales").optimize.compact(dry_run=True)  # doctest: +SKIP
        sales: optimize would rewrite 12 files
    """

    def __init__(self, table: TableHandle) -> None:
        self._table = table

    def compact(
        self,
        *,
        where: str | None = None,
        target_bytes: int = DEFAULT_TARGET,
        vorder: bool | None = None,
        row_group_rows: int = 0,
        dry_run: bool = False,
    ) -> Compaction:
        """Compact the small files of each partition (Delta's OPTIMIZE).

        Args:
            where: a predicate on partition columns that selects partitions; by default all.
            target_bytes: the size of the new files in bytes, 1 GiB by default; smaller files are
                compacted.
            vorder: put files into V-Order if they are not in it yet, in a second commit. By
                default, this is done if one of the compacted files was in V-Order, or if the table
                asks for it (the property `mirrorlake.vorder`, or one of Fabric's, such as
                `delta.parquet.vorder.enabled`). If the process is killed between the two commits,
                the table is compacted but not in V-Order; call again with `vorder=True` to
                complete it.
            row_group_rows: the most rows of a row group in the new files; 0 for the default.
            dry_run: only preview.

        Returns:
            The files read and written, with their bytes.

        Raises:
            UsageError: the predicate uses other columns, or the table has a partitioning policy.
            QueryError: Delta refused the operation.
            ConflictError: other writers won each attempt.

        Example:
            >>> lake.table("sales").optimize.compact(where="month = 3")  # doctest: +SKIP
            sales: optimize rewrote 12 files as 1 file
        """
        done = compact_files(
            self._table,
            where=where,
            target_bytes=target_bytes,
            row_group_rows=row_group_rows,
            dry_run=dry_run,
        )
        return order_after(self._table, done, vorder, where, row_group_rows, dry_run=dry_run)

    def z_order(
        self,
        columns: str | Sequence[str],
        *,
        where: str | None = None,
        target_bytes: int = DEFAULT_TARGET,
        vorder: bool | None = None,
        row_group_rows: int = 0,
        dry_run: bool = False,
    ) -> Compaction:
        """Cluster rows with similar values of some columns into the same files (ZORDER BY).

        Args:
            columns: the columns by which rows are clustered, as a sequence or separated by commas.
            where: as for `compact`.
            target_bytes: as for `compact`.
            vorder: as for `compact`.
            row_group_rows: as for `compact`.
            dry_run: as for `compact`.

        Returns:
            The files read and written, with their bytes.

        Raises:
            UsageError: as for `compact`, or no column is given, or one does not exist.
            QueryError: Delta refused the operation.
            ConflictError: as for `compact`.

        Example:
            >>> lake.table("sales").optimize.z_order(["customer", "day"])  # doctest: +SKIP
            sales: optimize rewrote 12 files as 4 files
        """
        names = split_names(columns)
        if not names:
            raise UsageError("No column to Z-order by is given.", hint="give at least one column.")
        sort_prefix(self._table.snapshot().metadata, names)  # raises before anything is read
        done = compact_files(
            self._table,
            where=where,
            target_bytes=target_bytes,
            zorder_by=names,
            row_group_rows=row_group_rows,
            dry_run=dry_run,
        )
        return order_after(self._table, done, vorder, where, row_group_rows, dry_run=dry_run)

    def vorder(
        self,
        *,
        sort_by: str | Sequence[str] = (),
        again: bool = False,
        where: str | None = None,
        row_group_rows: int = 0,
        dry_run: bool = False,
    ) -> VOrderReport:
        """Write files in V-Order, so that they are smaller and faster to read.

        V-Order sorts the rows within each file; no row moves to another file.

        Args:
            sort_by: columns by which every file is sorted first, as a sequence or separated by
                commas; the remaining order is chosen per file.
            again: include files that are in V-Order already, or that an earlier run tried.
            where: a predicate on partition columns that selects partitions; by default all.
            row_group_rows: the most rows of a row group; 0 for 4 million. If given, files are
                written even if they do not get smaller.
            dry_run: only estimate the savings, from as many files as one commit may rewrite.

        Returns:
            The commits, and for each file the chosen order and its size.

        Raises:
            UsageError: a column does not exist, or the session is a Spark Connect session.
            ConflictError: other writers won each attempt; earlier commits remain.

        Example:
            >>> lake.table("sales").optimize.vorder(dry_run=True)  # doctest: +SKIP
            sales: 3 of 3 files would be rewritten in V-Order, 9,214 bytes would become 5,436 …
        """
        return vorder_table(
            self._table,
            apply=not dry_run,
            sort_by=split_names(sort_by),
            again=again,
            where=where,
            row_group_rows=row_group_rows,
        )

    def purge(self, *, drop_vectors: bool = False, dry_run: bool = False) -> Compaction:
        """Rewrite files that contain deleted rows or dropped columns (Delta's REORG … PURGE).

        If one of the purged files was in V-Order, the table's files are then put into V-Order if
        they are not in it yet. Files of a partitioning policy are rewritten one by one, so that
        they still contain one partition.

        Args:
            drop_vectors: also remove the feature of deletion vectors from the table, so that
                readers without it can read its newest version.
            dry_run: only count the files to rewrite.

        Returns:
            The files read and written, with their bytes.

        Raises:
            QueryError: Delta refused the operation.
            ConflictError: as for `compact`; earlier commits remain.

        Example:
            >>> lake.table("people").optimize.purge()  # doctest: +SKIP
            people: reorg rewrote 2 files as 2 files
        """
        done = purge_files(self._table, drop_vectors=drop_vectors, dry_run=dry_run)
        return order_after(self._table, done, None if done.in_vorder else False, dry_run=dry_run)

    def compare_layouts(
        self,
        layouts: Mapping[str, Mapping[str, Any]],
        queries: Mapping[str, str],
        *,
        rows: DataFrame | None = None,
    ) -> Comparison:
        """Write copies of the table in several layouts, time queries on each, and remove them.

        Args:
            layouts: the options of each layout, by name: `partition_by`, `sort_by`,
                `row_group_rows`, `files` and `vorder`, as `Layout` describes them.
            queries: SQL by name, with `{table}` in place of the copy's name.
            rows: the rows to copy; by default the newest version's.

        Raises:
            UsageError: there is nothing to compare, a query has no `{table}`, or a layout has an
                unknown option.

        Example:
            >>> layouts = {"as it is": {}, "V-Order": {"vorder": True}}
            >>> lake.table("sales").optimize.compare_layouts(layouts, queries)  # doctest: +SKIP
            2 layouts; the smallest is 'V-Order'
        """
        known = {field.name for field in fields(Layout)}
        for name, options in layouts.items():
            if unknown := sorted(options.keys() - known):
                raise UsageError(
                    f"The layout {name!r} has an unknown option {unknown[0]!r}.",
                    hint=f"choose one of {', '.join(sorted(known))}.",
                )
        table = self._table
        frame = table.rows() if rows is None else rows
        wanted = {name: Layout(**options) for name, options in layouts.items()}
        for name, one in wanted.items():
            partition_by, sort_by = map(split_names, (one.partition_by, one.sort_by))
            wanted[name] = replace(one, partition_by=tuple(partition_by), sort_by=tuple(sort_by))
        return compare_layouts(table.spark, table.storage, frame, wanted, queries)


def order_after(
    table: TableHandle,
    done: Compaction,
    vorder: bool | None,
    where: str | None = None,
    row_group_rows: int = 0,
    *,
    dry_run: bool,
) -> Compaction:
    """Write files in V-Order after an operation that loses it, and return both as one result.

    Arguments and errors are those of `Optimize.compact`. Without a JVM, only an explicit request
    for V-Order is an error.
    """
    if vorder is None:
        asked = done.in_vorder > 0 or table.snapshot().wants_vorder
        vorder = asked and has_gateway(table.spark)
    if not vorder:
        return done
    if dry_run:  # at most these, because the operation also merges them
        ordered = _Job(table, where=where).count() + done.in_vorder
    else:
        report = vorder_table(table, apply=True, where=where, row_group_rows=row_group_rows)
        ordered = report.ordered
    return replace(done, files_ordered=ordered, version=table.snapshot().version)


def keep_vorder(table: TableHandle) -> None:
    """Write files in V-Order that the mirror has compacted, if the table asks for it.

    A failure is only logged, because the next maintenance orders the files.
    """
    if table.snapshot().wants_vorder and has_gateway(table.spark):
        try:
            vorder_table(table, apply=True)
        except MirrorlakeError as error:
            _log.warning("%s was compacted, but is not in V-Order: %s", table.name, error)


@dataclass(frozen=True)
class Layout:
    """One layout of a table's rows.

    Attributes:
        partition_by: the partition columns.
        sort_by: the columns to sort each file by; with `vorder` the columns with which its order
            starts.
        row_group_rows: the maximum number of rows of a row group; 0 for the writer's default.
        files: the number of files per partition; 0 for the writer's default.
        vorder: write the files in V-Order.
    """

    partition_by: tuple[str, ...] = ()
    sort_by: tuple[str, ...] = ()
    row_group_rows: int = 0
    files: int = 0
    vorder: bool = False


@dataclass(frozen=True)
class Copy:
    """The measured copy of one layout.

    Attributes:
        layout: the layout's name.
        files: the number of Parquet files.
        row_groups: the number of their row groups.
        size: their bytes.
        write_seconds: the time to write the copy, V-Order included.
        read_seconds: the time of each query, the median of three runs after a warm-up.
    """

    layout: str
    files: int
    row_groups: int
    size: int
    write_seconds: float
    read_seconds: Mapping[str, float]


@dataclass(frozen=True)
class Comparison(Result):
    """The copies of several layouts, side by side.

    Attributes:
        copies: one entry per layout.
    """

    copies: tuple[Copy, ...]

    def __repr__(self) -> str:
        smallest = min(self.copies, key=lambda copy: copy.size)
        layouts = counted(len(self.copies), "layout")
        return f"{layouts}; the smallest is {smallest.layout!r}"

    def shown(self) -> TextTable:
        """Return one row per copy, with times in seconds."""
        queries = tuple(self.copies[0].read_seconds)
        columns = ("layout", "files", "row groups", "size", "write s", *queries)
        return TextTable(
            columns,
            tuple(
                (c.layout, c.files, c.row_groups, size_text(c.size), round(c.write_seconds, 3),
                 *(round(c.read_seconds[query], 3) for query in queries))
                for c in self.copies
            ),
        )  # fmt: skip


def compare_layouts(
    spark: SparkSession,
    storage: Storage,
    rows: DataFrame,
    layouts: Mapping[str, Layout],
    queries: Mapping[str, str],
) -> Comparison:
    """Write the rows once per layout, time the queries on each copy, and delete the copies.

    Args:
        spark: a classic session.
        storage: the lake's files; the copies are not stored among its tables.
        rows: the rows to copy.
        layouts: the layouts by name.
        queries: SQL by name, with `{table}` in place of the table.

    Returns:
        Sizes and times of each copy.

    Raises:
        UsageError: no layout is given, or a query lacks `{table}`.
    """
    if not layouts or not all("{table}" in query for query in queries.values()):
        raise UsageError(
            "There is nothing to compare.", hint="pass layouts, and queries with {table}."
        )
    kept = rows.persist()
    try:
        kept.count()
        copies = [_measure(storage, kept, *layout, queries) for layout in layouts.items()]
        return Comparison(tuple(copies))
    finally:
        kept.unpersist()


def _measure(
    storage: Storage, rows: DataFrame, name: str, layout: Layout, queries: Mapping[str, str]
) -> Copy:
    spark = rows.sparkSession
    # A separate lake, so that the copy is a normal table but not one of this lake.
    folder = f"{STATE}/copies/{uuid.uuid4().hex}"
    scratch = Storage(storage.path(folder))
    copied = TableName(None, "copy")
    try:
        began = time.perf_counter()
        _write(scratch.path(copied.table_path), rows, layout)
        table = TableHandle(spark, scratch, copied)
        if layout.vorder:
            size = layout.row_group_rows
            vorder_table(table, apply=True, sort_by=layout.sort_by, row_group_rows=size)
        write_seconds = time.perf_counter() - began
        analysis = analyze_table(table, scan=False)
        analysis.release()
        s = analysis.summary
        asked = {what: query.format(table=table.sql_name) for what, query in queries.items()}
        reads = {what: _median_read(spark, query) for what, query in asked.items()}
        sizes = s["Parquet Files"], s["Row Groups"], s["File Size"]
        return Copy(name, *sizes, write_seconds, reads)
    finally:
        storage.delete_folder(folder)


def _write(path: str, rows: DataFrame, layout: Layout) -> None:
    frame = rows
    columns = [quote(column) for column in layout.partition_by]
    if layout.files:
        frame = frame.repartition(layout.files, *columns)
    if layout.sort_by and not layout.vorder:
        frame = frame.sortWithinPartitions(*columns, *[quote(c) for c in layout.sort_by])
    writer = frame.write.format("delta")
    if layout.partition_by:
        writer = writer.partitionBy(*layout.partition_by)
    with row_groups(rows.sparkSession, layout.row_group_rows):
        writer.save(path)


def _median_read(spark: SparkSession, query: str) -> float:
    times = []
    for _ in range(_REPEATS + 1):
        began = time.perf_counter()
        spark.sql(query).write.format("noop").mode("overwrite").save()
        times.append(time.perf_counter() - began)
    return statistics.median(times[1:])


def write_rows(
    spark: SparkSession,
    storage: Storage,
    name: TableName,
    rows: DataFrame,
    mode: str,
    *,
    vorder: bool | None,
    sort_by: Sequence[str],
    row_group_rows: int,
) -> None:
    """Write rows to an existing table, in V-Order if requested; see `Lake.write`.

    If only the table asks for V-Order, rows with other columns or types are written as Delta does,
    because they may change the schema. The next `optimize` orders their files.
    """
    if vorder is None and has_gateway(spark) and open_snapshot(storage, name).wants_vorder:
        table = spark.sql(f"SELECT * FROM {delta_name(storage.path(name.table_path))}")
        vorder = sorted(rows.dtypes) == sorted(table.dtypes)
    if vorder:
        write_ordered(
            spark, storage, name, rows, mode, sort_by=sort_by, row_group_rows=row_group_rows
        )
    else:
        with row_groups(spark, row_group_rows):
            write_delta(spark, storage, name, rows, mode)


def write_ordered(
    spark: SparkSession,
    storage: Storage,
    name: TableName,
    rows: DataFrame,
    mode: str,
    *,
    sort_by: Sequence[str] = (),
    row_group_rows: int = 0,
) -> None:
    """Write rows in V-Order to an existing table.

    Delta writes the files with their statistics, and they are ordered before the commit. A file
    that no order makes smaller is committed unchanged.

    Args:
        spark: a classic session.
        storage: the lake's files.
        name: the table's name.
        rows: columns by the table's names; missing ones become NULL.
        mode: `append` or `overwrite`.
        sort_by: columns by which every file is sorted first.
        row_group_rows: the most rows of a row group; 0 for 4 million.

    Raises:
        UsageError: the table lacks a column.
        ConflictError: another writer won; nothing was committed.
    """
    path = storage.path(name.table_path)
    note = json.dumps({"mirrorlake": "write in vorder"})
    with transaction(spark, path, note=note) as txn:
        gone: list[Add] = []
        if mode == "overwrite":
            gone = txn.take([row["path"] for row in txn.files().select("path").collect()])
        written = txn.write(_as_table(spark, path, rows), checked=False)
        prefix = sort_prefix(txn.metadata(), sort_by)
        tasks = [
            Task(add, prefix=prefix, write=True, row_group_rows=row_group_rows) for add in written
        ]
        outcomes = order_files(spark, storage, name, tasks) if tasks else ()
        better = {one.path: one for one in outcomes if not one.reason}
        adds = [
            ordered_add(add, better[add["path"]]) if add["path"] in better else add
            for add in written
        ]
        txn.commit_rows(adds, gone, mode=mode.capitalize())
    # The replaced files were never committed, so only VACUUM would delete them.
    for path_in_log in better:
        storage.delete(f"{name.table_path}/{unquote(path_in_log)}")


def _as_table(spark: SparkSession, path: str, rows: DataFrame) -> DataFrame:
    """Return the rows with the table's columns and types, in its order."""
    fields = spark.sql(f"SELECT * FROM {delta_name(path)}").schema.fields
    known = {field.name.lower() for field in fields}
    if unknown := [column for column in rows.columns if column.lower() not in known]:
        raise UsageError(
            f"The table has no column {unknown[0]}.", hint="add it with ALTER TABLE first."
        )
    given = {column.lower(): column for column in rows.columns}
    return rows.select(
        *[
            (F.col(quote(given[f.name.lower()])) if f.name.lower() in given else F.lit(None))
            .cast(f.dataType)
            .alias(f.name, metadata=f.metadata)
            for f in fields
        ]
    )


@dataclass(frozen=True)
class VOrderReport(Result):
    """The result of writing a table's files in V-Order.

    Attributes:
        table: the table's name.
        applied: whether anything was committed; otherwise the report is a preview.
        commits: one entry per commit.
        outcomes: one entry per examined file.
    """

    table: str
    applied: bool
    commits: tuple[Rewrite, ...]
    outcomes: tuple[FileOutcome, ...]

    @property
    def bytes_before(self) -> int:
        """The bytes of the examined files."""
        return sum(one.size for one in self.outcomes)

    @property
    def bytes_after(self) -> int:
        """The bytes of the files afterwards, unchanged ones included."""
        return sum(one.new_size for one in self.outcomes)

    @property
    def ordered(self) -> int:
        """The number of files that are, or would be, replaced."""
        return sum(not one.reason for one in self.outcomes)

    def summary(self) -> TextTable:
        """Return the files by outcome: one row per kind of outcome."""
        groups: dict[tuple[str, str, str], list[FileOutcome]] = {}
        for one in self.outcomes:
            done = "unchanged" if one.reason else "ordered" if self.applied else "would be ordered"
            key = (done, one.reason or one.order, ", ".join(one.columns[:4]))
            groups.setdefault(key, []).append(one)
        rows = tuple(
            (*key, len(some), sum(o.rows for o in some), size_text(sum(o.size for o in some)),
             size_text(sum(o.new_size for o in some)))
            for key, some in sorted(groups.items())
        )  # fmt: skip
        names = ("outcome", "order or reason", "sorted by", "files", "rows", "size", "size after")
        return TextTable(names, rows)

    @optional_figure
    def plot(self) -> Chart:
        """Draw the bytes of the examined files, before and after."""
        from mirrorlake.show.plots import plot_bars

        return plot_bars(
            {"before": self.bytes_before / 1024, "after": self.bytes_after / 1024},
            title=f"Size of the examined files of {self.table}, before and after V-Order",
            label="KiB",
            fmt="{x:,.1f}",
        )

    def __repr__(self) -> str:
        if not self.outcomes:
            return f"{self.table}: no file is without V-Order"
        done, verb = ("", "became") if self.applied else ("would be ", "would become")
        gain = 100 * (1 - self.bytes_after / max(1, self.bytes_before))
        return (
            f"{self.table}: {self.ordered} of {counted(len(self.outcomes), 'file')}"
            f" {done}rewritten in V-Order,"
            f" {self.bytes_before:,} bytes {verb} {self.bytes_after:,} ({gain:.1f} % less)"
        )

    def shown(self) -> TextTable:
        """Return one row per file."""
        # These names are the keys of `vorder --json`.
        columns = ("file", "rows", "bytes", "bytes after", "order", "sorted by", "why it stays")
        return TextTable(
            columns,
            tuple(
                (one.path, one.rows, one.size, one.new_size, one.order, ", ".join(one.columns),
                 one.reason)
                for one in self.outcomes
            ),
        )  # fmt: skip


def vorder_table(
    table: TableHandle,
    *,
    apply: bool,
    sort_by: Sequence[str] = (),
    again: bool = False,
    where: str | None = None,
    row_group_rows: int = 0,
) -> VOrderReport:
    """Write files in V-Order that are not yet, in commits of bounded size.

    A dry run examines as many files as one commit may rewrite. Arguments and errors are those of
    `Optimize.vorder`.
    """
    sort_prefix(table.snapshot().metadata, sort_by)  # raises before anything is read
    job = _Job(table, tuple(sort_by), again, where, row_group_rows)
    if not apply:
        return VOrderReport(str(table.name), False, (), job.dry_run())
    commits: list[Rewrite] = []
    outcomes: list[FileOutcome] = []
    make = partial(rewrite_files, table.spark, table.path, job.choose, job.write, note=_NOTE)
    while (commit := make()) is not None:
        commits.append(commit)
        outcomes += job.outcomes
        job.done |= {one.new_path or one.path for one in job.outcomes}
    return VOrderReport(str(table.name), bool(commits), tuple(commits), tuple(outcomes))


@dataclass
class _Job:
    """The choice and the writing of one table's files."""

    table: TableHandle
    sort_by: tuple[str, ...] = ()
    again: bool = False
    where: str | None = None
    row_group_rows: int = 0
    outcomes: tuple[FileOutcome, ...] = ()
    done: set[str] = field(default_factory=set)

    def choose(self, files: DataFrame) -> DataFrame:
        """Return the files without V-Order, the largest first; with `again` all not yet done."""
        if self.where is not None:
            files = in_partitions(files, self.table.snapshot(), self.where)
        if self.again:
            chosen = files.where(~F.col("path").isin(list(self.done)))
        else:
            marks = map(tag, (OPEN_TAG, TRIED_TAG, MICROSOFT_TAG))
            chosen = files.where(F.coalesce(*marks).isNull())
        return chosen.orderBy(F.desc("size"), "path")

    def write(self, txn: DeltaTransaction, chosen: Sequence[Add]) -> Written:
        """Write the files that become smaller; the others only get a tag."""
        self.outcomes = self._order(txn, chosen, write=True)
        by_path = {add["path"]: add for add in chosen}
        replaced, adds, kept = [], [], []
        for one in self.outcomes:
            add = by_path[one.path]
            if one.reason:
                kept.append(add | {"tags": (add.get("tags") or {}) | {TRIED_TAG: one.reason}})
            else:
                replaced.append(add)
                adds.append(ordered_add(add, one))
        return Written(replaced, adds, kept)

    def count(self) -> int:
        """Count the chosen files; this reads only the log."""
        with transaction(self.table.spark, self.table.path) as txn:
            return self.choose(txn.files()).count()

    def dry_run(self) -> tuple[FileOutcome, ...]:
        """Order files in memory, without writing them."""
        with transaction(self.table.spark, self.table.path) as txn:
            paths = within(self.choose(txn.files()), Bounds())
            if not paths:
                return ()
            return self._order(txn, txn.take(paths), write=False)

    def _order(
        self, txn: DeltaTransaction, chosen: Sequence[Add], *, write: bool
    ) -> tuple[FileOutcome, ...]:
        metadata = txn.metadata()
        # The columns of row ids and of commit versions, as a tracking table's files name them.
        hidden = ("", "")
        if txn.tracks_rows:
            properties = metadata["configuration"]
            hidden = properties[ROW_ID_COLUMN], properties[ROW_VERSION_COLUMN]
        prefix = sort_prefix(metadata, self.sort_by)
        # A partitioned file must remain sorted by its key.
        key = [(add.get("tags") or {}).get(SORTED_TAG) for add in chosen]
        firsts = [prefix if name is None else (name, *prefix) for name in key]
        tasks = [
            Task(add, *hidden, first, write, self.row_group_rows)
            for add, first in zip(chosen, firsts, strict=True)
        ]
        table = self.table
        return order_files(table.spark, table.storage, table.name, tasks)


def in_partitions(files: DataFrame, snapshot: Snapshot, where: str) -> DataFrame:
    """Return the files of the partitions that a predicate selects.

    Args:
        files: one row per `add`, with the log's field names.
        snapshot: the table's snapshot.
        where: SQL on partition columns only.
    """
    schema = StructType.fromJson(snapshot.schema_document)
    names = physical_names(snapshot.metadata)
    values = [
        F.try_element_at("partitionValues", F.lit(names[column]))
        .cast(schema[column].dataType)
        .alias(column)
        for column in snapshot.partition_columns
    ]
    return files.select(F.struct("*").alias("_file"), *values).where(where).select("_file.*")
