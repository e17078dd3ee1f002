"""Parse and write data partitioning policies: Kusto's JSON, timespans and timestamps.

The properties have the names and the meaning that Kusto defines. An error names the property and
the allowed values. Times are in whole microseconds.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import Any

from mirrorlake.delta.timestamps import parse_utc_timestamp
from mirrorlake.errors import UsageError

HASH, RANGE = "Hash", "UniformRange"
FUNCTION = "XxHash64"
BY_PARTITION, UNIFORM = "ByPartition", "Uniform"
DEFAULT, ALL, CUSTOM = "Default", "All", "Custom"
MOST_PARTITIONS = 2048
RECOMMENDED_PARTITIONS = 128
DAY = 86_400 * 10**6
DEFAULT_ROWS = 5_000_000
DEFAULT_SIZE = 5 * 2**30
# Kusto's numbers have 64 bits; the longest timespan is slightly over 29,000 years of ticks.
_LARGEST = 2**63 - 1
_KEY = ("ColumnName", "Kind", "Properties")
_HASH = ("Function", "MaxPartitionCount", "Seed", "PartitionAssignmentMode")
_RANGE = ("Reference", "RangeSize", "OverrideCreationTime")
_BOUNDS = ("MinRowCountPerOperation", "MaxRowCountPerOperation", "MaxOriginalSizePerOperation")
_POLICY = ("PartitionKeys", "EffectiveDateTime", *_BOUNDS, "Lookback")
_LOOKBACK = ("Kind", "CustomPeriod")
_LOOKBACKS = (DEFAULT, "HotCache", ALL, CUSTOM)
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MICRO = timedelta(microseconds=1)
# Kusto's ticks, tenths of a microsecond.
_UNITS = {
    name: ticks
    for ticks, names in (
        (10 * DAY, "d day days"),
        (36_000_000_000, "h hour hours"),
        (600_000_000, "m minute minutes"),
        (10_000_000, "s second seconds"),
        (10_000, "ms millisecond milliseconds"),
        (10, "microsecond microseconds"),
        (1, "tick ticks"),
    )
    for name in names.split()
}
_CLOCK = re.compile(
    r"(?:(?P<days>\d+)\.)?(?P<hours>[01]?\d|2[0-3]):(?P<minutes>[0-5]?\d)"
    r"(?::(?P<seconds>[0-5]?\d)(?:\.(?P<fraction>\d{1,7}))?)?",
    re.ASCII,
)
_COUNT = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[a-z]+)", re.ASCII | re.IGNORECASE)
_CALL = re.compile(r"(?:time|timespan|datetime)\(\s*(.*?)\s*\)", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True)
class HashKey:
    """A key that assigns rows to buckets by the hash of a text column.

    Attributes:
        column: the column's name.
        max_partition_count: the number of buckets, 128 by default. If the policy also has a range
            key, each bin has this number of buckets.
        seed: the seed of the hash; 1 by default.
        mode: `ByPartition` for joins and aggregations on the key, `Uniform` (the default) for
            filters.
    """

    column: str
    max_partition_count: int = RECOMMENDED_PARTITIONS
    seed: int = 1
    mode: str = UNIFORM

    def buckets_like(self, other: HashKey | None) -> bool:
        """Return whether another key assigns every row to the same bucket."""
        return other is not None and self == replace(other, mode=self.mode)

    def document(self) -> dict[str, Any]:
        """Return the key as Kusto's JSON."""
        properties = {
            "Function": FUNCTION,
            "MaxPartitionCount": self.max_partition_count,
            "Seed": self.seed,
            "PartitionAssignmentMode": self.mode,
        }
        return {"ColumnName": self.column, "Kind": HASH, "Properties": properties}


@dataclass(frozen=True)
class RangeKey:
    """A key that assigns rows to bins of time of equal length.

    Attributes:
        column: the column's name.
        reference: a timestamp at which a bin begins, in microseconds since 1970.
        range_size: the length of a bin in microseconds; one day by default.
        override_creation_time: whether the timestamps of a file's rows count as its creation time.
    """

    column: str
    reference: int = 0
    range_size: int = DAY
    override_creation_time: bool = False

    def document(self) -> dict[str, Any]:
        """Return the key as Kusto's JSON."""
        properties = {
            "Reference": format_timestamp(self.reference),
            "RangeSize": format_timespan(self.range_size),
            "OverrideCreationTime": self.override_creation_time,
        }
        return {"ColumnName": self.column, "Kind": RANGE, "Properties": properties}


