"""The requests of a mirror on S3: idle and busy cycles, many tables, a long history.

The real code uses a real server on this machine, whose log is counted. Prices and latencies are
those of `docs/scale.md`; there is no network, so seconds are computed, not measured. `--part idle`
needs no Spark.
"""

from __future__ import annotations

import json
import os
import sys
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from helpers.bench import BenchResult, join_results, run_script
from helpers.s3_server import BUCKET, S3Server
from helpers.scale import Count, counted, dollars, idle_cycle, make_tables, seconds
from mirrorlake import Lake
from mirrorlake.delta.log_files import commit_path
from mirrorlake.mirror.engine import Engine
from mirrorlake.mirror.state import Shard
from mirrorlake.storage.files import Storage

IDLE = [int(n) for n in os.environ.get("MIRRORLAKE_TABLES", "10,1000").split(",")]
BUSY = (1, 4, 8)  # tables of one cycle, each with a file
FILES = (1, 2, 12)  # of one table's cycle
LAKES = {10: 10, 1000: 100, 10_000: 100}  # tables, and how many of them get a file in every cycle
AT_ONCE = 8  # tables, on a machine of many cores
HISTORY = int(os.environ.get("MIRRORLAKE_VERSIONS", "100000"))  # and as many files beside plans
WARM = 3  # cycles; in the last one all tables are known
CYCLES = 10  # so that one of them writes a checkpoint
EVERY = 60  # seconds between two cycles of an idle mirror
DAY = 86_400


def run(pairs: int) -> BenchResult:
    return join_results("scale", (part(pairs) for part in PARTS.values()))


def _measure(part: str, _pairs: int) -> BenchResult:
    server = S3Server()
    try:
        log = str(server.requests)
        found = run_script(Path(__file__), part, log, env=server.variables())
    finally:
        server.close()
    return BenchResult("scale", {}, {}, found["requests"], found["costs"])


class Told:
    """The result of a part: requests, their seconds, and the dollars of a day."""

    def __init__(self) -> None:
        self.requests: dict[str, int] = {}
        self.costs: dict[str, float] = {}

    def add(self, what: str, count: Count, *, at_once: int = 1, a_day: bool = False) -> None:
        self.requests[what] = count.total
        for kind, number in sorted(count.kinds.items()):
            self.requests[f"{what}, {kind}"] = number
        took = seconds(count.kinds, at_once)
        self.costs[f"{what}, s"] = round(took, 2)
        if a_day:
            cycles = DAY / max(EVERY, took)
            self.costs[f"{what}, $ a day"] = round(cycles * dollars(count.kinds), 2)
        else:
            self.costs[f"{what}, $ a thousand"] = round(1000 * dollars(count.kinds), 3)


def idle(log: Path) -> Told:
    told = Told()
    for tables in IDLE:
        found = idle_cycle(Storage(_root()), log, tables)
        told.add(f"idle, {tables} tables", found, a_day=True)
    found = idle_cycle(Storage(_root()), log, IDLE[-1], shard="2/8")
    own = sum(Shard(2, 8).has(f"Files/LandingZone/t{n:05d}") for n in range(IDLE[-1]))
    told.add(f"idle, {own} of {IDLE[-1]} tables, shard 2/8", found, a_day=True)
    return told


def busy(log: Path) -> Told:
    told = Told()
    lake = Lake(_root())
    for files in (1, *FILES):  # the first cycle starts Spark and makes the table
        publish(lake, "t", files)
        with counted(log) as found:
            mirror(lake)
        told.add(f"busy, 1 table, {files} files", found)
    least, most = (told.requests[f"busy, 1 table, {n} files"] for n in (FILES[1], FILES[2]))
    told.requests["busy, one more file"] = round((most - least) / (FILES[2] - FILES[1]))
    for tables in BUSY:
        other = Lake(_root())
        for n in range(tables):
            publish(other, f"t{n}", 1)
        mirror(other)
        for n in range(tables):
            publish(other, f"t{n}", 1)
        with counted(log) as found:
            mirror(other)
        told.add(f"busy, {tables} tables, 1 file each", found)
    least, most = (told.requests[f"busy, {n} tables, 1 file each"] for n in (BUSY[0], BUSY[-1]))
    told.requests["busy, one more table"] = round((most - least) / (BUSY[-1] - BUSY[0]))
    return told


