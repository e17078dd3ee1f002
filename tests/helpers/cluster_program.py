"""A program that uses a lake on a cluster. It runs as the driver and prints results as JSON."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Condition

import pyarrow as pa

from helpers.story import Story, ordered, partitioned
from mirrorlake import Lake, MirrorOptions
from mirrorlake.errors import MirrorlakeError
from mirrorlake.landing import check
from mirrorlake.landing.metadata import TableMetadata
from mirrorlake.mirror import engine, ledger
from mirrorlake.mirror.options import Step, concurrent_tables
from mirrorlake.names import TableName, file_name
from mirrorlake.spark.session import cluster_cores

ROWS = 300_000  # of the table that is mirrored while processes are killed
SMALL = 1_002


def tell(text: str) -> None:
    """Print a line for the caller of the program."""
    print(text, file=sys.stderr, flush=True)


def tour(root: str) -> dict[str, object]:
    """Run all steps; return the outcome or the error of each step, and its seconds."""
    lake, story = Lake(root), Story()
    step = story.step
    items = lake.publisher("items", keys=["id"])

    def mirror() -> object:
        return [table.error for table in lake.mirror().tables]

    def publish() -> object:
        items.upsert([{"id": n, "n": n % 7} for n in range(SMALL)])
        return SMALL

    def change() -> object:
        items.upsert([{"id": 1, "n": 100}])
        items.delete([{"id": 4}])
        return mirror()

    def query() -> object:
        return list(lake.sql("SELECT count(*), sum(n) FROM items").collect()[0])

    def viewed() -> object:
        lake.views.create("sums", "SELECT n, count(*) AS c FROM items GROUP BY n")
        lake.views.refresh("sums")
        return lake.views.read("sums").count()

    step("spark", lambda: lake.spark.version)
    step("publish", publish)
    step("mirror", mirror)
    step("change", change)
    step("query", query)
    step("vorder", lambda: ordered(lake))
    step("analyze", lambda: type(lake.table("items").analyze()).__name__)
    step("partition", lambda: partitioned(lake))
    step("views", viewed)
    step("text", lambda: text_by_executors(lake))
    conf = lake.spark.sparkContext.getConf()
    parts = ("spark.sql.shuffle.partitions", "spark.databricks.delta.snapshotPartitions")
    return story.seen | {
        "seconds": story.seconds,
        "jars": conf.get("spark.jars"),
        "path": conf.get("spark.driver.extraClassPath"),
        "partitions": [lake.spark.conf.get(name) for name in parts],
    }


def text_by_executors(lake: Lake) -> object:
    """Mirror text files that executors inspect; return the results and the table's rows."""
    name = TableName(None, "text")
    path = f"{name.folder}/{file_name(1, '.csv')}"
    lake.storage.write_json(f"{name.folder}/_metadata.json", {"keyColumns": ["id"]})
    lake.storage.write(path, b"id,v\n" + b"".join(b"%d,%d\n" % (n, n % 5) for n in range(500)))
    metadata = TableMetadata(("id",))
    there = engine.inspect_on_executor(lake.spark, lake.storage, path, metadata, number=1)
    here = check.inspect_file(lake.storage, path, metadata, number=1)
    errors = [table.error for table in lake.mirror("text", driver_bytes=0).tables]
    lake.publisher("text", keys=["id"]).delete([{"id": "7"}])
    errors += [table.error for table in lake.mirror("text", driver_bytes=0).tables]
    found = lake.sql("SELECT count(*), sum(CAST(v AS INT)) FROM text").collect()[0]
    return [there == here, errors, list(found)]


def publish(root: str) -> dict[str, object]:
    """Publish rows, updates of half of them, and some deletes."""
    keys = pa.array(range(ROWS), pa.int64())
    publisher = Lake(root).publisher("big", keys=["id"])
    publisher.upsert(pa.table({"id": keys, "n": pa.array([1] * ROWS, pa.int64())}))
    half = pa.array(range(0, ROWS, 2), pa.int64())
    publisher.upsert(pa.table({"id": half, "n": pa.array([10] * len(half), pa.int64())}))
    gone = pa.array(range(0, ROWS, 3), pa.int64())
    publisher.delete(pa.table({"id": gone}))
    return {"rows": ROWS}


def expected() -> list[int]:
    """Return the expected numbers of rows, and their sum, after these changes."""
    kept = [n for n in range(ROWS) if n % 3]
    return [len(kept), len(kept), sum(10 if n % 2 == 0 else 1 for n in kept)]


