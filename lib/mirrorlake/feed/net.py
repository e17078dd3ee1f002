"""What a range of changes comes to: one outcome a key, everything that cancels out gone.

Every change is a row that comes or goes: +1 or -1. Summed up by the whole row, what was inserted
and deleted, changed and changed back, or written again as it was, is 0. What is left of a key is
its row before the range, its row after it, or both. No order of the changes is needed, and rows
that occur several times come out right. `tests/feed_model.py` is the same thing as a loop.

The changes are put together by key first: what follows then needs no second shuffle, as rows that
are equal have equal keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mirrorlake.feed.schema import RESERVED
from mirrorlake.spark.sql import quote

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

_COUNT = "__mirrorlake_count"
_BEFORE = "__mirrorlake_before"
_AFTER = "__mirrorlake_after"


def net_changes(changes: DataFrame, keys: Sequence[str]) -> DataFrame:
    """The changes that lead from before a range to after it.

    Args:
        changes: rows of a feed, complete for each version in it.
        keys: the columns that tell rows apart; NULL is a value like any other.

    Returns:
        The same columns. A key that is new has an `insert`, one that is gone a `delete`, one whose
        row differs an `update_preimage` with the row before the range and an `update_postimage`
        with the row after it. A key with several rows before or after has deletes and inserts.
        `_commit_version` and `_commit_timestamp` are those of the key's last change.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    kind, version, moment = RESERVED
    data = [quote(name) for name in changes.columns if name not in RESERVED]
    key_columns = [F.col(quote(name)) for name in keys]
    sign = F.when(F.col(kind).isin("insert", "update_postimage"), 1).otherwise(-1)
    signed = changes.select(*data, version, moment, sign.alias(_COUNT))
    count = F.col(_COUNT)
    by_row = (
        signed.repartition(*key_columns)
        .groupBy(*data)
        .agg(F.sum(count).alias(_COUNT), F.max(version).alias(version), F.max(moment).alias(moment))
    )
    key = Window.partitionBy(*key_columns)
    outcome = by_row.withColumns(
        {
            _BEFORE: F.sum(F.greatest(-count, F.lit(0))).over(key),
            _AFTER: F.sum(F.greatest(count, F.lit(0))).over(key),
            version: F.max(version).over(key),
            moment: F.max(moment).over(key),
        }
    ).where(count != 0)
    update = (F.col(_BEFORE) == 1) & (F.col(_AFTER) == 1)
    name = (
        F.when(update & (count < 0), "update_preimage")
        .when(update, "update_postimage")
        .when(count < 0, "delete")
        .otherwise("insert")
    )
    repeated = F.explode(F.sequence(F.lit(1), F.abs(count))).alias(_COUNT)
    columns = [F.col(c) for c in data]
    rows = outcome.select(*columns, name.alias(kind), version, moment, repeated)
    return rows.drop(_COUNT).select(*[quote(c) for c in changes.columns])
