"""Compute buckets and bins of rows, group them into files, and read and write the files' tags.

The bucket of a value is XXH64 of its UTF-8 bytes with the key's seed, modulo the number of buckets.
NULL counts as empty text. The bin of a timestamp is the latest `Reference + n * RangeSize` that is
not later than the timestamp; n can be negative. NULL counts as the reference. Neither needs a UDF,
so every engine can compute both.

One aggregate over the keys in the chosen files finds the buckets and bins. Two kinds of outliers
get separate files: a value that is so frequent that its bucket would be many times as large as the
others, and timestamps that are so far from all others that each would become a tiny file. An
operation writes only a limited number of groups, those with most rows. It writes the rows of all
other groups to a few files without tags, which later operations take.

A file is partitioned if its tag contains the policy's fingerprint. If another writer rewrites the
file, the new file has no tags and is not partitioned. A new deletion vector does not change the
tags, because the remaining rows are still in the same bucket. Older versions wrote the groups
beyond an operation's limit to the file of the far rows. Now a file of far rows has one more tag,
and a file without this tag counts as not partitioned.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_

import xxhash
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from mirrorlake.delta.files import tag, total
from mirrorlake.delta.snapshot import PARTITION_TAG
from mirrorlake.names import quote
from mirrorlake.partitioning.policy import HashKey, Policy, RangeKey, Setting, now_micros
from mirrorlake.spark.jvm import Add
from mirrorlake.spark.older import as_number

MOST_GROUPS = 10_000
"""The maximum number of groups of one operation; bounds memory, tasks and the commit's size."""
_REST_TASKS = 16
_MOST_VALUES = 20
_LONGEST_VALUE = 1_000
_DOMINANT_SHARE = 0.05
_DOMINANT_TIMES = 3
_EDGE = 0.01
_FENCE = 3
NO_KEY = -1  # the bucket without a hash key
_SPARK_SEED = 42
_MASK = 2**64 - 1
# XXH64's primes, from its specification.
_P1, _P2, _P3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
_P4, _P5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
Span = tuple[int, int]
"""The first and the last bin of a range, both included, in microseconds since 1970."""
BUCKET = "mirrorlake.partition.bucket"
BIN = "mirrorlake.partition.bin"
OUTLIER = "mirrorlake.partition.outlier"
VALUE = "mirrorlake.partition.value"
ARRIVED = "mirrorlake.partition.arrived"
STORED = "mirrorlake.partition.stored"  # set if a column of the table contains the bucket
CREATED = "mirrorlake.partition.created"  # set if the policy overrides the creation time
FENCED = "mirrorlake.partition.fenced"  # set if a file of far rows contains no other rows
PROVIDER = "mirrorlake"
FAR, DOMINANT = "far", "value"
_LARGE = 256 * 2**20
_LEAST_FILES = 4
_PARTITION = (BUCKET, BIN, OUTLIER, VALUE)


def bucket_sql(column: str, key: HashKey) -> str:
    """Return the bucket of a column's value as SQL: a number from 0 to the count minus 1."""
    seed = seeding_number(key.seed)
    hashed = f"xxhash64(CAST({seed} AS BIGINT), coalesce({quote(column)}, ''))"
    count = key.max_partition_count
    rest = 2**64 % count
    if rest == 0:
        return f"CAST(pmod({hashed}, {count}) AS INT)"
    # The hash is unsigned and Spark's numbers are signed: 2^64 is added to negative numbers.
    added = f"IF({hashed} < 0, {rest}, 0)"
    return f"CAST(pmod(pmod({hashed}, {count}) + {added}, {count}) AS INT)"


def bucket_of(value: str | None, key: HashKey) -> int:
    """Return the bucket of one value, without Spark.

    Example:
        >>> bucket_of("f83a65e0-da2b-42be-b59b-a8e25ea3954c", HashKey("tenant"))
        10
    """
    return xxhash.xxh64_intdigest((value or "").encode(), key.seed) % key.max_partition_count


