from __future__ import annotations

import pandas as pd
import pytest

from mirrorlake import Lake
from mirrorlake.errors import UsageError
from mirrorlake.storage.paths import home, lake_path
from mirrorlake_lab import flights as sample

KEY = list(sample.KEYS["flights"])
ARRIVAL = ["arr_time", "arr_delay", "air_time"]
DEPARTURE = ["dep_time", "dep_delay"]
MEASURED = [*DEPARTURE, *ARRIVAL]


@pytest.fixture(scope="module")
def year() -> pd.DataFrame:
    return sample.load_flights()


@pytest.fixture(scope="module")
def flights() -> pd.DataFrame:
    return sample.load_flights(every=10)


@pytest.fixture(scope="module")
def by_month(flights: pd.DataFrame) -> list[sample.Changes]:
    """The changes of January, February, …"""
    return [sample.monthly_changes(flights, month) for month in range(1, 13)]


def apply(table: pd.DataFrame, changes: sample.Changes) -> pd.DataFrame:
    """Apply a month's changes by key, as a mirror does."""
    rows = table.set_index(KEY)
    replaced = pd.concat([changes.updates, changes.upserts]).set_index(KEY)
    assert replaced.index.is_unique
    gone = pd.MultiIndex.from_frame(changes.deletes)
    kept = rows[~rows.index.isin(replaced.index) & ~rows.index.isin(gone)]
    return pd.concat([kept, replaced]).reset_index()


def test_the_whole_year_is_there_with_its_types(year: pd.DataFrame) -> None:
    assert year.shape == (336_776, 19)
    assert not year.duplicated(KEY).any()
    assert set(map(str, year.dtypes)) == {"Int64", "string", "datetime64[us, UTC]"}
    assert str(year["time_hour"].iloc[0]) == "2013-01-01 10:00:00+00:00"


@pytest.mark.parametrize("name", sorted(sample.KEYS))
def test_keys_are_unique_and_never_missing(name: str, year: pd.DataFrame) -> None:
    table = year if name == "flights" else sample.load_table(name)
    keys = list(sample.KEYS[name])
    assert not table[keys].isna().any(axis=None)
    assert not keys or not table.duplicated(keys).any()


def test_the_schedule_has_nothing_measured_and_no_extra_sections(year: pd.DataFrame) -> None:
    planned = sample.schedule(year)
    assert planned[MEASURED].isna().all(axis=None)
    assert {str(planned[name].dtype) for name in MEASURED} == {"Int64"}
    extra = len(year) - len(planned)
    assert extra == 3_173
    once = year.groupby(["carrier", "flight", "origin", "dest"])["dep_time"].agg(["size", "count"])
    assert extra == ((once["size"] == 1) & (once["count"] == 1)).sum()


def test_cancelled_flights_are_deleted_by_key_alone(year: pd.DataFrame) -> None:
    february = sample.monthly_changes(year, 2)
    assert list(february.deletes.columns) == KEY
    assert len(february.deletes) == 1_261


def test_who_flies_at_midnight_is_corrected_the_month_after(year: pd.DataFrame) -> None:
    june, july = sample.monthly_changes(year, 6), sample.monthly_changes(year, 7)
    last_day = june.updates[june.updates["day"] == 30].set_index(KEY)
    first, later = last_day, july.upserts.set_index(KEY)
    corrected = first.index.intersection(later.index)
    assert len(corrected) > 50
    assert first.loc[corrected, ARRIVAL].isna().all(axis=None)
    assert first.loc[corrected, DEPARTURE].notna().all(axis=None)
    assert later.loc[corrected, ARRIVAL].notna().all(axis=None)
    # Flights that had not departed are not in June's report.
    of_june = later[(later["month"] == 6)]
    assert len(of_june.index.difference(first.index)) > 0


@pytest.mark.parametrize("months", [0, 1, 2, 6, 12])
def test_changes_add_up_to_what_is_expected(
    flights: pd.DataFrame, by_month: list[sample.Changes], months: int
) -> None:
    table = sample.schedule(flights)
    for changes in by_month[:months]:
        assert changes.deletes.merge(table, on=KEY).shape[0] == len(changes.deletes)
        assert changes.updates.merge(table, on=KEY).shape[0] == len(changes.updates)
        table = apply(table, changes)
    found = table.sort_values(KEY, ignore_index=True)[list(flights.columns)]
    pd.testing.assert_frame_equal(found, sample.expected(flights, months))


def test_the_year_adds_up_to_the_source(year: pd.DataFrame) -> None:
    flown = year[year["dep_time"].notna()]
    result = sample.expected(year, 12)
    assert len(result) == len(flown) == 328_521
    # Of New Year's Eve, 46 were in the air and 3 had not departed.
    assert flown["arr_time"].count() - result["arr_time"].count() == 49
    assert flown["dep_time"].count() - result["dep_time"].count() == 3


def test_a_smaller_sample_keeps_whole_services(year: pd.DataFrame, flights: pd.DataFrame) -> None:
    service = ["carrier", "flight", "origin", "dest"]
    whole = year.groupby(service).size()
    kept = flights.groupby(service).size()
    pd.testing.assert_series_equal(kept, whole[kept.index])
    assert 0.08 < len(flights) / len(year) < 0.12


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(UsageError, match="set every to 1 or more"):
        sample.load_flights(every=0)
    with pytest.raises(UsageError, match="no table 'trains'"):
        sample.load_table("trains")


def test_it_publishes_a_file_a_kind_of_change(lake: Lake, flights: pd.DataFrame) -> None:
    dimensions = sample.publish_dimensions(lake)
    assert [(p.table, p.rows) for p in dimensions] == [
        ("airlines", 16),
        ("airports", 1_458),
        ("planes", 3_322),
    ]
    assert sample.publish_schedule(lake, flights).rows == len(sample.schedule(flights))
    published = sample.publish_month(lake, flights, 1)
    assert [(p.table, p.file and int(p.file[:20])) for p in published] == [
        ("flights", 2),
        ("flights", 3),
        ("flights", 4),
    ]


def test_kinds_of_changes_that_a_month_lacks_leave_no_file(
    lake: Lake, flights: pd.DataFrame
) -> None:
    few = flights.head(20)
    few = few[few["dep_time"].notna()]
    assert [p.table for p in sample.publish_month(lake, few, 6)] == ["weather"]


def test_rows_that_came_back_regain_their_types(flights: pd.DataFrame) -> None:
    plain = flights.head(50).astype({"dep_time": "float64", "carrier": "object"})
    pd.testing.assert_frame_equal(sample.with_types(plain), flights.head(50))


def test_lake_paths_start_from_home(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setenv("MIRRORLAKE_HOME", str(tmp_path))
    assert lake_path("lakes/a") == str(home() / "lakes/a") == str(tmp_path / "lakes/a")
    assert lake_path("/data/a") == "/data/a"
    assert lake_path("s3://bucket/a") == "s3://bucket/a"
