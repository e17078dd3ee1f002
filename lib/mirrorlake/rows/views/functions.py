"""What is known of Spark's functions: which aggregate how, and which are not to be trusted.

Source: Spark's built-in functions, `SHOW SYSTEM FUNCTIONS` of 4.1.
"""

from __future__ import annotations

# Kept by adding what comes and taking away what goes.
SUMS = frozenset({"avg", "count", "count_if", "mean", "sum"})
# The same whatever order rows are read in: a group that changed is computed again.
ANY_ORDER = frozenset(
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
        "max",
        "median",
        "min",
        "percentile",
        "percentile_cont",
        "percentile_disc",
        "regr_avgx",
        "regr_avgy",
        "regr_count",
        "regr_intercept",
        "regr_r2",
        "regr_slope",
        "regr_sxx",
        "regr_sxy",
        "regr_syy",
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
AGGREGATES = SUMS | ANY_ORDER | ORDER_DEPENDENT
NONDETERMINISTIC = frozenset(
    {
        "curdate",
        "current_catalog",
        "current_database",
        "current_date",
        "current_schema",
        "current_time",
        "current_timestamp",
        "current_timezone",
        "current_user",
        "input_file_block_length",
        "input_file_block_start",
        "input_file_name",
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
