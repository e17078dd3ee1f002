"""What could not be applied and was passed over: a Delta table of rows and files, with reasons."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any
from urllib.parse import unquote

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from mirrorlake.delta.actions import Places, live_files
from mirrorlake.delta.snapshot import read_snapshot
from mirrorlake.delta.vectors import without_deleted
from mirrorlake.landing.check import FileFacts
from mirrorlake.landing.metadata import Identity
from mirrorlake.mirror.plan import staging
from mirrorlake.mirror.properties import Batch
from mirrorlake.names import STATE, TableName
from mirrorlake.spark.session import new_session
from mirrorlake.spark.sql import delta_name
from mirrorlake.storage import Storage

QUARANTINE = f"{STATE}/quarantine"
_COLUMNS = (
    "`schema` string, `table` string, `file` string, `number` long, `row` long, `column` string,"
    " `reason` string, `content` string, `incarnation` string, `at` timestamp"
)


def put_into_quarantine(spark: SparkSession, batch: Batch, *, at: str) -> None:
    """Appends a batch's bad rows and files, once: the commit carries the batch's last number.

    Args:
        spark: the running session.
        batch: the files, those without anything bad included.
        at: when the batch was planned, ISO-8601; the same at every try.
    """
    identity, storage = batch.at.identity, batch.at.storage
    path = f"{staging(identity)}/quarantine.json"
    with storage.open_writer(path) as sink:
        for record in _records(identity, batch.facts, at):
            sink.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")
    rows = new_session(spark).read.schema(_COLUMNS).json(storage.path(path))
    (
        rows.write.format("delta")
        .options(txnAppId=identity.app_id, txnVersion=str(batch.last))
        .mode("append")
        .save(storage.path(QUARANTINE))
    )


def _records(identity: Identity, files: tuple[FileFacts, ...], at: str) -> Iterator[dict[str, Any]]:
    for file in files:
        known = {
            "schema": identity.table.schema,
            "table": identity.table.name,
            "file": file.name,
            "number": file.number,
            "incarnation": identity.incarnation,
            "at": at,
        }
        if error := file.skipped:
            fault = {"row": error.row, "column": error.column, "reason": error.message}
            yield known | fault | {"content": None}
        for reject in file.rejects:
            yield known | asdict(reject)


def count_quarantined(storage: Storage) -> dict[str, int]:
    """How many rows and files were passed over, by a table's full name; starts no Spark."""
    snapshot, places = read_snapshot(storage, QUARANTINE), Places(storage, QUARANTINE)
    found: Counter[str] = Counter()
    for file in live_files(storage, QUARANTINE, snapshot.version) if snapshot else ():
        where, path = places.place(unquote(file["path"]))
        with where.open(path) as source:
            rows = pq.ParquetFile(source).read(columns=["schema", "table"])
        # Somebody may delete what is dealt with.
        rows = without_deleted(rows, places.place, file.get("deletionVector"))
        counted = rows.group_by(["schema", "table"]).aggregate([([], "count_all")])
        for row in counted.to_pylist():  # a row a table
            found[".".join(filter(None, (row["schema"], row["table"])))] += row["count_all"]
    return dict(found)


def read_quarantine(spark: SparkSession, storage: Storage, table: TableName | None) -> DataFrame:
    """The quarantine's rows, of one table or of all; none if nothing was ever passed over."""
    if read_snapshot(storage, QUARANTINE) is None:
        return spark.createDataFrame([], _COLUMNS)
    rows = spark.sql(f"SELECT * FROM {delta_name(storage.path(QUARANTINE))}")
    if table is not None:
        of_schema = rows["schema"].isNull() if not table.schema else rows["schema"] == table.schema
        rows = rows.where(of_schema & (rows["table"] == table.name))
    return rows.orderBy("schema", "table", "number", "row")