@dataclass(frozen=True)
class Lookback:
    """The age up to which small partitioned files are merged.

    Attributes:
        kind: `Default` or `HotCache` for hot files, `All` for all files, or `Custom`.
        period: for `Custom`, the age in microseconds.
    """

    kind: str = DEFAULT
    period: int | None = None

    def document(self) -> dict[str, Any]:
        """Return the property as Kusto's JSON."""
        period = None if self.period is None else format_timespan(self.period)
        return {"Kind": self.kind, "CustomPeriod": period}


@dataclass(frozen=True)
class Policy:
    """A partitioning policy of a table.

    Attributes:
        hash, range: the keys; at least one of them is set.
        effective: a timestamp in microseconds since 1970; only files that were created since then
            are partitioned. None until the policy is set.
        min_rows, max_rows, max_size: limits of one operation in rows and uncompressed bytes; 0: the
            default.
        lookback: the age up to which small files are merged.
    """

    hash: HashKey | None = None
    range: RangeKey | None = None
    effective: int | None = None
    min_rows: int = 0
    max_rows: int = 0
    max_size: int = 0
    lookback: Lookback = Lookback()

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the hash key and the range key, by which files are sorted."""
        return tuple(key.column for key in (self.hash, self.range) if key is not None)

    @property
    def row_limit(self) -> int:
        """The maximum number of rows of one operation."""
        return self.max_rows or DEFAULT_ROWS

    @property
    def size_limit(self) -> int:
        """The maximum number of uncompressed bytes of one operation."""
        return self.max_size or DEFAULT_SIZE

    def document(self) -> dict[str, Any]:
        """Return the policy as Kusto's JSON."""
        keys = [key.document() for key in (self.hash, self.range) if key is not None]
        found: dict[str, Any] = {"PartitionKeys": keys}
        if self.effective is not None:
            found["EffectiveDateTime"] = format_timestamp(self.effective)
        bounds = (self.min_rows, self.max_rows, self.max_size)
        found |= dict(zip(_BOUNDS, bounds, strict=True))
        if self.lookback != Lookback():
            found["Lookback"] = self.lookback.document()
        return found

    def to_json(self) -> str:
        """Return the policy as JSON text."""
        return json.dumps(self.document(), ensure_ascii=False)

    def fingerprint(self, physical: dict[str, str]) -> str:
        """Return a text that identifies how the policy computes buckets and bins.

        Files with another fingerprint in their tags are rewritten.

        Args:
            physical: the names of the columns in the files. They do not change when a column is
                renamed.
        """
        parts: list[Any] = []
        if self.hash:
            key = self.hash
            parts += [HASH, physical[key.column], key.max_partition_count, key.seed]
        if self.range:
            span = self.range
            parts += [RANGE, physical[span.column], span.reference, span.range_size]
            parts += [span.override_creation_time]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def parse_policy(given: Any) -> Policy:
    """Parse a policy from its JSON document, a mapping or text, and fill in defaults.

    Raises:
        UsageError: a property is unknown, missing, or out of range.
    """
    body = _object(_parsed(given), "The policy", _POLICY)
    keys = body.get("PartitionKeys")
    if not isinstance(keys, list) or not keys:
        raise _wrong("PartitionKeys", keys, "a list of one or two keys")
    if len(keys) > 2:
        raise UsageError(f"PartitionKeys has {len(keys)} keys.", hint="at most 2 are allowed.")
    found = [_key(key, f"PartitionKeys[{n}]") for n, key in enumerate(keys)]
    if len(found) > 1 and type(found[0]) is type(found[1]):
        raise UsageError(
            f"PartitionKeys has two keys of kind {keys[0]['Kind']}.",
            hint="use at most one of each kind.",
        )
    effective = body.get("EffectiveDateTime")
    if effective is not None and not isinstance(effective, str):
        raise _wrong("EffectiveDateTime", effective, "a timestamp as text, or left out")
    min_rows, max_rows, max_size = (
        _number(body, name, 0, low=0, high=_LARGEST) for name in _BOUNDS
    )
    return Policy(
        next((key for key in found if isinstance(key, HashKey)), None),
        next((key for key in found if isinstance(key, RangeKey)), None),
        None if effective is None else parse_timestamp(effective),
        min_rows,
        max_rows,
        max_size,
        _lookback(body.get("Lookback")),
    )


