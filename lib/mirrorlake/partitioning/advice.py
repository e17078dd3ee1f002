"""Advise whether a table should have a partitioning policy, which one, and review its own.

The rules are Kusto's guidance: filters on a key of at least 10,000 values, joins and aggregations
on a key of at least 1,000,000 values, timestamps out of order; no policy if a partition would be
smaller than 1 GiB. The rules read a survey of the table and nothing else.
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
from mirrorlake.mirror.properties import VIEW_PROPERTY
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
from mirrorlake.results import Finding, Findings, TextTable
from mirrorlake.spark.sql import quote

MEDIUM = 10_000
"""From how many values on a text column is worth a hash, and looked at closely."""
_HIDDEN = "__mirrorlake_"  # of views' tables
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
_NO = "leave the table without a policy; its files then follow the time of their arrival"
_MEND = "mend or filter them before they arrive"
# Rule, column, what was found, and what to do.
Rule = tuple[str, str | None, str, str]


@dataclass(frozen=True)
class TextFacts:
    """One text column.

    Attributes:
        column: its name.
        distinct: how many values, about.
        nulls, empty, generic: rows with NULL, '', or a word such as 'N/A'.
        top_value, top_rows: the most frequent value; only looked for where there are many values.
        read_now: the part of the files that an equality reads as the table is.
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
    """One column of timestamps; durations in microseconds.

    Attributes:
        column: its name.
        span: from the first to the last of the middle 98 % of rows.
        nulls: rows without a timestamp.
        far: rows more than three spans from the middle 98 %.
        read_now: the part of the files that a day of this column touches as the table is.
    """

    column: str
    span: int
    nulls: int = 0
    far: int = 0
    read_now: float = 1.0


@dataclass(frozen=True)
class Survey:
    """A table as the adviser sees it.

    Attributes:
        table: its name.
        rows, size: all there are; bytes as stored.
        texts, times: the columns that could be keys.
        is_view: whether it is a view's table.
    """

    table: str
    rows: int
    size: int
    texts: tuple[TextFacts, ...] = ()
    times: tuple[TimeFacts, ...] = ()
    is_view: bool = False


