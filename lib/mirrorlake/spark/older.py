"""Replacements for functions that Spark before 4.1 does not have; each is detected by its name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

if TYPE_CHECKING:
    import pyarrow as pa

VARIANTS: tuple[type, ...] = (T.VariantType,) if hasattr(T, "VariantType") else ()
"""The type of variants, if this Spark has it."""
_MOST_TRIES = 2**24


def to_arrow(frame: DataFrame) -> pa.Table:
    """Return all rows as an Arrow table, like `DataFrame.toArrow` since Spark 4.0."""
    if hasattr(type(frame), "toArrow"):
        return frame.toArrow()
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema

    session: Any = frame
    batches = session._collect_as_arrow()
    schema = batches[0].schema if batches else to_arrow_schema(frame.schema)
    return pa.Table.from_batches(batches, schema)


def from_arrow(spark: SparkSession, rows: Any) -> DataFrame:
    """Return a DataFrame of rows or of an Arrow table, like `createDataFrame` since Spark 4.0."""
    import pyarrow as pa

    if hasattr(DataFrame, "toArrow") or not isinstance(rows, pa.Table):
        return spark.createDataFrame(rows)
    from pyspark.sql.pandas.types import from_arrow_schema

    # Spark would infer the types of dicts, so the schema is given.
    values = rows.to_pylist(maps_as_pydicts="strict")
    return spark.createDataFrame(values, from_arrow_schema(rows.schema))


def metadata_column(rows: DataFrame) -> Column:
    """Return the hidden column `_metadata`, which a table's own column hides before Spark 4.0."""
    name = "_metadata"
    return rows.metadataColumn(name) if hasattr(type(rows), "metadataColumn") else F.col(name)


def as_number(text: Column) -> Column:
    """Return a text column as whole numbers; any other text becomes NULL."""
    if hasattr(Column, "try_cast"):
        return text.try_cast("bigint")
    return F.when(text.rlike(r"^-?[0-9]{1,18}$"), text.cast("bigint"))


def spread(rows: DataFrame, count: int, column: str) -> DataFrame:
    """Repartition rows so that each number has its own task.

    Args:
        rows: the rows.
        count: the number of tasks.
        column: the column with the number, from 0 to below `count`.
    """
    if hasattr(type(rows), "repartitionById"):
        return rows.repartitionById(count, column)
    # Spark assigns rows to tasks by a hash. For each number, find a value whose hash has its own
    # task.
    spark, place, value = rows.sparkSession, f"{column}_place", f"{column}_value"
    task = F.pmod(F.hash(F.col(value)), F.lit(count)).alias(place)
    tries = 16 * count
    while True:
        tried = spark.range(tries).select(F.col("id").alias(value)).withColumn(place, task)
        found = tried.groupBy(place).agg(F.min(value).alias(value)).collect()
        if len(found) == count or tries > _MOST_TRIES:
            break
        tries *= 4
    listed = [(row[place], row[value]) for row in found]
    known = F.broadcast(spark.createDataFrame(listed, f"{place} int, {value} long"))
    joined = rows.join(known, F.col(column) == F.col(place), "left")
    return joined.repartition(count, value).drop(place, value)
