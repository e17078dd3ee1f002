"""The mirror, partitioning, deletes and a streaming reader concurrently: no row is lost or
repeated.

The test runs ten minutes under `--long`; `MIRRORLAKE_SOAK_SECONDS` makes it shorter.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from helpers.follower import Follower
from helpers.partition_tables import PAST, hashed
from helpers.partitions import check_homogeneous, live_files
from mirrorlake import Lake, MirrorOptions

pytestmark = pytest.mark.long
SECONDS = float(os.environ.get("MIRRORLAKE_SOAK_SECONDS", "600"))


def publish(lake: Lake, rows: dict[int, str], stop: threading.Event) -> None:
    """Publish upserts and deletes; `rows` is the expected result."""
    publisher, turn = lake.publisher("t", keys=["id"]), 0
    while not stop.is_set():
        turn += 1
        keys = [(turn * 7 + n) % 500 for n in range(20)]
        publisher.upsert([{"id": key, "k": f"k{(turn + key) % 30}"} for key in keys])
        rows.update({key: f"k{(turn + key) % 30}" for key in keys})
        if turn % 3 == 0:
            publisher.delete([{"id": key} for key in keys[:5]])
            for key in keys[:5]:
                rows.pop(key, None)
        stop.wait(0.2)


def test_all_at_once(lake: Lake, tmp_path: Path) -> None:
    expected: dict[int, str] = {-1: "first"}
    quiet, stop = threading.Event(), threading.Event()
    failures: list[str] = []
    operations: list[int] = []
    lake.publisher("t", keys=["id"]).upsert([{"id": -1, "k": "first"}])
    lake.mirror()
    policy = lake.table("t").partitioning.set({"PartitionKeys": [hashed(8)], **PAST})

    def mirror() -> None:
        options = MirrorOptions(compact_after=5, keep_processed_days=0)
        report = lake.watch(stop, interval=0.2, options=options)
        failures.extend(str(line.error) for line in report.failed)

    def partition() -> None:
        process = lake.partitioning.process("t")
        while not stop.is_set():
            report = process.run(stop=stop)
            operations.append(report.operations)
            # Busy writers may win five times in a row; nothing else may go wrong.
            failures.extend(
                line.error for line in report.failed if line.error and "quicker" not in line.error
            )
            stop.wait(1)

    follower = Follower(lake, "t", "k", tmp_path / "checkpoint")
    writer = threading.Thread(target=publish, args=(lake, expected, quiet))
    workers = [threading.Thread(target=mirror), threading.Thread(target=partition)]
    for thread in [writer, *workers]:
        thread.start()
    time.sleep(SECONDS)  # the soak itself
    quiet.set()
    writer.join()
    deadline = time.monotonic() + 120
    while any(line.backlog_files for line in lake.status().tables) and time.monotonic() < deadline:
        time.sleep(0.2)
    stop.set()
    for thread in workers:
        thread.join()
    follower.finish()
    assert failures == []
    assert sum(operations) > 0
    assert not lake.partitioning.run("t").failed
    rows = [tuple(row) for row in lake.table("t").read().select("id", "k").collect()]
    assert len(rows) == len(set(rows))
    assert dict(rows) == expected
    assert follower.seen == expected
    check_homogeneous(live_files(lake.storage.path("Tables/t")), policy)
    assert lake.table("t").partitioning.stats().unpartitioned_rows == 0
    for key in ("k1", "k2", "first"):
        wanted = {number for number, value in expected.items() if value == key}
        assert {row.id for row in lake.table("t").read(f"k = '{key}'").collect()} == wanted
