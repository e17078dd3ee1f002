"""Small files of one partition, to be put together; files of different partitions never are.

Files are merged with others of about their size, four at least, so that each row is rewritten a few
times in its life and not each time something new arrives. A file that is over half of what an
operation may take counts as large: no two of those would ever go into one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from mirrorlake.layout.partitioning import tags
from mirrorlake.layout.partitioning.groups import NO_KEY, Group, Groups
from mirrorlake.layout.partitioning.policy import Policy
from mirrorlake.layout.partitioning.store import Setting, now_micros
from mirrorlake.spark.gateway import Add

LARGE = 256 * 2**20
LEAST_FILES = 4
_PARTITION = ("bucket", "bin", "outlier", "value", "parts", "tier")


def small_files(files: DataFrame, setting: Setting, policy: Policy) -> DataFrame:
    """The partitioned hot files that have enough others of their partition and size."""
    fits = (F.col("size") < min(LARGE, policy.size_limit // 2 + 1)) & (
        tags.logged_rows() <= policy.row_limit // 2
    )
    done = files.where(tags.is_partitioned(setting.fingerprint) & fits)
    done = done.where(tags.is_hot(setting, now_micros()))
    named = (tags.BUCKET, tags.BIN, tags.OUTLIER, tags.VALUE)
    columns = dict(zip(_PARTITION, map(tags.tag, named), strict=False))
    columns["parts"] = F.to_json("partitionValues")
    columns["tier"] = F.floor(F.log(F.greatest("size", F.lit(1))) / math.log(LEAST_FILES))
    keyed = done.withColumns(columns)
    alike = F.count("*").over(Window.partitionBy(*_PARTITION))
    crowded = keyed.withColumn("alike", alike).where(F.col("alike") >= LEAST_FILES)
    return crowded.orderBy(*_PARTITION, "path")


def groups_of_tags(chosen: Sequence[Add]) -> Groups:
    """The groups that the files' own tags name."""
    values: list[str | None] = []
    groups = set()
    for add in chosen:
        named = add.get("tags") or {}
        if named.get(tags.OUTLIER) == tags.FAR:
            continue
        number = 0
        if tags.VALUE in named:
            value = json.loads(named[tags.VALUE])
            if value not in values:
                values.append(value)
            number = values.index(value) + 1
        groups.add(group_of(named, number))
    ordered = tuple(sorted(groups, key=lambda group: (group.bin, group.bucket, group.value)))
    return Groups(ordered, tuple(values))


def group_of(named: dict[str, str], value: int = 0) -> Group:
    """The group that a file's tags name."""
    return Group(int(named.get(tags.BUCKET, NO_KEY)), int(named.get(tags.BIN, 0)), value)