def seeding_number(seed: int) -> int:
    """Return the signed 64-bit number after which Spark's `xxhash64` continues with a seed.

    Spark's function is XXH64 with the seed 42, and the hash of each argument is the seed of the
    next. All steps of hashing a number can be inverted. So for each seed, there is exactly one
    number whose hash is this seed. If this number is the first argument, the second argument is
    hashed with the seed.

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
    """Invert `v ^ v >> by`, where `by` is at least a third of 64."""
    return value ^ value >> by ^ value >> 2 * by


def _inverse(factor: int) -> int:
    return pow(factor, -1, 2**64)


def micros(column: str, *, with_zone: bool) -> Column:
    """Return a timestamp column in microseconds since 1970; NULL remains NULL.

    Args:
        column: the column's name.
        with_zone: whether its type is `timestamp`, not `timestamp_ntz`.
    """
    if with_zone:
        return F.unix_micros(quote(column))
    # The session's time zone must not move a row to another bin.
    start = "TIMESTAMP_NTZ '1970-01-01 00:00:00'"
    return F.expr(f"timestampdiff(MICROSECOND, {start}, {quote(column)})")


def bin_of(timestamp: Column, key: RangeKey) -> Column:
    """Return the start of a timestamp's bin, in microseconds since 1970.

    Args:
        timestamp: microseconds since 1970, or NULL.
        key: the reference and the size of the bins.
    """
    start = F.lit(key.reference)
    found = timestamp - F.pmod(timestamp - start, F.lit(key.range_size))
    return F.coalesce(found, start).cast("bigint")


@dataclass(frozen=True, order=True)
class Group:
    """The rows of one file: those of one bin and one bucket, or only those of one frequent value.

    Attributes:
        bin: the bin's start in microseconds since 1970; 0 without a range key.
        bucket: the bucket, from 0; -1 without a hash key.
        value: the number of the frequent value, from 1; 0 if the file contains all other values.
    """

    bin: int
    bucket: int
    value: int = 0


@dataclass(frozen=True)
class Groups:
    """The groups of one operation.

    Each group is one task. The far rows are another task. The remaining rows are several tasks.

    Attributes:
        groups: the groups with a task of their own.
        values: the frequent values.
        near: the bins that are not far. It is set only if there are more groups than an operation
            writes. Rows without a group in these bins are the remaining rows; all other rows
            without a group are far.
    """

    groups: tuple[Group, ...]
    values: tuple[str | None, ...] = ()
    near: tuple[Span, ...] = ()

    @property
    def far(self) -> int:
        """The number of the task with the far rows. It follows the numbers of the groups."""
        return len(self.groups)

    @property
    def tasks(self) -> int:
        """The number of tasks."""
        return self.far + 1 + (_REST_TASKS if self.near else 0)

    def is_rest(self, task: int) -> bool:
        """Return whether a task's file contains rows of several groups, for later operations."""
        return task > self.far

    def is_outlier(self, task: int) -> bool:
        """Return whether a task's file contains far rows, or the rows of one frequent value."""
        return task == self.far or (task < self.far and self.groups[task].value > 0)


class KeyColumns:
    """The columns by which a policy's rows are grouped, for one table.

    Args:
        policy: the policy.
        with_zone: whether the type of the range key's column is `timestamp`, not `timestamp_ntz`.
    """

    def __init__(self, policy: Policy, *, with_zone: bool) -> None:
        self.policy = policy
        self._with_zone = with_zone

    def bucket(self) -> Column:
        """Return the bucket."""
        key = self.policy.hash
        return F.lit(NO_KEY) if key is None else F.expr(bucket_sql(key.column, key))

    def timestamp(self) -> Column:
        """Return the range key's value in microseconds since 1970, NULL as the reference."""
        key = self.policy.range
        if key is None:
            return F.lit(0).cast("bigint")
        found = micros(key.column, with_zone=self._with_zone)
        return F.coalesce(found, F.lit(key.reference)).cast("bigint")

    def bin(self) -> Column:
        """Return the bin's start."""
        key = self.policy.range
        return F.lit(0).cast("bigint") if key is None else bin_of(self.timestamp(), key)

    def value(self, values: Sequence[str | None]) -> Column:
        """Return the number of the hash key's value in `values`, from 1; 0 for other values."""
        found = F.lit(0)
        if self.policy.hash is not None:
            column = F.col(quote(self.policy.hash.column))
            for number, value in enumerate(values, 1):
                found = F.when(column.eqNullSafe(F.lit(value)), number).otherwise(found)
        return found


