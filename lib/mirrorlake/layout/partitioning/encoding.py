"""How an operation's files are encoded, and the order of the rows that have one key.

They are read more often than written, and written in the background: ZSTD at a level that takes a
little longer, and moments as the standard's microseconds where Spark's default is INT96, half as
large again. Lines of one key that lie in the order of time have most in common with their
neighbours; a filter on the time then skips pages, too.
"""

from __future__ import annotations

from pyspark.sql import types as T
from pyspark.sql.types import StructType

from mirrorlake.layout.partitioning.policy import Policy

CONFS = {
    "spark.sql.parquet.compression.codec": "zstd",
    "parquet.compression.codec.zstd.level": "9",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}


def sort_columns(schema: StructType, policy: Policy) -> tuple[str, ...]:
    """The columns to sort a file by: the keys, then the table's first moment.

    Args:
        schema: of the table.
        policy: the policy.
    """
    moments = (T.TimestampType, T.TimestampNTZType)
    times = [field.name for field in schema.fields if isinstance(field.dataType, moments)]
    if policy.range is not None or not times:
        return policy.columns
    return (*policy.columns, times[0])
