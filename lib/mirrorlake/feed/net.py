"""What a range of changes comes to: one outcome a key, everything that cancels out gone.

Every change is a row that comes or goes: +1 or -1. There are two ways to the same result, and both
shuffle once, by key. Where a key stands for one row, as a table's declared keys do, its outcome is
the first row that went and the last one that came; one look at each key's changes finds both and
proves that nothing else was there. Otherwise changes are summed up by the whole row: what was
inserted and deleted, changed and changed back, or written again as it was, is 0; the order does not
matter, and rows that occur several times come out right. `tests/helpers/feed_model.py` is the
same as a loop.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T

from mirrorlake.feed.schema import RESERVED
from mirrorlake.spark.older import VARIANTS
from mirrorlake.spark.rewrite import whole_hash
from mirrorlake.spark.sql import quote

_KIND, _VERSION, _MOMENT = RESERVED
_PREFIX = "__mirrorlake_"
_COUNT, _BEFORE, _AFTER = (f"{_PREFIX}{name}" for name in ("count", "before", "after"))
_PRINT, _MARK, _FIRST, _LAST, _BALANCE = (
    f"{_PREFIX}{name}" for name in ("print", "mark", "first", "last", "balance")
)
_PRINT_BITS = 40  # with 22 for the place in a range, a mark is a BIGINT


def net_changes(
    changes: DataFrame, keys: Sequence[str], *, unique: range | None = None
) -> DataFrame:
    """The changes that lead from before a range to after it.

    Args:
        changes: rows of a feed, complete for each version in it.
        keys: the columns that tell rows apart; NULL is a value like any other.
        unique: the versions, where a key never has two rows at once, which is quicker. It is
            checked by sums of hashes of 40 bits: a job fails, with the keys' names, where it isn't
            so. Rows with nested values are summed up all the same.

    Returns:
        The same columns. A key that is new has an `insert`, one that is gone a `delete`, one whose
        row differs an `update_preimage` with the row before the range and an `update_postimage`
        with the row after it. A key with several rows before or after has deletes and inserts.
        `_commit_version` and `_commit_timestamp` are those of the key's last change.
    """
    # Spark's hashes pass NULLs inside of nested values over: [1, NULL] is [NULL, 1] to them.
    nested = (T.ArrayType, T.MapType, T.StructType, *VARIANTS)
    is_nested = any(isinstance(field.dataType, nested) for field in changes.schema.fields)
    data = [quote(name) for name in changes.columns if name not in RESERVED]
    sign = F.when(F.col(_KIND).isin("insert", "update_postimage"), 1).otherwise(-1)
    signed = changes.select(*data, _VERSION, _MOMENT, sign.alias(_COUNT))
    if unique is None or is_nested or 2 * len(unique) > 2 ** (63 - _PRINT_BITS):
        rows = _of_any_rows(signed, data, keys)
    else:
        rows = _of_unique_keys(signed, data, keys, unique.start)
    return rows.select(*[quote(name) for name in changes.columns])


def _of_unique_keys(
    signed: DataFrame, data: Sequence[str], keys: Sequence[str], start: int
) -> DataFrame:
    """A key's changes in their order are a chain: each row goes before the next one comes.

    So all that comes and goes between the first row and the last cancels out. Each row leaves a
    print, a hash; a chain's prints, with the changes' signs, add up to those of its ends. A mark is
    a change's place, even where a row goes and odd where one comes, with the print behind it.
    """
    over_key = f"OVER (PARTITION BY {', '.join(map(quote, keys))})"
    place = f"2L * ({_VERSION} - {start}) + IF({_COUNT} > 0, 1, 0)"
    hashed = whole_hash(signed.select(*data), row_ids=False)
    marked = signed.withColumn(_PRINT, F.shiftrightunsigned(hashed, 64 - _PRINT_BITS)).selectExpr(
        *data,
        *(_MOMENT, _COUNT),
        f"shiftleft({place}, {_PRINT_BITS}) | {_PRINT} AS {_MARK}",
        f"{_COUNT} * {_PRINT} AS {_PRINT}",
    )
    found = marked.selectExpr(
        *data,
        *(_COUNT, _MARK),
        f"min({_MARK}) {over_key} AS {_FIRST}",
        f"max({_MARK}) {over_key} AS {_LAST}",
        f"try_sum({_PRINT}) {over_key} AS {_BALANCE}",
        f"max({_MOMENT}) {over_key} AS {_MOMENT}",
    )
    went, came = (f"({mark} & {2**_PRINT_BITS - 1}L)" for mark in (_FIRST, _LAST))
    had = f"shiftright({_FIRST}, {_PRINT_BITS}) % 2 = 0"  # a row before the range
    has = f"shiftright({_LAST}, {_PRINT_BITS}) % 2 = 1"  # a row after it
    is_chain = f"{_BALANCE} <=> IF({has}, {came}, 0) - IF({had}, {went}, 0)"
    is_end = f"{_MARK} = IF({_COUNT} < 0, {_FIRST}, {_LAST})"
    is_same = f"{had} AND {has} AND {went} = {came}"
    several = (
        f"The feed has several rows of one key ({', '.join(keys)}) at once, so that there is no one"
        " outcome a key. Name the keys yourself (keys=…, --keys …): then each row counts."
    )
    broken = F.raise_error(F.lit(several)).cast("boolean")
    kept = F.when(F.expr(is_chain), F.expr(f"{is_end} AND NOT ({is_same})")).otherwise(broken)
    kind = _kind(F.expr(f"{had} AND {has}"), F.col(_COUNT)).alias(_KIND)
    version = F.expr(f"{start} + shiftright({_LAST}, {_PRINT_BITS + 1}) AS {_VERSION}")
    return found.where(kept).select(*data, kind, version, _MOMENT)


def _of_any_rows(signed: DataFrame, data: Sequence[str], keys: Sequence[str]) -> DataFrame:
    """Sums by the whole row. Put together by key first, what follows needs no second shuffle."""
    key_columns = [F.col(quote(name)) for name in keys]
    count = F.col(_COUNT)
    by_row = (
        signed.repartition(*key_columns)
        .groupBy(*data)
        .agg(
            F.sum(count).alias(_COUNT),
            F.max(_VERSION).alias(_VERSION),
            F.max(_MOMENT).alias(_MOMENT),
        )
    )
    key = Window.partitionBy(*key_columns)
    outcome = by_row.withColumns(
        {
            _BEFORE: F.sum(F.greatest(-count, F.lit(0))).over(key),
            _AFTER: F.sum(F.greatest(count, F.lit(0))).over(key),
            _VERSION: F.max(_VERSION).over(key),
            _MOMENT: F.max(_MOMENT).over(key),
        }
    ).where(count != 0)
    name = _kind((F.col(_BEFORE) == 1) & (F.col(_AFTER) == 1), count).alias(_KIND)
    repeated = F.explode(F.sequence(F.lit(1), F.abs(count))).alias(_COUNT)
    return outcome.select(*data, name, _VERSION, _MOMENT, repeated)


def _kind(is_update: Column, count: Column) -> Column:
    return (
        F.when(is_update & (count < 0), "update_preimage")
        .when(is_update, "update_postimage")
        .when(count < 0, "delete")
        .otherwise("insert")
    )
