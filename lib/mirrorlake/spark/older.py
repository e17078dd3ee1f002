"""What a Spark before 4.1 lacks, and what stands for it; each is looked for, never by version."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

if TYPE_CHECKING:
    import pyarrow as pa

VARIANTS: tuple[type, ...] = (T.VariantType,) if hasattr(T, "VariantType") else ()
"""The type of variants, where there is one."""
_MOST_TRIES = 2**24


def to_arrow(frame: DataFrame) -> pa.Table:
    """All rows as an Arrow table, as `DataFrame.toArrow` has them since 4.0."""
    if hasattr(type(frame), "toArrow"):
        return frame.toArrow()
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema

    session: Any = frame
    batches = session._collect_as_arrow()
    schema = batches[0].schema if batches else to_arrow_schema(frame.schema)
    return pa.Table.from_batches(batches, schema)


def from_arrow(spark: SparkSession, rows: Any) -> DataFrame:
    """A frame of what `createDataFrame` takes, Arrow's tables among it, as it does since 4.0."""
    import pyarrow as pa

    if hasattr(DataFrame, "toArrow") or not isinstance(rows, pa.Table):
        return spark.createDataFrame(rows)
    from pyspark.sql.pandas.types import from_arrow_schema

    # Of dicts it would infer types; with the schema a row is what its columns say.
    values = rows.to_pylist(maps_as_pydicts="strict")
    return spark.createDataFrame(values, from_arrow_schema(rows.schema))


def metadata_column(rows: DataFrame) -> Column:
    """Where a table's rows lie, and their ids; before 4.0 a column of the same name hides it."""
    name = "_metadata"
    return rows.metadataColumn(name) if hasattr(type(rows), "metadataColumn") else F.col(name)


def as_number(text: Column) -> Column:
    """A whole number that a text is; NULL of any other text."""
    if hasattr(Column, "try_cast"):
        return text.try_cast("bigint")
    return F.when(text.rlike(r"^-?[0-9]{1,18}$"), text.cast("bigint"))


def spread(rows: DataFrame, count: int, column: str) -> DataFrame:
    """Rows in so many tasks that no two numbers share one.

    Args:
        rows: the rows.
        count: of tasks.
        column: the number, from 0 to below the count.
    """
    if hasattr(type(rows), "repartitionById"):
        return rows.repartitionById(count, column)
    # The rows go by the hash of a value: one is looked for that leads each number to its own task.
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