def mirror(root: str) -> dict[str, object]:
    """Run one cycle that reports its steps, and return the contents of the table."""
    lake = Lake(root)
    lake.spark.range(1).count()  # starts the executors before the cycle

    def on_step(_table: TableName, step: Step) -> None:
        tell(f"step {step.value}")

    report = lake.mirror(on_step=on_step, batch_files=int(os.environ.get("BATCH_FILES", "1000")))
    (row,) = lake.sql("SELECT count(*), count(DISTINCT id), sum(n) FROM big").collect()
    version = lake.table("big").snapshot().version
    notes = [
        ledger.read_note(lake.storage, TableName(None, "big"), at) for at in range(version + 1)
    ]
    commits = [note["last"] for note in notes if note.get("last")]
    errors = [table.error for table in report.tables]
    return {"errors": errors, "found": list(row), "commits": commits}


def least(root: str) -> dict[str, object]:
    """Use a minimal lake, and Python on the executors, under spark-submit."""
    lake = Lake(root)
    lake.publisher("items", keys=["id"]).upsert([{"id": n, "n": n % 7} for n in range(20)])
    errors = [table.error for table in lake.mirror().tables]
    found = lake.sql("SELECT count(*), sum(n) FROM items").collect()[0]
    analysis = type(lake.table("items").analyze()).__name__
    conf = lake.spark.sparkContext.getConf()
    with ThreadPoolExecutor(1) as pool:  # as in the mirror: a thread without a session
        cores = pool.submit(cluster_cores, lambda: lake.spark).result()
    return {
        "errors": errors,
        "found": list(found),
        "cores": cores,
        "analyze": analysis,
        "master": conf.get("spark.master"),
        "app": conf.get("spark.app.name"),
        "partitions": lake.spark.conf.get("spark.sql.shuffle.partitions"),
    }


def many(root: str) -> dict[str, object]:
    """Mirror many tables in one cycle; return how many were mirrored at the same time."""
    lake = Lake(root)
    names = [f"t{number}" for number in range(12)]
    for name in names:
        lake.publisher(name, keys=["id"]).upsert([{"id": 1}])
    begun: set[str] = set()
    most = 0
    together = Condition()
    wanted = concurrent_tables(MirrorOptions(), cluster_cores(lambda: lake.spark))

    def on_step(table: TableName, step: Step) -> None:
        nonlocal most
        if step is Step.PLANNED:
            with together:
                begun.add(table.name)
                most = max(most, len(begun))
                together.notify_all()
                together.wait_for(lambda: most >= wanted, 60)
        elif step is Step.MOVED:
            with together:
                begun.discard(table.name)

    errors = [table.error for table in lake.mirror(on_step=on_step).tables]
    return {
        "errors": errors,
        "most": most,
        "wanted": wanted,
        "here": concurrent_tables(MirrorOptions()),
    }


def timed(root: str) -> dict[str, object]:
    """Return the seconds of several operations for the benchmark, without Spark's start."""
    lake, seen = Lake(root), {}
    publisher = lake.publisher("big", keys=["id"])
    lake.spark.range(10).count()

    def publish(keys: range, value: int) -> None:
        ids = pa.array(keys, pa.int64())
        publisher.upsert(pa.table({"id": ids, "n": pa.array([value] * len(keys), pa.int64())}))

    def measure(what: str, do: Callable[[], object]) -> None:
        began = time.monotonic()
        do()
        seen[what] = round(time.monotonic() - began, 2)

    def mirror() -> None:
        assert not lake.mirror().failed

    def query() -> object:
        return lake.sql("SELECT n, count(*), sum(id) FROM big GROUP BY n").collect()

    publish(range(ROWS), 1)
    measure("first cycle", mirror)
    publish(range(0, ROWS, 2), 2)
    measure("change of half the rows", mirror)
    publish(range(10), 3)
    mirror()
    publish(range(10), 4)
    measure("a small cycle", mirror)
    query()
    measure("a query", query)
    measure("V-Order", lake.table("big").optimize.vorder)
    return {"measured": list(seen), **seen}


def refused(root: str) -> dict[str, object]:
    """Return the error of an operation whose executors cannot run this package."""
    lake = Lake(root)
    lake.write("v", [{"city": f"city {n % 15}", "n": n} for n in range(100)])
    try:
        lake.table("v").optimize.vorder()
    except MirrorlakeError as error:
        return {"message": error.message, "hint": error.hint}
    return {}


if __name__ == "__main__":
    found = (tour, publish, mirror, refused, least, many, timed)
    programs = {program.__name__: program for program in found}
    print(json.dumps(programs[sys.argv[1]](sys.argv[2]), default=str))
    if sys.argv[1] != "publish":
        from pyspark.sql import SparkSession

        SparkSession.builder.getOrCreate().stop()
