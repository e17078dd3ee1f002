"""Spark on a real S3 server: one URI for both sides, and commits of several drivers."""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from helpers.fault_proxy import Fault, FaultProxy, LostAnswers, RandomFaults, Request
from helpers.notebooks import TOOLS
from helpers.programs import Program, programs, result_of
from helpers.s3_program import FILES, LOG
from helpers.s3_server import BUCKET, S3Server

_LONGEST = 1200  # seconds
MOST_OF_A_FILE = 8  # requests
SOAK = os.environ.get("MIRRORLAKE_SOAK_SECONDS", "600")
APPENDS = int(os.environ.get("MIRRORLAKE_APPENDS", "25"))  # of each driver


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    server = S3Server()
    yield server
    server.close()


@pytest.fixture
def proxy(server: S3Server) -> Iterator[FaultProxy]:
    proxy = FaultProxy(server.port)
    yield proxy
    proxy.close()


@pytest.fixture
def start(server: S3Server, proxy: FaultProxy) -> Iterator[Program]:
    """Starts a program that reaches the store through the proxy; it ends with the test."""
    with programs("helpers.s3_program", os.environ | server.variables(proxy.port)) as begin:
        yield begin


def result(process: subprocess.Popen[str]) -> Any:
    return result_of(process, _LONGEST)


@pytest.fixture
def root() -> str:
    return f"s3://{BUCKET}/{uuid.uuid4().hex}"


def is_commit(request: Request) -> bool:
    return "/_delta_log/0" in request.key and request.key.endswith(".json")


@pytest.mark.long
def test_a_lake_on_s3_is_mirrored_queried_dropped_and_taken_back(
    start: Program, proxy: FaultProxy, root: str
):
    seen = result(start("work", root))
    mirrored = [[0, 0], [1, 1], [2, 0], [3, 0]]
    assert seen["errors"] == [None]
    assert seen["rows"] == seen["back"] == mirrored
    assert seen["at 1"] == 5
    assert (seen["dropped"], seen["tables"]) == (["items"], [])
    assert seen["after"] == [None]
    assert seen["last"] == [[0, 0], [1, 1], [2, 2], [3, 0]]
    commits = [r for r in proxy.requests if is_commit(r) and r.method == "PUT"]
    assert commits
    assert all(request.conditional for request in commits)


@pytest.mark.long
def test_over_a_bad_line_all_ends_the_same(start: Program, proxy: FaultProxy, root: str):
    lost = LostAnswers(503, 412)

    def bad(request: Request) -> Fault:
        fault = lost(request)
        return fault if fault != Fault() else noise(request)

    noise, proxy.faults = RandomFaults(seed=22, share=0.03), bad
    seen = result(start("work", root))
    assert seen["errors"] == [None]
    assert seen["rows"] == seen["back"] == [[0, 0], [1, 1], [2, 0], [3, 0]]
    assert (seen["dropped"], seen["tables"]) == (["items"], [])
    assert seen["last"] == [[0, 0], [1, 1], [2, 2], [3, 0]]
    assert lost.lost > 10


@pytest.mark.long
def test_publishers_mirrors_an_optimize_and_a_partitioning_at_once(start: Program, root: str):
    """Ten minutes; `MIRRORLAKE_SOAK_SECONDS` makes it shorter."""
    result(start("begin", root))
    publishers = [start("publish", root, str(number), SOAK) for number in range(3)]
    workers = [start("watch", root, SOAK), start("watch", root, SOAK), start("tidy", root, SOAK)]
    published = [result(one)["rows"] for one in publishers]
    done = [result(one) for one in workers]
    found = result(start("settle", root))
    assert found["failed"] == []
    assert found["rows"] == sum(published) + 1
    assert found["distinct"] == found["rows"]
    assert found["sum"] == sum(count * (count - 1) // 2 for count in published)
    assert done[2]["optimized"] > 0
    assert done[2]["partitioned"] > 0


@pytest.mark.long
def test_everything_else_that_one_does_with_a_lake_on_s3(start: Program, root: str):
    seen = result(start("tour", root))
    mirrored = [[0, 0], [1, 1], [2, 0], [3, 0]]
    restored = [[number, 0] for number in range(5)]
    assert seen == {
        "mirror": [None],
        "rows": mirrored,
        "lint": 0,
        "status": ["Replicating"],
        "history": 3,
        "at a moment": 5,
        "diff": 3,  # as the feed's
        "feed": 3,  # an update's two, and a delete
        "analyze": 4,
        "vorder": 5000,
        "compact": True,
        "frame": ["complete", 4],
        "row ids": 4,
        "view": [[[0, 3], [1, 1]], True],
        "archive": 10,
        "dimension": 7,
        "partition": [0, 100, 0],
        "fence": [True, 1, False, True, 150, sum(range(150))],
        "reconcile": 0,
        "restore": True,
        "restored": restored,
        "forget": [row for row in restored if row[0] != 1],
        "vacuum": 4,
        "create again": 0,
        "runs": [["done", "done"], "done"],
    }


@pytest.mark.long
def test_every_tool_ends_well_on_a_lake_on_s3(start: Program, root: str):
    assert result(start("tools", root)) == dict.fromkeys(TOOLS, "done")


@pytest.mark.long
def test_two_drivers_with_slow_commits_and_lost_answers_lose_none(
    start: Program, proxy: FaultProxy, root: str
):
    lost: set[str] = set()

    def slow(request: Request) -> Fault:
        if request.method != "PUT" or not is_commit(request):
            return Fault()
        first = request.key not in lost and len(lost) % 2 == 0
        lost.add(request.key)
        return Fault(503 if first else None, delay=0.15)

    proxy.faults = slow
    writers = [start("append", root, str(number), str(APPENDS)) for number in (1, 2)]
    assert [result(writer)["done"] for writer in writers] == [APPENDS, APPENDS]
    total = 2 * APPENDS
    assert result(start("count", root)) == {"rows": total, "distinct": total}


@pytest.mark.long
def test_one_more_small_file_is_a_few_requests(start: Program, server: S3Server, root: str) -> None:
    seen = result(start("files", root, **{LOG: str(server.requests)}))
    few, many = FILES
    print(seen)
    assert (seen[str(many)] - seen[str(few)]) / (many - few) <= MOST_OF_A_FILE, seen