def find_groups(
    rows: DataFrame, keys: KeyColumns, partitioned: DataFrame, *, are_left: bool = False
) -> Groups:
    """Find the groups of some rows, from the columns of the keys only.

    Args:
        rows: the rows, as a transaction reads them.
        keys: the policy's columns.
        partitioned: the `bin` of each file that is already partitioned. It is read only if needed.
        are_left: whether an older version wrote all these rows to the file of the far rows. Then
            only the partitioned files show which of the rows are far.
    """
    keyed = rows.select(keys.bucket().alias("bucket"), keys.bin().alias("bin"))
    grouped = keyed.groupBy("bucket", "bin").agg(F.count("*").alias("rows"))
    # Millions of groups must not be collected on the driver.
    largest = grouped.orderBy(F.desc("rows"), "bucket", "bin").limit(MOST_GROUPS + 1).collect()
    is_whole = len(largest) <= MOST_GROUPS
    counts = {
        Group(line["bin"], line["bucket"]): int(line["rows"]) for line in largest[:MOST_GROUPS]
    }
    unlisted = None if is_whole else keyed
    near = _near_bins(counts, unlisted, keys.policy, partitioned, are_left=are_left)
    groups = [group for group in counts if _is_near(group, near)]
    values, dominant = _frequent(rows, keys, counts, groups)
    return Groups(tuple(sorted([*groups, *dominant])), values, () if is_whole else near)


def _is_near(group: Group, near: Sequence[Span]) -> bool:
    return any(first <= group.bin <= last for first, last in near)


def _near_bins(
    counts: dict[Group, int],
    keyed: DataFrame | None,
    policy: Policy,
    partitioned: DataFrame,
    *,
    are_left: bool,
) -> tuple[Span, ...]:
    """Return the near bins: at most three spans of the middle 98 % of rows away from these rows.

    The bin of the reference is always near, because it contains NULL. Bins that are near according
    to the already partitioned files are near, too, so that a few late rows do not count as far.

    Args:
        counts: the number of rows of the groups.
        keyed: the `bin` of each row if `counts` lacks some groups.
        policy: the policy.
        partitioned: as for `find_groups`.
        are_left: as for `find_groups`.
    """
    key = policy.range
    if key is None:
        return ((0, 0),)

    def fence(low: int, high: int) -> Span:
        reach = _FENCE * max(high - low, key.range_size)
        return low - reach, high + reach

    def fences(bins: DataFrame) -> list[Span]:
        edges = F.percentile_approx("bin", [_EDGE, 1 - _EDGE]).alias("edges")
        ((found,),) = bins.where(F.col("bin") != key.reference).agg(edges).collect()
        return [] if found is None else [fence(*found)]

    near = [(key.reference, key.reference)]
    if are_left and (known := fences(partitioned)):
        return (*near, *known)
    if keyed is not None:
        return (*near, *fences(keyed), *fences(partitioned))
    by_bin: Counter[int] = Counter()
    for group, rows in counts.items():
        by_bin[group.bin] += rows
    ordered = sorted((start, rows) for start, rows in by_bin.items() if start != key.reference)
    total = sum(rows for _, rows in ordered)
    near.append(fence(_quantile(ordered, total * _EDGE), _quantile(ordered, total * (1 - _EDGE))))
    if not all(_is_near(group, near) for group in counts):
        near += fences(partitioned)
    return tuple(near)


def _quantile(ordered: list[tuple[int, int]], rank: float) -> int:
    passed = 0
    for start, rows in ordered:
        passed += rows
        if passed > rank:
            return start
    return ordered[-1][0] if ordered else 0


def _frequent(
    rows: DataFrame, keys: KeyColumns, counts: dict[Group, int], near: list[Group]
) -> tuple[tuple[str | None, ...], list[Group]]:
    """Find the values that would make their buckets too large, and the groups they form."""
    key, total = keys.policy.hash, sum(counts.values())
    if key is None or total == 0:
        return (), []
    share = max(_DOMINANT_SHARE, _DOMINANT_TIMES / key.max_partition_count)
    by_bucket: Counter[int] = Counter()
    for group, some in counts.items():
        by_bucket[group.bucket] += some
    heavy = [bucket for bucket, some in by_bucket.items() if some > share * total]
    if not heavy:
        return (), []  # the usual case needs no further job
    column = quote(key.column)
    some_rows = rows.where(keys.bucket().isin(heavy)).groupBy(F.col(column).alias("value"))
    found = some_rows.agg(F.count("*").alias("rows"))
    short = F.coalesce(F.length("value"), F.lit(0)) <= _LONGEST_VALUE
    top = found.where(short & (F.col("rows") > share * total)).orderBy(F.desc("rows"), "value")
    bucket = F.expr(bucket_sql("value", key)).alias("bucket")
    lines = top.select("value", bucket).limit(_MOST_VALUES).collect()
    groups = [
        replace(group, value=number)
        for number, line in enumerate(lines, 1)
        for group in near
        if group.bucket == line["bucket"]
    ]
    return tuple(line["value"] for line in lines), groups


