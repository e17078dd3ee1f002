"""A guard against other people's OPTIMIZE: it leaves files of another clustering provider alone.

Only tables that are `CLUSTER BY` have such providers, so the guard makes the table one; from then
on partitioned files are marked as ours. Our own maintenance needs no guard: it knows the policy.
"""

from __future__ import annotations

from mirrorlake.errors import QueryError, UsageError
from mirrorlake.layout.partitioning.policy import Policy
from mirrorlake.spark.messages import spark_message
from mirrorlake.spark.sql import quote
from mirrorlake.table import Table


def guard_table(table: Table, policy: Policy) -> None:
    """Makes a table `CLUSTER BY` the policy's keys.

    Raises:
        UsageError: it has Delta's own partitions, which exclude clustering.
        QueryError: Delta refused it.
    """
    if table.snapshot().metadata.get("partitionColumns"):
        raise UsageError(
            f"{table.name} has partition columns, and can't be guarded.",
            hint="do without the guard: what an OPTIMIZE mixes is partitioned again.",
        )
    columns = ", ".join(map(quote, policy.columns))
    try:
        table.spark.sql(f"ALTER TABLE {table.sql_name} CLUSTER BY ({columns})")
    except Exception as error:
        raise QueryError(spark_message(error)) from error
