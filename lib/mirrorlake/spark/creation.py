"""Makes version 0 of a Delta table: no rows yet, but all properties."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mirrorlake.spark.sql import delta_name, literal, quote

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ODD = " ,;{}()\n\t="


def create_delta(
    spark: SparkSession,
    path: str,
    columns: str,
    properties: Mapping[str, str],
    *,
    partition_by: Sequence[str] = (),
    may_exist: bool = True,
) -> None:
    """Creates a table, also where a process was killed while it wrote version 0.

    Args:
        spark: the session.
        path: the table's folder, in full.
        columns: names and types, as DDL.
        properties: the table's.
        partition_by: the columns that it is partitioned by.
        may_exist: nothing happens if there is one; otherwise Spark refuses.
    """
    remove_empty_log(path)
    listed = ", ".join(f"{literal(name)} = {literal(value)}" for name, value in properties.items())
    parts = ", ".join(map(quote, partition_by))
    spark.sql(
        f"CREATE TABLE {'IF NOT EXISTS ' if may_exist else ''}{delta_name(path)} ({columns})"
        f" USING delta{f' PARTITIONED BY ({parts})' if parts else ''}"
        f"{f' TBLPROPERTIES ({listed})' if listed else ''}"
    )


def mapping_property(columns: Iterable[str]) -> dict[str, str]:
    """Column mapping, only where a name has a character that Parquet's writers refuse."""
    odd = any(char in _ODD for name in columns for char in name)
    return {"delta.columnMapping.mode": "name"} if odd else {}


def remove_empty_log(path: str) -> None:
    """Makes way for version 0 where a process was killed while it wrote it.

    Spark takes the empty log that is left for a table: CREATE TABLE refuses, or does nothing. A log
    with anything but hidden files in it is left alone. Object stores have no empty folders.

    Args:
        path: the table's folder, in full.
    """
    log = Path(path) / "_delta_log"
    if not any(file.is_file() and not file.name.startswith(".") for file in log.rglob("*")):
        shutil.rmtree(log, ignore_errors=True)
