"""A program that tries each capability of mirrorlake in a session that already exists.

It is run by the Python of an environment with another PySpark, where Spark's resolver fetches
Delta's jars; with the package `connect` as a client of a Connect server; and with `own` in
mirrorlake's own session. It prints JSON: the result or the error of each capability.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from helpers.story import Story, ordered, partitioned
from mirrorlake import Lake, Table
from mirrorlake.spark.jvm import SESSION_CONFS
from mirrorlake.spark.session import get_spark

PROJECT = Path(__file__).resolve().parents[2]


def session(package: str) -> SparkSession:
    """Return a session as a user starts it: with Delta, without settings of mirrorlake."""
    confs = {
        "spark.jars.packages": package,
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.ui.enabled": "false",
        "spark.network.timeout": "3600s",  # a suspended machine must not lose its executors
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
        "spark.sql.warehouse.dir": tempfile.mkdtemp(),
        "spark.sql.session.timeZone": "Asia/Tokyo",
    }
    builder = SparkSession.builder.master("local[2]").appName("theirs")
    for name, value in confs.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


# The expected result of each capability, by its name in the documentation's table.
EXPECTED: dict[str, object] = {
    "publish, mirror": [20, sum(n % 7 for n in range(20))],
    "mirror: update, delete": [19, sum(n % 7 for n in range(20)) - 1 + 100 - 4],
    "mirror: a new column": [20, 1],
    "mirror --no-deletion-vectors": [19, 19 * 20 // 2 - 4 + 100 - 5],
    "sql, with versions": [20, 20],
    "history": 4,
    "changes": [3, "delete", "update_postimage", "update_preimage"],
    "analyze": [20, "Analysis"],
    "row tracking": ["insert", "update_postimage", "update_preimage"],
    "restore": [20, sum(n % 7 for n in range(20))],
    "frames": 20,
    "views": 5,
    "views, incremental": ["incremental", 1],
    "archive": True,
    "dimension": True,
    "write, compact": [2, 1],
    "vacuum": [True, 1],
    "forget": [True, 0],
    "reconcile": ["no-manifest"],
    "register": 20,
    "vorder": 5000,
    "partition": [780, True],
}


def capabilities(lake: Lake) -> dict[str, object]:
    """Return the result of each capability; see `Story`."""
    story = Story()
    step = story.step
    items, few = (lake.publisher(name, keys=["id"]) for name in ("items", "few"))

    def table() -> Table:
        return lake.table("items")

    def cycle(name: str, **settings: Any) -> None:
        report = lake.mirror(name, **settings)
        assert not report.failed, report.failed[0].error

    def ask(query: str) -> list[object]:
        return list(lake.sql(query).collect()[0])

    def mirror() -> object:
        items.upsert([{"id": n, "n": n % 7} for n in range(20)])
        cycle("items")
        return ask("SELECT count(*), sum(n) FROM items")

    def change() -> object:
        items.upsert([{"id": 1, "n": 100}])
        items.delete([{"id": 4}])
        cycle("items")
        return ask("SELECT count(*), sum(n) FROM items")

    def evolve() -> object:
        items.upsert([{"id": 50, "n": 1, "more": "x"}])
        cycle("items")
        return ask("SELECT count(*), count(more) FROM items")

    def exchange() -> object:
        few.upsert([{"id": n, "n": n} for n in range(20)])
        cycle("few", deletion_vectors=False)
        few.delete([{"id": 4}])
        few.upsert([{"id": 5, "n": 100}])
        cycle("few", deletion_vectors=False)
        return ask("SELECT count(*), sum(n) FROM few")

    before = "SELECT count(*) FROM items@v1"

    def kinds(rows: DataFrame) -> list[str]:
        return sorted(row["_change_type"] for row in rows.select("_change_type").collect())

    def restore() -> object:
        table().restore(1, apply=True)
        return ask("SELECT count(*), sum(n) FROM items")

    def frame() -> object:
        lake.frames.create("model", ["items"])
        return lake.frames.read("model", "items").count()

    def view() -> object:
        lake.views.create("sums", "SELECT n, count(*) AS c FROM few WHERE n < 7 GROUP BY n")
        lake.views.refresh("sums")
        return lake.views.read("sums").count()

    def refresh() -> object:
        few.upsert([{"id": 2, "n": 3}])
        cycle("few")
        mode = lake.views.refresh("sums", how="incremental").mode
        return [mode, lake.views.read("sums").where("n = 3 AND c = 2").count()]

    def archive() -> object:
        lake.archive("few", "few_history")
        return lake.table("few_history").read().count() == lake.table("few").changes.read(0).count()

    def dimension() -> object:
        lake.update_dimension("few", "few_dim", stored_as=2)
        return lake.table("few_dim").read().count() > lake.table("few").read().count()

    def compact() -> object:
        for n in range(2):
            lake.write("c", [{"n": n}])
        lake.table("c").optimize.compact()
        return [*ask("SELECT count(*) FROM c"), len(lake.table("c").read().inputFiles())]

    def vacuum() -> object:
        plan = lake.table("c").vacuum(retention_hours=0, allow_short=True, apply=True)
        return [plan is not None, len(lake.table("c").read().inputFiles())]

    def forget() -> object:
        found = lake.forget("few", {"id": 7}, apply=True)
        return [found is not None, lake.table("few").read().where("id = 7").count()]

    def register() -> object:
        lake.register(database="theirs")
        return lake.spark.table("theirs.items").count()

    def partition() -> object:
        total, scan = partitioned(lake), lake.table("p").scan("k = 'k1'")
        return [total, len(scan.read) < scan.files]

    step("publish, mirror", mirror)
    step("mirror: update, delete", change)
    step("mirror: a new column", evolve)
    step("mirror --no-deletion-vectors", exchange)
    step("sql, with versions", lambda: ask(f"SELECT count(*), ({before}) FROM items"))
    step("history", lambda: len(table().history(1_000).commits))
    step("changes", lambda: [len(found := kinds(table().changes.read(2, 2))), *sorted(set(found))])
    step("analyze", lambda: [table().read().count(), type(table().analyze()).__name__])
    step("row tracking", lambda: kinds(table().row_tracking.history(key=1).events))
    step("restore", restore)
    step("frames", frame)
    step("views", view)
    step("views, incremental", refresh)
    step("archive", archive)
    step("dimension", dimension)
    step("write, compact", compact)
    step("vacuum", vacuum)
    step("forget", forget)
    step("reconcile", lambda: [found.rule for found in lake.reconcile("items").findings])
    step("register", register)
    step("vorder", lambda: ordered(lake))
    step("partition", partition)
    return story.seen


def notebook(spark: SparkSession) -> object:
    """Run the page's cells in the session; return their rows, and whether no setting changed."""

    def settings() -> list[str | None]:
        return [spark.conf.get(name, None) for name in SESSION_CONFS]

    before = settings()
    text = (PROJECT / "docs" / "how-to" / "other-sparks.md").read_text(encoding="utf-8")
    namespace: dict[str, Any] = {"spark": spark}
    for cell in re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        exec(cell, namespace)
    rows = [list(row) for row in namespace["rows"].collect()]
    return [rows, before == settings()]


if __name__ == "__main__":
    if sys.argv[1] == "connect":
        from helpers.connect_program import connect

        spark = connect()
    elif sys.argv[1] == "own":
        spark = get_spark()
    else:
        spark = session(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        found = capabilities(Lake(folder, spark=spark))
    print(json.dumps(found | {"notebook": notebook(spark)}, default=str))
    if sys.argv[1] != "connect":  # stopping a Connect client makes it call its server once more
        spark.stop()
