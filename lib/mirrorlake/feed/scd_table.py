"""What both types of dimension share: their columns' names, the table, changes in their order."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from mirrorlake.delta.create import column_types
from mirrorlake.feed.enable import create_table
from mirrorlake.spark.sql import delta_name, quote

START, END = "__START_AT", "__END_AT"  # type 2: a row's period
SEQUENCE = "__SEQUENCE"  # type 1: of the row's last change
SEQUENCES = "__SEQUENCES"  # type 1, NULLs ignored: of each column's last value
INHERITED = "__INHERITED"  # type 2, NULLs ignored: columns whose value is from the period before
CHANGES = "__CHANGES"  # type 2, tracked columns: the changes that a period is made of
OWN = (START, END, SEQUENCE, SEQUENCES, INHERITED, CHANGES)
# Columns of changes on their way, never of a table.
IS_DELETE, IS_TRUNCATE, TIE = "__mirrorlake_delete", "__mirrorlake_truncate", "__mirrorlake_tie"
IS_NEW = "__mirrorlake_new"


def table_or_none(spark: SparkSession, path: str) -> DataFrame | None:
    """The rows of the Delta table at a path, or None if there is none."""
    from pyspark.errors import AnalysisException

    try:
        return spark.read.format("delta").load(path)
    except AnalysisException as error:
        if "DELTA_TABLE_NOT_FOUND" in str(error) or "PATH_NOT_FOUND" in str(error):
            return None
        if "DELTA_PATH_DOES_NOT_EXIST" in str(error) or "DELTA_MISSING_DELTA_TABLE" in str(error):
            return None
        raise


def ready_table(rows: DataFrame, path: str, keys: Sequence[str]) -> DataFrame:
    """The table at a path, made or widened so that it has the columns of some rows."""
    spark = rows.sparkSession
    wanted = column_types(rows.schema)
    found = table_or_none(spark, path)
    if found is None:
        create_table(spark, path, wanted, keys=keys)
    elif missing := [name for name in wanted if name not in found.columns]:
        added = ", ".join(f"{quote(name)} {wanted[name]}" for name in missing)
        spark.sql(f"ALTER TABLE {delta_name(path)} ADD COLUMNS ({added})")
    return spark.read.format("delta").load(path)


def first_of_each(events: DataFrame, keys: Sequence[str], order: Sequence[str]) -> DataFrame:
    """One change a key and sequence: the first in an order."""
    ordered = Window.partitionBy(*map(quote, keys)).orderBy(SEQUENCE, *order)
    previous = "__mirrorlake_previous"
    known = events.withColumn(previous, F.lag(SEQUENCE).over(ordered))
    return known.where(f"{previous} IS NULL OR {previous} <> {SEQUENCE}").drop(previous)


def of_same_keys(rows: DataFrame, events: DataFrame, keys: Sequence[str]) -> DataFrame:
    """The rows whose key occurs in some changes; NULL equals NULL."""
    from functools import reduce

    wanted = events.select(*map(quote, keys))
    same = [rows[quote(key)].eqNullSafe(wanted[quote(key)]) for key in keys]
    return rows.join(wanted, reduce(lambda a, b: a & b, same), "left_semi")


def same_key(keys: Sequence[str], left: str = "t", right: str = "s") -> str:
    """The SQL condition that two rows have one key; NULL equals NULL."""
    return " AND ".join(f"{left}.{quote(key)} <=> {right}.{quote(key)}" for key in keys)
