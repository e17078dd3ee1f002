"""Buckets and bins as Spark expressions alone: no UDF, so that every engine can do the same.

A bucket is XXH64 over the UTF-8 bytes, with the key's seed, modulo the number of partitions; NULL
counts as empty text. A bin is the last moment `Reference + n * RangeSize` that is not later, so it
works before the reference too; NULL counts as the reference.
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

from mirrorlake.layout.partitioning.policy import HashKey, RangeKey
from mirrorlake.layout.partitioning.xxh64 import seeding_number, xxh64
from mirrorlake.spark.sql import quote


def bucket_sql(column: str, key: HashKey) -> str:
    """The bucket of a column's value as SQL, from 0 up to the number of partitions."""
    seed = seeding_number(key.seed)
    hashed = f"xxhash64(CAST({seed} AS BIGINT), coalesce({quote(column)}, ''))"
    count = key.max_partition_count
    rest = 2**64 % count
    if rest == 0:
        return f"CAST(pmod({hashed}, {count}) AS INT)"
    # The hash is unsigned and Spark's numbers are not: 2^64 is added where the sign is set.
    added = f"IF({hashed} < 0, {rest}, 0)"
    return f"CAST(pmod(pmod({hashed}, {count}) + {added}, {count}) AS INT)"


def bucket_of(value: str | None, key: HashKey) -> int:
    """The same for one value, without Spark.

    Example:
        >>> bucket_of("f83a65e0-da2b-42be-b59b-a8e25ea3954c", HashKey("tenant"))
        10
    """
    return xxh64((value or "").encode(), key.seed) % key.max_partition_count


def micros(column: str, *, with_zone: bool) -> Column:
    """Microseconds since 1970 of a moment; NULL stays NULL.

    Args:
        column: its name.
        with_zone: whether it is a `timestamp`, and not a `timestamp_ntz`.
    """
    if with_zone:
        return F.unix_micros(quote(column))
    # Without the session's time zone, which must not move a row to another bin.
    start = "TIMESTAMP_NTZ '1970-01-01 00:00:00'"
    return F.expr(f"timestampdiff(MICROSECOND, {start}, {quote(column)})")


def bin_of(moment: Column, key: RangeKey) -> Column:
    """The start of a moment's bin; all in microseconds since 1970.

    Args:
        moment: microseconds since 1970, or NULL.
        key: reference and size of the bins.
    """
    start = F.lit(key.reference)
    found = moment - F.pmod(moment - start, F.lit(key.range_size))
    return F.coalesce(found, start).cast("bigint")
