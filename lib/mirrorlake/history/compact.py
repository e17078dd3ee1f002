"""Rewriting files: OPTIMIZE puts small ones together, REORG drops what was deleted softly.

Both are dry runs unless told otherwise. They change no row, and leave the old files to vacuum.
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

from mirrorlake.delta.files import files_of
from mirrorlake.delta.policies import has_policy
from mirrorlake.delta.snapshot import Snapshot, read_snapshot
from mirrorlake.errors import QueryError, TableNotFoundError, UsageError
from mirrorlake.names import TableName
from mirrorlake.spark.messages import spark_message
from mirrorlake.spark.session import new_session
from mirrorlake.spark.sql import delta_name, quote
from mirrorlake.storage import Storage
from mirrorlake.text_table import TextTable, html_table

MIB = 2**20
DEFAULT_TARGET = 1024 * MIB  # Delta's own
_CONF = "spark.databricks.delta.optimize"


@dataclass(frozen=True)
class Compaction:
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

    def _repr_html_(self) -> str:
        return html_table(self.shown())


def optimize_table(
    spark: SparkSession,
    storage: Storage,
    table: TableName,
    *,
    where: str | None = None,
    target_bytes: int = DEFAULT_TARGET,
    zorder_by: Sequence[str] = (),
    dry_run: bool = True,
) -> Compaction:
    """Puts the small files of each partition together, or clusters them where the table says so.

    Args:
        spark: the session.
        storage: the lake's files.
        table: which table.
        where: only these partitions; a predicate on partition columns.
        target_bytes: how large files are to become; smaller ones are put together.
        zorder_by: columns by which rows are brought together in files.
        dry_run: only say what it would do; clustering has no forecast of its own.

    Raises:
        UsageError: the predicate uses other columns, or can't be read; or the files are partitioned
            by a policy, and would be mixed.
        QueryError: Delta refused it.
    """
    snapshot = _snapshot(storage, table)
    if has_policy(storage, table):
        raise UsageError(
            f"{table} has a partitioning policy, and OPTIMIZE would mix its partitions.",
            hint="`partition run` merges small files of one partition.",
        )
    if target_bytes <= 0:
        raise UsageError(f"Files can't be of {target_bytes} bytes.")
    parts = list(snapshot.metadata.get("partitionColumns") or [])
    _check_columns(where, parts)
    session = new_session(spark)
    name = delta_name(storage.path(table.table_path))
    found = _candidates(session, storage, table, snapshot, name, where, target_bytes)
    if zorder_by:
        found = replace(found, **_figures(_in(session, storage, table, snapshot, name, where)))
    if dry_run:
        return found
    session.conf.set(f"{_CONF}.maxFileSize", str(target_bytes))
    session.conf.set(f"{_CONF}.minFileSize", str(target_bytes))
    clause = f" WHERE {where}" if where else ""
    order = f" ZORDER BY ({', '.join(map(quote, zorder_by))})" if zorder_by else ""
    return _run(session, storage, found, f"OPTIMIZE {name}{clause}{order}")


def reorg_table(
    spark: SparkSession, storage: Storage, table: TableName, *, dry_run: bool = True
) -> Compaction:
    """Rewrites files that hold deleted rows or dropped columns, so that vacuum can remove both.

    Args:
        spark: the session.
        storage: the lake's files.
        table: which table.
        dry_run: only say how many files hold deleted rows; which hold dropped columns is found
            out while rewriting.

    Raises:
        QueryError: Delta refused it.
    """
    snapshot = _snapshot(storage, table)
    session = new_session(spark)
    files = files_of(session, storage, table.table_path, snapshot.version).where("masked > 0")
    found = Compaction(table, "reorg", version=snapshot.version, **_figures(files))
    if dry_run:
        return found
    name = delta_name(storage.path(table.table_path))
    return _run(session, storage, found, f"REORG TABLE {name} APPLY (PURGE)")


def _snapshot(storage: Storage, table: TableName) -> Snapshot:
    snapshot = read_snapshot(storage, table.table_path)
    if snapshot is None:
        raise TableNotFoundError(f"There is no table {table} in the lake.")
    return snapshot


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


def _candidates(
    spark: SparkSession,
    storage: Storage,
    table: TableName,
    snapshot: Snapshot,
    name: str,
    where: str | None,
    target: int,
) -> Compaction:
    files = _in(spark, storage, table, snapshot, name, where).where(F.col("size") < target)
    crowded = files.groupBy("parts").count().where("count > 1").select("parts")
    few = files.join(crowded, files["parts"].eqNullSafe(crowded["parts"]), "left_semi")
    return Compaction(table, "optimize", version=snapshot.version, **_figures(few))


def _in(
    spark: SparkSession,
    storage: Storage,
    table: TableName,
    snapshot: Snapshot,
    name: str,
    where: str | None,
) -> DataFrame:
    """The files of the chosen partitions: those with a row that the predicate picks."""
    from mirrorlake.delta.files import full_path, hadoop_path

    files = files_of(spark, storage, table.table_path, snapshot.version)
    if where is None:
        return files
    path = full_path(F.col("_metadata.file_path"), hadoop_path(storage, table.table_path))
    try:
        chosen = spark.sql(f"SELECT * FROM {name}").where(F.expr(where)).select(path.alias("path"))
    except Exception as error:
        raise QueryError(spark_message(error)) from error
    return files.join(chosen.distinct(), "path", "left_semi")


def _figures(files: DataFrame) -> dict[str, Any]:
    def total(column: str) -> Any:
        return F.coalesce(F.sum(column), F.lit(0))

    try:
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
    except Exception as error:
        raise QueryError(spark_message(error)) from error


def _run(
    session: SparkSession, storage: Storage, planned: Compaction, statement: str
) -> Compaction:
    try:
        row = session.sql(statement).select("metrics.*").collect()[0].asDict(recursive=True)
    except Exception as error:
        raise QueryError(spark_message(error)) from error
    newest = _snapshot(storage, planned.table).version
    return replace(
        planned,
        files=row["numFilesRemoved"],
        bytes=(row["filesRemoved"] or {}).get("totalSize") or 0,
        files_added=row["numFilesAdded"],
        bytes_added=(row["filesAdded"] or {}).get("totalSize") or 0,
        version=newest,
        applied=True,
    )
