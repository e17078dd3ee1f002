"""What the log says of each file: the tags of a partitioned one, its rows, when it was created.

A file is partitioned if its tag names the policy's fingerprint. A file that others rewrote has lost
its tags, and is a part of the tail again; deletion vectors keep them, for what they leave of a
bucket is still that bucket's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mirrorlake.layout.partitioning.store import Setting

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

POLICY = "mirrorlake.partition.policy"
BUCKET = "mirrorlake.partition.bucket"
BIN = "mirrorlake.partition.bin"
OUTLIER = "mirrorlake.partition.outlier"
VALUE = "mirrorlake.partition.value"
SORTED = "mirrorlake.partition.sorted"
CREATED = "mirrorlake.partition.created"
PROVIDER = "mirrorlake"
FAR, DOMINANT = "far", "value"


def tag(name: str) -> Column:
    """One tag of a file, or NULL."""
    from pyspark.sql import functions as F

    tags = F.coalesce("tags", F.create_map().cast("map<string, string>"))
    return F.try_element_at(tags, F.lit(name))


def is_partitioned(fingerprint: str) -> Column:
    """Whether a file is partitioned by the policy of this fingerprint."""
    from pyspark.sql import functions as F

    return F.coalesce(tag(POLICY) == fingerprint, F.lit(False))


def created(end: str) -> Column:
    """The least (`min`) or greatest (`max`) creation time of a file, microseconds since 1970."""
    from pyspark.sql import functions as F

    part = F.split_part(tag(CREATED), F.lit("/"), F.lit(1 if end == "min" else 2))
    written = F.col("modificationTime") * 1000
    return F.coalesce(part.try_cast("bigint"), written)


def row_count() -> Column:
    """The rows of a file without those that its deletion vector took; 0 without statistics."""
    from pyspark.sql import functions as F

    records = F.get_json_object("stats", "$.numRecords").cast("bigint")
    masked = F.coalesce("deletionVector.cardinality", F.lit(0))
    return F.greatest(F.coalesce(records, F.lit(0)) - masked, F.lit(0)).cast("bigint")


def is_pending(setting: Setting, now: int) -> Column:
    """Whether a file is to be partitioned: not yet done, hot, and from the effective moment on.

    Args:
        setting: with a policy.
        now: microseconds since 1970.
    """
    from pyspark.sql import functions as F

    assert setting.policy is not None
    oldest = setting.policy.effective or 0
    if setting.hot is not None:
        oldest = max(oldest, now - setting.hot)
    return ~is_partitioned(setting.fingerprint) & (created("max") >= F.lit(oldest))


def pending_files(files: DataFrame, setting: Setting, now: int) -> DataFrame:
    """The files to partition, those that were created first before the others."""
    return files.where(is_pending(setting, now)).orderBy(created("max"), "path")
