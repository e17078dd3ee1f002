"""Purge files that must not be merged with others: each is rewritten as one file.

Delta's REORG merges the files that it purges, so it would mix the partitions of a policy. It skips
files of another clustering provider, so their deleted rows and dropped columns would remain.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial

from pyspark.sql import SparkSession

from mirrorlake.delta.snapshot import MICROSOFT_TAG, OPEN_TAG, PARTITION_TAG
from mirrorlake.spark.jvm import Add, DeltaTransaction, has_gateway
from mirrorlake.spark.rewrite import BACKGROUND_CONFS, Choose, Rewrite, Written, rewrite_files

_NOTE = json.dumps({"mirrorlake": "purge"})
_APART = f"try_element_at(tags, '{PARTITION_TAG}') IS NOT NULL OR clusteringProvider <> 'liquid'"
# A file that is read in one piece keeps the order of its rows.
_CONFS = BACKGROUND_CONFS | {"spark.sql.files.maxPartitionBytes": str(2**40)}


def purge_apart(spark: SparkSession, path: str, choose: Choose) -> list[Rewrite]:
    """Rewrite chosen files that REORG merges or skips, without deleted rows and dropped columns.

    A new file keeps the tags, the clustering provider, the age and the row ids, but not V-Order.

    Args:
        spark: the session. On Spark Connect, which has no JVM, nothing happens.
        path: the full path of the table's folder.
        choose: selects the files to purge; see `rewrite_files`.

    Returns:
        The commits.

    Raises:
        ConflictError: other writers won each attempt; earlier commits remain.
    """
    if not has_gateway(spark):
        return []
    rewrite = partial(
        rewrite_files,
        spark,
        path,
        lambda files: choose(files).where(_APART),
        _rewrite_each,
        note=_NOTE,
        confs=_CONFS,
    )
    return list(iter(rewrite, None))


def _rewrite_each(txn: DeltaTransaction, chosen: Sequence[Add]) -> Written:
    adds: list[Add] = []
    for old in chosen:
        kept = {key: old[key] for key in ("clusteringProvider", "modificationTime") if key in old}
        tags = {
            name: value
            for name, value in (old.get("tags") or {}).items()
            if name != MICROSOFT_TAG and not name.startswith(OPEN_TAG)
        }
        rows = txn.rows([old], keep_ids=True).coalesce(1)
        adds += [new | kept | {"tags": tags} for new in txn.write(rows, checked=True)]
    return Written(chosen, adds)