def lakes(log: Path) -> Told:
    """Count the cycles of a running mirror, on lakes in which some tables get a file each time."""
    told = Told()
    for tables, changed in LAKES.items():
        lake = Lake(_root())
        make_tables(lake.storage, tables - changed)
        engine = _engine(lake)
        for _ in range(WARM):
            found = _busy_cycle(lake, engine, changed, log)
        what = f"busy, {changed} of {tables} tables"
        told.add(what, found, at_once=AT_ONCE, a_day=True)
    return told


def _engine(lake: Lake) -> Engine:
    return Engine(lake.storage, lambda: lake.spark)


def _busy_cycle(lake: Lake, engine: Engine, changed: int, log: Path) -> Count:
    for n in range(changed):
        publish(lake, f"busy{n}", 1)
    with counted(log) as found:
        report = engine.run_cycle()
    assert not report.failed, report
    return found


def history(log: Path) -> Told:
    """Count a cycle of a young table, and of the same one after thousands of versions."""
    told = Told()
    lake = Lake(_root())
    publish(lake, "t", 1)
    mirror(lake)
    told.add(f"{CYCLES} cycles of a young table", _cycles(lake, log))
    _lengthen(lake)
    for _ in range(2):  # finds the new versions
        publish(lake, "t", 1)
        mirror(lake)
    told.add(f"{CYCLES} cycles after {HISTORY} versions", _cycles(lake, log))
    return told


def _lengthen(lake: Lake) -> None:
    """Add versions that change nothing, and a checkpoint of the last one."""
    storage = lake.storage
    while not storage.exists(_checkpoint(first := lake.table("t").snapshot().version)):
        publish(lake, "t", 1)
        mirror(lake)
    (life,) = storage.list("Files/_mirrorlake/plans/t").folders
    empty = b'{"commitInfo":{"timestamp":0,"operation":"none"}}\n'

    def add(version: int) -> None:
        storage.write(commit_path("Tables/t", version), empty)
        storage.write(f"Files/_mirrorlake/plans/t/{life}/{version:020d}.json.old", b"{}")

    last = first + HISTORY
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(add, range(first + 1, last + 1)))
    storage.copy(_checkpoint(first), _checkpoint(last), is_small=True)
    size = storage.read_json("Tables/t/_delta_log/_last_checkpoint")["size"]
    storage.write_json("Tables/t/_delta_log/_last_checkpoint", {"version": last, "size": size})


def _checkpoint(version: int) -> str:
    return f"Tables/t/_delta_log/{version:020d}.checkpoint.parquet"


def _cycles(lake: Lake, log: Path) -> Count:
    found = Count(Counter(), [])
    for _ in range(CYCLES):
        publish(lake, "t", 1)
        with counted(log) as one:
            mirror(lake)
        found.kinds += one.kinds
        found.paths += one.paths
    return found


def publish(lake: Lake, table: str, files: int) -> None:
    publisher = lake.publisher(table, keys=["id"])
    for _ in range(files):
        publisher.upsert([{"id": n, "v": 0.5} for n in range(20)])


def mirror(lake: Lake) -> None:
    report = lake.mirror()
    assert not report.failed, report


def _root() -> str:
    return f"s3://{BUCKET}/{uuid.uuid4().hex[:8]}"


_COUNTED = {count.__name__: count for count in (idle, busy, lakes, history)}
PARTS = {name: partial(_measure, name) for name in _COUNTED}

if __name__ == "__main__":
    found = _COUNTED[sys.argv[1]](Path(sys.argv[2]))
    print(json.dumps({"requests": found.requests, "costs": found.costs}))
