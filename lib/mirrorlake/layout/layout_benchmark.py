"""Copies of a table under different layouts, timed: the way to find out what a layout is worth."""

from __future__ import annotations

import statistics
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from mirrorlake.delta.table import Table
from mirrorlake.errors import UsageError
from mirrorlake.layout.analysis import analyze_table
from mirrorlake.layout.vorder import vorder_table
from mirrorlake.names import STATE, TableName
from mirrorlake.results import Result, TextTable, size_text
from mirrorlake.spark.sql import quote
from mirrorlake.storage import Storage

_REPEATS = 3
_ROW_LIMIT = "parquet.block.row.count.limit"


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
        table = Table(spark, scratch, copied)
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
