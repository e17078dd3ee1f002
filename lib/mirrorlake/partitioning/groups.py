"""Buckets and bins as Spark expressions, and the groups that they make: the rows of one file each.

A bucket is XXH64 over the UTF-8 bytes, with the key's seed, modulo the number of partitions; NULL
counts as empty text. A bin is the last timestamp `Reference + n * RangeSize` that is not later, so
it works before the reference too; NULL counts as the reference. Neither needs a UDF, so that every
engine can do the same.

One aggregate over the chosen files' keys says which buckets and bins there are. Two kinds of
outliers are kept apart: a value so frequent that it would make its bucket many times as large as
the others, and timestamps so far from all others that each would become a tiny file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import xxhash
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from mirrorlake.partitioning.policy import HashKey, Policy, RangeKey
from mirrorlake.spark.sql import quote

MOST_GROUPS = 10_000
_MOST_VALUES = 20
_LONGEST_VALUE = 1_000
_DOMINANT_SHARE = 0.05
_DOMINANT_TIMES = 3
_EDGE = 0.01
_FENCE = 3
NO_KEY = -1  # the bucket where there is no hash key
_SPARK_SEED = 42
_MASK = 2**64 - 1
# XXH64's primes, from its specification.
_P1, _P2, _P3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
_P4, _P5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5


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
    return xxhash.xxh64_intdigest((value or "").encode(), key.seed) % key.max_partition_count


def seeding_number(seed: int) -> int:
    """The signed 64-bit number after which Spark's `xxhash64` goes on with this seed.

    Spark's function is XXH64 with the seed 42, and the hash of each argument is the seed of the
    next. A number is hashed by steps that can all be undone, so for every seed there is one number
    that, given as the first argument, leaves exactly that seed for the second.

    Example:
        >>> seeding_number(1)
        -7682426122119481604
    """
    state = seed & _MASK
    state ^= state >> 32
    state = _unshift(state * _inverse(_P3) & _MASK, 29)
    state = _unshift(state * _inverse(_P2) & _MASK, 33)
    state = _left((state - _P4) * _inverse(_P1) & _MASK, 64 - 27)
    word = state ^ ((_SPARK_SEED + _P5 + 8) & _MASK)
    word = _left(word * _inverse(_P1) & _MASK, 64 - 31) * _inverse(_P2) & _MASK
    return word - 2**64 if word >= 2**63 else word


def _left(value: int, by: int) -> int:
    return (value << by | value >> (64 - by)) & _MASK


def _unshift(value: int, by: int) -> int:
    """Undoes `v ^ v >> by`, where `by` is at least a third of 64."""
    return value ^ value >> by ^ value >> 2 * by


def _inverse(factor: int) -> int:
    return pow(factor, -1, 2**64)


def micros(column: str, *, with_zone: bool) -> Column:
    """Microseconds since 1970 of a timestamp; NULL stays NULL.

    Args:
        column: its name.
        with_zone: whether it is a `timestamp`, and not a `timestamp_ntz`.
    """
    if with_zone:
        return F.unix_micros(quote(column))
    # Without the session's time zone, which must not move a row to another bin.
    start = "TIMESTAMP_NTZ '1970-01-01 00:00:00'"
    return F.expr(f"timestampdiff(MICROSECOND, {start}, {quote(column)})")


def bin_of(timestamp: Column, key: RangeKey) -> Column:
    """The start of a timestamp's bin; all in microseconds since 1970.

    Args:
        timestamp: microseconds since 1970, or NULL.
        key: reference and size of the bins.
    """
    start = F.lit(key.reference)
    found = timestamp - F.pmod(timestamp - start, F.lit(key.range_size))
    return F.coalesce(found, start).cast("bigint")


@dataclass(frozen=True, order=True)
class Group:
    """The rows of one file: a bin and a bucket; of a frequent value, only this one's.

    Attributes:
        bin: its start, microseconds since 1970; 0 without a range key.
        bucket: from 0; -1 without a hash key.
        value: which of the frequent values, counted from 1; 0 for all others.
    """

    bin: int
    bucket: int
    value: int = 0


@dataclass(frozen=True)
class Groups:
    """The groups of one operation; rows of none of them are far ones, and share a file.

    Attributes:
        groups: one a task.
        values: the frequent values.
    """

    groups: tuple[Group, ...]
    values: tuple[str | None, ...] = ()

    @property
    def far(self) -> int:
        """The number of the far rows' task, which is the last."""
        return len(self.groups)

    def is_outlier(self, task: int) -> bool:
        """Whether a task's file holds far rows, or those of one frequent value."""
        return task == self.far or self.groups[task].value > 0


