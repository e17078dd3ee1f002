"""The tags of partitioned files in the log, and what they decide: done, to be done, to be merged.

A file is partitioned if its tag names the policy's fingerprint. A file that others rewrote has lost
its tags and is unpartitioned again; deletion vectors keep them, because what they leave of a bucket
is still that bucket's.

Older versions put the groups that were too many for one operation among the far rows. Files of far
rows have one more tag since then; those without it are unpartitioned.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from mirrorlake.delta.files import tag, total
from mirrorlake.partitioning.groups import NO_KEY, Group, Groups
from mirrorlake.partitioning.policy import Policy, now_micros
from mirrorlake.partitioning.store import Setting
from mirrorlake.spark.jvm import Add
from mirrorlake.spark.older import as_number

POLICY = "mirrorlake.partition.policy"
BUCKET = "mirrorlake.partition.bucket"
BIN = "mirrorlake.partition.bin"
OUTLIER = "mirrorlake.partition.outlier"
VALUE = "mirrorlake.partition.value"
ARRIVED = "mirrorlake.partition.arrived"
STORED = "mirrorlake.partition.stored"  # only where a column of the table holds the bucket
CREATED = "mirrorlake.partition.created"  # only where the policy overrides it
FENCED = "mirrorlake.partition.fenced"  # of a file of far rows: it holds no others
PROVIDER = "mirrorlake"
FAR, DOMINANT = "far", "value"
_LARGE = 256 * 2**20
_LEAST_FILES = 4
_PARTITION = (BUCKET, BIN, OUTLIER, VALUE)


def is_partitioned(fingerprint: str) -> Column:
    """Whether a file is partitioned by the policy of this fingerprint."""
    left = tag(OUTLIER).eqNullSafe(FAR) & tag(FENCED).isNull()
    return tag(POLICY).eqNullSafe(fingerprint) & ~left


def is_left(add: Add) -> bool:
    """Return whether a file holds what an older version put among the far rows."""
    named = add.get("tags") or {}
    return named.get(OUTLIER) == FAR and FENCED not in named


def partitioned_bins(files: DataFrame, fingerprint: str) -> DataFrame:
    """Return the `bin` of each file that holds one partition of the policy of this fingerprint."""
    bins = files.where(is_partitioned(fingerprint)).select(tag(BIN).cast("bigint").alias("bin"))
    return bins.where("bin IS NOT NULL")


def arrived() -> Column:
    """When the last row of a file was first written, microseconds since 1970."""
    return F.coalesce(_greatest(ARRIVED), F.col("modificationTime") * 1000)


def created() -> Column:
    """The greatest creation time of a file: its rows' own timestamps where the policy says so."""
    return F.coalesce(_greatest(CREATED), arrived())


def _greatest(name: str) -> Column:
    return as_number(F.split_part(tag(name), F.lit("/"), F.lit(2)))


def row_count() -> Column:
    """The rows of a file without those that its deletion vector took; 0 without statistics."""
    masked = F.coalesce("deletionVector.cardinality", F.lit(0))
    return F.greatest(logged_rows() - masked, F.lit(0)).cast("bigint")


def logged_rows() -> Column:
    """The rows of a file with those that its deletion vector took; 0 without statistics."""
    records = F.get_json_object("stats", "$.numRecords").cast("bigint")
    return F.coalesce(records, F.lit(0).cast("bigint"))


def is_pending(setting: Setting) -> Column:
    """Whether a file is to be partitioned: not yet done, hot, and created since the policy's date.

    Done is a file with the policy's tag, and with the bucket in its column where one is wanted.
    """
    missing = ~is_partitioned(setting.fingerprint)
    if setting.bucket_column is not None:
        missing |= ~tag(STORED).eqNullSafe(setting.bucket_column)
    # An operation over nothing but files without a row would write no file in their place.
    has_rows = F.coalesce(F.get_json_object("stats", "$.numRecords") != "0", F.lit(True))
    wanted = missing & has_rows & _is_hot(setting)
    return wanted & (arrived() >= F.lit(setting.policy.effective or 0))


def _is_hot(setting: Setting) -> Column:
    return F.lit(True) if setting.hot is None else created() >= F.lit(now_micros() - setting.hot)


def pending_files(files: DataFrame, setting: Setting) -> DataFrame:
    """The files to partition, those that came first before the others.

    None while they have fewer rows than an operation is worth.
    """
    pending = files.where(is_pending(setting)).orderBy(arrived(), "path")
    if least := setting.policy.min_rows:
        ((rows,),) = pending.agg(total(row_count())).collect()
        if rows < least:
            return pending.where("false")
    return pending


def small_files(files: DataFrame, setting: Setting) -> DataFrame:
    """The partitioned hot files that have enough others of their partition and size, to be merged.

    Files are merged with others of about their size, four at least, so that each row is rewritten a
    few times in its life and not each time something new arrives. A file that is over half of what
    an operation may take counts as large: no two of those would ever go into one.
    """
    rows, size = setting.policy.row_limit // 2, setting.policy.size_limit // 2
    fits = (F.col("size") < min(_LARGE, size + 1)) & (logged_rows() <= rows)
    done = files.where(is_partitioned(setting.fingerprint) & fits & _is_hot(setting))
    columns = {name.rpartition(".")[2]: tag(name) for name in _PARTITION}
    columns["parts"] = F.to_json("partitionValues")
    columns["tier"] = F.floor(F.log(F.greatest("size", F.lit(1))) / math.log(_LEAST_FILES))
    alike = F.count("*").over(Window.partitionBy(*columns))
    crowded = done.withColumns(columns).withColumn("alike", alike)
    return crowded.where(F.col("alike") >= _LEAST_FILES).orderBy(*columns, "path")


def groups_of_tags(chosen: Sequence[Add]) -> Groups:
    """The groups that the files' own tags name."""
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
    """Return the tags that name a new file's partition; none for a file of several groups.

    Args:
        task: the number of the file's group.
        groups: of the operation.
        policy: the policy.
        fingerprint: the policy's.
    """
    if groups.is_rest(task):
        return {}
    found = {POLICY: fingerprint}
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
    """Return when the first and the last row of a new file were first written.

    Args:
        sources: the files that it was made of; those that hold another partition do not count.
        partition: the tags that name its partition.

    Returns:
        Microseconds since 1970.
    """

    def may_hold(one: Add) -> bool:
        named = one.get("tags") or {}
        if is_left(one) or named.get(POLICY) != partition.get(POLICY):
            return True
        return all(named.get(name) == partition.get(name) for name in _PARTITION)

    times: list[int] = []
    for one in list(filter(may_hold, sources)) or sources:
        text = (one.get("tags") or {}).get(ARRIVED)
        times += map(int, text.split("/")) if text else [one["modificationTime"] * 1000]
    return min(times), max(times)
