"""Parse and format timestamps and intervals of Delta logs, table properties and user input."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from zoneinfo import ZoneInfo

from mirrorlake.errors import UsageError

_EPOCH = datetime.fromtimestamp(0, timezone.utc)
_MILLISECOND = timedelta(milliseconds=1)
_UNITS = ("week", "day", "hour", "minute", "second", "millisecond", "microsecond")
_PART = re.compile(r"([+-]?\d+(?:\.\d+)?)\s+([a-z]+?)s?\b", re.IGNORECASE)
# ISO forms that Spark accepts too.
_SPARK = re.compile(r"\d{4}-\d\d-\d\d([ T]\d\d:\d\d:\d\d(\.\d{1,6})?)?(Z|[+-]\d\d:?\d\d)?")


def parse_interval(text: str) -> timedelta:
    """Parse an interval of a table's properties, such as `interval 7 days` or `168 HOURS`.

    Months and years, whose length depends on the calendar, are refused by Delta itself.

    Raises:
        UsageError: the text is not an interval.

    Example:
        >>> parse_interval("interval 1 week 2 days")
        datetime.timedelta(days=9)
    """
    parts = [(float(number), unit.lower()) for number, unit in _PART.findall(text)]
    if not parts or any(unit not in _UNITS for _, unit in parts):
        raise UsageError(f"{text!r} is not an interval.", hint="write it like interval 7 days.")
    return sum((timedelta(**{f"{unit}s": number}) for number, unit in parts), timedelta())


def parse_utc_timestamp(given: str | datetime) -> datetime:
    """Parse a timestamp; without a zone it is in UTC.

    Args:
        given: ISO 8601 with any number of fractional digits, or `yyyyMMddHHmmssSSS`.

    Returns:
        The timestamp in UTC.

    Raises:
        UsageError: the text is not a timestamp, or is outside the years 1 to 9999.

    Example:
        >>> parse_utc_timestamp("2024-04-28T09:15:00.5Z")
        datetime.datetime(2024, 4, 28, 9, 15, 0, 500000, tzinfo=datetime.timezone.utc)
    """
    try:
        if isinstance(given, str) and re.fullmatch(r"\d{17}", given, re.ASCII):
            found = datetime.strptime(f"{given}000", "%Y%m%d%H%M%S%f")
        else:
            found = _read_iso(given)
        return _in_zone(found, "UTC").astimezone(timezone.utc)
    except (ValueError, OverflowError) as error:
        raise UsageError(
            f"{given!r} is not a timestamp.", hint="write it like 2024-04-28T09:15:00.000Z."
        ) from error


def parse_session_timestamp(given: str | datetime, zone: str) -> datetime:
    """Parse a timestamp as Spark does: without a zone it is in the session's zone.

    Args:
        given: yyyy-MM-dd[ HH:mm:ss[.SSS]], optionally with a zone.
        zone: the session's `spark.sql.session.timeZone`.

    Raises:
        UsageError: Spark would not accept the text.
    """
    try:
        if isinstance(given, str) and not _SPARK.fullmatch(given.strip()):
            raise ValueError(given)
        return _in_zone(_read_iso(given), zone)
    except ValueError as error:
        raise UsageError(
            f"{given!r} is neither a version nor a timestamp.",
            hint="write a number, or yyyy-MM-dd[ HH:mm:ss[.SSS]].",
        ) from error


def _read_iso(given: str | datetime) -> datetime:
    if isinstance(given, datetime):
        return given
    # Python 3.10 reads only fractions of 3 or 6 digits, zones with a colon, and no Z.
    text = re.sub(r"[zZ]$", "+00:00", given.strip())
    text = re.sub(r"\.(\d+)", lambda match: f".{match[1]:0<6}"[:7], text)
    return datetime.fromisoformat(
        re.sub(r"([+-]\d\d)(\d\d)$", r"\1:\2", text) if ":" in text else text
    )


def _in_zone(found: datetime, zone: str) -> datetime:
    if found.tzinfo is not None:
        return found
    return found.replace(tzinfo=timezone.utc if zone == "UTC" else ZoneInfo(zone))


def from_milliseconds(milliseconds: int) -> datetime:
    """Return a timestamp of the log as a datetime in UTC."""
    return _EPOCH + milliseconds * _MILLISECOND


def to_milliseconds(found: datetime) -> int:
    """Return a datetime in milliseconds since 1970, as in the log."""
    return (found - _EPOCH) // _MILLISECOND


def timestamp_text(milliseconds: int) -> str:
    """Format a timestamp of the log as `yyyy-MM-dd HH:mm:ss.SSS` in UTC."""
    return f"{from_milliseconds(milliseconds):%Y-%m-%d %H:%M:%S.%f}"[:-3]
