"""Publishers, mirror, cleanup, OPTIMIZE and a stream run concurrently: rows arrive exactly once.

It runs ten minutes with `--long`; `MIRRORLAKE_SOAK_SECONDS` sets another duration.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from helpers.follower import Follower
from mirrorlake import Lake, MirrorOptions
from mirrorlake.spark.sql import is_conflict, spark_message

pytestmark = pytest.mark.long
SECONDS = float(os.environ.get("MIRRORLAKE_SOAK_SECONDS", "600"))
WRITERS = 2


def publish(lake: Lake, writer: int, rows: dict[int, int], stop: threading.Event) -> None:
    """Upsert and delete own keys; `rows` has the expected rows at the end."""
    publisher = lake.publisher("t", keys=["id"])
    turn = 0
    while not stop.is_set():
        turn += 1
        keys = [writer + WRITERS * ((turn * 7 + n) % 500) for n in range(20)]
        publisher.upsert([{"id": key, "v": turn} for key in keys])
        rows.update(dict.fromkeys(keys, turn))
        if turn % 3 == 0:
            gone = keys[:5]
            publisher.delete([{"id": key} for key in gone])
            for key in gone:
                rows.pop(key, None)
        stop.wait(0.2)


def test_all_at_once(lake: Lake, tmp_path: Path) -> None:
    expected: list[dict[int, int]] = [{} for _ in range(WRITERS)]
    quiet, stop = threading.Event(), threading.Event()
    failures: list[str] = []
    lake.publisher("t", keys=["id"]).upsert([{"id": -1, "v": 0}])
    lake.mirror()
    name = lake.table("t").sql_name

    def mirror() -> None:
        options = MirrorOptions(compact_after=5, keep_processed_days=0)
        report = lake.watch(stop, interval=0.2, options=options)
        failures.extend(str(line.error) for line in report.failed)

    def optimize() -> None:
        while not stop.is_set():
            try:
                lake.spark.newSession().sql(f"OPTIMIZE {name}").collect()
            except Exception as error:
                if not is_conflict(error):
                    failures.append(spark_message(error))
            stop.wait(3)

    follower = Follower(lake, "t", "v", tmp_path / "checkpoint")
    writers = [
        threading.Thread(target=publish, args=(lake, n, expected[n], quiet)) for n in range(WRITERS)
    ]
    workers = [threading.Thread(target=mirror), threading.Thread(target=optimize)]
    for thread in [*writers, *workers]:
        thread.start()
    time.sleep(SECONDS)  # the soak itself
    quiet.set()
    for thread in writers:
        thread.join()
    deadline = time.monotonic() + 120
    while any(line.backlog_files for line in lake.status().tables) and time.monotonic() < deadline:
        time.sleep(0.2)
    stop.set()
    for thread in workers:
        thread.join()
    follower.finish()
    assert failures == []
    wanted = {-1: 0} | expected[0] | expected[1]
    rows = [tuple(row) for row in lake.table("t").read().select("id", "v").collect()]
    assert len(rows) == len(set(rows))
    assert dict(rows) == wanted
    assert follower.seen == wanted
    assert follower.rows > len(wanted)