def merge_policy(policy: Policy, changes: Any) -> Policy:
    """Return a policy with some of its properties changed, as Kusto's `.alter-merge` does.

    Raises:
        UsageError: the result is not a valid policy.
    """
    return parse_policy(policy.document() | _object(_parsed(changes), "The change", _POLICY))


def _key(document: Any, where: str) -> HashKey | RangeKey:
    body = _object(document, where, _KEY)
    column = body.get("ColumnName")
    if not isinstance(column, str) or not column:
        raise _wrong(f"{where}.ColumnName", column, "a column's name")
    kind = body.get("Kind")
    if kind not in (HASH, RANGE):
        raise _wrong(f"{where}.Kind", kind, f"{HASH} or {RANGE}")
    known, read = (_HASH, _hash_key) if kind == HASH else (_RANGE, _range_key)
    return read(column, _object(body.get("Properties", {}), f"{where}.Properties", known))


def _hash_key(column: str, body: dict[str, Any]) -> HashKey:
    if body.get("Function", FUNCTION) != FUNCTION:
        raise _wrong("Function", body["Function"], FUNCTION)
    mode = _one_of(body, "PartitionAssignmentMode", (BY_PARTITION, UNIFORM), UNIFORM)
    count = _number(body, "MaxPartitionCount", RECOMMENDED_PARTITIONS, low=2, high=MOST_PARTITIONS)
    return HashKey(column, count, _number(body, "Seed", 1, low=1, high=_LARGEST), mode)


def _range_key(column: str, body: dict[str, Any]) -> RangeKey:
    reference, size = body.get("Reference", "1970-01-01"), body.get("RangeSize", "1.00:00:00")
    override = body.get("OverrideCreationTime", False)
    if not isinstance(reference, str):
        raise _wrong("Reference", reference, "a timestamp as text, such as 1970-01-01T00:00:00")
    if not isinstance(size, str) or (micros := parse_timespan(size)) <= 0:
        raise _wrong("RangeSize", size, "a timespan over zero as text, such as 1.00:00:00")
    if not isinstance(override, bool):
        raise _wrong("OverrideCreationTime", override, "true or false")
    return RangeKey(column, parse_timestamp(reference), micros, override)


def _lookback(given: Any) -> Lookback:
    body = {"Kind": given} if isinstance(given, str) else given or {}
    kind = _one_of(_object(body, "Lookback", _LOOKBACK), "Kind", _LOOKBACKS, DEFAULT)
    period = body.get("CustomPeriod")
    if kind == CUSTOM and isinstance(period, str):
        return Lookback(kind, parse_timespan(period))
    if kind == CUSTOM or period is not None:
        allowed = f"a timespan as text, such as 30d, with {CUSTOM}; otherwise left out"
        raise _wrong("CustomPeriod", period, allowed)
    return Lookback(kind)


def _parsed(given: Any) -> Any:
    if not isinstance(given, str):
        return given
    try:
        return json.loads(given)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"The policy is not valid JSON: {error}.") from error


