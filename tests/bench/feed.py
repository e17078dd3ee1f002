"""Benchmark the change feed: net changes against plain reads of the feed, and dimensions.

Net: 100 versions of 10,000 changes each. Their commits and change files are written directly, which
only saves time. The peers are Delta's own read, row by row, and ours, which reads columns.
Range: the last tenth of the feed, against all of it, and against a feed with no other versions.
Dimension: a type 2 batch of 100,000 changes on 2,000,000 rows, against one plain MERGE of the same
changes into a table with the same rows and properties.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from helpers.bench import BenchResult, compare, join_results, lake_part
from mirrorlake import Lake, Table
from mirrorlake.feed import scd
from mirrorlake.spark.sql import delta_name

VERSIONS, CHANGES = 100, 10_000
ROWS, BATCH = 2_000_000, 100_000
COLUMNS = {"id": "BIGINT", "name": "STRING", "amount": "DOUBLE", "day": "DATE"}


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def drain(rows: DataFrame) -> None:
    rows.write.format("noop").mode("overwrite").save()


def make_feed(lake: Lake, name: str, versions: Iterable[int]) -> Table:
    """Create a table whose versions, from 1 on, each change 10,000 rows."""
    table = lake.create_table(name, COLUMNS, keys=["id"])
    changed: dict[int, tuple[object, ...] | None] = {}
    for number, version in enumerate(versions, 1):
        write_version(table, number, version, changed)
    return table


def net_against_read(lake: Lake, pairs: int) -> BenchResult:
    """Compare net changes of 100 versions with plain reads of the feed: Delta's and ours."""
    table = make_feed(lake, "net", range(1, VERSIONS + 1))
    source = lake.spark.read.format("delta").option("readChangeFeed", "true")

    def delta() -> float:
        return timed(lambda: drain(source.option("startingVersion", 1).load(table.path)))

    def ours() -> float:
        return timed(lambda: drain(table.changes.read(1)))

    def net() -> float:
        return timed(lambda: drain(table.changes.net(1)))

    return join_results(
        "feed",
        [
            compare("feed", "net changes, Delta's read", net, delta, pairs),
            compare("feed", "net changes, our read", net, ours, pairs),
            compare("feed", "our read, Delta's", ours, delta, pairs),
        ],
    )


def range_against_table(lake: Lake, pairs: int) -> BenchResult:
    """Compare the last tenth of a long feed with all of it, and with a feed of that length."""
    first = VERSIONS - VERSIONS // 10 + 1
    long = make_feed(lake, "long", range(1, VERSIONS + 1))
    short = make_feed(lake, "short", range(first, VERSIONS + 1))

    def tenth() -> float:
        return timed(lambda: drain(long.changes.net(first)))

    whole, alone = (
        lambda table=table: timed(lambda: drain(table.changes.net(1))) for table in (long, short)
    )
    return join_results(
        "feed",
        [
            compare("feed", "net changes, a tenth of the range", tenth, whole, pairs),
            compare("feed", "net changes, ten times the history", tenth, alone, pairs),
        ],
    )


def write_version(
    table: Table,
    number: int,
    version: int,
    changed: dict[int, tuple[object, ...] | None],
) -> None:
    """Write a commit of updates, deletes and inserts, as a MERGE would.

    Args:
        table: the table.
        number: the version to write.
        version: the number from which its rows are computed.
        changed: rows as left by earlier versions, or None for a deleted row; updated here.
    """
    chance = random.Random(version)
    ids = chance.sample(range(ROWS), CHANGES)
    rows: list[tuple[object, ...]] = []
    for index, key in enumerate(ids):
        old = changed.get(key, (key, f"customer {key % 977}", key * 0.37))
        new = (key, "changed", float(version))
        if index % 10 == 1:
            rows.append((ROWS * version + key, *new[1:], "insert"))
            continue
        changed[key] = None if index % 10 == 0 and old else new
        if old is None:
            rows.append((*new, "insert"))
        elif changed[key] is None:
            rows.append((*old, "delete"))
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
    log = Path(table.path) / "_delta_log" / f"{number:020d}.json"
    log.write_text("\n".join(json.dumps(a, separators=(",", ":")) for a in commit) + "\n")


def dimension_against_merge(lake: Lake, pairs: int) -> BenchResult:
    """Compare a type 2 batch with one plain MERGE of the same changes."""
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
    dimension = scd.Dimension(("id",), "at", 2, except_columns=("at",))
    moment = iter(range(1, 1000))

    def changes() -> DataFrame:
        at = next(moment)
        # Nine of ten changes update a row, one inserts a row. The seed makes both sides equal.
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
        return timed(lambda: scd.apply_changes(batch, ours.path, dimension))

    def merge() -> float:
        changes().drop("at").createOrReplaceTempView("batch")
        return timed(
            lambda: spark.sql(
                f"MERGE INTO {delta_name(peer.path)} t USING batch s ON t.id = s.id"
                " WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
            )
        )

    return compare("feed", "type 2 batch", apply, merge, pairs)


PARTS = {
    "net": lake_part(net_against_read, profile="batch"),
    "range": lake_part(range_against_table, profile="batch"),
    "dimension": lake_part(dimension_against_merge, profile="batch"),
}


def run(pairs: int) -> BenchResult:
    return join_results("feed", [measure(pairs) for measure in PARTS.values()])
