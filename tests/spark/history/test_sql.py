"""Test queries on a lake: names, versions, timestamps; on two lakes in one session."""

from __future__ import annotations

import shutil
import time
from datetime import timezone
from pathlib import Path

import pytest

from helpers.tables import describe_history
from mirrorlake import Lake
from mirrorlake.errors import QueryError, TableNotFoundError, UsageError
from mirrorlake.storage.files import Listing, Storage


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """Return a table with three versions: created, two rows inserted, one of them changed."""
    lake = Lake(tmp_path_factory.mktemp("stock"))
    publisher = lake.publisher("Inventory", keys=["id"])
    publisher.write([{"id": 1, "n": 10}, {"id": 2, "n": 20}])
    lake.mirror()
    time.sleep(
        1.1
    )  # the commits' timestamps must differ for TIMESTAMP AS OF; there is no event to wait for
    publisher.update([{"id": 2, "n": 99}])
    lake.mirror()
    return lake


def values(lake: Lake, query: str) -> list[int]:
    return [row.n for row in lake.sql(query).collect()]


@pytest.mark.promise("DL-03", "DL-05")
@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ("Inventory", [10, 99]),
        ("inventory", [10, 99]),
        ("Inventory@v1", [10, 20]),
        ("Inventory AS OF VERSION 1", [10, 20]),
        ("Inventory VERSION AS OF 1", [10, 20]),
        ("Inventory@v1 i", [10, 20]),
        ("Inventory VERSION AS OF 0", []),
    ],
)
def test_versions(stock: Lake, table: str, expected: list[int]) -> None:
    assert values(stock, f"SELECT n FROM {table} ORDER BY id") == expected


@pytest.mark.promise("DL-02", "DL-04")
def test_moments(stock: Lake) -> None:
    history = describe_history(stock.table("Inventory")).where("version = 1").select("timestamp")
    moment = history.toArrow().to_pylist()[0]["timestamp"].astimezone(timezone.utc)
    compact = moment.strftime("%Y%m%d%H%M%S%f")[:17]
    iso = moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    for table in (
        f"Inventory@{compact}",
        f"Inventory TIMESTAMP AS OF '{iso}'",
        f"Inventory AS OF TIMESTAMP '{iso}'",
    ):
        assert values(stock, f"SELECT n FROM {table} ORDER BY id") == [10, 20]
    assert [row.n for row in stock.table("Inventory").read(timestamp=iso).sort("id").collect()] == [
        10,
        20,
    ]


def test_names_are_found_only_where_tables_are_meant(stock: Lake) -> None:
    query = """
        WITH latest AS (SELECT Inventory.id, n, 'Inventory@v1' AS note FROM Inventory)
        -- Inventory@v1
        SELECT l.n, note FROM latest l JOIN Inventory@v1 old ON l.id = old.id WHERE l.n <> old.n
    """
    assert [tuple(row) for row in stock.sql(query).collect()] == [(99, "Inventory@v1")]


def test_two_lakes_in_one_session_do_not_meet(stock: Lake, lake: Lake) -> None:
    lake.publisher("inventory", keys=["id"]).write([{"id": 1, "n": -1}])
    lake.mirror()
    assert values(lake, "SELECT n FROM inventory") == [-1]
    assert values(stock, "SELECT n FROM inventory ORDER BY id") == [10, 99]


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("SELECT nothing FROM Inventory", "nothing"),
        ("SELEC 1", "PARSE_SYNTAX_ERROR"),
        ("SELECT * FROM nowhere", "nowhere"),
        ("SELECT * FROM Inventory@v99", "version"),
        ("SELECT * FROM Inventory@20249999999999999", "not a valid timestamp"),
    ],
)
def test_a_refused_query_says_why(stock: Lake, query: str, says: str) -> None:
    with pytest.raises(QueryError, match=says) as caught:
        stock.sql(query).collect()
    assert "\n" not in str(caught.value)


def test_a_table_that_is_not_there(stock: Lake) -> None:
    with pytest.raises(TableNotFoundError, match=r"no table gone.*Hint: "):
        stock.table("gone")
    with pytest.raises(UsageError, match="only one of version and timestamp"):
        stock.table("Inventory").read(version=1, timestamp="2024-01-01")


class ListedStorage(Storage):
    """Storage that records which folders are listed."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.listed: list[str] = []

    def list(self, folder: str) -> Listing:
        self.listed.append(folder)
        return super().list(folder)


def test_a_query_lists_as_much_of_a_large_lake_as_of_a_small_one(
    stock: Lake, tmp_path: Path
) -> None:
    counts = []
    for tables in (2, 200):
        lake = Lake(tmp_path / str(tables))
        for number in range(tables):
            target = tmp_path / str(tables) / "Tables" / f"T{number}"
            shutil.copytree(stock.storage.path("Tables/Inventory"), target)
        lake.storage = ListedStorage(tmp_path / str(tables))
        rows = lake.sql("SELECT a.n FROM T0 a JOIN t1@v1 b ON a.id = b.id ORDER BY a.id").collect()
        assert [row.n for row in rows] == [10, 99]
        counts.append(len(lake.storage.listed))
    assert counts[1] <= counts[0] + 3
