"""Compact and purge the files of tables.

OPTIMIZE combines small files. REORG rewrites files without the rows that are marked as deleted.
Both change no row. VACUUM later deletes the old files.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import sqlglot
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from sqlglot import exp
from sqlglot.errors import SqlglotError

from mirrorlake.delta.files import (
    files_of,
    files_to_purge,
    full_path,
    hadoop_path,
    matching_files,
    total,
)
from mirrorlake.delta.purge import purge_apart
from mirrorlake.delta.snapshot import VECTORS, stages_of
from mirrorlake.delta.table import TableHandle, row_groups
from mirrorlake.errors import UsageError
from mirrorlake.mirror.options import has_partitioning_policy
from mirrorlake.names import TableName, quote
from mirrorlake.results import Result, TextTable, counted
from mirrorlake.spark.rewrite import Rewrite
from mirrorlake.spark.sql import query_errors, retry_conflicts
from mirrorlake.storage.files import Storage

DEFAULT_TARGET = 1024 * 2**20  # Delta's default
_CONF = "spark.databricks.delta.optimize"


@dataclass(frozen=True)
class Compaction(Result):
    """The result of OPTIMIZE or REORG, or of a dry run.

    Attributes:
        table: the table's name.
        action: `optimize` or `reorg`.
        files, bytes: the number and size of the files to rewrite; after the operation, of the files
            that were replaced. All numbers and sizes include those of a view's stages.
        masked_rows: the number of rows in these files that deletion vectors mark as deleted.
        version: the table's newest version after the operation.
        in_vorder: how many of these files are in V-Order, which Delta's commands lose.
        files_added, bytes_added: the number and size of the new files; None for a dry run.
        applied: whether the files were rewritten.
        files_ordered: the number of files that were written in V-Order afterwards; for a dry run,
            the most that would be. None if no files are ordered.
    """

    table: TableName
    action: str
    files: int
    bytes: int
    masked_rows: int
    version: int
    in_vorder: int = 0
    files_added: int | None = None
    bytes_added: int | None = None
    applied: bool = False
    files_ordered: int | None = None

    def shown(self) -> TextTable:
        """Return the attributes, one per row."""
        rows = [
            ("files rewritten" if self.applied else "files to rewrite", self.files),
            ("their bytes", self.bytes),
            ("deleted rows in them", self.masked_rows),
        ]
        if self.in_vorder and self.files_ordered is None:
            way = "--vorder" if self.action == "optimize" else "vorder"
            rows.append((f"of these in V-Order ({way} restores it)", self.in_vorder))
        if self.files_added is not None and self.bytes_added is not None:
            rows += [("files written", self.files_added), ("their bytes", self.bytes_added)]
        if self.files_ordered is not None:
            rows.append(
                ("files in V-Order" if self.applied else "files to order", self.files_ordered)
            )
        return TextTable((f"{self.action} {self.table}", "value"), tuple(rows))

    def __repr__(self) -> str:
        if not self.applied:
            return f"{self.table}: {self.action} would rewrite {counted(self.files, 'file')}"
        added = counted(self.files_added or 0, "file")
        return f"{self.table}: {self.action} rewrote {counted(self.files, 'file')} as {added}"


_WITH_POLICY = {
    "OPTIMIZE": "table.partitioning.run(), which merges small files within a partition",
    "REORG TABLE": "table.optimize.purge(), which rewrites each file by itself",
}


def check_mixes_no_partitions(storage: Storage, table: TableName, statement: str) -> None:
    """Refuse a statement that would mix the partitions of a table's partitioning policy.

    Args:
        storage: the lake's files.
        table: the table's name.
        statement: `OPTIMIZE` or `REORG TABLE`.

    Raises:
        UsageError: the table has a policy.
    """
    if has_partitioning_policy(storage, table):
        raise UsageError(
            f"{table} has a partitioning policy, and {statement.split()[0]} would mix its"
            " partitions.",
            hint=f"use {_WITH_POLICY[statement]}.",
        )


@query_errors()
def compact_files(
    table: TableHandle,
    *,
    where: str | None = None,
    target_bytes: int = DEFAULT_TARGET,
    zorder_by: Sequence[str] = (),
    row_group_rows: int = 0,
    dry_run: bool = False,
) -> Compaction:
    """Combine small files; see `Optimize.compact`.

    With `zorder_by`, a dry run counts all files that the operation may rewrite, because it can't
    predict which ones it does.
    """
    work = table.for_one_operation()
    check_mixes_no_partitions(table.storage, table.name, "OPTIMIZE")
    if target_bytes <= 0:
        raise UsageError(f"The target size is {target_bytes:,} bytes.", hint="give a size above 0.")
    if where is not None:
        _check_columns(where, work.snapshot().partition_columns)
    files = files_of(work, work.snapshot().version)
    if where is not None:  # only partitions with a matching row
        files = files.join(matching_files(work, where), "path", "left_semi")
    found = Compaction(
        table.name,
        "optimize",
        version=work.snapshot().version,
        **_figures(files if zorder_by else _files_to_compact(files, target_bytes)),
    )
    if not dry_run:
        work.spark.conf.set(f"{_CONF}.maxFileSize", str(target_bytes))
        work.spark.conf.set(f"{_CONF}.minFileSize", str(target_bytes))
        clause = f" WHERE {where}" if where else ""
        order = f" ZORDER BY ({', '.join(map(quote, zorder_by))})" if zorder_by else ""
        statement = f"OPTIMIZE {table.sql_name}{clause}{order}"
        with row_groups(work.spark, row_group_rows):
            found = _run_statement(work.spark, table, found, statement)
    compact = partial(
        compact_files, target_bytes=target_bytes, row_group_rows=row_group_rows, dry_run=dry_run
    )
    return _with_stages(table, found, compact)


@query_errors()
def purge_files(
    table: TableHandle, *, drop_vectors: bool = False, dry_run: bool = False
) -> Compaction:
    """Rewrite files with deleted rows or dropped columns; see `Optimize.purge`."""
    work = table.for_one_operation()
    files = files_to_purge(work)
    figures = _figures(files)
    found = Compaction(table.name, "reorg", version=work.snapshot().version, **figures)
    purge = partial(purge_files, dry_run=dry_run)
    if dry_run:
        return _with_stages(table, found, purge)
    name, feature = table.sql_name, "deletionVectors"
    drops = drop_vectors and feature in work.snapshot().reader_features
    if drops:  # no new deletion vectors may appear between the purge and the drop of the feature
        off = f"SET TBLPROPERTIES ('{VECTORS}' = 'false')"
        _execute(work.spark, f"ALTER TABLE {name} {off}")
    apart = _purge_apart(work, files) if figures["files"] else []
    done = _run_statement(work.spark, table, found, f"REORG TABLE {name} APPLY (PURGE)")
    done = replace(
        done,
        files=done.files + sum(one.files_in for one in apart),
        bytes=done.bytes + sum(one.bytes_in for one in apart),
        files_added=(done.files_added or 0) + sum(one.files_out for one in apart),
        bytes_added=(done.bytes_added or 0) + sum(one.bytes_out for one in apart),
    )
    if drops:
        _execute(work.spark, f"ALTER TABLE {name} DROP FEATURE {feature}")
        done = replace(done, version=table.snapshot().version)
    return _with_stages(table, done, purge)


def _with_stages(
    table: TableHandle, done: Compaction, operation: Callable[[TableHandle], Compaction]
) -> Compaction:
    """Do an operation also on the stages of a view, and return the sums of the figures."""
    names = ["files", "bytes", "masked_rows"]
    names += [] if done.files_added is None else ["files_added", "bytes_added"]
    for stage in stages_of(table.storage, table.name):
        inner = operation(TableHandle(table.spark, table.storage, stage))
        sums = {name: getattr(done, name) + getattr(inner, name) for name in names}
        done = replace(done, **sums)
    return done


def _purge_apart(work: TableHandle, files: DataFrame) -> list[Rewrite]:
    """Purge those of the files that REORG skips or would merge, which only some tables have."""
    is_clustered = "clustering" in work.snapshot().writer_features
    if not is_clustered and not has_partitioning_policy(work.storage, work.name):
        return []
    paths = [row["path"] for row in files.select("path").collect()]
    path = full_path(F.col("path"), hadoop_path(work.storage, work.name.table_path))
    return purge_apart(work.spark, work.path, lambda found: found.where(path.isin(paths)))


def _check_columns(where: str, parts: list[str]) -> None:
    try:
        tree = sqlglot.parse_one(where, read="spark")
    except SqlglotError as error:
        raise UsageError(f"{where!r} is not a SQL predicate.") from error
    known = {name.lower() for name in parts}
    others = sorted({c.name for c in tree.find_all(exp.Column) if c.name.lower() not in known})
    if others:
        has = f"it is partitioned by {', '.join(parts)}." if parts else "it has no partitions."
        noun = "is not a partition column" if len(others) == 1 else "are not partition columns"
        raise UsageError(f"{', '.join(others)} {noun} of the table.", hint=has)


def _files_to_compact(files: DataFrame, target: int) -> DataFrame:
    """Return the small files of all partitions that have several small files."""
    small = files.where(F.col("size") < target)
    crowded = small.groupBy("parts").count().where("count > 1").select("parts")
    return small.join(crowded, small["parts"].eqNullSafe(crowded["parts"]), "left_semi")


def _figures(files: DataFrame) -> dict[str, Any]:
    return (
        files.agg(
            F.count("*").alias("files"),
            total("size").alias("bytes"),
            total("masked").alias("masked_rows"),
            F.count_if("ordered").alias("in_vorder"),
        )
        .collect()[0]
        .asDict()
    )


def _execute(session: SparkSession, statement: str) -> list[Row]:
    return retry_conflicts(lambda: session.sql(statement).collect())


def _run_statement(
    session: SparkSession, table: TableHandle, planned: Compaction, statement: str
) -> Compaction:
    row = _execute(session, statement)[0]["metrics"].asDict(recursive=True)
    return replace(
        planned,
        files=row["numFilesRemoved"],
        bytes=(row["filesRemoved"] or {}).get("totalSize") or 0,
        files_added=row["numFilesAdded"],
        bytes_added=(row["filesAdded"] or {}).get("totalSize") or 0,
        version=table.snapshot().version,
        applied=True,
    )
