"""Rewrites a table's files and none of its rows: `lake.table(…).optimize`.

Also writes rows in V-Order, and compares layouts.
"""

from __future__ import annotations

import json
import statistics
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from urllib.parse import unquote

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from mirrorlake.delta.table import TableHandle
from mirrorlake.errors import UsageError
from mirrorlake.history.maintenance import DEFAULT_TARGET, Compaction, compact_files, purge_files
from mirrorlake.layout.analysis import analyze_table
from mirrorlake.layout.vorder import (
    VOrderReport,
    order_files,
    ordered_add,
    sort_prefix,
    vorder_table,
)
from mirrorlake.layout.vorder_file import Task
from mirrorlake.names import STATE, TableName
from mirrorlake.results import Result, TextTable, size_text
from mirrorlake.spark.gateway import Add, transaction
from mirrorlake.spark.sql import delta_name, quote
from mirrorlake.storage.files import Storage

_REPEATS = 3
_ROW_LIMIT = "parquet.block.row.count.limit"


class Optimize:
    """The ways to better files. Each acts at once; with `dry_run` it only says what it would do.

    Args:
        table: whose files.

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
        vorder: bool = False,
        dry_run: bool = False,
    ) -> Compaction:
        """Puts the small files of each partition together (Delta's OPTIMIZE).

        Args:
            where: only these partitions: a predicate on partition columns.
            target_bytes: how large files are to become, in bytes; smaller ones are put together.
            vorder: order the rows within the files next, in a commit of its own. Killed between
                the two commits, it leaves a compacted table; ask again to have it ordered.
            dry_run: only say what it would do.

        Returns:
            The files read and written, in numbers and bytes.

        Raises:
            UsageError: the predicate uses other columns, or the table has a partitioning policy.
            QueryError: Delta refused it.

        Example:
            >>> lake.table("sales").optimize.compact(where="month = 3")  # doctest: +SKIP
            sales: optimize rewrote 12 files as 1 file
        """
        done = compact_files(self._table, where=where, target_bytes=target_bytes, dry_run=dry_run)
        return self._ordered(done, where, dry_run) if vorder else done

    def z_order(
        self,
        columns: Sequence[str],
        *,
        where: str | None = None,
        target_bytes: int = DEFAULT_TARGET,
        vorder: bool = False,
        dry_run: bool = False,
    ) -> Compaction:
        """Brings rows with near values of some columns into the same files (ZORDER BY).

        Args:
            columns: the columns by which rows are brought together.
            where: as for `compact`, whose errors it shares.
            target_bytes: as for `compact`.
            vorder: as for `compact`.
            dry_run: as for `compact`.

        Example:
            >>> lake.table("sales").optimize.z_order(["customer", "day"])  # doctest: +SKIP
            sales: optimize rewrote 12 files as 4 files
        """
        done = compact_files(
            self._table,
            where=where,
            target_bytes=target_bytes,
            zorder_by=columns,
            dry_run=dry_run,
        )
        return self._ordered(done, where, dry_run) if vorder else done

    def vorder(
        self,
        *,
        sort_by: Sequence[str] = (),
        again: bool = False,
        where: str | None = None,
        dry_run: bool = False,
    ) -> VOrderReport:
        """Orders the rows within each file so that it gets smaller and is read more quickly.

        Args:
            sort_by: columns that every file is sorted by first; the order of the rest is chosen.
            again: take files that are ordered, or were tried, too.
            where: only these partitions: a predicate on partition columns.
            dry_run: only tell the gain that a sample of the files lets expect.

        Returns:
            The commits, and for each file the order that was chosen and the bytes it saves.

        Raises:
            UsageError: there is no such column, or the session is a Connect session.
            ConflictError: other writers were quicker each time; earlier commits stand.

        Example:
            >>> lake.table("sales").optimize.vorder(dry_run=True)  # doctest: +SKIP
            sales: V-Order would make 3 files 41% smaller
        """
        return vorder_table(
            self._table, apply=not dry_run, sort_by=sort_by, again=again, where=where
        )

    def purge(self, *, drop_vectors: bool = False, dry_run: bool = False) -> Compaction:
        """Rewrites files that hold deleted rows or dropped columns (Delta's REORG … PURGE).

        Args:
            drop_vectors: take deletion vectors from the table altogether, so that readers without
                them can read its newest version.
            dry_run: only count the files that would be rewritten.

        Raises:
            QueryError: Delta refused it.

        Example:
            >>> lake.table("people").optimize.purge()  # doctest: +SKIP
            people: reorg rewrote 2 files as 2 files
        """
        return purge_files(self._table, drop_vectors=drop_vectors, dry_run=dry_run)

    def _ordered(self, done: Compaction, where: str | None, dry_run: bool) -> Compaction:
        ordered = self.vorder(where=where, dry_run=dry_run).ordered
        return replace(done, files_ordered=ordered, version=self._table.snapshot().version)


@dataclass(frozen=True)
class Layout:
    """One way to lay a table's rows out.

    Attributes:
        partition_by: columns to partition by.
        sort_by: columns to sort each file by; with `vorder` the columns that it starts with.
        row_group_rows: most rows of a row group; 0 is the writer's own choice.
        files: how many files a partition; 0 is the writer's own choice.
        vorder: order the rows within files.
    """

    partition_by: tuple[str, ...] = ()
    sort_by: tuple[str, ...] = ()
    row_group_rows: int = 0
    files: int = 0
    vorder: bool = False


@dataclass(frozen=True)
class Copy:
    """What one layout came to.

    Attributes:
        layout: its name.
        files: Parquet files.
        row_groups: row groups of them.
        size: their bytes.
        write_seconds: to write the copy, its V-Order included.
        read_seconds: by query, the median of three after one that does not count.
    """

    layout: str
    files: int
    row_groups: int
    size: int
    write_seconds: float
    read_seconds: Mapping[str, float]


@dataclass(frozen=True)
class Comparison(Result):
    """The copies side by side."""

    copies: tuple[Copy, ...]

    def __repr__(self) -> str:
        smallest = min(self.copies, key=lambda copy: copy.size)
        return f"{len(self.copies)} layouts; the smallest is {smallest.layout!r}"

    def shown(self) -> TextTable:
        """The copies as rows, times in seconds."""
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
    """Writes the rows once a layout, times the queries on each copy, and removes the copies.

    Args:
        spark: a classic session.
        storage: the lake's files; the copies lie beside the engine's own, not among the tables.
        rows: what to copy.
        layouts: by name.
        queries: SQL by name, with `{table}` where the copy's name goes.

    Raises:
        UsageError: there is nothing to compare, or a query has no `{table}`.
    """
    if not layouts or not all("{table}" in query for query in queries.values()):
        raise UsageError(
            "There is nothing to compare.", hint="give layouts, and {table} in queries."
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
    # A lake of its own, so that the copy is a table like any other and yet not one of this lake.
    folder = f"{STATE}/copies/{uuid.uuid4().hex}"
    scratch = Storage(storage.path(folder))
    copied = TableName(None, "copy")
    try:
        began = time.perf_counter()
        _write(scratch.path(copied.table_path), rows, layout)
        table = TableHandle(spark, scratch, copied)
        if layout.vorder:
            vorder_table(table, apply=True, sort_by=layout.sort_by)
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
    settings = rows.sparkSession.conf
    before = settings.get(_ROW_LIMIT, None)
    if layout.row_group_rows:
        # Delta passes no Parquet option on, but the writer reads the session's settings.
        settings.set(_ROW_LIMIT, str(layout.row_group_rows))
    try:
        writer.save(path)
    finally:
        if before is None:
            settings.unset(_ROW_LIMIT)
        else:
            settings.set(_ROW_LIMIT, before)


def _median_read(spark: SparkSession, query: str) -> float:
    times = []
    for _ in range(_REPEATS + 1):
        began = time.perf_counter()
        spark.sql(query).write.format("noop").mode("overwrite").save()
        times.append(time.perf_counter() - began)
    return statistics.median(times[1:])


def write_ordered(
    spark: SparkSession,
    storage: Storage,
    name: TableName,
    rows: DataFrame,
    mode: str,
    *,
    sort_by: Sequence[str] = (),
) -> None:
    """Writes rows in V-Order to a table that is there.

    Delta writes the files with their statistics, they are ordered before anybody sees them, and
    what no order makes smaller is committed as it is.

    Args:
        spark: a classic session.
        storage: the lake's files.
        name: which table.
        rows: columns by the table's names; those left out become NULL.
        mode: `append` or `overwrite`.
        sort_by: columns that every file must be sorted by first.

    Raises:
        UsageError: the table lacks a column.
        ConflictError: another writer was quicker; nothing was committed.
    """
    path = storage.path(name.table_path)
    note = json.dumps({"mirrorlake": "write in vorder"})
    with transaction(spark, path, note=note) as txn:
        gone: list[Add] = []
        if mode == "overwrite":
            gone = txn.take([row["path"] for row in txn.files().select("path").collect()])
        written = txn.write(_as_table(spark, path, rows), checked=False)
        prefix = sort_prefix(txn.metadata(), sort_by)
        tasks = [Task(add, prefix=prefix, write=True) for add in written]
        outcomes = order_files(spark, storage, name, tasks) if tasks else ()
        better = {one.path: one for one in outcomes if not one.reason}
        adds = [
            ordered_add(add, better[add["path"]]) if add["path"] in better else add
            for add in written
        ]
        txn.commit_rows(adds, gone, mode=mode.capitalize())
    # Delta's own files were never the table's; nothing but VACUUM would ever look for them.
    for path_in_log in better:
        storage.delete(f"{name.table_path}/{unquote(path_in_log)}")


def _as_table(spark: SparkSession, path: str, rows: DataFrame) -> DataFrame:
    """The rows with the table's columns and types, in its order."""
    fields = spark.sql(f"SELECT * FROM {delta_name(path)}").schema.fields
    known = {field.name.lower() for field in fields}
    if unknown := [column for column in rows.columns if column.lower() not in known]:
        raise UsageError(
            f"The table has no column {', '.join(unknown)}.", hint="add it by ALTER TABLE first."
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
