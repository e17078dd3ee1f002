"""What goes into one file: the rows of one bucket and bin, with outliers in files of their own.

One aggregate over the chosen files' keys says which buckets and bins there are. Two kinds of
outliers are kept apart: a value so frequent that it would make its bucket many times as large as
the others, and moments so far from all others that each of them would become a tiny file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from mirrorlake.layout.partitioning.keys import bin_of, bucket_sql, micros
from mirrorlake.layout.partitioning.policy import Policy
from mirrorlake.spark.sql import quote

MOST_GROUPS = 10_000
_MOST_VALUES = 20
_LONGEST_VALUE = 1_000
_DOMINANT_SHARE = 0.05
_DOMINANT_TIMES = 3
_EDGE = 0.01
_FENCE = 3
NO_KEY = -1  # the bucket where there is no hash key


@dataclass(frozen=True)
class Group:
    """The rows of one file: a bucket and a bin; of a frequent value, only this one's.

    Attributes:
        bucket: from 0; -1 without a hash key.
        bin: its start, microseconds since 1970; 0 without a range key.
        value: which of the frequent values, counted from 1; 0 for all others.
    """

    bucket: int
    bin: int
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
    def count(self) -> int:
        """How many tasks: one a group, and one for the far rows."""
        return len(self.groups) + 1

    @property
    def far(self) -> int:
        """The number of the far rows' task."""
        return len(self.groups)


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

    def moment(self) -> Column:
        """The range key's value, NULL as the reference; microseconds since 1970."""
        key = self.policy.range
        if key is None:
            return F.lit(0).cast("bigint")
        found = micros(key.column, with_zone=self._with_zone)
        return F.coalesce(found, F.lit(key.reference)).cast("bigint")

    def bin(self) -> Column:
        """The bin's start."""
        key = self.policy.range
        return F.lit(0).cast("bigint") if key is None else bin_of(self.moment(), key)

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
    counts = {Group(line["bucket"], line["bin"]): int(line["rows"]) for line in largest.collect()}
    near = _near_bins(counts, keys.policy)
    groups = [group for group in counts if group.bin in near]
    values, dominant = _frequent(rows, keys, counts, near)
    return Groups(tuple(sorted([*groups, *dominant], key=_order)), values)


def _order(group: Group) -> tuple[int, int, int]:
    return group.bin, group.bucket, group.value


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
        Group(line["bucket"], start, number)
        for number, line in enumerate(lines, 1)
        for start in line["bins"]
        if start in near
    ]
    return tuple(line["value"] for line in lines), groups


def is_outlier(task: int, groups: Groups) -> bool:
    """Whether a task's file holds far rows, or those of one frequent value."""
    return task == groups.far or groups.groups[task].value > 0


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
    ddl = (
        f"{quote(mine[0])} int, {quote(mine[1])} bigint, {quote(mine[2])} int, {quote(mine[3])} int"
    )
    known = F.broadcast(rows.sparkSession.createDataFrame(listed, ddl))
    keyed = (
        rows.withColumn(mine[0], keys.bucket())
        .withColumn(mine[1], keys.bin())
        .withColumn(mine[2], keys.value(groups.values))
    )
    joined = keyed.join(known, mine[:3], "left")
    number = F.coalesce(F.col(quote(mine[3])), F.lit(groups.far))
    return joined.withColumn(name, number).drop(*mine)
