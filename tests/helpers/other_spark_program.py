"""What works on somebody else's Spark: each capability in a session that is there already.

Run by the Python of an environment with another PySpark, where Delta's jars are Spark's own
resolver's; or, with `connect` for the package, as a client of a Connect server. Prints JSON: by
capability, what came out of it, or the error.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from typing import Any

from pyspark.sql import SparkSession

from mirrorlake import Lake
from mirrorlake.errors import MirrorlakeError

POLICY: dict[str, Any] = {
    "PartitionKeys": [{"ColumnName": "k", "Kind": "Hash", "Properties": {"MaxPartitionCount": 2}}],
    "EffectiveDateTime": "2000-01-01",
}


def session(package: str) -> SparkSession:
    """A session as its owner would start it: Delta, and nothing of ours."""
    confs = {
        "spark.jars.packages": package,
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
        "spark.sql.warehouse.dir": tempfile.mkdtemp(),
    }
    builder = SparkSession.builder.master("local[2]").appName("theirs")
    for name, value in confs.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def capabilities(lake: Lake) -> dict[str, object]:
    """Each capability's outcome; an error by its class and first words."""
    seen: dict[str, object] = {}

    def step(name: str, do: Callable[[], object]) -> None:
        try:
            seen[name] = do()
        except MirrorlakeError as error:
            seen[name] = {"said": error.message, "hint": error.hint}
        except Exception as error:
            seen[name] = {"error": f"{type(error).__name__}: {str(error)[:1200]}"}
        print(name, json.dumps(seen[name], default=str), file=sys.stderr, flush=True)

    items = lake.publisher("items", keys=["id"])

    def mirror() -> object:
        items.upsert([{"id": n, "n": n % 7} for n in range(20)])
        return [table.error for table in lake.mirror().tables]

    def change() -> object:
        items.upsert([{"id": 1, "n": 100}])
        items.delete([{"id": 4}])
        return [table.error for table in lake.mirror().tables]

    def small_changes() -> object:
        few = lake.publisher("few", keys=["id"])
        few.upsert([{"id": n, "n": n} for n in range(20)])
        lake.mirror(deletion_vectors=True)
        few.delete([{"id": 4}])
        errors = [table.error for table in lake.mirror(deletion_vectors=True).tables]
        return [errors, lake.sql("SELECT count(*) FROM few").collect()[0][0]]

    def query() -> object:
        return list(lake.sql("SELECT count(*), sum(n) FROM items").collect()[0])

    def ordered() -> object:
        lake.write("v", [{"city": f"city {n * 7919 % 15}", "n": n // 9} for n in range(500)])
        return lake.table("v").optimize.vorder().commits[0].rows

    def partitioned() -> object:
        lake.write("p", [{"k": f"k{n % 11}", "v": n} for n in range(40)])
        lake.table("p").partitioning.set(POLICY)
        lake.table("p").partitioning.operate()
        return lake.sql("SELECT sum(v) FROM p").collect()[0][0]

    def viewed() -> object:
        lake.views.create("sums", "SELECT n, count(*) AS c FROM items GROUP BY n")
        lake.views.refresh("sums")
        return lake.views.read("sums").count()

    def framed() -> object:
        lake.frames.create("model", ["items"])
        return lake.frames.read("model", "items").count()

    table = lake.table
    step("mirror", mirror)
    step("mirror: update and delete", change)
    step("mirror --deletion-vectors", small_changes)
    step("sql", query)
    step("sql @v", lambda: lake.sql("SELECT count(*) FROM items@v1").collect()[0][0])
    step("history", lambda: table("items").history().count())
    step("changes", lambda: table("items").changes.read(2).count())
    step("analyze", lambda: type(table("items").analyze()).__name__)
    step("restore", lambda: table("items").restore(1, apply=True) is not None)
    step("frames", framed)
    step("compact", lambda: table("items").optimize.compact() is not None)
    step("vacuum", lambda: table("items").vacuum() is not None)
    step("vorder", ordered)
    step("partition", partitioned)
    step("views", viewed)
    return seen


if __name__ == "__main__":
    if sys.argv[1] == "connect":
        from helpers.connect_program import connect

        spark = connect()
    else:
        spark = session(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        found = capabilities(Lake(folder, spark=spark))
    print(json.dumps(found, default=str))
    spark.stop()