def survey_table(table: TableHandle, columns: Sequence[str] = ()) -> Survey:
    """Looks at a table: two aggregates over the columns in question, and one more for good keys.

    Args:
        table: which table.
        columns: only these; by default all text and timestamp columns.

    Raises:
        UsageError: a column is not there, or is neither text nor a timestamp.
    """
    counted = count_files(table, None)
    snapshot = table.snapshot()
    kinds = {
        field["name"]: field["type"]
        for field in snapshot.fields
        if field["type"] in _KINDS and why_not_hashed(field) is None
    }
    wanted = [*columns] or [name for name in kinds if not name.startswith(_HIDDEN)]
    for name in wanted:
        if name not in kinds:
            raise UsageError(f"{name!r} is no column of text or timestamps of {table.name}.")
    looked = wanted if counted.rows else []
    texts = [name for name in looked if kinds[name] == "string"]
    times = {name: kinds[name] == "timestamp" for name in looked if kinds[name] != "string"}
    rows = table.rows()
    return Survey(
        str(table.name),
        counted.rows,
        counted.size,
        tuple(_texts(rows, texts, counted.files)),
        tuple(_times(rows, times, counted.files)),
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
    for name, counted in zip(names, line, strict=True):
        facts = TextFacts(name, *counted)
        if facts.distinct >= MEDIUM:
            best = rows.groupBy(F.col(quote(name)).alias("v")).count().orderBy(F.desc("count"), "v")
            ((value, count),) = best.take(1)
            read = _read_by_value(rows, name, files)
            facts = replace(facts, top_value=value, top_rows=count, read_now=read)
        found.append(facts)
    return found


def _read_by_value(rows: DataFrame, name: str, files: int) -> float:
    """The part of the files whose least and greatest text enclose a value, for some values."""
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
        # A day that falls anywhere in the span meets a file of length b - a with this chance.
        chance = F.least(F.lit(1.0), (F.col("b") - F.col("a") + DAY) / (high - low + DAY))
        (sums,) = ends.agg(F.sum(chance).alias("hit"), F.sum("far").alias("far")).collect()
        read = min(1.0, (sums["hit"] or 0) / max(1, files))
        found.append(TimeFacts(name, high - low, line["nulls"], sums["far"] or 0, read))
    return found


@dataclass(frozen=True)
class Advice(Findings):
    """What to do about a table.

    Attributes:
        table: which table.
        policy: the policy to set; None for a clear no.
        findings: the reasons, the decisive ones first.
    """

    table: str
    policy: Policy | None
    findings: tuple[Finding, ...]

    def as_dict(self) -> dict[str, Any]:
        """The document that `--json` prints."""
        policy = None if self.policy is None else self.policy.document()
        return {"policy": policy} | super().as_dict()

    def shown(self) -> TextTable:
        """One row per finding."""
        rows = tuple((f.rule, f.column, f.message, f.fix) for f in self.findings)
        return TextTable(("rule", "column", "what", "fix"), rows)

    def __repr__(self) -> str:
        if self.policy is None:
            return f"{self.table}: no policy"
        return f"{self.table}: a policy on {' and '.join(self.policy.columns)}"


def advise_table(
    table: TableHandle, columns: Sequence[str] = (), *, least_bytes: int = LEAST_BYTES
) -> Advice:
    """Surveys a table and applies the guidance to it and to its own policy.

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
            message=f"nothing is partitioned: {error.message}",
            fix="alter-merge with PartitionKeys that name the column as it is now, or delete the"
            " policy",
        )
        return replace(advice, findings=(misfit, *advice.findings))
    if setting is None:
        return advice
    waiting = count_files(table, setting).pending_rows
    more = review(setting.policy, survey, pending_rows=waiting, least_bytes=least_bytes)
    return replace(advice, findings=(*advice.findings, *more))


def advise(survey: Survey, *, least_bytes: int = LEAST_BYTES) -> Advice:
    """Applies the guidance to a table.

    Args:
        survey: of the table.
        least_bytes: what a partition must hold at least, compressed.
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
    """On the column with most values, as many partitions as each is large enough for."""
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
    """On the timestamps that are most out of order, in spans large enough for so many buckets."""
    loose = [time for time in survey.times if time.read_now >= _OUT_OF_ORDER and time.span]
    if not loose:
        return None
    best = max(loose, key=lambda time: (time.read_now, time.column))
    days = max(1, math.ceil(best.span / DAY * buckets * least_bytes / max(1, survey.size)))
    return None if best.span < 2 * days * DAY else RangeKey(best.column, 0, days * DAY)


def _is_large(survey: Survey, rows: int) -> bool:
    return rows > _LARGE_SHARE * max(1, survey.rows)


def _refusal(survey: Survey, least_bytes: int) -> Iterator[Rule]:
    """Why not."""
    if survey.size < 2 * least_bytes:
        message = f"{survey.size:,} bytes make no two partitions of {least_bytes:,}"
        yield "too small", None, message, _NO
    else:
        message = f"no text column has {MEDIUM:,} values, and timestamps lie in order"
        yield "no key", None, message, _NO


def _gains(survey: Survey, policy: Policy) -> Iterator[Rule]:
    """What the policy is for, what it costs, what a query reads then."""
    setting = f"set the policy {policy.to_json()}"
    if policy.hash:
        key = policy.hash
        facts = next(one for one in survey.texts if one.column == key.column)
        values, joins = f"about {facts.distinct:,} values", key.mode == BY_PARTITION
        yield (
            "joins and aggregations" if joins else "filters",
            key.column,
            f"{values}; an equality reads 1 of {key.max_partition_count} partitions, and"
            f" {facts.read_now:.0%} of the files now",
            setting,
        )
        yield (
            "usage",
            key.column,
            "a hash key is much work in the background; a table does not tell how it is queried",
            "set it only if most queries are equalities (=, IN) on this column, and many run at"
            " a time, as those of dashboards do",
        )
        if joins and facts.distinct < LARGE:
            yield (
                "no large dimension",
                key.column,
                f"{values}; below {LARGE:,} joins and aggregations alone seldom pay for it",
                "set it if most queries join or aggregate on this column, or filter by it",
            )
    if policy.range:
        time = next(one for one in survey.times if one.column == policy.range.column)
        bins = math.ceil(time.span / policy.range.range_size)
        yield (
            "out of order",
            time.column,
            f"a day touches {time.read_now:.0%} of the files now, and 1 of {bins} spans then",
            f"{setting}; with OverrideCreationTime where retention and --hot are to go by this"
            " column",
        )
    by_rows, by_size = survey.rows / DEFAULT_ROWS, survey.size / DEFAULT_SIZE
    operations = max(1, math.ceil(by_rows), math.ceil(by_size))
    yield (
        "cost",
        None,
        f"history: {operations} operations, {survey.rows:,} rows, {survey.size:,} bytes",
        "leave EffectiveDateTime out for new data only, or set it back some days at a time",
    )


def _on_view(survey: Survey) -> Iterator[Rule]:
    """What is different about the table of a view."""
    if survey.is_view:
        yield (
            "view",
            None,
            "a refresh rewrites changed groups, and they are unpartitioned again",
            "partition by what the view groups by, and only if it is queried far more often than"
            " refreshed",
        )


def _few_values(text: TextFacts) -> Rule:
    message = f"about {text.distinct:,} values; at least {MEDIUM:,} are worth a hash"
    return "few values", text.column, message, "no hash key on it"


def _on_texts(survey: Survey) -> Iterator[Rule]:
    """Columns with too few values, and outliers of the others."""
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
                message = f"{rows:,} of {survey.rows:,} rows hold {what}"
                fix = f"{_MEND}; till then each such value gets files of its own"
                yield "outlier value", text.column, message, fix


def _on_times(survey: Survey) -> Iterator[Rule]:
    """Timestamps in order, and far ones."""
    for time in survey.times:
        if time.far:
            message = f"{time.far:,} rows lie far from all others"
            yield "far dates", time.column, message, f"{_MEND}; till then they share one file"
        if _is_large(survey, time.nulls):
            hold = f"{time.nulls:,} of {survey.rows:,} rows hold NULL"
            message = f"{hold}, all of them in the bin of the reference"
            yield "outlier value", time.column, message, _MEND
        if time.read_now < _OUT_OF_ORDER:
            message = f"a day touches {time.read_now:.0%} of the files already"
            yield "in order", time.column, message, "no range key on it"


def review(
    policy: Policy, survey: Survey, *, pending_rows: int = 0, least_bytes: int = LEAST_BYTES
) -> tuple[Finding, ...]:
    """The properties of a table's policy that are allowed, and not recommended.

    Args:
        policy: the table's.
        survey: of the table.
        pending_rows: the rows that wait to be partitioned.
        least_bytes: what a partition must hold at least, compressed.
    """
    found = [*_on_bounds(policy)]
    count = 1
    if policy.hash is not None:
        found += _on_hash(policy.hash, survey)
        count = policy.hash.max_partition_count
    if policy.range is not None:
        size, column = policy.range.range_size, policy.range.column
        if size < DAY:
            message = f"RangeSize is {format_timespan(size)}: many small files that never merge"
            found.append(("short spans", column, message, "1.00:00:00, or more"))
        spans = [time.span for time in survey.times if time.column == column]
        count *= max(1, math.ceil(max(spans, default=0) / size))
    if survey.size < count * least_bytes:
        message = f"{survey.size:,} bytes make {survey.size // count:,} for each of {count:,}"
        fix = "fewer buckets, longer spans, or no policy"
        found.append(("small partitions", None, message, fix))
    if pending_rows > _AT_ONCE * policy.row_limit:
        message = f"{pending_rows:,} rows wait, {policy.row_limit:,} go into an operation"
        fix = "set EffectiveDateTime back some days at a time"
        found.append(("much history", None, message, fix))
    return _findings(survey, found)


def _on_hash(key: HashKey, survey: Survey) -> Iterator[Rule]:
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
    for text in [text for text in survey.texts if text.column == key.column]:
        if text.distinct < MEDIUM:
            yield _few_values(text)
        elif key.mode == BY_PARTITION and text.distinct < HIGH:
            yield (
                "assignment",
                key.column,
                f"ByPartition is for joins and aggregations on {HIGH:,} values and more; these are"
                f" about {text.distinct:,}",
                "PartitionAssignmentMode Uniform",
            )


def _on_bounds(policy: Policy) -> Iterator[Rule]:
    if policy.min_rows:
        message = (
            f"MinRowCountPerOperation is {policy.min_rows:,}: so many rows wait, unpartitioned"
        )
        yield "waiting rows", None, message, "0"
    for name, value, default in (
        ("MaxRowCountPerOperation", policy.max_rows, DEFAULT_ROWS),
        ("MaxOriginalSizePerOperation", policy.max_size, DEFAULT_SIZE),
    ):
        if value > default:
            message = f"{name} is {value:,}: an operation takes the more memory, and the longer"
            yield "large operations", None, message, f"0, which means {default:,}"
