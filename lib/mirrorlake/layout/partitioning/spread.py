"""How a table's files and buckets meet: the rows of each bucket in each file, for a picture."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import functions as F

from mirrorlake.errors import UsageError
from mirrorlake.layout.partitioning.keys import bucket_sql
from mirrorlake.layout.partitioning.policy import Policy
from mirrorlake.table import Table

MOST_FILES = 1_000


@dataclass(frozen=True)
class Spread:
    """Rows by file and bucket.

    Attributes:
        counts: a line a file, a number a bucket; ordered by the numbers, not by the files' names.
    """

    counts: tuple[tuple[int, ...], ...]

    @property
    def homogeneous(self) -> int:
        """How many files hold one bucket only."""
        return sum(sum(count > 0 for count in line) == 1 for line in self.counts)

    def __repr__(self) -> str:
        return f"{self.homogeneous} of {len(self.counts)} files hold one bucket only"


def spread_of(table: Table, policy: Policy) -> Spread:
    """Counts the rows of each bucket in each file, of the first 1,000 files.

    Raises:
        UsageError: the policy has no hash key.
    """
    if policy.hash is None:
        raise UsageError("The policy has no hash partition key.")
    rows = table.spark.sql(f"SELECT * FROM {table.sql_name}")
    bucket = F.expr(bucket_sql(policy.hash.column, policy.hash))
    keyed = rows.select(F.col("_metadata.file_path").alias("file"), bucket.alias("bucket"))
    wide = keyed.groupBy("file").pivot("bucket", list(range(policy.hash.max_partition_count)))
    found = wide.count().na.fill(0).orderBy("file").limit(MOST_FILES).drop("file").collect()
    return Spread(tuple(sorted((tuple(map(int, line)) for line in found), reverse=True)))
