"""What the guidance says of the policy that a table already has.

`advice` says which policy a table should have; this looks at the properties of the one that was
set: each is allowed, and not recommended.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from mirrorlake.errors import UsageError
from mirrorlake.layout.partitioning.advice import HIGH, LEAST_BYTES, MEDIUM, Finding
from mirrorlake.layout.partitioning.policy import (
    BY_PARTITION,
    DAY,
    DEFAULT_ROWS,
    DEFAULT_SIZE,
    RECOMMENDED_PARTITIONS,
    HashKey,
    Policy,
    RangeKey,
)
from mirrorlake.layout.partitioning.survey import Survey
from mirrorlake.layout.partitioning.timespan import format_timespan

_AT_ONCE = 10


def review(
    policy: Policy, survey: Survey, *, pending_rows: int = 0, least_bytes: int = LEAST_BYTES
) -> tuple[Finding, ...]:
    """The properties that had better be others.

    Args:
        policy: the table's.
        survey: of the table.
        pending_rows: the rows that wait to be partitioned.
        least_bytes: what a partition must hold at least, compressed.
    """
    found: list[tuple[str, str | None, str, str]] = [*_on_bounds(policy)]
    if policy.hash is not None:
        found += _on_hash(policy.hash, survey)
    if policy.range is not None:
        found += _on_range(policy.range)
    count = 1 if policy.hash is None else policy.hash.max_partition_count
    if policy.range is not None:
        spans = [time.span for time in survey.times if time.column == policy.range.column]
        count *= max(1, math.ceil(max(spans, default=0) / policy.range.range_size))
    if survey.size < count * least_bytes:
        found.append(
            (
                "small partitions",
                None,
                f"{survey.size:,} bytes make {survey.size // count:,} for each of {count:,}",
                "fewer buckets, longer spans, or no policy",
            )
        )
    if pending_rows > _AT_ONCE * policy.row_limit:
        found.append(
            (
                "much history",
                None,
                f"{pending_rows:,} rows wait, {policy.row_limit:,} go into an operation",
                "set EffectiveDateTime back some days at a time",
            )
        )
    return tuple(
        Finding(rule, survey.table, column, message, fix) for rule, column, message, fix in found
    )


def misfit(survey: Survey, error: UsageError) -> Finding:
    """What to do about a policy whose columns the table no longer has."""
    return Finding(
        "misfit",
        survey.table,
        None,
        f"nothing is partitioned: {error.message}",
        "alter-merge with PartitionKeys that name the column as it is now, or delete the policy",
    )


def _on_hash(key: HashKey, survey: Survey) -> Iterator[tuple[str, str, str, str]]:
    if key.max_partition_count > RECOMMENDED_PARTITIONS:
        yield (
            "many partitions",
            key.column,
            f"MaxPartitionCount is {key.max_partition_count}: more files, more metadata, and more"
            " replaced files to clean up",
            f"{RECOMMENDED_PARTITIONS}",
        )
    if key.seed != 1:
        yield "seed", key.column, f"Seed is {key.seed}", "1, so that tables can be joined by bucket"
    for text in survey.texts:
        if text.column != key.column:
            continue
        if text.distinct < MEDIUM:
            yield (
                "few values",
                key.column,
                f"about {text.distinct:,} values; at least {MEDIUM:,} are worth a hash",
                "no hash key on it",
            )
        elif key.mode == BY_PARTITION and text.distinct < HIGH:
            yield (
                "assignment",
                key.column,
                f"ByPartition is for joins and aggregations on {HIGH:,} values and more; these are"
                f" about {text.distinct:,}",
                "PartitionAssignmentMode Uniform",
            )


def _on_range(key: RangeKey) -> Iterator[tuple[str, str, str, str]]:
    if key.range_size < DAY:
        yield (
            "short spans",
            key.column,
            f"RangeSize is {format_timespan(key.range_size)}: many small files that never merge",
            "1.00:00:00, or more",
        )


def _on_bounds(policy: Policy) -> Iterator[tuple[str, None, str, str]]:
    if policy.min_rows:
        yield (
            "waiting rows",
            None,
            f"MinRowCountPerOperation is {policy.min_rows:,}: so many rows wait in the tail",
            "0",
        )
    for name, value, default in (
        ("MaxRowCountPerOperation", policy.max_rows, DEFAULT_ROWS),
        ("MaxOriginalSizePerOperation", policy.max_size, DEFAULT_SIZE),
    ):
        if value > default:
            yield (
                "large operations",
                None,
                f"{name} is {value:,}: an operation takes the more memory, and the longer",
                f"0, which means {default:,}",
            )
