"""Test queries on a lake: names, versions, timestamps; on two lakes in one session."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from datetime import timezone
from pathlib import Path

import pytest
from py4j.clientserver import JavaClient
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from helpers.tables import describe_history
from mirrorlake import Lake
from mirrorlake.errors import (
    MirrorlakeError,
    QueryError,
    RetentionError,
    TableNotFoundError,
    UsageError,
)
from mirrorlake.history.vacuum import RETENTION_CHECK
from mirrorlake.spark.session import new_session
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
        ("SELEC 1 FROM Inventory@v1", "line 1, pos 0"),
        ("SELECT n FROM Inventory@v1 WHERE nothing = 1", "line 1, pos 33"),
        ("SELECT n FROM Inventory@v1\nWHERE nothing = 1", "line 2, pos 6"),
        ("SELECT * FROM nowhere", "nowhere"),
        ("SELECT * FROM Inventory@v99", "version"),
        ("SELECT * FROM Inventory@20249999999999999", "not a valid timestamp"),
    ],
)
def test_a_refused_query_says_why(stock: Lake, query: str, says: str) -> None:
    with pytest.raises(QueryError, match=says) as caught:
        stock.sql(query).collect()
    assert "\n" not in str(caught.value)


def test_a_view_of_the_session_has_no_versions(stock: Lake) -> None:
    stock.sql("CREATE OR REPLACE TEMPORARY VIEW few AS SELECT * FROM Inventory LIMIT 1")
    assert stock.sql("SELECT * FROM few").count() == 1
    with pytest.raises(UsageError, match="few is no table of the lake, so it can't be read as of"):
        stock.sql("SELECT * FROM few", as_of=1)


def test_a_table_that_is_not_there(stock: Lake) -> None:
    with pytest.raises(TableNotFoundError, match=r"no table gone.*Hint: "):
        stock.table("gone")
    with pytest.raises(QueryError) as caught:
        stock.sql("SELECT * FROM `Inventry`")
    assert str(caught.value) == (
        "There is no table Inventry in the lake. Hint: did you mean Inventory? "
        "The lake has Inventory."
    )
    with pytest.raises(UsageError, match="only one of version and timestamp"):
        stock.table("Inventory").read(version=1, timestamp="2024-01-01")


def test_created_tables_are_delta_tables_of_the_lake(lake: Lake) -> None:
    lake.sql("CREATE TABLE Plain (id INT, n INT) PARTITIONED BY (n)")
    lake.sql("INSERT INTO Plain VALUES (1, 10)")
    lake.sql("CREATE TABLE sales.`odd.name` USING delta AS (SELECT * FROM plain)")
    lake.sql("CREATE TABLE IF NOT EXISTS plain (other STRING)")
    lake.sql("CREATE OR REPLACE TABLE sales.copied AS SELECT n FROM plain")
    lake.sql("CREATE OR REPLACE TABLE sales.copied AS SELECT n + 1 AS n FROM sales.copied")
    lake.sql("CREATE TABLE cloned SHALLOW CLONE plain")
    names = {"Plain", "cloned", "sales.`odd.name`", "sales.copied"}
    assert set(map(str, lake.tables())) == names
    assert lake.table("Plain").snapshot().partition_columns == ["n"]
    assert values(lake, "SELECT n FROM sales.`odd.name`") == [10]
    assert values(lake, "SELECT n FROM sales.copied UNION ALL SELECT n FROM cloned") == [11, 10]
    Path(lake.storage.path("Tables/killed/_delta_log")).mkdir(parents=True)
    lake.sql("CREATE TABLE killed (id INT)")
    assert lake.table("killed").version == 0
    for query, says in {
        "CREATE TABLE plain (id INT)": "There is a table Plain",
        "CREATE TABLE plain (id INT) USING parquet": "There is a table Plain",
        "CREATE TABLE sales AS SELECT 1 AS id": "sales can't be both a table and a schema",
        "CREATE TABLE _hidden (id INT)": "which hides a folder",
    }.items():
        with pytest.raises(MirrorlakeError, match=says):
            lake.sql(query)
    with pytest.raises(UsageError, match="is not a query"):
        lake.sql("CREATE TABLE other (id INT)", as_of=0)


def test_other_formats_and_locations_stay_as_they_are_written(lake: Lake, tmp_path: Path) -> None:
    (tmp_path / "csv").mkdir()
    try:
        lake.sql(f"CREATE TABLE elsewhere (id INT) USING csv LOCATION '{tmp_path}/csv'")
        assert lake.tables() == []
        assert lake.sql("SELECT * FROM elsewhere").count() == 0
    finally:
        lake.sql("DROP TABLE elsewhere")  # left to Spark, because it is no table of the lake
    with pytest.raises(QueryError, match="elsewhere"):
        lake.sql("SELECT * FROM elsewhere")


@pytest.fixture
def registered(tmp_path: Path, spark: SparkSession) -> Iterator[Lake]:
    """Return a registered lake with a session of its own, whose settings `register` changes."""
    lake = Lake(tmp_path / "lake", spark=new_session(spark))
    lake.register()
    yield lake
    lake.unregister()


def test_a_registered_session_creates_tables_in_the_lake(registered: Lake) -> None:
    session, names = registered.spark, registered.spark.catalog
    session.sql("CREATE TABLE managed AS SELECT 8L AS id")
    registered.sql("CREATE TABLE external AS SELECT * FROM managed")
    assert {table.name for table in registered.tables()} == {"managed", "external"}
    assert [row["id"] for row in session.table("external").collect()] == [8]
    for name in ("managed", "external"):
        assert registered.sql(f"DROP TABLE {name}").collect() == []
        assert not names.tableExists(name)
        registered.operations.undrop(name)
    registered.register()
    registered.unregister()
    assert registered.table("managed").read().count() == 1
    assert not names.tableExists("external")
    assert str(registered.storage.root) not in names.getDatabase("default").locationUri
    assert session.conf.get("spark.sql.sources.default") == "parquet"
    registered.register()


def test_dropped_tables_are_kept_and_fed_ones_are_refused(stock: Lake, lake: Lake) -> None:
    with pytest.raises(UsageError, match=r"publisher feeds Inventory.*Hint: delete its folder"):
        stock.sql("DROP TABLE inventory")
    with pytest.raises(UsageError, match="publisher feeds Inventory"):
        stock.sql("CREATE OR REPLACE TABLE inventory AS SELECT 1 AS id")
    lake.create_table("notes", {"id": "BIGINT"}, keys=["id"])
    lake.sql("INSERT INTO notes VALUES (7)")
    lake.views.create("totals", "SELECT id FROM notes")
    with pytest.raises(UsageError, match=r"totals is a view.*views\.drop\('totals'"):
        lake.sql("DROP TABLE totals")
    with pytest.raises(UsageError, match="PURGE"):
        lake.sql("DROP TABLE notes PURGE")
    assert lake.sql("DROP TABLE notes").collect() == []
    assert list(map(str, lake.tables())) == ["totals"]
    lake.sql("DROP TABLE IF EXISTS notes")
    with pytest.raises(QueryError, match="notes"):
        lake.sql("DROP TABLE notes")
    lake.operations.undrop("notes")
    lake.write("notes", [{"id": 8}])  # it has no folder in the landing zone now either
    assert sorted(row["id"] for row in lake.table("notes").read().collect()) == [7, 8]


def test_tables_are_maintained_by_name(lake: Lake) -> None:
    for number in range(3):
        lake.write("t", [{"id": number}])
    lake.sql("DELETE FROM t WHERE id = 0")
    lake.frames.create("model", ["t"])
    (detail,) = lake.sql("DESCRIBE DETAIL T").collect()
    assert (detail["format"], detail["numFiles"]) == ("delta", 2)
    lake.sql("OPTIMIZE t")
    lake.sql("REORG TABLE t APPLY (PURGE)")
    files = {path.name for path in Path(lake.table("t").path).glob("*.parquet")}

    def vacuum(query: str) -> dict[str, int]:
        return {row["what"]: row["files"] or 0 for row in lake.sql(query).collect()}

    with pytest.raises(RetentionError, match=r"retention of 0 h is shorter.*in SQL, set spark"):
        lake.sql("VACUUM t RETAIN 0 HOURS")
    with pytest.raises(UsageError, match="VACUUM t LITE is not supported"):
        lake.sql("VACUUM t LITE")
    assert vacuum("VACUUM t")["deleted"] == 0
    lake.sql(f"SET {RETENTION_CHECK} = false")
    try:
        planned = vacuum("VACUUM t RETAIN 0 HOURS DRY RUN")
        assert files == {path.name for path in Path(lake.table("t").path).glob("*.parquet")}
        done = vacuum("VACUUM t RETAIN 0 HOURS")
    finally:
        lake.spark.conf.unset(RETENTION_CHECK)
    assert planned["would be deleted"] == done["deleted"] > 0
    assert done["kept: frame 1 of model"] == 2
    assert sorted(row["id"] for row in lake.frames.read("model", "t").collect()) == [1, 2]


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


def test_classes_are_looked_up_once(stock: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    query = "SELECT sum(n) AS total FROM Inventory"
    assert [row.total for row in stock.sql(query).collect()] == [109]
    send, looked_up = JavaClient.send_command, []

    def watched(client: JavaClient, command: str, *args: object, **options: object) -> str:
        if command.startswith("r\nu\n"):  # a request for whether a name is a class or a package
            looked_up.append(command.split("\n")[2])
        return send(client, command, *args, **options)

    monkeypatch.setattr(JavaClient, "send_command", watched)
    rows = stock.sql(query).select(F.col("total"), F.lit(1)).collect()
    assert [row.total for row in rows] == [109]
    assert looked_up == []
