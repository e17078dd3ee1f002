"""Writes rows to a Delta table with V-Order at write time: one commit, and ordered files in it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from urllib.parse import unquote

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from mirrorlake.errors import UsageError
from mirrorlake.layout.vorder import order_files, ordered_add, sort_prefix
from mirrorlake.layout.vorder_file import Task
from mirrorlake.names import TableName
from mirrorlake.spark.gateway import Add, transaction
from mirrorlake.spark.sql import delta_name, quote
from mirrorlake.storage import Storage

MODES = {"append": "Append", "overwrite": "Overwrite"}


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
        txn.commit_rows(adds, gone, mode=MODES[mode])
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