class KeyColumns:
    """The columns that a policy's rows are grouped by, for one table.

    Args:
        policy: the policy.
        with_zone: whether the range key's column is a `timestamp`, and not a `timestamp_ntz`.
    """

    def __init__(self, policy: Policy, *, with_zone: bool) -> None:
        self.policy = policy
        self._with_zone = with_zone

    def bucket(self) -> Column:
        """The bucket."""
        key = self.policy.hash
        return F.lit(NO_KEY) if key is None else F.expr(bucket_sql(key.column, key))

    def timestamp(self) -> Column:
        """The range key's value, NULL as the reference; microseconds since 1970."""
        key = self.policy.range
        if key is None:
            return F.lit(0).cast("bigint")
        found = micros(key.column, with_zone=self._with_zone)
        return F.coalesce(found, F.lit(key.reference)).cast("bigint")

    def bin(self) -> Column:
        """The bin's start."""
        key = self.policy.range
        return F.lit(0).cast("bigint") if key is None else bin_of(self.timestamp(), key)

    def value(self, values: Sequence[str | None]) -> Column:
        """Which of some values of the hash key a row has, from 1; 0 for none of them."""
        found = F.lit(0)
        if self.policy.hash is not None:
            column = F.col(quote(self.policy.hash.column))
            for number, value in enumerate(values, 1):
                found = F.when(column.eqNullSafe(F.lit(value)), number).otherwise(found)
        return found


def look_at(rows: DataFrame, keys: KeyColumns) -> Groups:
    """Which groups some rows make; it reads the columns of the keys only.

    Args:
        rows: as a transaction reads them.
        keys: the policy's.
    """
    keyed = rows.select(keys.bucket().alias("bucket"), keys.bin().alias("bin"))
    grouped = keyed.groupBy("bucket", "bin").agg(F.count("*").alias("rows"))
    # A policy that makes millions of groups must not bring them all here: the rest is far.
    largest = grouped.orderBy(F.desc("rows"), "bucket", "bin").limit(MOST_GROUPS)
    counts = {Group(line["bin"], line["bucket"]): int(line["rows"]) for line in largest.collect()}
    near = _near_bins(counts, keys.policy)
    groups = [group for group in counts if group.bin in near]
    values, dominant = _frequent(rows, keys, counts, near)
    return Groups(tuple(sorted([*groups, *dominant])), values)


def _near_bins(counts: dict[Group, int], policy: Policy) -> set[int]:
    """The bins within the fence: three times the span of the middle 98 % of rows to each side.

    The reference's own bin is always near, for it is where NULL goes.
    """
    by_bin: Counter[int] = Counter()
    for group, rows in counts.items():
        by_bin[group.bin] += rows
    if policy.range is None:
        return set(by_bin)
    reference = policy.range.reference
    ordered = sorted((start, rows) for start, rows in by_bin.items() if start != reference)
    total = sum(rows for _, rows in ordered)
    low, high = _quantile(ordered, total * _EDGE), _quantile(ordered, total * (1 - _EDGE))
    reach = _FENCE * max(high - low, policy.range.range_size)
    return {start for start in by_bin if low - reach <= start <= high + reach} | {reference}


def _quantile(ordered: list[tuple[int, int]], rank: float) -> int:
    passed = 0
    for start, rows in ordered:
        passed += rows
        if passed > rank:
            return start
    return ordered[-1][0] if ordered else 0


def _frequent(
    rows: DataFrame, keys: KeyColumns, counts: dict[Group, int], near: set[int]
) -> tuple[tuple[str | None, ...], list[Group]]:
    """The values that would blow up their buckets, and the groups they make."""
    key, total = keys.policy.hash, sum(counts.values())
    if key is None or total == 0:
        return (), []
    share = max(_DOMINANT_SHARE, _DOMINANT_TIMES / key.max_partition_count)
    by_bucket: Counter[int] = Counter()
    for group, some in counts.items():
        by_bucket[group.bucket] += some
    heavy = [bucket for bucket, some in by_bucket.items() if some > share * total]
    if not heavy:
        return (), []  # the usual case costs nothing
    column = quote(key.column)
    some_rows = rows.where(keys.bucket().isin(heavy)).groupBy(F.col(column).alias("value"))
    bins = some_rows.agg(F.count("*").alias("rows"), F.collect_set(keys.bin()).alias("bins"))
    short = F.coalesce(F.length("value"), F.lit(0)) <= _LONGEST_VALUE
    top = bins.where(short & (F.col("rows") > share * total)).orderBy(F.desc("rows"), "value")
    bucket = F.expr(bucket_sql("value", key)).alias("bucket")
    lines = top.select("value", "bins", bucket).limit(_MOST_VALUES).collect()
    groups = [
        Group(start, line["bucket"], number)
        for number, line in enumerate(lines, 1)
        for start in line["bins"]
        if start in near
    ]
    return tuple(line["value"] for line in lines), groups


def numbered(rows: DataFrame, keys: KeyColumns, groups: Groups, name: str) -> DataFrame:
    """Rows with the number of their group's task, in a column of that name.

    Args:
        rows: the rows.
        keys: the policy's.
        groups: the groups; rows of none get the far one's number.
        name: of the new column, which no other has.
    """
    mine = [f"{name}_{part}" for part in ("bucket", "bin", "value", "at")]
    listed = [(g.bucket, g.bin, g.value, at) for at, g in enumerate(groups.groups)]
    kinds = ("int", "bigint", "int", "int")
    ddl = ", ".join(f"{quote(one)} {kind}" for one, kind in zip(mine, kinds, strict=True))
    known = F.broadcast(rows.sparkSession.createDataFrame(listed, ddl))
    found = (keys.bucket(), keys.bin(), keys.value(groups.values))
    keyed = rows.withColumns(dict(zip(mine, found, strict=False)))
    joined = keyed.join(known, mine[:3], "left")
    number = F.coalesce(F.col(quote(mine[3])), F.lit(groups.far))
    return joined.withColumn(name, number).drop(*mine)
