"""The search with DuckDB returns the rows that Spark returns: values, row ids and places."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PythonException
from pyspark.sql.types import IntegerType, StructField, StructType

from helpers.searches import fail_search
from mirrorlake import Lake
from mirrorlake.delta import exchange, key_search
from mirrorlake.delta.actions import live_files
from mirrorlake.delta.snapshot import read_snapshot
from mirrorlake.spark.jvm import transaction

KEY = 'the"key'
TYPES = {
    "b": ("TINYINT", "-128"),
    "s": ("SMALLINT", "32767"),
    "i": ("INT", "-2147483648"),
    "l": ("BIGINT", "9223372036854775807"),
    "f": ("FLOAT", "CAST('NaN' AS FLOAT)"),
    "d": ("DOUBLE", "-0.0D"),
    "o": ("BOOLEAN", "true"),
    "t": ("STRING", "'ä \"quoted\" ''text'' \\u0000'"),
    "x": ("BINARY", "X'00FF'"),
    "day": ("DATE", "DATE'9999-12-31'"),
    "old": ("DATE", "DATE'0001-01-01'"),
    "ts": ("TIMESTAMP", "TIMESTAMP'2024-03-31 01:30:00.123456 Europe/Berlin'"),
    "past": ("TIMESTAMP", "TIMESTAMP'0001-01-02 00:00:00 UTC'"),
    "ntz": ("TIMESTAMP_NTZ", "TIMESTAMP_NTZ'9999-12-31 23:59:59.999999'"),
    "small": ("DECIMAL(9,2)", "1234567.89BD"),
    "large": ("DECIMAL(38,10)", "-1234567890123456789012345678.0123456789BD"),
}


def create(lake: Lake, columns: str, *, mapped: bool = False) -> str:
    path = lake.storage.path("Tables/t")
    properties = {"delta.enableDeletionVectors": "true", "delta.enableRowTracking": "true"}
    properties |= {"delta.columnMapping.mode": "name"} if mapped else {}
    listed = ", ".join(f"'{name}' = '{value}'" for name, value in properties.items())
    columns = columns if "USING" in columns else f"{columns}) USING delta TBLPROPERTIES ({listed}"
    lake.spark.sql(f"CREATE TABLE delta.`{path}` ({columns})")
    return f"delta.`{path}`"


def both(lake: Lake, key: str, keys: Sequence[Any]) -> tuple[Counter[Any], Counter[Any]] | None:
    """Return the rows that DuckDB finds, and those of a scan by Spark; None if it is not used."""
    version = lake.table("t").version
    snapshot = read_snapshot(lake.storage, "Tables/t", version)
    assert snapshot is not None
    with transaction(lake.spark.newSession(), lake.storage.path("Tables/t")) as txn:
        update = exchange.RowUpdate(txn, snapshot, live_files(lake.storage, "Tables/t", version))
        search = update.key_search(lake.storage, "Tables/t", key)
        if search is None:
            return None
        scanned = update.rows()
        expected = scanned.where(scanned[key].isin(list(keys)))
        found = search.run(lake.spark, key, keys)
        assert found.schema == scanned.schema
        return bag(found.collect()), bag(expected.collect())


def bag(rows: Sequence[Any]) -> Counter[Any]:
    return Counter(tuple(map(repr, row)) for row in rows)


@pytest.mark.parametrize("mapped", [False, True], ids=["plain", "mapped"])
def test_values_ids_and_places_are_those_of_a_scan(lake: Lake, mapped: bool) -> None:
    columns = ", ".join(f"`{name}` {kind}" for name, (kind, _) in TYPES.items())
    name = create(lake, f"`{KEY}` INT, {columns}", mapped=mapped)
    values = ", ".join(value for _, value in TYPES.values())
    nulls = ", ".join(f"CAST(NULL AS {kind})" for kind, _ in TYPES.values())
    run = lake.spark.sql
    for first in (0, 100):
        run(f"INSERT INTO {name} SELECT id, {values} FROM range({first}, {first + 100}, 1, 1)")
        run(f"INSERT INTO {name} SELECT id, {nulls} FROM range({first}, {first + 100}, 1, 1)")
    run(f"DELETE FROM {name} WHERE `{KEY}` % 7 = 3")
    run(f"UPDATE {name} SET i = 5 WHERE `{KEY}` % 10 = 1")  # new files have the rows' ids
    run(f"ALTER TABLE {name} ADD COLUMN later STRING")
    run(f"ALTER TABLE {name} SET TBLPROPERTIES ('delta.enableTypeWidening' = 'true')")
    run(f"ALTER TABLE {name} ALTER COLUMN s TYPE INT")
    run(f"INSERT INTO {name} (`{KEY}`, later) VALUES (1, 'x'), (2, NULL), (NULL, 'y')")
    run(f"INSERT INTO {name} (`{KEY}`, s) VALUES (50, 2147483647)")  # a wider type in this file
    pair = both(lake, KEY, [1, 2, 3, 50, 101, 111, 1_000])
    assert pair is not None
    found, expected = pair
    assert found == expected
    assert len(expected) == 11
    empty = both(lake, KEY, [1_000])
    assert empty == (Counter(), Counter())
    texts = both(lake, "later", ["x", "none"])
    assert texts is not None
    assert texts[0] == texts[1]
    assert len(texts[0]) == 1


def test_the_path_of_a_lake_can_have_any_characters(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "a b&c+d=ü'%20#,;@!$~()^\u00a0\u3000 lake")
    name = create(lake, "k STRING, v INT")
    lake.spark.sql(f"INSERT INTO {name} VALUES ('a', 1), ('b', 2)")
    pair = both(lake, "k", ["a"])
    assert pair is not None
    assert pair[0] == pair[1]
    assert len(pair[0]) == 1


@pytest.mark.parametrize(
    ("columns", "key"),
    [
        ("k INT, v ARRAY<INT>", "k"),
        ("k INT, filename STRING", "k"),
        ("k DOUBLE, v INT", "k"),
        ("k INT, p INT) USING delta PARTITIONED BY (p", "k"),
    ],
)
def test_spark_searches_if_duckdb_does_not_support_a_type_or_name(
    lake: Lake, columns: str, key: str
) -> None:
    name = create(lake, columns)
    lake.spark.sql(f"INSERT INTO {name} SELECT * FROM VALUES (1, NULL)")
    assert both(lake, key, [1]) is None


def test_spark_searches_if_the_path_of_the_table_is_a_pattern(lake: Lake) -> None:
    lake.publisher("t[1]", keys=["k"]).write([{"k": 1}])
    assert not lake.mirror().failed
    snapshot = read_snapshot(lake.storage, "Tables/t[1]", lake.table("t[1]").version)
    assert snapshot is not None
    files = live_files(lake.storage, "Tables/t[1]", snapshot.version)
    with transaction(lake.spark.newSession(), lake.storage.path("Tables/t[1]")) as txn:
        update = exchange.RowUpdate(txn, snapshot, files)
        assert update.key_search(lake.storage, "Tables/t[1]", "k") is None


@pytest.mark.parametrize(
    ("column", "metadata", "message"),
    [
        ("K", {}, "spells the column K differently"),
        ("k", {"org.apache.spark.legacyDateTime": ""}, "Julian calendar"),
        ("k", {}, None),
    ],
)
def test_a_search_fails_if_spark_reads_other_values_than_duckdb(
    lake: Lake, column: str, metadata: dict[str, str], message: str | None
) -> None:
    folder = Path(lake.storage.path("Tables/t"))
    folder.mkdir(parents=True)
    rows = pa.table({column: pa.array([1, 2], pa.int32())})
    pq.write_table(rows.replace_schema_metadata(metadata), folder / "a.parquet")
    schema = StructType([StructField("k", IntegerType())])
    files = [{"path": "a.parquet", "size": 1}]
    search = key_search.KeySearch(lake.storage, "Tables/t", files, {"k": "k"}, schema)
    found = search.run(lake.spark, "k", [1, None])
    if message is None:
        assert found.collect() == [(1,)]
        return
    with pytest.raises(PythonException, match=message):
        found.collect()


def test_spark_searches_if_duckdb_fails(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(key_search, "MANY_ROWS", 0)
    publisher = lake.publisher("t", keys=["k"])
    publisher.write([{"k": 1, "v": "a"}, {"k": 2, "v": "b"}])
    assert not lake.mirror().failed
    monkeypatch.setattr(key_search.KeySearch, "run", fail_search)
    publisher.upsert([{"k": 1, "v": "c"}])
    assert not lake.mirror().failed
    assert "t: DuckDB failed, so Spark searches the changed keys: " in caplog.text
    assert "no such library" in caplog.text
    assert sorted(map(tuple, lake.table("t").read().collect())) == [(1, "c"), (2, "b")]
