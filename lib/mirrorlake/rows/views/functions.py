"""Spark's functions: how aggregates can be kept up to date, and what is nondeterministic.

Source: Spark's built-in functions, `SHOW SYSTEM FUNCTIONS` of 4.1.
"""

from __future__ import annotations

# Kept by adding inserted rows and subtracting deleted ones.
SUMS = frozenset({"avg", "count", "count_if", "mean", "sum"})
# Kept by looking at what came and went; only a group that lost its extreme is computed again.
EXTREMES = frozenset({"max", "min"})
# The same whatever order rows are read in: a group that changed is computed again.
_ANY_ORDER = frozenset(
    {
        "approx_count_distinct",
        "bit_and",
        "bit_or",
        "bit_xor",
        "bool_and",
        "bool_or",
        "corr",
        "covar_pop",
        "covar_samp",
        "every",
        "kurtosis",
        "median",
        "percentile",
        "percentile_cont",
        "percentile_disc",
        "skewness",
        "some",
        "std",
        "stddev",
        "stddev_pop",
        "stddev_samp",
        "try_avg",
        "try_sum",
        "var_pop",
        "var_samp",
        "variance",
    }
)
ORDER_DEPENDENT = frozenset(
    {
        "any_value",
        "approx_percentile",
        "array_agg",
        "bitmap_construct_agg",
        "collect_list",
        "collect_set",
        "count_min_sketch",
        "first",
        "first_value",
        "histogram_numeric",
        "hll_sketch_agg",
        "hll_union_agg",
        "last",
        "last_value",
        "listagg",
        "max_by",
        "min_by",
        "mode",
        "percentile_approx",
        "string_agg",
    }
)
_AGGREGATES = SUMS | EXTREMES | _ANY_ORDER | ORDER_DEPENDENT
_NONDETERMINISTIC = frozenset(
    {
        "curdate",
        "java_method",
        "localtimestamp",
        "monotonically_increasing_id",
        "now",
        "rand",
        "randn",
        "random",
        "randstr",
        "reflect",
        "session_user",
        "shuffle",
        "spark_partition_id",
        "try_reflect",
        "uniform",
        "user",
        "uuid",
        "version",
    }
)


def is_aggregate(name: str) -> bool:
    """Whether a function makes one value of many rows: also regressions, sketches and bitmaps."""
    return name in _AGGREGATES or name.startswith("regr_") or "_agg" in name


def is_nondeterministic(name: str) -> bool:
    """Whether a function depends on the time, the session, the files, or on chance."""
    return name in _NONDETERMINISTIC or name.startswith(("current_", "input_file_"))