def _object(document: Any, what: str, known: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(document, dict):
        raise UsageError(
            f"{what} is not a JSON object.", hint=f"its properties are {', '.join(known)}."
        )
    if unknown := [str(name) for name in document if name not in known]:
        raise UsageError(
            f"{what} has an unknown property {unknown[0]!r}.",
            hint=f"its properties are {', '.join(known)}.",
        )
    return document


def _one_of(body: dict[str, Any], name: str, allowed: tuple[str, ...], default: str) -> str:
    """Return a property's value as Kusto spells it; upper and lower case do not matter."""
    value = body.get(name, default)
    for one in allowed:
        if isinstance(value, str) and value.lower() == one.lower():
            return one
    raise _wrong(name, value, " or ".join(allowed))


def _number(body: dict[str, Any], name: str, default: int, *, low: int, high: int) -> int:
    value = body.get(name, default)
    fits = isinstance(value, int) and not isinstance(value, bool)
    if not fits or not low <= value <= high:
        raise _wrong(name, value, f"a whole number from {low} to {high}")
    number: int = value
    return number


def _wrong(name: str, value: Any, allowed: str) -> UsageError:
    return UsageError(f"{name} is {json.dumps(value, default=str)}.", hint=f"it must be {allowed}.")


def parse_timespan(text: str) -> int:
    """Parse a timespan such as `1.00:00:00`, `7d`, `12h`, `time(30m)` or a number of days.

    Returns:
        The timespan in microseconds.

    Raises:
        UsageError: the text is not a timespan, is finer than a microsecond, or exceeds 64 bits.

    Example:
        >>> parse_timespan("1.00:00:00") == parse_timespan("24h") == 86_400_000_000
        True
    """
    ticks = _ticks(_bare(text))
    if ticks is None:
        raise UsageError(
            f"{text!r} is not a timespan.", hint="write 1.00:00:00 or 7d: days, hours, minutes."
        )
    if ticks > _LARGEST:
        raise UsageError(
            f"{text!r} is too long.", hint=f"use at most {format_timespan(_LARGEST // 10)}."
        )
    if ticks % 10:
        raise UsageError(
            f"{text!r} is finer than a microsecond.", hint="use whole microseconds, as Delta does."
        )
    return ticks // 10


def _ticks(bare: str) -> int | None:
    if bare.isascii() and bare.isdecimal():
        return int(bare) * _UNITS["d"]
    if match := _COUNT.fullmatch(bare):
        unit = _UNITS.get(match["unit"].lower())
        if unit is None:
            return None
        whole, _, part = match["number"].partition(".")
        scaled = int(whole + part) * unit
        return scaled // 10 ** len(part) if scaled % 10 ** len(part) == 0 else None
    match = _CLOCK.fullmatch(bare)
    if match is None:
        return None
    seconds = (int(match["hours"]) * 60 + int(match["minutes"])) * 60 + int(match["seconds"] or 0)
    ticks = seconds * _UNITS["s"] + int((match["fraction"] or "0").ljust(7, "0"))
    return ticks + int(match["days"] or 0) * _UNITS["d"]


def format_timespan(micros: int) -> str:
    """Format a timespan in microseconds as Kusto does.

    Example:
        >>> format_timespan(7 * 86_400_000_000)
        '7.00:00:00'
    """
    days, rest = divmod(micros, DAY)
    seconds, fraction = divmod(rest, 10**6)
    text = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return (f"{days}." if days else "") + text + (f".{fraction:06}0" if fraction else "")


def parse_timestamp(text: str) -> int:
    """Parse an ISO 8601 timestamp. Without a zone, it is in UTC.

    Returns:
        Microseconds since 1970.

    Raises:
        UsageError: the text is not a timestamp.

    Example:
        >>> parse_timestamp("1970-01-02T00:00:00") == parse_timestamp("datetime(1970-01-02)")
        True
    """
    return to_micros(parse_utc_timestamp(_bare(text)))


def _bare(text: str) -> str:
    stripped = text.strip()
    call = _CALL.fullmatch(stripped)
    return call[1] if call else stripped


def to_micros(when: datetime) -> int:
    """Return a datetime in microseconds since 1970."""
    return (when - _EPOCH) // _MICRO


def now_micros() -> int:
    """Return the current time in microseconds since 1970."""
    return to_micros(datetime.now(timezone.utc))


def from_micros(micros: int) -> datetime:
    """Return microseconds since 1970 as a datetime in UTC."""
    return _EPOCH + micros * _MICRO


def format_timestamp(micros: int) -> str:
    """Format microseconds since 1970 as Kusto does: ISO 8601 in UTC, without a zone.

    Example:
        >>> format_timestamp(0)
        '1970-01-01T00:00:00'
    """
    return from_micros(micros).replace(tzinfo=None).isoformat()


@dataclass(frozen=True)
class Setting:
    """A table's policy and its options.

    Attributes:
        policy: the policy.
        hot: a timespan in microseconds; older files (*cold* files) are not rewritten. None: all
            files are hot.
        bucket_column: the column in which operations store the bucket; None without one.
        fingerprint: the fingerprint in the files' tags; empty until the policy is fitted to the
            table.
    """

    policy: Policy
    hot: int | None = None
    bucket_column: str | None = None
    fingerprint: str = ""

    @property
    def merged_age(self) -> int | None:
        """The age in microseconds up to which small files are merged; None for all files."""
        lookback = self.policy.lookback
        return lookback.period if lookback.kind in (ALL, CUSTOM) else self.hot
