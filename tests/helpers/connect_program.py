"""A program that uses a lake as a client of Spark Connect, and prints results as JSON.

`test_connect.py` runs it in a separate process, with the lake's folder and the names of the parts,
because PySpark supports only one kind of session in a process. PySpark joins the JVM that the
environment names, or starts one.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any
from unittest.mock import patch

from pyspark.sql import SparkSession
from pyspark.sql.connect.client import DefaultChannelBuilder

from helpers.partition_tables import PAST, hashed
from helpers.ports import free_port
from mirrorlake import Lake
from mirrorlake.errors import UsageError
from mirrorlake.spark.jvm import prepare
from mirrorlake.spark.session import launch_conf


def connect() -> SparkSession:
    """Return a client of a Connect server that PySpark starts, on a free port."""
    port = free_port()
    conf = launch_conf(os.environ.get("MIRRORLAKE_PROFILE") or "notebook")
    # PySpark's client connects to port 15002, whatever the server's port is.
    patch.object(DefaultChannelBuilder, "default_port", return_value=port).start()
    master = conf.pop("spark.master")
    settings = " ".join(f"--conf '{name}={value}'" for name, value in conf.items())
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"{settings} pyspark-shell"
    own = {
        "spark.network.timeout": "3600s",  # a suspended machine must not lose its executors
        "spark.connect.grpc.binding.port": str(port),
    }
    return prepare(SparkSession.builder.remote(master).config(map=own).getOrCreate())


def mirrored(lake: Lake) -> dict[str, Any]:
    """Run two cycles; return the table now and at a version, and the history of a row.

    Another table is created and dropped in SQL.
    """
    publisher = lake.publisher("t", keys=["id"])
    publisher.write([{"id": 1, "v": "a"}, {"id": 2, "v": "b"}])
    failed = [line.error for line in lake.mirror().failed]
    publisher.upsert([{"id": 2, "v": "c", "w": 1.5}])
    publisher.delete([{"id": 1}])
    failed += [line.error for line in lake.mirror().failed]
    table = lake.table("t")
    lake.sql("CREATE TABLE made AS SELECT id FROM t")
    made = [row["id"] for row in lake.sql("SELECT * FROM made").collect()]
    lake.sql("DROP TABLE made")
    story = table.row_tracking.history(key=2).events.collect()
    return {
        "failed": failed,
        "made": [made, [str(name) for name in lake.tables()]],
        "now": [tuple(row) for row in lake.sql("SELECT * FROM t").collect()],
        "was": [tuple(row) for row in lake.sql("SELECT * FROM t@v1 ORDER BY id").collect()],
        "rows": [row["_row_id"] for row in table.row_tracking.read().collect()],
        "told": [(row["v"], row["_change_type"], row["_row_id"]) for row in story],
    }


def viewed(lake: Lake) -> list[Any]:
    """Create a view and refresh it after a change."""
    publisher = lake.publisher("seen", keys=["id"])
    publisher.write([{"id": 1, "v": "a"}, {"id": 2, "v": "b"}])
    lake.mirror("seen")
    lake.views.create("view", "SELECT id, v FROM seen")
    publisher.delete([{"id": 1}])
    lake.mirror("seen")
    refresh = lake.views.refresh("view", how="incremental")
    return [refresh.mode, *map(tuple, lake.views.read("view").collect())]


def past(lake: Lake) -> dict[str, Any]:
    """Read versions and timestamps, create and release a frame, and plan a vacuum."""
    table = lake.table("t")
    newest = table.readable_range().until
    found = {
        "as_of": [row["v"] for row in table.read(version=1).sort("id").collect()],
        "moment": lake.sql(f"SELECT count(*) FROM t TIMESTAMP AS OF '{newest}'").collect()[0][0],
        "framed": lake.frames.create("m", ["t"]).tables[0].rows,
    }
    lake.publisher("t", keys=["id"]).upsert([{"id": 3, "v": "d", "w": 0.5}])
    found["failed"] = [line.error for line in lake.mirror().failed]
    (line,) = lake.frames.show("m")
    (forecast,) = lake.frames.show("m", delete=("t", "id = 2"))
    moved = [line.files_added, line.rows_added, line.files_preserved, forecast.rows_removed]
    plan = table.vacuum(retention_hours=0, allow_short=True)
    return found | {
        "shown": moved,
        "read": [row["id"] for row in lake.frames.read("m", "t").collect()],
        "asked": lake.sql("SELECT count(*) FROM t", frame="m").collect()[0][0],
        "kept": [share.why for share in plan.kept],
        "released": lake.frames.release("m").state,
    }


def partitioned(lake: Lake) -> list[Any]:
    """Set a policy, scan and read the table, and try an operation, which is refused.

    Without a JVM no list of files can be read, so a scan relies on Delta's file skipping.
    """
    for key in ("a", "b", "z"):
        lake.write("p", [{"k": key}])
    table = lake.table("p")
    table.partitioning.set({"PartitionKeys": [hashed(2)], **PAST})
    where = "k = 'b'"
    scan, every = table.scan(where), table.scan()
    found = [[row["k"] for row in rows.collect()] for rows in (scan.rows, table.read(where))]
    try:
        table.partitioning.operate()
    except UsageError as error:
        found.append([type(error).__name__])
    pending = table.partitioning.stats().pending_rows
    return [*found, len(scan.read), scan.unpartitioned, len(every.read), every.files, pending]


PARTS = {"mirrored": mirrored, "viewed": viewed, "past": past, "partitioned": partitioned}

if __name__ == "__main__":
    spark = connect()
    lake = Lake(sys.argv[1], spark=spark)
    answers: dict[str, Any] = {"kind": type(spark).__module__}
    print(json.dumps(answers | {name: PARTS[name](lake) for name in sys.argv[2:]}))
