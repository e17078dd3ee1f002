"""A month mirrored on S3 against the same on disk, and the requests of a cycle.

One Spark uses a small server on this machine, so the number of requests and their handling is
measured, not a network. The server's log counts the requests.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
import uuid
from collections import Counter
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from helpers.bench import BenchResult, run_script
from helpers.s3_server import BUCKET, S3Server
from helpers.scale import Count, counted
from mirrorlake import Lake

ROWS, DAYS, CHANGES, CYCLES = 20_000, 30, 1_000, 5


def run(pairs: int) -> BenchResult:
    server = S3Server()
    try:
        log = str(server.requests)
        found = run_script(Path(__file__), str(pairs), log, env=server.variables())
    finally:
        server.close()
    remote, local = found["remote"], found["local"]
    what = "a month on S3, against a disk"
    seconds = {what: statistics.median(remote), f"{what}, peer": statistics.median(local)}
    ratio = statistics.median(one / other for one, other in zip(local, remote, strict=True))
    rounded = {name: round(value, 3) for name, value in seconds.items()}
    return BenchResult("remote", rounded, {what: round(ratio, 2)}, found["requests"])


def month(root: str, log: Path | None = None) -> tuple[float, dict[str, int]]:
    """Publish a month's files, mirror a share of them at a time, and return the cycles' seconds."""
    lake = Lake(root)
    publisher = lake.publisher("t", keys=["id"])
    publisher.upsert([{"id": n, "v": 0.5} for n in range(ROWS)])
    spent, told = 0.0, {}
    for first in range(0, DAYS, DAYS // CYCLES):
        days = range(first, first + DAYS // CYCLES)
        for day in days:
            ids = [(day * 7919 + n * 13) % ROWS for n in range(CHANGES)]
            publisher.upsert([{"id": one, "v": float(day)} for one in ids[100:]])
            publisher.delete([{"id": one} for one in ids[:100]])
        with _requests(log) as found:
            began = time.monotonic()
            report = lake.mirror()
            spent += time.monotonic() - began
        told[f"requests, a cycle of {2 * len(days)} files"] = found.total
        assert not report.failed, report
    with _requests(log) as found:
        lake.mirror()
    told["requests, a cycle with nothing to do"] = found.total
    return spent, told


def _requests(log: Path | None) -> AbstractContextManager[Count]:
    """Count a server's requests while the block runs; count nothing without a server."""
    return nullcontext(Count(Counter(), [])) if log is None else counted(log)


def work(pairs: int, log: Path) -> dict[str, object]:
    remote, local, told = [], [], {}
    for pair in range(pairs + 1):  # the first cycle does not count
        seconds, told = month(f"s3://{BUCKET}/{uuid.uuid4().hex}", log)
        with tempfile.TemporaryDirectory() as folder:
            other, _ = month(folder)
        if pair:
            remote.append(seconds)
            local.append(other)
    return {"remote": remote, "local": local, "requests": told}


if __name__ == "__main__":
    print(json.dumps(work(int(sys.argv[1]), Path(sys.argv[2]))))
