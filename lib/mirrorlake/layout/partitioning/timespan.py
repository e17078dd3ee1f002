"""Timespans and timestamps as Kusto writes them, in whole microseconds."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone

from mirrorlake.delta.timestamps import parse_utc_timestamp
from mirrorlake.errors import UsageError

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MICRO = timedelta(microseconds=1)
_DAY = 86_400 * 10**6
# In tenths of a microsecond, Kusto's tick.
_UNITS = {
    name: ticks
    for ticks, names in (
        (10 * _DAY, "d day days"),
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
    r"(?:(?P<days>\d+)\.)?(?P<hours>\d{1,2}):(?P<minutes>\d{1,2})"
    r"(?::(?P<seconds>\d{1,2})(?:\.(?P<fraction>\d{1,7}))?)?",
    re.ASCII,
)
# A timespan is a signed 64-bit number of ticks; the longest is a little over 29,000 years.
_LONGEST = 2**63 - 1
_COUNT = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[a-z]+)", re.ASCII | re.IGNORECASE)
_CALL = re.compile(r"(?:time|timespan|datetime)\(\s*(.*?)\s*\)", re.IGNORECASE | re.DOTALL)


def parse_timespan(text: str) -> int:
    """Microseconds of `1.00:00:00`, `7d`, `12h`, `time(30m)` or a bare number of days.

    Raises:
        UsageError: it is not a timespan, is finer than a microsecond, or longer than 64 bits hold.

    Example:
        >>> parse_timespan("1.00:00:00") == parse_timespan("24h") == 86_400_000_000
        True
    """
    ticks = _ticks(_bare(text))
    if ticks is None:
        raise UsageError(
            f"{text!r} is not a timespan.", hint="write 1.00:00:00 or 7d: days, hours, minutes."
        )
    if ticks > _LONGEST:
        raise UsageError(
            f"{text!r} is too long.", hint=f"at most {format_timespan(_LONGEST // 10)}."
        )
    if ticks % 10:
        raise UsageError(
            f"{text!r} is finer than a microsecond.", hint="Delta's timestamps are not."
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
    if match is None or int(match["minutes"]) > 59 or int(match["seconds"] or 0) > 59:
        return None
    if int(match["hours"]) > 23:
        return None
    seconds = (int(match["hours"]) * 60 + int(match["minutes"])) * 60 + int(match["seconds"] or 0)
    ticks = seconds * _UNITS["s"] + int((match["fraction"] or "0").ljust(7, "0"))
    return ticks + int(match["days"] or 0) * _UNITS["d"]


def format_timespan(micros: int) -> str:
    """A timespan as Kusto writes it.

    Example:
        >>> format_timespan(7 * 86_400_000_000)
        '7.00:00:00'
    """
    days, rest = divmod(micros, _DAY)
    seconds, fraction = divmod(rest, 10**6)
    text = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return (f"{days}." if days else "") + text + (f".{fraction:06}0" if fraction else "")


def parse_timestamp(text: str) -> int:
    """Microseconds since 1970 of an ISO 8601 timestamp, in UTC where it names no zone.

    Raises:
        UsageError: it is not a timestamp.

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
    """Microseconds since 1970; a timestamp without a zone is UTC's."""
    aware = when if when.tzinfo else when.replace(tzinfo=timezone.utc)
    return (aware - _EPOCH) // _MICRO


def now_micros() -> int:
    """The present, microseconds since 1970."""
    return to_micros(datetime.now(timezone.utc))


def from_micros(micros: int) -> datetime:
    """The timestamp so many microseconds since 1970."""
    return _EPOCH + micros * _MICRO


def format_timestamp(micros: int) -> str:
    """A timestamp as Kusto writes it: ISO 8601 in UTC, without a zone.

    Example:
        >>> format_timestamp(0)
        '1970-01-01T00:00:00'
    """
    return from_micros(micros).replace(tzinfo=None).isoformat()
