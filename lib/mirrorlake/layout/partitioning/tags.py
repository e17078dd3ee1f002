"""What the log says of each file: the tags of a partitioned one, its rows, when it was created.

A file is partitioned if its tag names the policy's fingerprint. A file that others rewrote has lost
its tags, and is a part of the tail again; deletion vectors keep them, for what they leave of a
bucket is still that bucket's.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from mirrorlake.layout.partitioning.store import Setting

POLICY = "mirrorlake.partition.policy"
BUCKET = "mirrorlake.partition.bucket"
BIN = "mirrorlake.partition.bin"
OUTLIER = "mirrorlake.partition.outlier"
VALUE = "mirrorlake.partition.value"
SORTED = "mirrorlake.partition.sorted"
ARRIVED = "mirrorlake.partition.arrived"
STORED = "mirrorlake.partition.stored"  # only where a column of the table holds the bucket
CREATED = "mirrorlake.partition.created"  # only where the policy overrides it
PROVIDER = "mirrorlake"
FAR, DOMINANT = "far", "value"


def tag(name: str) -> Column:
    """One tag of a file, or NULL."""
    tags = F.coalesce("tags", F.create_map().cast("map<string, string>"))
    return F.try_element_at(tags, F.lit(name))


def is_partitioned(fingerprint: str) -> Column:
    """Whether a file is partitioned by the policy of this fingerprint."""
    return F.coalesce(tag(POLICY) == fingerprint, F.lit(False))


def arrived() -> Column:
    """When the last row of a file was first written, microseconds since 1970."""
    return F.coalesce(_greatest(ARRIVED), F.col("modificationTime") * 1000)


def created() -> Column:
    """The greatest creation time of a file: its rows' own moments where the policy says so."""
    return F.coalesce(_greatest(CREATED), arrived())


def _greatest(name: str) -> Column:
    return F.split_part(tag(name), F.lit("/"), F.lit(2)).try_cast("bigint")


def row_count() -> Column:
    """The rows of a file without those that its deletion vector took; 0 without statistics."""
    masked = F.coalesce("deletionVector.cardinality", F.lit(0))
    return F.greatest(logged_rows() - masked, F.lit(0)).cast("bigint")


def logged_rows() -> Column:
    """The rows of a file with those that its deletion vector took; 0 without statistics."""
    records = F.get_json_object("stats", "$.numRecords").cast("bigint")
    return F.coalesce(records, F.lit(0).cast("bigint"))


def is_pending(setting: Setting, now: int) -> Column:
    """Whether a file is to be partitioned: not yet done, hot, and from the effective moment on.

    Done is a file with the policy's tag, and with the bucket in its column where one is wanted.

    Args:
        setting: with a policy.
        now: microseconds since 1970.
    """
    assert setting.policy is not None
    missing = ~is_partitioned(setting.fingerprint)
    if setting.bucket_column is not None:
        missing |= ~F.coalesce(tag(STORED) == setting.bucket_column, F.lit(False))
    # An operation over nothing but files without a row would write no file in their place.
    has_rows = F.coalesce(F.get_json_object("stats", "$.numRecords") != "0", F.lit(True))
    wanted = missing & has_rows & is_hot(setting, now)
    return wanted & (arrived() >= F.lit(setting.policy.effective or 0))


def is_hot(setting: Setting, now: int) -> Column:
    """Whether a file is not yet cold."""
    return F.lit(True) if setting.hot is None else created() >= F.lit(now - setting.hot)


def pending_files(files: DataFrame, setting: Setting, now: int) -> DataFrame:
    """The files to partition, those that came first before the others."""
    return files.where(is_pending(setting, now)).orderBy(arrived(), "path")
