"""Rewriting files: OPTIMIZE puts small ones together, REORG drops what was deleted softly.

They change no row, and leave the old files to vacuum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import sqlglot
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from sqlglot import exp
from sqlglot.errors import SqlglotError

from mirrorlake.delta.files import files_of, matching_files, total
from mirrorlake.delta.snapshot import VECTORS, has_policy
from mirrorlake.delta.table import Table
from mirrorlake.errors import UsageError
from mirrorlake.names import TableName
from mirrorlake.results import Result, TextTable
from mirrorlake.spark.sql import query_errors, quote

MIB = 2**20
DEFAULT_TARGET = 1024 * MIB  # Delta's own
_CONF = "spark.databricks.delta.optimize"


@dataclass(frozen=True)
class Compaction(Result):
    """What rewriting would take on, or has done.

    Attributes:
        action: `optimize` or `reorg`.
        files, bytes: what is read: small or masked files; what was removed, once it is done.
        masked_rows: rows that deletion vectors hide in them.
        in_vorder: how many of them are in V-Order: put together they are not any more.
        files_added, bytes_added: what took their place; None before it is done.
        version: the table's newest version afterwards.
        files_ordered: how many files V-Order took on, or would; None if nobody asked for it.
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
        """The same facts, one a row."""
        rows = [
            ("files rewritten" if self.applied else "files to rewrite", self.files),
            ("their bytes", self.bytes),
            ("deleted rows in them", self.masked_rows),
        ]
        if self.in_vorder and self.files_ordered is None:
            way = "--vorder" if self.action == "optimize" else "vorder"
            rows.append((f"in V-Order among them ({way} orders anew)", self.in_vorder))
        if self.files_added is not None and self.bytes_added is not None:
            rows += [("files written", self.files_added), ("their bytes", self.bytes_added)]
        if self.files_ordered is not None:
            rows.append(
                ("files in V-Order" if self.applied else "files to order", self.files_ordered)
            )
        return TextTable((f"{self.action} {self.table}", "value"), tuple(rows))

    def __repr__(self) -> str:
        if not self.applied:
            return f"{self.table}: {self.action} would rewrite {self.files} files"
        return f"{self.table}: {self.action} made {self.files_added} files of {self.files}"


@query_errors()
def compact_files(
    table: Table,
    *,
    where: str | None = None,
    target_bytes: int = DEFAULT_TARGET,
    zorder_by: Sequence[str] = (),
    dry_run: bool = False,
) -> Compaction:
    """Puts small files together; arguments and errors are those of `Optimize.compact`.

    Clustering by `zorder_by` has no forecast of its own: a dry run counts all files in question.
    """
    work = table.for_one_operation()
    if has_policy(table.storage, table.name):
        raise UsageError(
            f"{table.name} has a partitioning policy, and OPTIMIZE would mix its partitions.",
            hint="`partition run` merges small files of one partition.",
        )
    if target_bytes <= 0:
        raise UsageError(f"Files can't be of {target_bytes} bytes.")
    _check_columns(where, work.snapshot().partition_columns)
    files = _in(work, where)
    found = Compaction(
        table.name,
        "optimize",
        version=work.snapshot().version,
        **_figures(files if zorder_by else _crowded(files, target_bytes)),
    )
    if dry_run:
        return found
    work.spark.conf.set(f"{_CONF}.maxFileSize", str(target_bytes))
    work.spark.conf.set(f"{_CONF}.minFileSize", str(target_bytes))
    clause = f" WHERE {where}" if where else ""
    order = f" ZORDER BY ({', '.join(map(quote, zorder_by))})" if zorder_by else ""
    return _run(work.spark, table, found, f"OPTIMIZE {table.sql_name}{clause}{order}")


@query_errors()
def purge_files(table: Table, *, drop_vectors: bool = False, dry_run: bool = False) -> Compaction:
    """Rewrites files with deleted rows or dropped columns, so that vacuum can remove both.

    Arguments and errors are those of `Optimize.purge`. Which files hold dropped columns is found
    out while rewriting.
    """
    work = table.for_one_operation()
    version = work.snapshot().version
    masked = files_of(work, version).where("masked > 0")
    found = Compaction(table.name, "reorg", version=version, **_figures(masked))
    if dry_run:
        return found
    name, feature = table.sql_name, "deletionVectors"
    if drop_vectors and feature in work.snapshot().reader_features:
        # First no new ones, then none; what is left is older versions', which stay readable.
        off = f"SET TBLPROPERTIES ('{VECTORS}' = 'false')"
        work.spark.sql(f"ALTER TABLE {name} {off}").collect()
        done = _run(work.spark, table, found, f"REORG TABLE {name} APPLY (PURGE)")
        work.spark.sql(f"ALTER TABLE {name} DROP FEATURE {feature}").collect()
        return replace(done, version=table.snapshot().version)
    return _run(work.spark, table, found, f"REORG TABLE {name} APPLY (PURGE)")


def _check_columns(where: str | None, parts: list[str]) -> None:
    if where is None:
        return
    try:
        tree = sqlglot.parse_one(where, read="spark")
    except SqlglotError as error:
        raise UsageError(f"{where!r} is no predicate.") from error
    known = {name.lower() for name in parts}
    others = sorted({c.name for c in tree.find_all(exp.Column) if c.name.lower() not in known})
    if others:
        has = f"it is partitioned by {', '.join(parts)}." if parts else "it has no partitions."
        raise UsageError(f"{', '.join(others)} is no partition column of the table.", hint=has)


def _crowded(files: DataFrame, target: int) -> DataFrame:
    """The small files of the partitions that have several."""
    small = files.where(F.col("size") < target)
    crowded = small.groupBy("parts").count().where("count > 1").select("parts")
    return small.join(crowded, small["parts"].eqNullSafe(crowded["parts"]), "left_semi")


def _in(table: Table, where: str | None) -> DataFrame:
    """The files of the chosen partitions: those with a row that the predicate picks."""
    files = files_of(table, table.snapshot().version)
    if where is None:
        return files
    return files.join(matching_files(table, where), "path", "left_semi")


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


def _run(session: SparkSession, table: Table, planned: Compaction, statement: str) -> Compaction:
    row = session.sql(statement).select("metrics.*").collect()[0].asDict(recursive=True)
    return replace(
        planned,
        files=row["numFilesRemoved"],
        bytes=(row["filesRemoved"] or {}).get("totalSize") or 0,
        files_added=row["numFilesAdded"],
        bytes_added=(row["filesAdded"] or {}).get("totalSize") or 0,
        version=table.snapshot().version,
        applied=True,
    )
