"""A program that registers a lake in Spark's Hive metastore, and prints each outcome as JSON."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from helpers.story import Story
from mirrorlake import Lake
from mirrorlake.spark.session import launch_conf

PROJECT = Path(__file__).resolve().parents[2]

PAGE = PROJECT / "docs" / "how-to" / "cluster.md"


def session(folder: Path) -> SparkSession:
    builder = SparkSession.builder
    metastore = "jdbc:derby:memory:metastore;create=true"
    own = {
        "spark.sql.warehouse.dir": f"{folder}/warehouse",
        "spark.hadoop.javax.jdo.option.ConnectionURL": metastore,
    }
    for name, value in (launch_conf("small", None) | own).items():
        builder = builder.config(name, value)
    spark = builder.enableHiveSupport().getOrCreate()
    # By default Derby writes its log to the working folder of the JVM.
    spark._jvm.java.lang.System.setProperty("derby.stream.error.file", f"{folder}/derby.log")
    return spark


def tour(folder: Path) -> dict[str, object]:
    spark, lake, story = session(folder), Lake(folder / "lake"), Story()
    step = story.step

    def tables() -> list[list[str]]:
        found = lake.register(database="sales").tables
        return [[one.table, one.name, one.outcome] for one in found]

    def names(database: str) -> list[str]:
        return sorted(row["tableName"] for row in spark.sql(f"SHOW TABLES IN {database}").collect())

    def publish(table: str, **row: object) -> None:
        lake.publisher(table, keys=["id"]).upsert([{"id": 1, **row}])

    publish("Orders", n=1)
    publish("shop.items", n=2)
    publish("odd name-'1", n=3)
    lake.mirror()
    spark.sql("CREATE DATABASE sales")
    spark.sql("CREATE TABLE sales.stock (id INT) USING parquet")
    lake.write("stock", [{"id": 7}])
    text = PAGE.read_text("utf-8")
    (block,) = re.findall(r"^```python\n(lake\.register.*?)^```", text, re.DOTALL | re.MULTILINE)
    step("page", lambda: exec(block, {"lake": lake, "spark": spark}))
    step("dry", lambda: repr(lake.register(database="sales", dry_run=True)))
    step(
        "nothing",
        lambda: [names("sales"), (folder / "lake/Files/_mirrorlake/registered.json").exists()],
    )
    step("first", tables)
    step("again", tables)
    step("rows", lambda: [list(row) for row in spark.table("sales.orders").collect()])
    publish("Orders", n=1, more="x")
    publish("late", n=4)
    step("cycle", lambda: sorted(lake.mirror().failed))
    step("widened", lambda: spark.table("sales.orders").columns)
    step("followed", lambda: names("sales"))
    shutil.rmtree(folder / "lake/Files/LandingZone/Orders")
    step("dropped", lambda: lake.mirror().dropped)
    step("forgotten", lambda: names("sales"))
    lake.sql("CREATE TABLE fresh AS SELECT * FROM late")
    step("created", lambda: [names("sales"), spark.table("sales.fresh").count()])
    lake.sql("DROP TABLE fresh")
    step("gone", lambda: names("sales"))
    spark.sql("CREATE TABLE shop.own (id INT)")
    step("own", lambda: spark.sql("DESCRIBE DETAIL shop.own").first()["format"])
    step("elsewhere", lambda: lake.register(database="other"))
    spark.sql(f"CREATE TABLE sales.byhand USING delta LOCATION '{folder}/lake/Tables/late'")
    step("undone", lambda: sorted(lake.unregister().of("removed")))
    step("left", lambda: [names("sales"), names("shop"), lake.table("late").read().count()])
    step("once more", lake.unregister)
    return story.seen


if __name__ == "__main__":
    print(json.dumps(tour(Path(sys.argv[1]))))
