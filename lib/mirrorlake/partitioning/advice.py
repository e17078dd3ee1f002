"""Advise whether a table should have a partitioning policy, which one, and review its own.

The rules are those of Kusto's documentation. A policy is recommended for filters on a key with at
least 10,000 values, for joins and aggregations on a key with at least 1,000,000 values, and for
timestamps that are out of order. No policy is recommended if a partition would be smaller than 1
GiB. The rules read only the survey of the table.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from mirrorlake.delta.table import TableHandle
from mirrorlake.errors import UsageError
from mirrorlake.mirror.options import VIEW_PROPERTY
from mirrorlake.names import quote, visible_columns
from mirrorlake.partitioning.groups import micros
from mirrorlake.partitioning.policy import (
    BY_PARTITION,
    DAY,
    DEFAULT_ROWS,
    DEFAULT_SIZE,
    RECOMMENDED_PARTITIONS,
    UNIFORM,
    HashKey,
    Policy,
    RangeKey,
    format_timespan,
)
from mirrorlake.partitioning.statistics import count_files
from mirrorlake.partitioning.store import read_setting, why_not_hashed
from mirrorlake.results import Finding, Findings, TextTable, counted

MEDIUM = 10_000
"""The minimum number of values for a hash key; columns with more are examined closely."""
GENERIC = ("n/a", "na", "null", "none", "unknown", "undefined", "-", "?", "0")
_SAMPLE = 20
_EDGES = (0.01, 0.99)
_FENCE = 3
_KINDS = ("string", "timestamp", "timestamp_ntz")
HIGH, LARGE = 1_000_000, 10_000_000
LEAST_BYTES = 2**30
_LARGE_SHARE = 0.05
_OUT_OF_ORDER = 0.25
_AT_ONCE = 10
_NO = "set no policy; without one, files are in the order in which rows arrived"
_MEND = "correct or remove such rows before they are written"
# The rule, the column, the finding, and the remedy.
Rule = tuple[str, str | None, str, str]


@dataclass(frozen=True)
class TextFacts:
    """Facts about one text column.

    Attributes:
        column: the column's name.
        distinct: the approximate number of values.
        nulls, empty, generic: the numbers of rows with NULL, '', or a word such as 'N/A'.
        top_value, top_rows: the most frequent value and the number of its rows; only set if the
            column has many values.
        read_now: which share of the files a query for one value reads now.
    """

    column: str
    distinct: int
    nulls: int = 0
    empty: int = 0
    generic: int = 0
    top_value: str | None = None
    top_rows: int = 0
    read_now: float = 1.0


@dataclass(frozen=True)
class TimeFacts:
    """Facts about one timestamp column; durations are in microseconds.

    Attributes:
        column: the column's name.
        span: the time between the first and the last of the middle 98 % of rows.
        nulls: the number of rows without a timestamp.
        far: the number of rows that are more than three spans away from the middle 98 %.
        read_now: which share of the files a query for one day reads now.
    """

    column: str
    span: int
    nulls: int = 0
    far: int = 0
    read_now: float = 1.0


@dataclass(frozen=True)
class Survey:
    """Facts about a table, from which the advice is computed.

    Attributes:
        table: the table's name.
        rows, size: the numbers of rows and of stored bytes of the whole table.
        texts, times: the columns that could be keys.
        is_view: whether it is the table of a view.
    """

    table: str
    rows: int
    size: int
    texts: tuple[TextFacts, ...] = ()
    times: tuple[TimeFacts, ...] = ()
    is_view: bool = False


def survey_table(table: TableHandle, columns: Sequence[str] = ()) -> Survey:
    """Survey a table: two aggregates over the candidate columns, and one more for good keys.

    Args:
        table: the table.
        columns: the candidate columns; by default all text and timestamp columns.

    Raises:
        UsageError: a column is missing, or is neither text nor a timestamp.
    """
    stats = count_files(table, None)
    snapshot = table.snapshot()
    kinds = {
        field["name"]: field["type"]
        for field in snapshot.fields
        if field["type"] in _KINDS and why_not_hashed(field) is None
    }
    wanted = [*columns] or visible_columns(kinds)
    for name in wanted:
        if name not in kinds:
            raise UsageError(
                f"{table.name} has no text or timestamp column {name!r}.",
                hint=f"choose one of {', '.join(kinds)}.",
            )
    looked = wanted if stats.rows else []
    texts = [name for name in looked if kinds[name] == "string"]
    times = {name: kinds[name] == "timestamp" for name in looked if kinds[name] != "string"}
    rows = table.rows()
    return Survey(
        str(table.name),
        stats.rows,
        stats.size,
        tuple(_texts(rows, texts, stats.files)),
        tuple(_times(rows, times, stats.files)),
        VIEW_PROPERTY in snapshot.properties,
    )


def _texts(rows: DataFrame, names: list[str], files: int) -> list[TextFacts]:
    if not names:
        return []

    def counts(name: str) -> Column:
        column = F.col(quote(name))
        return F.struct(
            F.approx_count_distinct(column, 0.02).alias("distinct"),
            F.count_if(column.isNull()).alias("nulls"),
            F.count_if(column == "").alias("empty"),
            F.count_if(F.lower(F.trim(column)).isin(*GENERIC)).alias("generic"),
        )

    (line,) = rows.agg(*map(counts, names)).collect()
    found = []
    for name, figures in zip(names, line, strict=True):
        facts = TextFacts(name, *figures)
        if facts.distinct >= MEDIUM:
            best = rows.groupBy(F.col(quote(name)).alias("v")).count().orderBy(F.desc("count"), "v")
            ((value, count),) = best.take(1)
            read = _read_by_value(rows, name, files)
            facts = replace(facts, top_value=value, top_rows=count, read_now=read)
        found.append(facts)
    return found


def _read_by_value(rows: DataFrame, name: str, files: int) -> float:
    """Return the share of files in which a value is between the smallest and the largest text.

    The share is the average over a sample of values.
    """
    column = F.col(quote(name))
    sample = rows.select(column.alias("v")).where("v IS NOT NULL")
    picked = sample.orderBy(F.xxhash64("v")).limit(_SAMPLE)
    ends = rows.groupBy("_metadata.file_path").agg(
        F.min(column).alias("a"), F.max(column).alias("b")
    )
    hits = ends.crossJoin(F.broadcast(picked)).where("v BETWEEN a AND b").count()
    return min(1.0, hits / _SAMPLE / max(1, files))


def _times(rows: DataFrame, names: dict[str, bool], files: int) -> list[TimeFacts]:
    found = []
    for name, with_zone in names.items():
        at = micros(name, with_zone=with_zone)
        edges = F.percentile_approx(at, list(_EDGES)).alias("edges")
        (line,) = rows.agg(edges, F.count_if(at.isNull()).alias("nulls")).collect()
        if line["edges"] is None:
            found.append(TimeFacts(name, 0, line["nulls"]))
            continue
        low, high = line["edges"]
        reach = _FENCE * max(high - low, DAY)
        far = F.count_if((at < low - reach) | (at > high + reach)).alias("far")
        inner = F.greatest(F.least(at, F.lit(high)), F.lit(low))
        ends = rows.groupBy("_metadata.file_path").agg(
            F.min(inner).alias("a"), F.max(inner).alias("b"), far
        )
        # The probability that a random day of the span overlaps a file of length b - a.
        chance = F.least(F.lit(1.0), (F.col("b") - F.col("a") + DAY) / (high - low + DAY))
        (sums,) = ends.agg(F.sum(chance).alias("hit"), F.sum("far").alias("far")).collect()
        read = min(1.0, (sums["hit"] or 0) / max(1, files))
        found.append(TimeFacts(name, high - low, line["nulls"], sums["far"] or 0, read))
    return found


@dataclass(frozen=True)
class Advice(Findings):
    """The recommended policy of a table, with reasons.

    Attributes:
        table: the table's name.
        policy: the policy to set; None if the table should have none.
        findings: the reasons; the most important ones come first.
    """

    table: str
    policy: Policy | None
    findings: tuple[Finding, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the document that `--json` prints."""
        policy = None if self.policy is None else self.policy.document()
        return {"policy": policy} | super().as_dict()

    def shown(self) -> TextTable:
        """Return one row per finding."""
        rows = tuple((f.rule, f.column, f.message, f.fix) for f in self.findings)
        return TextTable(("rule", "column", "what", "fix"), rows)

    def __repr__(self) -> str:
        if self.policy is None:
            return f"{self.table}: no policy"
        return f"{self.table}: a policy on {' and '.join(self.policy.columns)}"


