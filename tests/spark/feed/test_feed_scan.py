"""Test that our scan of a feed equals Delta's own source, for every kind of table."""

from __future__ import annotations

from collections import Counter

import pytest
from pyspark.sql import DataFrame

from helpers.quiet import commit_quietly
from mirrorlake import Lake
from mirrorlake.feed import ranges


def bag(rows: DataFrame) -> Counter[str]:
    return Counter(rows.selectExpr("to_json(struct(*)) AS row").toPandas()["row"])


@pytest.mark.long
def test_the_scan_is_what_deltas_source_gives(lake: Lake) -> None:
    spark, path = lake.spark, lake.storage.path("Tables/t")
    name = f"delta.`{path}`"
    spark.sql(
        f"CREATE TABLE {name} (id BIGINT, `a b` STRING, code CHAR(3), part STRING, gone INT)"
        " USING delta PARTITIONED BY (part) TBLPROPERTIES (delta.enableChangeDataFeed = true,"
        " delta.columnMapping.mode = 'name', delta.enableDeletionVectors = true)"
    )  # 0
    spark.sql(
        f"INSERT INTO {name} SELECT id, concat('v', id), 'x', if(id % 2 = 0, NULL, '50%'), 1"
        " FROM range(20)"
    )  # 1
    spark.sql(f"UPDATE {name} SET `a b` = NULL WHERE id < 3")  # 2
    spark.sql(f"DELETE FROM {name} WHERE id = 7")  # 3
    for kind in ("property", "vorder", "compact", "miss"):  # 4 to 7
        commit_quietly(lake.table("t"), kind)
    spark.sql(f"DELETE FROM {name} WHERE part IS NULL")  # 8
    spark.sql(f"RESTORE TABLE {name} TO VERSION AS OF 3")  # 9
    for columns in ("*", "id, `a b`, part, _change_type, _commit_version, _commit_timestamp"):
        reader = spark.read.format("delta").option("readChangeFeed", "true")
        theirs = reader.option("startingVersion", 1).option("endingVersion", 9).load(path)
        ours = ranges.read_feed(spark, path, 1, 9)
        assert ours.schema == theirs.schema
        assert bag(ours.selectExpr(*columns.split(", "))) == bag(
            theirs.selectExpr(*columns.split(", "))
        )
    assert ours.count() == 20 + 2 * 3 + 1 + 10 + 10


def test_filters_and_columns_reach_the_files(lake: Lake) -> None:
    spark, path = lake.spark, lake.storage.path("Tables/t")
    spark.sql(
        f"CREATE TABLE delta.`{path}` (id BIGINT, v STRING) USING delta"
        " TBLPROPERTIES (delta.enableChangeDataFeed = true)"
    )
    spark.sql(f"INSERT INTO delta.`{path}` SELECT id, 'v' FROM range(9)")  # 1
    spark.sql(f"UPDATE delta.`{path}` SET v = 'w' WHERE id = 3")  # 2
    rows = ranges.read_feed(spark, path, 2, 2).where("id = 3").select("id")
    assert [row.id for row in rows.collect()] == [3, 3]
    plan = spark._jvm.PythonSQLUtils.explainString(rows._jdf.queryExecution(), "simple")  # type: ignore[union-attr]
    assert "EqualTo(id,3)" in plan
    assert "ReadSchema: struct<id:bigint>" in plan
