"""Intervals and timestamps in user input and in Delta's logs and properties."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from mirrorlake.delta import timestamps
from mirrorlake.errors import UsageError

DAY = timedelta(days=1)


@pytest.mark.parametrize(
    ("text", "interval"),
    [
        ("interval 1 week", 7 * DAY),
        ("168 HOURS", 7 * DAY),
        ("interval 1 day 12 hours", 1.5 * DAY),
        ("interval 2 days 3 hours", timedelta(hours=51)),
        ("INTERVAL 5 minutes", timedelta(minutes=5)),
        ("interval 1.5 seconds", timedelta(milliseconds=1500)),
        ("interval 0 seconds", timedelta()),
        ("0 days", timedelta()),
        # Delta accepts it, so a table's retention may be written like this.
        ("interval 604800000000 microseconds", 7 * DAY),
    ],
)
def test_intervals(text: str, interval: timedelta) -> None:
    assert timestamps.parse_interval(text) == interval


@pytest.mark.parametrize("text", ["", "interval", "interval 1 month", "7"])
def test_invalid_intervals(text: str) -> None:
    with pytest.raises(UsageError, match="is not an interval"):
        timestamps.parse_interval(text)


@pytest.mark.parametrize(
    "text",
    [
        "2024-04-28T09:15:00.500Z",
        "2024-04-28 09:15:00.5",  # Python 3.10 does not parse a single digit
        "2024-04-28T09:15:00.5000000Z",  # Kusto has seven
        "2024-04-28T11:15:00.5+0200",
        "2024-04-28T11:15:00.50+02:00",
        "20240428091500500",
    ],
)
def test_timestamps_in_utc(text: str) -> None:
    wanted = datetime(2024, 4, 28, 9, 15, 0, 500_000, timezone.utc)
    assert timestamps.parse_utc_timestamp(text) == timestamps.parse_utc_timestamp(wanted) == wanted
    assert timestamps.parse_utc_timestamp(text).tzinfo is timezone.utc
    assert timestamps.from_milliseconds(timestamps.to_milliseconds(wanted)) == wanted


def test_timestamps_in_the_sessions_zone() -> None:
    paris = timestamps.parse_session_timestamp("2024-04-28 11:15:00.5", "Europe/Paris")
    assert paris == timestamps.parse_utc_timestamp("2024-04-28T09:15:00.5Z")
    assert timestamps.parse_session_timestamp("2024-04-28T11:15:00+0200", "America/Lima") == (
        timestamps.parse_session_timestamp(datetime(2024, 4, 28, 9, 15), "UTC")
    )
    for text in ("yesterday", "2020-13-01", "2024-04", "20240428", "20240428091500500"):
        with pytest.raises(UsageError, match="neither a version nor a timestamp"):
            timestamps.parse_session_timestamp(text, "UTC")
    with pytest.raises(UsageError, match="not a timestamp"):
        timestamps.parse_utc_timestamp("0001-01-01T00:00:00+05:00")


def test_timestamps_of_the_log() -> None:
    assert timestamps.timestamp_text(3_600_007) == "1970-01-01 01:00:00.007"
    assert timestamps.from_milliseconds(-1) == datetime(
        1969, 12, 31, 23, 59, 59, 999_000, timezone.utc
    )
