"""Where partitions are read: all files of one by the same task, or spread over all tasks.

Under `ByPartition` a node reads whole partitions, so that rows of equal keys meet without a
shuffle: a join or an aggregation on the key runs node by node. Only the tail, whose rows may belong
to any partition, is looked through by each node. Under `Uniform` files go to nodes by size alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

from pyspark.sql import DataFrame

from mirrorlake.errors import UsageError
from mirrorlake.layout.partitioning.keys import bucket_sql
from mirrorlake.layout.partitioning.policy import BY_PARTITION, HashKey
from mirrorlake.layout.partitioning.scan import Scan, ScannedFile, scan_table
from mirrorlake.spark.gateway import transaction
from mirrorlake.table import Table


def node_rows(table: Table, nodes: int, where: str | None = None) -> list[DataFrame]:
    """A table's rows as its nodes read them, one task each.

    Args:
        table: with a hash key in its policy.
        nodes: how many.
        where: a predicate in SQL.

    Raises:
        UsageError: the table has no hash key.
    """
    scan = scan_table(table, where)
    if scan.key is None:
        raise UsageError(f"{table.name} has no hash partition key.", hint="set a policy with one.")
    by_partition = scan.key.mode == BY_PARTITION
    with transaction(table.spark, table.path) as txn:
        adds = {add["path"]: add for add in txn.take([file.path for file in scan.read])}
        shares = _by_bucket(scan, nodes) if by_partition else _by_size(scan, nodes)
        mixed = [adds[file.path] for file in scan.read if file.bucket is None]
        found = []
        for node, share in enumerate(shares):
            rows = txn.rows([adds[file.path] for file in share])
            if by_partition and mixed:
                mine = f"{bucket_sql(scan.key.column, scan.key)} % {nodes} = {node}"
                rows = rows.unionAll(txn.rows(mixed).where(mine))
            found.append((rows if where is None else rows.where(where)).coalesce(1))
    return found


def on_each_node(
    tables: Sequence[Table],
    work: Callable[..., DataFrame],
    *,
    nodes: int,
    where: Sequence[str | None] | None = None,
) -> DataFrame:
    """Runs a join or an aggregation on the hash key node by node, without a shuffle.

    Args:
        tables: one or several, with the same number of partitions and seed, `ByPartition`.
        work: gets a node's rows of each table; must only need rows of equal keys together.
        nodes: how many.
        where: a predicate for each table.

    Raises:
        UsageError: the tables' keys don't go together.
    """
    keys = [_key(table) for table in tables]
    alike = {(key.max_partition_count, key.seed) for key in keys}
    if len(alike) != 1 or any(key.mode != BY_PARTITION for key in keys):
        raise UsageError(
            "The tables' equal keys don't lie in the same partitions.",
            hint=f"give all the same MaxPartitionCount and Seed, and {BY_PARTITION}.",
        )
    parts = [
        node_rows(table, nodes, predicate)
        for table, predicate in zip(tables, where or [None] * len(tables), strict=True)
    ]
    return reduce(lambda a, b: a.unionAll(b), [work(*some) for some in zip(*parts, strict=True)])


def _key(table: Table) -> HashKey:
    from mirrorlake.layout.partitioning.store import read_setting

    setting = read_setting(table.storage, table.name)
    key = None if setting is None or setting.policy is None else setting.policy.hash
    if key is None:
        raise UsageError(f"{table.name} has no hash partition key.", hint="set a policy with one.")
    return key


def _by_bucket(scan: Scan, nodes: int) -> list[list[ScannedFile]]:
    shares: list[list[ScannedFile]] = [[] for _ in range(nodes)]
    for file in scan.read:
        if file.bucket is not None:
            shares[file.bucket % nodes].append(file)
    return shares


def _by_size(scan: Scan, nodes: int) -> list[list[ScannedFile]]:
    """The largest first, each to the node that has least so far."""
    shares: list[list[ScannedFile]] = [[] for _ in range(nodes)]
    for file in sorted(scan.read, key=lambda file: (-file.size, file.path)):
        least = min(shares, key=lambda share: sum(one.size for one in share))
        least.append(file)
    return shares
