"""Execute the code samples of the five documents as they are written.

Only `<checkpoint-path>`, a placeholder, is replaced by a folder. The tables have the names,
versions and timestamps that the samples ask for. These samples are left out:

- Scala: it has the calls of the Python samples, in a language that the library does not have.
- `Header: RowGroup1: …`: pictures of a Parquet file, not code.
- `.show database extents partitioning statistics`: a command of Kusto's own language, which Spark
  does not parse. `lake.partitioning` reports the same.
"""

from __future__ import annotations

import ast
import json
import os
import shutil
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from io import StringIO
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from helpers.delta_by_hand import HandMade
from mirrorlake import Lake
from mirrorlake.names import file_name
from mirrorlake.spark.session import new_session

ALL = [*range(1, 78)]
VERSIONS = [*range(1, 11)]
DAYS = [*range(2, 32)]
KEPT = {
    "delta.enableChangeDataFeed": "true",
    "delta.deletedFileRetentionDuration": "interval 10000 days",
    "delta.logRetentionDuration": "interval 10000 days",
}
Run = Callable[[str], DataFrame]


def make(lake: Lake, name: str, versions: list[pa.Table], first: datetime) -> None:
    """Write a table whose versions insert these rows; one was committed each day since `first`."""
    folder = Path(lake.storage.path(f"Tables/{name}"))
    table = HandMade(folder)
    table.create(versions[0].schema, KEPT, writer=4)
    for number, rows in enumerate(versions, 1):
        table.commit("WRITE", add=[table.file(f"{number}.parquet", rows)])
    for version in range(table.version):
        committed = (first + timedelta(version)).timestamp()
        os.utime(folder / "_delta_log" / f"{version:020d}.json", (committed, committed))


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> SparkSession:
    """Return a session of its own, because samples change its settings."""
    return new_session(spark)


@pytest.fixture
def lake(tmp_path: Path, session: SparkSession) -> Lake:
    return Lake(tmp_path / "lake", spark=session)


