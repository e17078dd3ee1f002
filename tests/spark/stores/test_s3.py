"""Spark on a real S3 server: one URI for both sides, and commits of several drivers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from helpers.fault_proxy import Fault, FaultProxy, Request
from helpers.s3_server import BUCKET, SECRET, S3Server
from mirrorlake.paths import PROJECT


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


def start(server: S3Server, proxy: FaultProxy, *arguments: str) -> subprocess.Popen[str]:
    path = os.pathsep.join([str(PROJECT / "lib"), str(PROJECT / "tests")])
    return subprocess.Popen(
        [sys.executable, "-m", "helpers.s3_program", *arguments],
        env=os.environ | server.variables(proxy.port) | {"PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def result(process: subprocess.Popen[str]) -> Any:
    out, err = process.communicate(timeout=500)
    assert process.returncode == 0, err[-4000:]
    assert SECRET not in out + err
    return json.loads(out.splitlines()[-1])


@pytest.fixture
def root() -> str:
    return f"s3://{BUCKET}/{uuid.uuid4().hex}"


def is_commit(request: Request) -> bool:
    return "/_delta_log/0" in request.key and request.key.endswith(".json")


@pytest.mark.long
def test_a_lake_on_s3_is_mirrored_queried_dropped_and_taken_back(
    server: S3Server, proxy: FaultProxy, root: str
):
    seen = result(start(server, proxy, "work", root))
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
def test_two_drivers_with_slow_commits_and_lost_answers_lose_none(
    server: S3Server, proxy: FaultProxy, root: str
):
    lost: set[str] = set()

    def slow(request: Request) -> Fault:
        if request.method != "PUT" or not is_commit(request):
            return Fault()
        first = request.key not in lost and len(lost) % 2 == 0
        lost.add(request.key)
        return Fault(503 if first else None, delay=0.15)

    proxy.faults = slow
    writers = [start(server, proxy, "append", root, str(number), "25") for number in (1, 2)]
    assert [result(writer)["done"] for writer in writers] == [25, 25]
    assert result(start(server, proxy, "count", root)) == {"rows": 50, "distinct": 50}
