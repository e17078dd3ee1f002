"""The partitioning policy on a log of 2,000,000 rows: what is read, bytes, seconds, and its peers.

The log came in 20 files by time, with rows of 20,000 tenants in no order. The policy makes 128 hash
buckets. Peers: a plain sorted rewrite by Spark, Z-order and liquid clustering of the same rows.
Ratios of files and bytes are raw by ours, ratios of seconds peer by ours.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from mirrorlake import Lake
from mirrorlake.layout.partitioning.nodes import on_each_node
from mirrorlake.runs.bench import BenchResult, join_results

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ROWS, FILES, BUCKETS, TENANTS = 2_000_000, 20, 128, 20_000
NODES = 4
KEY = {
    "ColumnName": "tenant",
    "Kind": "Hash",
    "Properties": {"MaxPartitionCount": BUCKETS, "PartitionAssignmentMode": "ByPartition"},
}
POLICY = {"PartitionKeys": [KEY], "EffectiveDateTime": "2000-01-01"}
NAMES = [
    str(uuid.UUID(int=(n * 0x9E3779B97F4A7C15F39CC0605CEDC835) % 2**128)) for n in range(TENANTS)
]


def log_rows(first: int, count: int) -> pa.Table:
    """A part of the log: a tenant writes at random, with hosts, paths and sessions of its own.

    A tenant's session lasts for 400,000 lines of the log; its id is text, as in logs.
    """
    rng = np.random.default_rng(first)
    tenant = rng.zipf(1.1, count) % TENANTS
    pick = rng.integers(0, 8, count)
    path = (tenant * 31 + pick) % 60_000
    lines = first + np.arange(count)
    moments = 1_700_000_000_000_000 + lines * 40_000 + rng.integers(0, 30_000, count)
    sessions, session = np.unique(lines // 400_000 * TENANTS + tenant, return_inverse=True)
    ids = [
        str(uuid.UUID(int=(int(n) + 7) * 0x9E3779B97F4A7C15F39CC0605CEDC835 % 2**128))
        for n in sessions
    ]
    hosts = [f"web-{n:04d}.cluster-{n % 9}.example.org" for n in range(3000)]
    paths = [f"/api/v{n % 4}/tenants/{n // 8}/items/{n * 7919 % 60_000:05d}" for n in range(60_000)]
    return pa.table(
        {
            "at": pa.array(moments, pa.int64()).cast(pa.timestamp("us", "UTC")),
            "tenant": pa.array(NAMES).take(pa.array(tenant)),
            "host": pa.array(hosts).take(pa.array((tenant * 7 + pick % 3) % 3000)),
            "path": pa.array(paths).take(pa.array(path)),
            "session": pa.array(ids).take(pa.array(session)),
            "status": rng.choice([200, 200, 200, 200, 304, 404, 500], count).astype("int32"),
            "took_ms": np.minimum(rng.geometric(0.05, count), 9999).astype("int32"),
        }
    )


def raw_table(lake: Lake, name: str, files: int = FILES, first: int = 0) -> str:
    """The log as it comes: a commit and a file each; its path."""
    path = lake.storage.path(f"Tables/{name}")
    count = ROWS // FILES
    for number in range(files):
        part = Path(lake.storage.root) / "part.parquet"
        pq.write_table(log_rows(first + number * count, count), part)
        rows = lake.spark.read.parquet(str(part)).coalesce(1)
        rows.write.format("delta").mode("append").save(path)
    return path


def copy_table(lake: Lake, source: str, target: str) -> str:
    shutil.copytree(source, lake.storage.path(f"Tables/{target}"))
    return lake.storage.path(f"Tables/{target}")


def size(lake: Lake, name: str) -> int:
    return lake.table(name).partitioning.statistics().size


def clock(call: Callable[..., object], *arguments: object) -> float:
    began = time.perf_counter()
    call(*arguments)
    return time.perf_counter() - began


def noop(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


class Bench:
    """One lake with the raw log, and the copies that are made of it."""

    def __init__(self, folder: str, pairs: int) -> None:
        self.lake = Lake(folder)
        self.pairs = pairs
        Path(folder).mkdir(exist_ok=True)
        self.raw = raw_table(self.lake, "raw")
        self.number = 0

    def copy(self) -> str:
        self.number += 1
        copy_table(self.lake, self.raw, f"copy{self.number}")
        return f"copy{self.number}"

    def partitioned(self) -> str:
        name = self.copy()
        self.lake.table(name).partitioning.set(POLICY)
        self.lake.table(name).partitioning.operate()
        return name

    def timed(self, what: str, ours: Callable[[], float], peer: Callable[[], float]) -> BenchResult:
        pairs = [(ours(), peer()) for _ in range(self.pairs + 1)][1:]
        mine, theirs = zip(*pairs, strict=True)
        seconds = {what: statistics.median(mine), f"{what}, peer": statistics.median(theirs)}
        ratio = statistics.median(other / own for own, other in pairs)
        rounded = {key: round(value, 3) for key, value in seconds.items()}
        return BenchResult("partition", rounded, {what: round(ratio, 2)})

    def operation(self) -> BenchResult:
        """One operation against a plain sorted rewrite of the same rows into as many files."""

        def ours() -> float:
            name = self.copy()
            self.lake.table(name).partitioning.set(POLICY)
            return clock(self.lake.table(name).partitioning.operate)

        def peer() -> float:
            self.number += 1
            target = self.lake.storage.path(f"Tables/plain{self.number}")
            rows = self.lake.spark.read.format("delta").load(self.raw)
            arranged = rows.repartition(BUCKETS, "tenant").sortWithinPartitions("tenant")
            return clock(arranged.write.format("delta").save, target)

        return self.timed("operation against a sorted rewrite", ours, peer)

    def layouts(self) -> BenchResult:
        """Files and bytes that an equality reads, by layout; seconds to make and to read it."""
        seconds: dict[str, float] = {}
        ratios: dict[str, float] = {}
        raw_size = size(self.lake, "raw")
        spark = self.lake.spark

        def zorder(name: str) -> None:
            path = self.lake.storage.path(f"Tables/{name}")
            spark.conf.set("spark.databricks.delta.optimize.maxFileSize", str(raw_size // BUCKETS))
            try:
                spark.sql(f"OPTIMIZE delta.`{path}` ZORDER BY (tenant)").collect()
            finally:
                spark.conf.unset("spark.databricks.delta.optimize.maxFileSize")

        def liquid(name: str) -> None:
            path = self.lake.storage.path(f"Tables/{name}")
            spark.sql(f"ALTER TABLE delta.`{path}` CLUSTER BY (tenant)")
            spark.conf.set("spark.databricks.delta.optimize.maxFileSize", str(raw_size // BUCKETS))
            try:
                spark.sql(f"OPTIMIZE delta.`{path}` FULL").collect()
            finally:
                spark.conf.unset("spark.databricks.delta.optimize.maxFileSize")

        def policy(name: str) -> None:
            self.lake.table(name).partitioning.set(POLICY)
            self.lake.table(name).partitioning.operate()

        keys = [NAMES[n * 997 % TENANTS] for n in range(5)]
        for label, make in (
            ("policy", policy),
            ("Z-order", zorder),
            ("liquid", liquid),
            ("raw", None),
        ):
            name = "raw" if make is None else self.copy()
            table = self.lake.table(name)
            if make is not None:
                seconds[f"{label}, made"] = round(clock(make, name), 2)
            scans = [table.scan(f"tenant = '{key}'") for key in keys]
            read = statistics.mean(len(scan.read) for scan in scans)
            ratios[f"{label}, files by files read"] = round(scans[0].files / read, 1)
            ratios[f"{label}, raw bytes by bytes"] = round(raw_size / scans[0].size, 2)
            ratios[f"{label}, raw bytes by bytes read"] = round(
                raw_size / statistics.mean(scan.bytes_read for scan in scans), 1
            )
            reads = [clock(noop, table.read(f"tenant = '{key}'")) for key in keys * 2][len(keys) :]
            seconds[f"{label}, read"] = round(statistics.median(reads), 3)
        return BenchResult("partition", seconds, ratios)

    def cycle(self) -> BenchResult:
        """A cycle over two new files, on a table of two other files and on one of twenty."""

        def grown(files: int) -> float:
            self.number += 1
            name = f"grown{self.number}"
            path = copy_table(self.lake, self.raw, name)
            if files < FILES:
                shutil.rmtree(path)
                raw_table(self.lake, name, files)
            self.lake.table(name).partitioning.set(POLICY)
            self.lake.table(name).partitioning.operate()
            raw_table(self.lake, name, 2, first=ROWS)
            return clock(self.lake.table(name).partitioning.operate)

        return self.timed(
            "cycle, old rows ten times as many", lambda: grown(FILES), lambda: grown(2)
        )

    def nodes(self) -> BenchResult:
        """An aggregation and a join on the key: node by node, against Spark's shuffle."""
        left, right = (self.lake.table(self.partitioned()) for _ in range(2))

        def sums(rows: DataFrame) -> DataFrame:
            return rows.groupBy("tenant", "path").count()

        def both(a: DataFrame, b: DataFrame) -> DataFrame:
            return a.join(sums(b), ["tenant", "path"])

        jobs: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
            "aggregation node by node": (
                lambda: on_each_node([left], sums, nodes=NODES),
                lambda: sums(left.read()),
            ),
            "join node by node": (
                lambda: on_each_node([left, right], both, nodes=NODES),
                lambda: both(left.read(), right.read()),
            ),
        }
        return join_results(
            "partition",
            [
                self.timed(
                    what,
                    lambda o=ours: clock(lambda: noop(o())),
                    lambda p=peer: clock(lambda: noop(p())),
                )
                for what, (ours, peer) in jobs.items()
            ],
        )


def _part(name: str) -> Callable[[int], BenchResult]:
    def measure(pairs: int) -> BenchResult:
        with tempfile.TemporaryDirectory() as folder:
            result: BenchResult = getattr(Bench(folder, pairs), name)()
            return result

    return measure


PARTS = {name: _part(name) for name in ("operation", "layouts", "cycle", "nodes")}


def run(pairs: int) -> BenchResult:
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(folder, pairs)
        return join_results("partition", [getattr(bench, name)() for name in PARTS])


if __name__ == "__main__":
    print(run(int(sys.argv[1]) if len(sys.argv) > 1 else 1))