@pytest.fixture(scope="module")
def past(session: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """Return a lake with the tables whose changes are read: each version inserts its number."""
    lake = Lake(tmp_path_factory.mktemp("past"), spark=session)
    rows = [pa.table({"id": [number]}) for number in ALL]
    make(lake, "source_table", rows, datetime(2021, 4, 20, tzinfo=timezone.utc))
    for name in ("myDeltaTable", "tableName", "dbName/dotted.tableName"):
        source = lake.storage.path("Tables/source_table")
        shutil.copytree(source, lake.storage.path(f"Tables/{name}"))
    return lake


@pytest.fixture
def registered(past: Lake) -> Iterator[Lake]:
    past.register()
    yield past
    past.sql("DROP TABLE IF EXISTS target_table")
    past.unregister()


@pytest.fixture(params=["lake.sql", "spark.sql"])
def run(request: pytest.FixtureRequest, lake: Lake) -> Iterator[Run]:
    """Return a function that runs a statement in a lake, or in a session registered with it."""
    if request.param == "lake.sql":
        yield lake.sql
        return

    def run_registered(statement: str) -> DataFrame:
        lake.register()
        return lake.spark.sql(statement)

    yield run_registered
    for name in ("student", "target_table", "table_name"):
        lake.sql(f"DROP TABLE IF EXISTS {name}")
        assert not lake.spark.catalog.tableExists(name)
    lake.unregister()


def evaluate(block: str, spark: SparkSession) -> list[Any]:
    """Return the value of each expression of a Python sample."""
    values = []
    for line in ast.parse(block).body:
        assert isinstance(line, ast.Expr)
        values.append(eval(compile(ast.Expression(line.value), "sample", "eval"), {"spark": spark}))
    return values


def ids(rows: DataFrame) -> list[int]:
    return sorted(row["id"] for row in rows.collect())


def streamed(stream: DataFrame) -> list[int]:
    """Run a stream to its end and return the ids."""
    writer = stream.writeStream.format("memory").queryName("streamed").trigger(availableNow=True)
    writer.start().awaitTermination()
    return ids(stream.sparkSession.table("streamed"))


READ_A_STREAM = """
(spark.readStream
  .option("readChangeFeed", "true")
  .table("myDeltaTable")
)
"""
READ_FROM_A_VERSION = """
(spark.readStream
  .option("readChangeFeed", "true")
  .option("startingVersion", 76)
  .table("source_table")
)
"""
WRITE_A_HISTORY = """
(spark.readStream
  .option("readChangeFeed", "true")
  .table("source_table")
  .writeStream
  .option("checkpointLocation", <checkpoint-path>)
  .trigger(availableNow=True)
  .toTable("target_table")
)
"""
READ_IN_SQL = """
-- version as ints or longs e.g. changes from version 0 to 10
SELECT * FROM table_changes('tableName', 0, 10)

-- timestamp as string formatted timestamps
SELECT * FROM table_changes('tableName', '2021-04-21 05:45:46', '2021-05-21 12:00:00')

-- providing only the startingVersion/timestamp
SELECT * FROM table_changes('tableName', 0)

-- database/schema names inside the string for table name, with backticks for escaping dots and special characters
SELECT * FROM table_changes('dbName.`dotted.tableName`', '2021-04-21 06:45:46' , '2021-05-21 12:00:00')
"""  # noqa: E501
READ_IN_PYTHON = """
# version as ints or longs
spark.read \\
  .option("readChangeFeed", "true") \\
  .option("startingVersion", 0) \\
  .option("endingVersion", 10) \\
  .table("myDeltaTable")

# timestamps as formatted timestamp
spark.read \\
  .option("readChangeFeed", "true") \\
  .option("startingTimestamp", '2021-04-21 05:45:46') \\
  .option("endingTimestamp", '2021-05-21 12:00:00') \\
  .table("myDeltaTable")

# providing only the startingVersion/timestamp
spark.read \\
  .option("readChangeFeed", "true") \\
  .option("startingVersion", 0) \\
  .table("myDeltaTable")
"""
OUT_OF_RANGE = "set spark.databricks.delta.changeDataFeed.timestampOutOfRange.enabled = true;"


@pytest.mark.promise("CF-09", "CF-10")
def test_changes_are_read_in_batches(registered: Lake, session: SparkSession) -> None:
    statements = READ_IN_SQL.strip().split("\n\n")
    assert [ids(registered.sql(one)) for one in statements] == [VERSIONS, DAYS, ALL, DAYS]
    assert [ids(rows) for rows in evaluate(READ_IN_PYTHON, session)] == [VERSIONS, DAYS, ALL]
    setting = OUT_OF_RANGE.split()[1]
    try:
        registered.sql(OUT_OF_RANGE)
        assert ids(registered.sql("SELECT * FROM table_changes('tableName', 1000)")) == []
    finally:
        session.conf.unset(setting)


@pytest.mark.promise("CF-04", "CF-05", "CF-06", "CF-16")
def test_changes_are_read_as_streams(
    registered: Lake, session: SparkSession, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    (stream,) = evaluate(READ_FROM_A_VERSION, session)
    assert streamed(stream) == [76, 77]
    if pytestconfig.getoption("--long"):  # the next sample reads the same stream
        (stream,) = evaluate(READ_A_STREAM, session)
        assert streamed(stream) == ALL
    sample = WRITE_A_HISTORY.replace("<checkpoint-path>", repr(str(tmp_path / "checkpoint")))
    (query,) = evaluate(sample, session)
    query.awaitTermination()
    history = registered.table("target_table")
    assert ids(history.read()) == ALL
    assert history.read().columns == ["id", "_change_type", "_commit_version", "_commit_timestamp"]


@pytest.mark.long  # test_feed_streams.py has the statements
@pytest.mark.promise("CF-01")
def test_the_feed_is_enabled(run: Run, lake: Lake) -> None:
    run(
        "CREATE TABLE student (id INT, name STRING, age INT)"
        " TBLPROPERTIES (delta.enableChangeDataFeed = true)"
    )
    run("INSERT INTO student VALUES (1, 'Ada', 36)")
    assert ids(lake.table("student").changes.read(0)) == [1]
    lake.create_table("myDeltaTable", {"id": "INT"}, feed=False)
    run("ALTER TABLE myDeltaTable SET TBLPROPERTIES (delta.enableChangeDataFeed = true)")
    run("INSERT INTO myDeltaTable VALUES (2)")
    assert ids(lake.table("myDeltaTable").changes.read(1)) == [2]
    run("set spark.databricks.delta.properties.defaults.enableChangeDataFeed = true;")
    try:
        run("CREATE TABLE target_table (id INT)")
    finally:
        lake.spark.conf.unset("spark.databricks.delta.properties.defaults.enableChangeDataFeed")
    assert lake.table("target_table").snapshot().properties["delta.enableChangeDataFeed"] == "true"


@pytest.mark.long  # test_rows_tracking.py has the statements
@pytest.mark.promise("RT-01", "RT-02", "RT-07")
def test_rows_are_tracked(run: Run, lake: Lake) -> None:
    lake.write("source_table", [{"id": 1}, {"id": 2}])
    run(
        "CREATE TABLE table_name\n"
        "TBLPROPERTIES (delta.enableRowTracking = true)\n"
        "AS SELECT * FROM source_table;"
    )
    table = lake.table("table_name")
    assert table.row_tracking.status().enabled
    assert sorted(row["_row_id"] for row in table.row_tracking.read().collect()) == [0, 1]
    run("ALTER TABLE table_name SET TBLPROPERTIES (delta.enableRowTracking = false);")
    status = table.row_tracking.status()
    assert (status.enabled, status.supported) == (False, True)
    run("ALTER TABLE table_name SET TBLPROPERTIES (delta.enableRowTracking = true);")
    assert table.row_tracking.status().enabled


@pytest.mark.promise("DL-02", "DL-03", "DL-04", "DL-05")
def test_a_table_is_read_as_it_was(lake: Lake) -> None:
    story = [
        pa.table({"ProductID": list(products), "StockOnHand": numbers})
        for products, numbers in (("ABC", [1, 2, 3]), ("D", [4]), ("E", [5]))
    ]
    make(lake, "Inventory", story, datetime(2024, 4, 26, 9, tzinfo=timezone.utc))
    for query in (
        "SELECT * FROM Inventory TIMESTAMP AS OF '2024-04-28T09:15:00.000Z';",
        "SELECT * FROM Inventory AS OF VERSION 2;",
        "SELECT * FROM Inventory@20240428091500000;",
        "SELECT * FROM Inventory@v2;",
    ):
        found = sorted(tuple(row) for row in lake.sql(query).collect())
        assert found == [("A", 1), ("B", 2), ("C", 3), ("D", 4)]


KEYS = """
{
   "keyColumns" : ["C1", "C2"]
}
"""
MOVED = """
__rowMarker__,EmployeeID,EmployeeLocation
0,E0001,Redmond
0,E0002,Redmond
0,E0003,Redmond
1,E0001,Bellevue
"""
RENAMED = """
__rowMarker__,EmployeeID,EmployeeLocation
0,E0001,Bellevue
2,E0001,NULL
0,E0002,Bellevue
"""


@pytest.mark.promise("LZ-04", "LZ-18", "LZ-19")
def test_files_are_published_without_the_library(lake: Lake) -> None:
    zone = Path(lake.landing_zone)

    def publish(table: str, metadata: str, csv: str) -> None:
        (zone / table).mkdir(parents=True)
        (zone / table / "_metadata.json").write_text(metadata)
        pd.read_csv(StringIO(csv)).to_parquet(zone / table / file_name(1))

    employees = '{"keyColumns" : ["EmployeeID"]}'
    publish("TableA", KEYS, "C1,C2\n1,2\n")
    publish("moved", employees, MOVED)
    publish("renamed", employees, RENAMED)
    assert lake.mirror().failed == ()
    assert lake.table("TableA").keys == ("C1", "C2")
    found = {
        name: sorted(tuple(row) for row in lake.sql(f"SELECT * FROM {name}").collect())
        for name in ("moved", "renamed")
    }
    assert found == {
        "moved": [("E0001", "Bellevue"), ("E0002", "Redmond"), ("E0003", "Redmond")],
        "renamed": [("E0002", "Bellevue")],
    }


HASH_KEY = """
{
  "ColumnName": "tenant_id",
  "Kind": "Hash",
  "Properties": {
    "Function": "XxHash64",
    "MaxPartitionCount": 128,
    "Seed": 1,
    "PartitionAssignmentMode": "Uniform"
  }
}
"""
RANGE_KEY = """
{
  "ColumnName": "timestamp",
  "Kind": "UniformRange",
  "Properties": {
    "Reference": "2021-01-01T00:00:00",
    "RangeSize": "7.00:00:00",
    "OverrideCreationTime": false
  }
}
"""
KEYS_ALONE = (HASH_KEY, RANGE_KEY)
POLICY = """
{
  "PartitionKeys": [
    {
      "ColumnName": "tenant_id",
      "Kind": "Hash",
      "Properties": {
        "Function": "XxHash64",
        "MaxPartitionCount": 128,
        "Seed": 1,
        "PartitionAssignmentMode": "Uniform"
      }
    },
    {
      "ColumnName": "timestamp",
      "Kind": "UniformRange",
      "Properties": {
        "Reference": "2021-01-01T00:00:00",
        "RangeSize": "7.00:00:00",
        "OverrideCreationTime": false
      }
    }
  ]
}
"""


@pytest.mark.promise("PP-03", "PP-04", "PP-07")
def test_policies_are_set(lake: Lake) -> None:
    table = lake.create_table("events", {"tenant_id": "string", "timestamp": "timestamp"})
    both = table.partitioning.set(POLICY)
    alone = [table.partitioning.set({"PartitionKeys": [json.loads(key)]}) for key in KEYS_ALONE]
    assert (alone[0].hash, alone[1].range) == (both.hash, both.range)
    tenants, weeks = both.document()["PartitionKeys"]
    assert tenants == json.loads(HASH_KEY)
    week = timedelta(microseconds=both.range.range_size)
    since = datetime(1970, 1, 1) + timedelta(microseconds=both.range.reference)
    assert (weeks["ColumnName"], week, since) == ("timestamp", timedelta(7), datetime(2021, 1, 1))
