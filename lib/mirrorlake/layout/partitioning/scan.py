"""Reading a partitioned table: only the buckets that a predicate can find rows in, and the tail.

Statistics can't prune a hash, the tags can. What Delta itself skips by statistics stays skipped, so
bins of time and every other column count too.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from mirrorlake.errors import QueryError
from mirrorlake.layout.partitioning import tags
from mirrorlake.layout.partitioning.keys import bucket_of
from mirrorlake.layout.partitioning.policy import HashKey
from mirrorlake.layout.partitioning.predicate import Values, key_values
from mirrorlake.layout.partitioning.store import fitting_setting
from mirrorlake.spark.gateway import has_gateway, transaction
from mirrorlake.spark.messages import spark_message
from mirrorlake.table import Table
from mirrorlake.text_table import TextTable, html_table

_SLASH = "/"


@dataclass(frozen=True)
class ScannedFile:
    """One file that is read.

    Attributes:
        path: as the log has it.
        size: its bytes.
        bucket: of a homogeneous file; None of the tail, and of far outliers.
        is_tail: whether it is not partitioned.
    """

    path: str
    size: int
    bucket: int | None
    is_tail: bool


@dataclass(frozen=True)
class Scan:
    """What a predicate reads of a table.

    Attributes:
        table: which table.
        where: the predicate; None for all rows.
        version: of the table.
        read: the files that are read.
        files, size: of all there are.
        rows: the rows that the predicate holds for.
        key: the hash key; None without one.
    """

    table: str
    where: str | None
    version: int
    read: tuple[ScannedFile, ...]
    files: int
    size: int
    rows: DataFrame
    key: HashKey | None = None

    @property
    def tail(self) -> int:
        """How many of the files that are read are not partitioned."""
        return sum(file.is_tail for file in self.read)

    @property
    def bytes_read(self) -> int:
        """The bytes of the files that are read."""
        return sum(file.size for file in self.read)

    def shown(self) -> TextTable:
        """One row a fact."""
        facts = (
            ("files read", len(self.read)),
            ("of them, tail", self.tail),
            ("files there", self.files),
            ("bytes read", self.bytes_read),
            ("bytes there", self.size),
        )
        return TextTable(("scan", str(self.table)), facts)

    def __repr__(self) -> str:
        return (
            f"{self.table}: {len(self.read)} of {self.files} files read, {self.tail} of them tail;"
            f" {self.bytes_read:,} of {self.size:,} bytes"
        )

    def _repr_html_(self) -> str:
        return html_table(self.shown())


def scan_table(table: Table, where: str | None = None) -> Scan:
    """Finds out what a predicate needs to read, and reads no more.

    Args:
        table: which table.
        where: a predicate in SQL; by default all rows.

    Raises:
        QueryError: Spark can't read the predicate.
    """
    if not has_gateway(table.spark):
        return _without_tags(table, where)
    with transaction(table.spark, table.path) as txn:
        files, version = txn.files(), txn.version
        count, size = files.agg(F.count("*"), F.coalesce(F.sum("size"), F.lit(0))).collect()[0]
        setting = fitting_setting(table.storage, table.name)
        policy = None if setting is None else setting.policy
        key = None if policy is None else policy.hash
        done = F.lit(False) if setting is None else tags.is_partitioned(setting.fingerprint)
        values = key_values(where, key.column) if where and key else None
        names = (tags.BUCKET, tags.VALUE, tags.OUTLIER)
        columns = [tags.tag(name).alias(name.rpartition(".")[2]) for name in names]
        listed = files.select("path", "size", done.alias("done"), *columns)
        if values is not None and key is not None:
            listed = listed.where(_may_match(values, key))
        wanted = None if where is None else _by_statistics(table, where, version)
        read = tuple(
            ScannedFile(
                line["path"],
                line["size"],
                int(line["bucket"]) if line["done"] and line["bucket"] is not None else None,
                not line["done"],
            )
            for line in listed.orderBy("path").collect()
            if wanted is None or unquote(line["path"]).rpartition(_SLASH)[2] in wanted
        )
        rows = txn.rows(txn.take([file.path for file in read]))
        if where is not None:
            rows = rows.where(where)
    return Scan(str(table.name), where, version, read, count, size, rows, key)


def _may_match(values: Values, key: HashKey) -> Any:
    """Whether a file may hold a row with one of the values; `done`, `bucket`, … are columns."""
    buckets = [str(bucket_of(value, key)) for value in values]
    texts = [json.dumps(value) for value in values]
    in_bucket = F.col("bucket").isNull() | F.col("bucket").isin(buckets)
    is_value = F.col("value").isNull() | F.col("value").isin(texts)
    return ~F.col("done") | (in_bucket & is_value)


def _by_statistics(table: Table, where: str, version: int) -> set[str]:
    """The names of the files that Delta itself would read."""
    rows = table.spark.sql(f"SELECT * FROM {table.sql_name} VERSION AS OF {version}")
    try:
        found = rows.where(where).inputFiles()
    except Exception as error:
        raise QueryError(spark_message(error)) from error
    return {unquote(path).rpartition(_SLASH)[2] for path in found}


def _without_tags(table: Table, where: str | None) -> Scan:
    """Under Spark Connect nobody can name files to read: what Delta skips has to do."""
    rows = table.spark.sql(f"SELECT * FROM {table.sql_name}")
    every = rows.inputFiles()
    chosen = rows if where is None else rows.where(where)
    read = tuple(ScannedFile(path, 0, None, is_tail=True) for path in chosen.inputFiles())
    return Scan(str(table.name), where, table.snapshot().version, read, len(every), 0, chosen)