def add_task_numbers(rows: DataFrame, keys: KeyColumns, groups: Groups, name: str) -> DataFrame:
    """Add the number of each row's task, in a column named `name`.

    Args:
        rows: the rows.
        keys: the policy's columns.
        groups: the groups. Other rows get the number of the far rows' task, or of a task of the
            remaining rows.
        name: the name of the new column, which no other column has.
    """
    mine = [f"{name}_{part}" for part in ("bucket", "bin", "value", "at")]
    listed = [(g.bucket, g.bin, g.value, at) for at, g in enumerate(groups.groups)]
    kinds = ("int", "bigint", "int", "int")
    ddl = ", ".join(f"{quote(one)} {kind}" for one, kind in zip(mine, kinds, strict=True))
    known = F.broadcast(rows.sparkSession.createDataFrame(listed, ddl))
    found = (keys.bucket(), keys.bin(), keys.value(groups.values))
    keyed = rows.withColumns(dict(zip(mine, found, strict=False)))
    joined = keyed.join(known, mine[:3], "left")
    other = F.lit(groups.far)
    if groups.near:
        bucket, start = (F.col(quote(part)) for part in mine[:2])
        near = reduce(or_, [start.between(*span) for span in groups.near])
        # All rows of a group go into the same file, so that a later operation reads one file.
        place = F.pmod(F.xxhash64(bucket, start), F.lit(_REST_TASKS)).cast("int")
        other = F.when(near, place + (groups.far + 1)).otherwise(other)
    number = F.coalesce(F.col(quote(mine[3])), other)
    return joined.withColumn(name, number).drop(*mine)


def is_partitioned(fingerprint: str) -> Column:
    """Return whether a file is partitioned by the policy with this fingerprint."""
    left = tag(OUTLIER).eqNullSafe(FAR) & tag(FENCED).isNull()
    return tag(PARTITION_TAG).eqNullSafe(fingerprint) & ~left


def is_left(add: Add) -> bool:
    """Return whether an older version wrote groups beyond its limit to this file of far rows."""
    named = add.get("tags") or {}
    return named.get(OUTLIER) == FAR and FENCED not in named


def partitioned_bins(files: DataFrame, fingerprint: str) -> DataFrame:
    """Return the `bin` of each file with one partition of the policy with this fingerprint."""
    bins = files.where(is_partitioned(fingerprint)).select(tag(BIN).cast("bigint").alias("bin"))
    return bins.where("bin IS NOT NULL")


def arrived() -> Column:
    """Return when the last of a file's rows arrived, in microseconds since 1970."""
    return F.coalesce(_greatest(ARRIVED), F.col("modificationTime") * 1000)


def created() -> Column:
    """Return the creation time of a file's newest row, in microseconds since 1970.

    If the policy overrides creation times, this is the latest timestamp of the file's rows.
    """
    return F.coalesce(_greatest(CREATED), arrived())


def _greatest(name: str) -> Column:
    return as_number(F.split_part(tag(name), F.lit("/"), F.lit(2)))


def row_count() -> Column:
    """Return the number of a file's rows that are not deleted; 0 without statistics."""
    masked = F.coalesce("deletionVector.cardinality", F.lit(0))
    return F.greatest(physical_row_count() - masked, F.lit(0)).cast("bigint")


def physical_row_count() -> Column:
    """Return the number of a file's rows, including deleted ones; 0 without statistics."""
    records = F.get_json_object("stats", "$.numRecords").cast("bigint")
    return F.coalesce(records, F.lit(0).cast("bigint"))


def is_pending(setting: Setting) -> Column:
    """Return whether a file must be partitioned: it is not done, is hot, and is not too old.

    A file is done if it has the policy's tag and, if the policy requires it, the bucket in its
    column.
    """
    missing = ~is_partitioned(setting.fingerprint)
    if setting.bucket_column is not None:
        missing |= ~tag(STORED).eqNullSafe(setting.bucket_column)
    # An operation on files without rows alone would write no file to replace them.
    has_rows = F.coalesce(F.get_json_object("stats", "$.numRecords") != "0", F.lit(True))
    wanted = missing & has_rows & _is_younger(setting.hot)
    return wanted & (arrived() >= F.lit(setting.policy.effective or 0))


