"""The requests of a mirror on S3: idle and busy cycles, many tables, a long history.

The real code in front of a real server on this machine, whose log is counted. Prices and latencies
are those of `docs/scale.md`; there is no network here, so seconds are computed, not measured.
`--part idle` needs no Spark.
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
from helpers.scale import Count, counted, dollars, idle_cycle, seconds
from mirrorlake import Lake
from mirrorlake.delta.log_files import commit_path
from mirrorlake.mirror.shards import Shard
from mirrorlake.storage import Storage

IDLE = [int(n) for n in os.environ.get("MIRRORLAKE_TABLES", "10,1000").split(",")]
BUSY = (1, 4, 8)  # tables of one cycle, each with a file
FILES = (1, 2, 12)  # of one table's cycle
HISTORY = 1200  # versions, and as many files beside plans: more than a page of a listing
CYCLES = 10  # so that a checkpoint is among them
EVERY = 60  # seconds from one cycle to the next of a mirror that has nothing to do
DAY = 86_400


def run(pairs: int) -> BenchResult:
    return join_results("scale", (part(pairs) for part in PARTS.values()))


def _measure(part: str, _pairs: int) -> BenchResult:
    server = S3Server()
    try:
        log = str(server.folder / "log")
        found = run_script(Path(__file__), part, log, env=server.variables())
    finally:
        server.close()
    return BenchResult("scale", {}, {}, found["requests"], found["costs"])


class Told:
    """What a part found: requests, the seconds that they would take, the dollars of a day."""

    def __init__(self) -> None:
        self.requests: dict[str, int] = {}
        self.costs: dict[str, float] = {}

    def add(self, what: str, count: Count, *, tables: int = 0, idle: bool = False) -> None:
        self.requests[what] = count.total
        for kind, number in sorted(count.kinds.items()):
            self.requests[f"{what}, {kind}"] = number
        took = seconds(count.kinds, tables)
        self.costs[f"{what}, s"] = round(took, 2)
        if idle:
            cycles = DAY / max(EVERY, took)
            self.costs[f"{what}, $ a day"] = round(cycles * dollars(count.kinds), 2)
        else:
            self.costs[f"{what}, $ a thousand"] = round(1000 * dollars(count.kinds), 3)


def idle(log: Path) -> Told:
    told = Told()
    for tables in IDLE:
        found = idle_cycle(Storage(_root()), log, tables)
        told.add(f"idle, {tables} tables", found, tables=tables, idle=True)
    found = idle_cycle(Storage(_root()), log, IDLE[-1], shard="2/8")
    own = sum(Shard(2, 8).has(f"Files/LandingZone/t{n:05d}") for n in range(IDLE[-1]))
    told.add(f"idle, {own} of {IDLE[-1]} tables, shard 2/8", found, tables=own, idle=True)
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


def history(log: Path) -> Told:
    """A cycle of a young table, and of the same one with thousands of versions behind it."""
    told = Told()
    lake = Lake(_root())
    publish(lake, "t", 1)
    mirror(lake)
    told.add(f"{CYCLES} cycles of a young table", _cycles(lake, log))
    version = lake.table("t").snapshot().version
    storage = lake.storage
    empty = b'{"commitInfo":{"timestamp":0,"operation":"none"}}\n'

    def lengthen(number: int) -> None:
        storage.write(commit_path("Tables/t", version + 1 + number), empty)
        storage.write(f"{plans}/{number:020d}.json.old", b"{}")

    (life,) = storage.list("Files/_mirrorlake/plans/t").folders
    plans = f"Files/_mirrorlake/plans/t/{life}"
    last = HISTORY + 9 - (version + HISTORY) % 10  # the next version gets a checkpoint
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lengthen, range(last)))
    for _ in range(2):  # reads the new commits once
        publish(lake, "t", 1)
        mirror(lake)
    told.add(f"{CYCLES} cycles after {HISTORY} versions", _cycles(lake, log))
    return told


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


_COUNTED = {count.__name__: count for count in (idle, busy, history)}
PARTS = {name: partial(_measure, name) for name in _COUNTED}

if __name__ == "__main__":
    found = _COUNTED[sys.argv[1]](Path(sys.argv[2]))
    print(json.dumps({"requests": found.requests, "costs": found.costs}))
