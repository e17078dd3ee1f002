"""The commands of docs/object-stores.md and of docs/scale.md, on a real S3 server; and a Connect
server by its line.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from helpers.ports import free_port
from helpers.project import PROJECT
from helpers.s3_server import BUCKET, SECRET, S3Server
from mirrorlake import Lake
from mirrorlake.mirror.state import Shard
from mirrorlake.names import TableName

pytestmark = pytest.mark.long
BLOCK = re.compile(r"^```sh\n(.*?)^```", re.DOTALL | re.MULTILINE)
_START = 300  # seconds


@pytest.fixture
def environment() -> Iterator[dict[str, str]]:
    server = S3Server()
    paths = os.pathsep.join([str(PROJECT / "lib"), str(PROJECT / "tests")])
    yield os.environ | server.variables() | {"PYTHONPATH": paths}
    server.close()


def test_the_commands_run(environment: dict[str, str], tmp_path: Path):
    text = (PROJECT / "docs" / "object-stores.md").read_text(encoding="utf-8")
    lines = [line for block in BLOCK.findall(text) for line in block.splitlines()]
    commands = [line for line in lines if not line.startswith("export ")]
    assert len(commands) == 6
    (tmp_path / "stock.csv").write_text("id,n\n1,2\n")
    root, told = f"s3://{BUCKET}/{uuid.uuid4().hex}", []
    for command in commands:
        line = command.replace("./mirrorlake", f"{sys.executable} -m mirrorlake.cli")
        line = line.replace("s3://bucket/lake", root)
        line = re.sub(r"^python ", f"{sys.executable} ", line)
        done = subprocess.run(
            line, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, (command, done.stderr[-2000:])
        assert SECRET not in done.stdout + done.stderr
        told.append(done.stdout)
    assert "1" in told[2]
    assert "SparkConnectServer" in told[-1]


def test_two_shards_are_mirrored_side_by_side(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    text = (PROJECT / "docs" / "scale.md").read_text(encoding="utf-8")
    lines = re.findall(r"^\./mirrorlake (mirror s3://bucket/lake .*--shard (\S+))$", text, re.M)
    assert [shard for _, shard in lines] == ["1/2", "2/2"]
    lake = Lake(f"s3://{BUCKET}/{uuid.uuid4().hex}")
    own: dict[str, str] = {}
    for _, shard in lines:
        folders = (TableName(None, f"t{number}") for number in count())
        table = next(one for one in folders if Shard.parse(shard).has(one.folder))
        lake.publisher(table.name, keys=["id"]).upsert([{"id": 1}])
        own[table.name] = shard
    assert len(own) == 2
    commands = [line.replace("s3://bucket/lake", lake.storage.root).split() for line, _ in lines]
    mirrors = [
        subprocess.Popen([sys.executable, "-m", "mirrorlake.cli", *command], env=environment)
        for command in commands
    ]
    try:
        until = time.monotonic() + _START
        while [line.state for line in lake.status().tables] != ["Replicating"] * 2:
            assert time.monotonic() < until, lake.status()
            assert [mirror.poll() for mirror in mirrors] == [None, None]
            time.sleep(1)
        for mirror in mirrors:
            mirror.send_signal(signal.SIGTERM)
        assert [mirror.wait(_START) for mirror in mirrors] == [0, 0]
    finally:
        for mirror in mirrors:
            mirror.kill()


def begin(line: str, port: int, environment: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
    """A Connect server by its start line, on a port of its own."""
    binding = f" --conf spark.connect.grpc.binding.port={port} spark-internal"
    with log.open("wb") as target:
        server = subprocess.Popen(
            line.strip().replace(" spark-internal", binding),
            shell=True, env=environment, stdout=target, stderr=target, start_new_session=True,
        )  # fmt: skip
    until = time.monotonic() + _START
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return server
        except OSError:
            assert server.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < until, log.read_text()[-3000:]
            time.sleep(0.3)


def test_a_connect_server_has_the_log_store_or_is_refused(
    environment: dict[str, str], tmp_path: Path
):
    program = [sys.executable, "-m", "mirrorlake.spark.clouds"]
    line = subprocess.run(program, env=environment, capture_output=True, text=True, check=True)
    root, seen = f"s3://{BUCKET}/{uuid.uuid4().hex}", []
    for start in (line.stdout, re.sub(r"--conf spark\.delta\.logStore\S+ ", "", line.stdout)):
        port = free_port()
        server = begin(start, port, environment, tmp_path / "log")
        try:
            seen.append(
                subprocess.run(
                    [sys.executable, "-m", "helpers.s3_program", "least", root],
                    env=environment | {"SPARK_REMOTE": f"sc://127.0.0.1:{port}"},
                    capture_output=True,
                    text=True,
                    check=False,
                )
            )
        finally:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()
    assert '{"rows": [[1, 0]], "errors": [null]}' in seen[0].stdout, seen[0].stderr[-3000:]
    assert "no log store for S3" in seen[1].stdout + seen[1].stderr
    assert "SparkConnectServer" in seen[1].stdout + seen[1].stderr
