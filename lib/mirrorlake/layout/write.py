"""Writes rows to a Delta table with V-Order at write time: one commit, and ordered files in it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import unquote

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from mirrorlake.delta.create import OWN_TABLE, column_types, create_delta
from mirrorlake.delta.snapshot import read_snapshot
from mirrorlake.errors import UsageError
from mirrorlake.layout.vorder import order_files, ordered_add, sort_prefix
from mirrorlake.layout.vorder_file import Task
from mirrorlake.names import TableName
from mirrorlake.spark.gateway import Add, transaction
from mirrorlake.spark.sql import delta_name, quote
from mirrorlake.storage import Storage

MODES = {"append": "Append", "overwrite": "Overwrite"}


@dataclass(frozen=True)
class WriteReport:
    """What was written.

    Attributes:
        version: the commit.
        files: files it added.
        size: their bytes.
        size_unordered: the bytes the same rows took before they were ordered.
    """

    version: int
    files: int
    size: int
    size_unordered: int

    def __repr__(self) -> str:
        return (
            f"version {self.version}: {self.files} files of {self.size:,} bytes, in V-Order;"
            f" {self.size_unordered:,} without"
        )


def write_table(
    spark: SparkSession,
    storage: Storage,
    name: TableName,
    rows: DataFrame,
    *,
    mode: str = "append",
    sort_by: Sequence[str] = (),
) -> WriteReport:
    """Writes rows in V-Order; a table that is not there yet is created first.

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
        UsageError: another mode, or a column that the table lacks.
        ConflictError: another writer was quicker; nothing was committed.
    """
    if mode not in MODES:
        raise UsageError(f"There is no mode {mode!r}.", hint=f"one of {', '.join(MODES)}.")
    path = storage.path(name.table_path)
    if read_snapshot(storage, name.table_path) is None:
        # Not by writing no rows: that leaves an empty file.
        create_delta(spark, path, column_types(rows.schema), OWN_TABLE, may_exist=False)
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
        version = txn.commit_rows(adds, gone, mode=MODES[mode])
    # Delta's own files were never the table's; nothing but VACUUM would ever look for them.
    for path_in_log in better:
        storage.delete(f"{name.table_path}/{unquote(path_in_log)}")
    sizes = [sum(add["size"] for add in some) for some in (adds, written)]
    return WriteReport(version, len(adds), *sizes)


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