def _is_younger(age: int | None) -> Column:
    """Return whether a file was created within an age in microseconds; None for any age."""
    return F.lit(True) if age is None else created() >= F.lit(now_micros() - age)


def pending_files(files: DataFrame, setting: Setting) -> DataFrame:
    """Return the files to partition, the oldest first.

    If all these files together have fewer rows than the policy's minimum, return none of them.
    """
    pending = files.where(is_pending(setting)).orderBy(arrived(), "path")
    if least := setting.policy.min_rows:
        ((rows,),) = pending.agg(total(row_count())).collect()
        if rows < least:
            return pending.where("false")
    return pending


def small_files(files: DataFrame, setting: Setting) -> DataFrame:
    """Return the partitioned files for which there are enough similar files to merge.

    The policy's `Lookback` limits the age of the files.

    A file is merged with at least three other files of its partition and of a similar size. So each
    row is rewritten only a few times, not with each new file. A file that is larger than half of an
    operation's limit is not merged, because two such files would not fit into one operation.
    """
    rows, size = setting.policy.row_limit // 2, setting.policy.size_limit // 2
    fits = (F.col("size") < min(_LARGE, size + 1)) & (physical_row_count() <= rows)
    wanted = is_partitioned(setting.fingerprint) & fits & _is_younger(setting.merged_age)
    done = files.where(wanted)
    columns = {name.rpartition(".")[2]: tag(name) for name in _PARTITION}
    columns["parts"] = F.to_json("partitionValues")
    columns["tier"] = F.floor(F.log(F.greatest("size", F.lit(1))) / math.log(_LEAST_FILES))
    alike = F.count("*").over(Window.partitionBy(*columns))
    crowded = done.withColumns(columns).withColumn("alike", alike)
    return crowded.where(F.col("alike") >= _LEAST_FILES).orderBy(*columns, "path")


def groups_of_tags(chosen: Sequence[Add]) -> Groups:
    """Return the groups named by the files' own tags."""
    values: list[str | None] = []
    groups = set()
    for add in chosen:
        named = add.get("tags") or {}
        if named.get(OUTLIER) == FAR:
            continue
        number = 0
        if VALUE in named:
            value = json.loads(named[VALUE])
            if value not in values:
                values.append(value)
            number = values.index(value) + 1
        groups.add(Group(int(named.get(BIN, 0)), int(named.get(BUCKET, NO_KEY)), number))
    return Groups(tuple(sorted(groups)), tuple(values))


def partition_tags(task: int, groups: Groups, policy: Policy, fingerprint: str) -> dict[str, str]:
    """Return the tags for the partition of a new file; none for a file with several groups.

    Args:
        task: the number of the file's task.
        groups: the operation's groups.
        policy: the policy.
        fingerprint: the policy's fingerprint.
    """
    if groups.is_rest(task):
        return {}
    found = {PARTITION_TAG: fingerprint}
    if task == groups.far:
        return found | {OUTLIER: FAR, FENCED: "true"}
    group = groups.groups[task]
    if policy.hash:
        found[BUCKET] = str(group.bucket)
    if policy.range:
        found[BIN] = str(group.bin)
    if group.value:
        found |= {OUTLIER: DOMINANT, VALUE: json.dumps(groups.values[group.value - 1])}
    return found


def arrival(sources: Sequence[Add], partition: dict[str, str]) -> tuple[int, int]:
    """Return when the first and the last of a new file's rows arrived.

    Args:
        sources: the files that the operation read; files of another partition are ignored.
        partition: the tags that name the new file's partition.

    Returns:
        Both times in microseconds since 1970.
    """

    def may_hold(one: Add) -> bool:
        named = one.get("tags") or {}
        if is_left(one) or named.get(PARTITION_TAG) != partition.get(PARTITION_TAG):
            return True
        return all(named.get(name) == partition.get(name) for name in _PARTITION)

    times: list[int] = []
    for one in list(filter(may_hold, sources)) or sources:
        text = (one.get("tags") or {}).get(ARRIVED)
        times += map(int, text.split("/")) if text else [one["modificationTime"] * 1000]
    return min(times), max(times)
