"""The change feed: net changes against the plain read of the same feed, and dimensions.

Net: 100 versions of 10,000 changes each; their commits and change files are written directly, which
only saves time. A tenth of the versions shows that the cost follows the range. Dimension: a type 2
batch of 100,000 changes on 2,000,000 rows, against one plain MERGE of the same changes into a table
of the same rows and properties.
"""

from __future__ import annotations

import json
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from mirrorlake import Lake
from mirrorlake.feed.scd import Dimension, apply_changes
from mirrorlake.lake_table import LakeTable
from mirrorlake.runs.bench import BenchResult, compare
from mirrorlake.spark.session import get_spark
from mirrorlake.spark.sql import delta_name

VERSIONS, CHANGES = 100, 10_000
ROWS, BATCH = 2_000_000, 100_000
COLUMNS = {"id": "BIGINT", "name": "STRING", "amount": "DOUBLE", "day": "DATE"}


def run(pairs: int) -> BenchResult:
    get_spark("batch")
    with tempfile.TemporaryDirectory() as folder:
        lake = Lake(folder)
        net, part = net_against_read(lake, pairs)
        dimension = dimension_against_merge(lake, pairs)
        results = (net, part, dimension)
        return BenchResult(
            "feed",
            {k: v for result in results for k, v in result.seconds.items()},
            {k: v for result in results for k, v in result.ratios.items()},
        )


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def drain(rows: DataFrame) -> None:
    rows.write.format("noop").mode("overwrite").save()


def net_against_read(lake: Lake, pairs: int) -> tuple[BenchResult, BenchResult]:
    table = lake.create_table("net", COLUMNS, keys=["id"])
    for version in range(1, VERSIONS + 1):
        write_version(table, version)
    tenth = VERSIONS - VERSIONS // 10 + 1
    whole = lambda: timed(lambda: drain(table.changes(1, net=True)))  # noqa: E731
    return (
        compare(
            "feed", "net changes", whole, lambda: timed(lambda: drain(table.changes(1))), pairs
        ),
        compare(
            "feed",
            "net changes, a tenth of the range",
            lambda: timed(lambda: drain(table.changes(tenth, net=True))),
            whole,
            pairs,
        ),
    )


def write_version(table: LakeTable, version: int) -> None:
    """A commit of updates, deletes and inserts as a MERGE would leave it."""
    chance = random.Random(version)
    ids = chance.sample(range(ROWS), CHANGES)
    rows = []
    for index, key in enumerate(ids):
        old, new = (key, f"customer {key % 977}", key * 0.37), (key, "changed", float(version))
        if index % 10 == 0:
            rows.append((*old, "delete"))
        elif index % 10 == 1:
            rows.append((ROWS * version + key, *new[1:], "insert"))
        else:
            rows += [(*old, "update_preimage"), (*new, "update_postimage")]
    named = dict(
        zip(("id", "name", "amount", "_change_type"), zip(*rows, strict=True), strict=True)
    )
    data = pa.table({name: pa.array(values) for name, values in named.items()})
    data = data.add_column(3, "day", pa.nulls(len(data), pa.date32()))
    path = Path(table.path) / "_change_data" / f"cdc-{version:05d}.parquet"
    path.parent.mkdir(exist_ok=True)
    pq.write_table(data, path)
    change = {
        "path": f"_change_data/{path.name}",
        "partitionValues": {},
        "size": path.stat().st_size,
        "dataChange": False,
    }
    commit = [{"commitInfo": {"operation": "MERGE", "timestamp": 0}}, {"cdc": change}]
    log = Path(table.path) / "_delta_log" / f"{version:020d}.json"
    log.write_text("\n".join(json.dumps(a, separators=(",", ":")) for a in commit) + "\n")


def dimension_against_merge(lake: Lake, pairs: int) -> BenchResult:
    spark = lake.spark
    rows = spark.range(ROWS).selectExpr(
        "id",
        "concat('customer ', id % 977) AS name",
        "id * 0.37D AS amount",
        "DATE'2020-01-01' AS day",
    )
    kept = {**COLUMNS, "__START_AT": "BIGINT", "__END_AT": "BIGINT"}
    ours = lake.create_table("dimension", kept, keys=["id", "__START_AT"])
    peer = lake.create_table("plain", COLUMNS, keys=["id"])
    periods = rows.selectExpr("*", "0L AS __START_AT", "CAST(NULL AS BIGINT) AS __END_AT")
    for frame, table in ((periods, ours), (rows, peer)):
        frame.repartition(20).write.format("delta").mode("append").save(table.path)
    dimension = Dimension(("id",), "at", 2, except_columns=("at",))
    moment = iter(range(1, 1000))

    def changes() -> DataFrame:
        at = next(moment)
        # Nine of ten change a row, one is new; the same for both sides by the seed.
        spark.range(BATCH).selectExpr(
            f"IF(id % 10 = 0, {ROWS} + {at} * {BATCH} + id, (id * 7919 + {at} * 104729) % {ROWS})"
            " AS id",
            f"'changed {at}' AS name",
            "id * 1.5D AS amount",
            "DATE'2021-01-01' AS day",
            f"{at}L AS at",
        ).write.format("parquet").mode("overwrite").save(lake.storage.path("Files/batch"))
        return spark.read.parquet(lake.storage.path("Files/batch"))

    def apply() -> float:
        batch = changes()
        return timed(lambda: apply_changes(batch, ours.path, dimension))

    def merge() -> float:
        changes().drop("at").createOrReplaceTempView("batch")
        return timed(
            lambda: spark.sql(
                f"MERGE INTO {delta_name(peer.path)} t USING batch s ON t.id = s.id"
                " WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
            )
        )

    return compare("feed", "type 2 batch", apply, merge, pairs)
