"""The partitioning policy on an hour of an application's log: files read, bytes, and seconds.

2,000,000 lines of 12,264 tenants arrive in 20 files of three minutes, see `log_lines`. The policy
has 128 hash buckets. Peers: a plain sorted rewrite by Spark, Z-order and liquid clustering of the
same rows, all written with the settings of operations. Ratios of files and bytes are raw by ours,
ratios of seconds peer by ours. The raw files use Snappy, as Spark and therefore the mirror writes
them; one ratio uses raw files that were written with the operations' settings.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from helpers.bench import BenchResult, join_results
from helpers.log_lines import TENANTS, guid, log_files
from mirrorlake import Lake
from mirrorlake.spark.rewrite import BACKGROUND_CONFS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


ROWS, FILES, BUCKETS = 2_000_000, 20, 128
IDLE = 100
KEY = {
    "ColumnName": "tenant",
    "Kind": "Hash",
    "Properties": {"MaxPartitionCount": BUCKETS, "PartitionAssignmentMode": "ByPartition"},
}
POLICY = {"PartitionKeys": [KEY], "EffectiveDateTime": "2000-01-01"}


def raw_table(lake: Lake, name: str, files: int = FILES, hour: int = 0) -> str:
    """Create the log as it arrives, one commit and one file per batch, and return its path."""
    path = lake.storage.path(f"Tables/{name}")
    part = Path(lake.storage.root) / "part.parquet"
    for lines in islice(log_files(hour, ROWS, FILES), files):
        pq.write_table(lines, part)
        rows = lake.spark.read.parquet(str(part)).coalesce(1)
        rows.write.format("delta").mode("append").save(path)
    return path


def encode_alike(lake: Lake, source: str, target: str) -> None:
    """Write the same files with the settings of operations, one per task, in the same order."""
    with settings(lake, BACKGROUND_CONFS | {"spark.sql.files.openCostInBytes": str(2**27)}):
        rows = lake.spark.read.format("delta").load(source)
        rows.write.format("delta").save(lake.storage.path(f"Tables/{target}"))


@contextmanager
def settings(lake: Lake, confs: dict[str, str]) -> Iterator[None]:
    """Set options of the session while the block runs."""
    for key, value in confs.items():
        lake.spark.conf.set(key, value)
    try:
        yield
    finally:
        for key in confs:
            lake.spark.conf.unset(key)


def copy_table(lake: Lake, source: str, target: str) -> str:
    shutil.copytree(source, lake.storage.path(f"Tables/{target}"))
    return lake.storage.path(f"Tables/{target}")


def size(lake: Lake, name: str) -> int:
    return lake.table(name).partitioning.stats().size


def clock(call: Callable[..., object], *arguments: object) -> float:
    began = time.perf_counter()
    call(*arguments)
    return time.perf_counter() - began


def noop(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


class Bench:
    """One lake with the raw log and copies of it."""

    def __init__(self, folder: str, pairs: int) -> None:
        self.lake = Lake(folder)
        self.pairs = pairs
        Path(folder).mkdir(exist_ok=True)
        self.number = 0

    @cached_property
    def raw(self) -> str:
        """Return the raw log, which is created once for all parts."""
        return raw_table(self.lake, "raw")

    def copy(self) -> str:
        self.number += 1
        copy_table(self.lake, self.raw, f"copy{self.number}")
        return f"copy{self.number}"

    def timed(self, what: str, ours: Callable[[], float], peer: Callable[[], float]) -> BenchResult:
        pairs = [(ours(), peer()) for _ in range(self.pairs + 1)][1:]
        mine, theirs = zip(*pairs, strict=True)
        seconds = {what: statistics.median(mine), f"{what}, peer": statistics.median(theirs)}
        ratio = statistics.median(other / own for own, other in pairs)
        rounded = {key: round(value, 3) for key, value in seconds.items()}
        return BenchResult("partition", rounded, {what: round(ratio, 2)})

    def operation(self) -> BenchResult:
        """Compare one operation with a plain sorted rewrite of the table into as many files."""

        def ours() -> float:
            name = self.copy()
            self.lake.table(name).partitioning.set(POLICY)
            return clock(self.lake.table(name).partitioning.operate)

        def peer() -> float:
            target = self.lake.storage.path(f"Tables/{self.copy()}")
            rows = self.lake.spark.read.format("delta").load(target)
            arranged = rows.repartition(BUCKETS, "tenant").sortWithinPartitions("tenant", "at")
            with settings(self.lake, BACKGROUND_CONFS):
                return clock(arranged.write.format("delta").mode("overwrite").save, target)

        return self.timed("operation against a sorted rewrite", ours, peer)

    def raw_as_it_came(self) -> BenchResult:
        """Measure an equality filter on the raw files, also with the settings of operations."""
        encode_alike(self.lake, self.raw, "raw encoded alike")
        return join_results("partition", [self.layout("raw"), self.layout("raw encoded alike")])

    def policy(self) -> BenchResult:
        """Measure an equality filter on the policy's files."""

        def make(name: str) -> None:
            self.lake.table(name).partitioning.set(POLICY)
            self.lake.table(name).partitioning.operate()

        return self.layout("policy", make)

    def zorder(self) -> BenchResult:
        """Measure the same filter on Z-ordered files."""
        confs = self.small_files()

        def make(name: str) -> None:
            path = self.lake.storage.path(f"Tables/{name}")
            with settings(self.lake, confs):
                self.lake.spark.sql(f"OPTIMIZE delta.`{path}` ZORDER BY (tenant)").collect()

        return self.layout("Z-order", make)

    def liquid(self) -> BenchResult:
        """Measure the same filter on files with liquid clustering."""
        confs = self.small_files()

        def make(name: str) -> None:
            path = self.lake.storage.path(f"Tables/{name}")
            self.lake.spark.sql(f"ALTER TABLE delta.`{path}` CLUSTER BY (tenant)")
            with settings(self.lake, confs):
                self.lake.spark.sql(f"OPTIMIZE delta.`{path}` FULL").collect()

        return self.layout("liquid", make)

    def small_files(self) -> dict[str, str]:
        """Return settings with which the peers write about as many files as the policy."""
        largest = size(self.lake, Path(self.raw).name) // BUCKETS
        return BACKGROUND_CONFS | {"spark.databricks.delta.optimize.maxFileSize": str(largest)}

    def layout(self, label: str, make: Callable[[str], None] | None = None) -> BenchResult:
        """Measure the files and bytes that an equality filter reads of one layout, and its seconds.

        Args:
            label: the layout's name; the table's name if nothing creates it.
            make: writes the layout into the copy of the raw table that it is given.
        """
        keys = [guid(n * 997 % TENANTS) for n in range(5)]
        name = label if make is None else self.copy()
        table, seconds = self.lake.table(name), {}
        if make is not None:
            seconds[f"{label}, made"] = round(clock(make, name), 2)
        scans = [table.scan(f"tenant = '{key}'") for key in keys]
        files = statistics.mean(len(scan.read) for scan in scans)
        read = statistics.mean(scan.bytes_read for scan in scans)
        raw_size = size(self.lake, Path(self.raw).name)
        ratios = {
            f"{label}, files by files read": round(scans[0].files / files, 1),
            f"{label}, raw bytes by bytes": round(raw_size / scans[0].size, 2),
            f"{label}, raw bytes by bytes read": round(raw_size / read, 1),
        }
        reads = [clock(noop, table.read(f"tenant = '{key}'")) for key in keys * 2][len(keys) :]
        seconds[f"{label}, read"] = round(statistics.median(reads), 3)
        return BenchResult("partition", seconds, ratios)

    def cycle(self) -> BenchResult:
        """Measure a cycle over two new files, on a table of two other files and one of twenty."""

        def grown(files: int) -> float:
            self.number += 1
            name = f"grown{self.number}"
            path = copy_table(self.lake, self.raw, name)
            if files < FILES:
                shutil.rmtree(path)
                raw_table(self.lake, name, files)
            self.lake.table(name).partitioning.set(POLICY)
            self.lake.table(name).partitioning.operate()
            raw_table(self.lake, name, 2, hour=1)
            return clock(self.lake.partitioning.run, name)

        return self.timed(
            "cycle, old rows ten times as many", lambda: grown(FILES), lambda: grown(2)
        )

    def idle(self) -> BenchResult:
        """Measure a cycle over one new file of a table, alone and with a hundred idle tables."""
        alone, many = (
            Lake(f"{self.lake.storage.root}/alone"),
            Lake(f"{self.lake.storage.root}/many"),
        )
        lines = next(log_files(0, ROWS, FILES)).slice(0, 1000)
        rows = self.lake.spark.createDataFrame(lines).coalesce(1)
        for lake, others in ((alone, 0), (many, IDLE)):
            path = lake.storage.path("Tables/busy")
            rows.write.format("delta").save(path)
            for number in range(others):
                copy_table(lake, path, f"idle{number}")
            for name in lake.tables():
                key = {**KEY, "Properties": {"MaxPartitionCount": 2}}
                lake.table(name).partitioning.set({"PartitionKeys": [key]})
            lake.partitioning.run()  # nothing is new

        def cycle(lake: Lake) -> float:
            rows.write.format("delta").mode("append").save(lake.storage.path("Tables/busy"))
            return clock(lake.partitioning.run)

        busy = self.timed(
            f"cycle, {IDLE} idle tables more", lambda: cycle(many), lambda: cycle(alone)
        )
        looks = statistics.median(clock(many.partitioning.run) for _ in range(self.pairs + 1))
        return join_results(
            "partition",
            [
                busy,
                BenchResult(
                    "partition", {"a look at an idle table": round(looks / (IDLE + 1), 5)}, {}
                ),
            ],
        )


def _part(name: str) -> Callable[[int], BenchResult]:
    def measure(pairs: int) -> BenchResult:
        with tempfile.TemporaryDirectory() as folder:
            result: BenchResult = getattr(Bench(folder, pairs), name)()
            return result

    return measure


LAYOUTS = ("policy", "zorder", "liquid", "raw_as_it_came")
PARTS = {name: _part(name) for name in (*LAYOUTS, "operation", "cycle", "idle")}


def run(pairs: int) -> BenchResult:
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(folder, pairs)
        return join_results("partition", [getattr(bench, name)() for name in PARTS])


if __name__ == "__main__":
    print(run(int(sys.argv[1]) if len(sys.argv) > 1 else 1))