def advise_table(
    table: TableHandle, columns: Sequence[str] = (), *, least_bytes: int = LEAST_BYTES
) -> Advice:
    """Survey a table, recommend a policy, and review the table's own policy.

    Arguments and errors are those of `TablePolicy.advise`.
    """
    survey = survey_table(table, columns)
    advice = advise(survey, least_bytes=least_bytes)
    try:
        setting = read_setting(table.storage, table.name)
    except UsageError as error:
        misfit = Finding(
            rule="misfit",
            table=survey.table,
            message=f"the policy no longer fits, so nothing is partitioned: {error.message}",
            fix="change PartitionKeys to the column's present name by alter-merge, or delete the"
            " policy",
        )
        return replace(advice, findings=(misfit, *advice.findings))
    if setting is None:
        return advice
    waiting = count_files(table, setting).pending_rows
    more = review(setting.policy, survey, pending_rows=waiting, least_bytes=least_bytes)
    return replace(advice, findings=(*advice.findings, *more))


def advise(survey: Survey, *, least_bytes: int = LEAST_BYTES) -> Advice:
    """Recommend a policy from a survey.

    Args:
        survey: the survey of a table.
        least_bytes: the minimum size of a partition in compressed bytes; 1 GiB by default.
    """
    hash_key = _hash_key(survey, least_bytes)
    buckets = 1 if hash_key is None else hash_key.max_partition_count
    range_key = _range_key(survey, buckets, least_bytes)
    policy = Policy(hash_key, range_key) if hash_key or range_key else None
    decisive = _refusal(survey, least_bytes) if policy is None else _gains(survey, policy)
    rules = (*decisive, *_on_view(survey), *_on_texts(survey), *_on_times(survey))
    return Advice(survey.table, policy, _findings(survey, rules))


def _findings(survey: Survey, rules: Iterable[Rule]) -> tuple[Finding, ...]:
    return tuple(
        Finding(rule=rule, table=survey.table, column=column, message=message, fix=fix)
        for rule, column, message, fix in rules
    )


def _hash_key(survey: Survey, least_bytes: int) -> HashKey | None:
    """Recommend the column with most values.

    The number of buckets is the largest power of 2 with which each bucket is large enough.
    """
    good = [text for text in survey.texts if text.distinct >= MEDIUM]
    count = min(RECOMMENDED_PARTITIONS, survey.size // least_bytes)
    if not good or count < 2:
        return None
    best = max(good, key=lambda text: (text.distinct, text.column))
    outliers = (best.nulls, best.empty, best.generic, best.top_rows)
    is_even = not any(_is_large(survey, rows) for rows in outliers)
    mode = BY_PARTITION if is_even and best.distinct >= HIGH else UNIFORM
    return HashKey(best.column, 2 ** int(math.log2(count)), 1, mode)


def _range_key(survey: Survey, buckets: int, least_bytes: int) -> RangeKey | None:
    """Recommend the timestamps that are most out of order.

    The bins are so long that each bucket in them is large enough.
    """
    loose = [time for time in survey.times if time.read_now >= _OUT_OF_ORDER and time.span]
    if not loose:
        return None
    best = max(loose, key=lambda time: (time.read_now, time.column))
    days = max(1, math.ceil(best.span / DAY * buckets * least_bytes / max(1, survey.size)))
    return None if best.span < 2 * days * DAY else RangeKey(best.column, 0, days * DAY)


def _is_large(survey: Survey, rows: int) -> bool:
    return rows > _LARGE_SHARE * max(1, survey.rows)


def _refusal(survey: Survey, least_bytes: int) -> Iterator[Rule]:
    """Yield the reason for recommending no policy."""
    if survey.size < 2 * least_bytes:
        message = f"{survey.size:,} bytes are too few for two partitions of {least_bytes:,} bytes"
        yield "too small", None, message, _NO
    else:
        message = f"no text column has {MEDIUM:,} values, and timestamps are in order"
        yield "no key", None, message, _NO


def _gains(survey: Survey, policy: Policy) -> Iterator[Rule]:
    """Yield the benefits and costs of the policy, and what a query would read."""
    setting = f"set the policy {policy.to_json()}"
    if policy.hash:
        key = policy.hash
        facts = next(one for one in survey.texts if one.column == key.column)
        values, joins = f"about {facts.distinct:,} values", key.mode == BY_PARTITION
        yield (
            "joins and aggregations" if joins else "filters",
            key.column,
            f"{values}; an equality would read 1 of {key.max_partition_count} partitions, and reads"
            f" {facts.read_now:.0%} of the files now",
            setting,
        )
        yield (
            "usage",
            key.column,
            "a hash key needs much background work, and a table does not show how it is queried",
            "set it only if most queries are equalities (=, IN) on this column and many of them run"
            " concurrently, as those of dashboards do",
        )
        if joins and facts.distinct < LARGE:
            yield (
                "no large dimension",
                key.column,
                f"{values}; with fewer than {LARGE:,}, joins and aggregations rarely justify it",
                "set it if most queries join, aggregate or filter on this column",
            )
    if policy.range:
        time = next(one for one in survey.times if one.column == policy.range.column)
        bins = math.ceil(time.span / policy.range.range_size)
        yield (
            "out of order",
            time.column,
            f"a filter on one day reads {time.read_now:.0%} of the files now, and would read 1 of"
            f" {counted(bins, 'bin')}",
            f"{setting}; add OverrideCreationTime if retention and the hot timespan should follow"
            " this column",
        )
    by_rows, by_size = survey.rows / DEFAULT_ROWS, survey.size / DEFAULT_SIZE
    operations = max(1, math.ceil(by_rows), math.ceil(by_size))
    yield (
        "cost",
        None,
        f"history: {counted(operations, 'operation')}, {counted(survey.rows, 'row')},"
        f" {survey.size:,} bytes",
        "omit EffectiveDateTime to partition new data only, or move it back a few days at a time",
    )


def _on_view(survey: Survey) -> Iterator[Rule]:
    """Yield a note if the table is a view's."""
    if survey.is_view:
        yield (
            "view",
            None,
            "a refresh rewrites changed groups, whose files are then unpartitioned",
            "partition by a column that the view groups by, and only if the view is queried far"
            " more often than refreshed",
        )


def _few_values(text: TextFacts) -> Rule:
    message = f"about {text.distinct:,} values; a hash key needs at least {MEDIUM:,}"
    return "few values", text.column, message, "set no hash key on it"


def _on_texts(survey: Survey) -> Iterator[Rule]:
    """Yield columns with too few values, and outliers of the others."""
    for text in survey.texts:
        if text.distinct < MEDIUM:
            yield _few_values(text)
            continue
        outliers = {
            "NULL": text.nulls,
            "empty text": text.empty,
            "words such as 'N/A'": text.generic,
            f"the one value {text.top_value!r}": text.top_rows,
        }
        for what, rows in outliers.items():
            if _is_large(survey, rows):
                message = f"{rows:,} of {survey.rows:,} rows have {what}"
                fix = f"{_MEND}; until then each such value gets files of its own"
                yield "outlier value", text.column, message, fix


def _on_times(survey: Survey) -> Iterator[Rule]:
    """Yield timestamps that are in order, and those far from all others."""
    for time in survey.times:
        if time.far:
            message = f"{counted(time.far, 'row')} far from all others"
            yield "far dates", time.column, message, f"{_MEND}; until then they share one file"
        if _is_large(survey, time.nulls):
            nulls = f"{time.nulls:,} of {survey.rows:,} rows have NULL"
            message = f"{nulls} and are in the bin of the reference"
            yield "outlier value", time.column, message, _MEND
        if time.read_now < _OUT_OF_ORDER:
            message = f"a filter on one day already reads only {time.read_now:.0%} of the files"
            yield "in order", time.column, message, "set no range key on it"


def review(
    policy: Policy, survey: Survey, *, pending_rows: int = 0, least_bytes: int = LEAST_BYTES
) -> tuple[Finding, ...]:
    """Return the properties of a table's policy that are allowed but not recommended.

    Args:
        policy: the table's policy.
        survey: the survey of the table.
        pending_rows: the number of rows that are not partitioned yet.
        least_bytes: the minimum size of a partition in compressed bytes; 1 GiB by default.
    """
    found = [*_on_bounds(policy)]
    count = 1
    if policy.hash is not None:
        found += _on_hash(policy.hash, survey)
        count = policy.hash.max_partition_count
    if policy.range is not None:
        size, column = policy.range.range_size, policy.range.column
        if size < DAY:
            message = f"RangeSize is {format_timespan(size)}: many small files are never merged"
            found.append(("short spans", column, message, "use 1.00:00:00 or more"))
        spans = [time.span for time in survey.times if time.column == column]
        count *= max(1, math.ceil(max(spans, default=0) / size))
    if survey.size < count * least_bytes:
        average = survey.size // count
        message = f"{survey.size:,} bytes in {count:,} partitions are {average:,} bytes for each"
        fix = "use fewer buckets, longer bins, or no policy"
        found.append(("small partitions", None, message, fix))
    if pending_rows > _AT_ONCE * policy.row_limit:
        message = f"{pending_rows:,} rows are pending, {policy.row_limit:,} fit into an operation"
        fix = "move EffectiveDateTime back a few days at a time"
        found.append(("much history", None, message, fix))
    return _findings(survey, found)


def _on_hash(key: HashKey, survey: Survey) -> Iterator[Rule]:
    if key.max_partition_count > RECOMMENDED_PARTITIONS:
        yield (
            "many partitions",
            key.column,
            f"MaxPartitionCount is {key.max_partition_count}: more files, more metadata, and more"
            " replaced files to vacuum",
            f"use at most {RECOMMENDED_PARTITIONS}",
        )
    if key.seed != 1:
        fix = "use 1, so that tables can be joined by bucket"
        yield "seed", key.column, f"Seed is {key.seed}", fix
    for text in [text for text in survey.texts if text.column == key.column]:
        if text.distinct < MEDIUM:
            yield _few_values(text)
        elif key.mode == BY_PARTITION and text.distinct < HIGH:
            yield (
                "assignment",
                key.column,
                f"ByPartition is for joins and aggregations on at least {HIGH:,} values; the column"
                f" has about {text.distinct:,}",
                "use PartitionAssignmentMode Uniform",
            )


def _on_bounds(policy: Policy) -> Iterator[Rule]:
    if policy.min_rows:
        message = f"MinRowCountPerOperation is {policy.min_rows:,}: fewer rows stay unpartitioned"
        yield "waiting rows", None, message, "use 0"
    for name, value, default in (
        ("MaxRowCountPerOperation", policy.max_rows, DEFAULT_ROWS),
        ("MaxOriginalSizePerOperation", policy.max_size, DEFAULT_SIZE),
    ):
        if value > default:
            message = f"{name} is {value:,}: an operation takes more memory and more time"
            yield "large operations", None, message, f"use 0, which means {default:,}"
