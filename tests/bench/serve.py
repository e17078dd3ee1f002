"""The server; the peer is the same framework, which writes bodies to files and checks nothing.

Uploads are those of most publishers: create, append, flush, rename. The peer gets only the append.
Both use plain HTTP on this machine. The bench also measures the server's peak memory during a body
of 2 GB and one of 20 MB: small by large, so 1 means no growth.
"""

from __future__ import annotations

import http.client
import io
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from helpers.bench import BenchResult, compare
from helpers.project import PROJECT

MB = 1 << 20
REQUESTS = 300
# A server with the same framework that writes each body to a file, one megabyte at a time.
PEER = """
import os, socket, sys
import uvicorn
from starlette.requests import Request
from starlette.responses import Response
from starlette.concurrency import run_in_threadpool

async def app(scope, receive, send):
    request, gathered = Request(scope, receive), bytearray()
    if request.method == "PUT":
        with open(os.path.join(sys.argv[1], "x"), "wb") as sink:
            async for chunk in request.stream():
                gathered += chunk
                if len(gathered) >= 1 << 20:
                    await run_in_threadpool(sink.write, gathered)
                    gathered = bytearray()
            sink.write(gathered)
    await Response(status_code=201)(scope, receive, send)

line = socket.create_server(("127.0.0.1", 0))
print(line.getsockname()[1], flush=True)
config = uvicorn.Config(app, log_level="critical", lifespan="off", http="h11")
uvicorn.Server(config).run(sockets=[line])
"""


@contextmanager
def ours(folder: Path) -> Iterator[tuple[http.client.HTTPConnection, dict[str, str], str, int]]:
    """Yield a connection to the server, its headers, the zone's path, and the server's process."""
    # The http port is the third one; the JSON document does not have it.
    environment = {**os.environ, "PYTHONPATH": str(PROJECT / "lib")}
    environment["MIRRORLAKE_CACHE"] = str(folder / "cache")
    command = [sys.executable, "-m", "mirrorlake.cli", "serve", str(folder / "lake"), "--port", "0"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment, text=True
    )
    try:
        assert process.stdout is not None
        said: dict[str, str] = {}
        while "account" not in said:
            words = process.stdout.readline().split()
            if words:
                said[words[0]] = words[2] if words[:2] == ["landing", "zone"] else words[1]
        connection = http.client.HTTPConnection(said["http"].removeprefix("http://"))
        zone = "/" + said["landing"].split("/", 3)[3]
        yield connection, {"Authorization": f"Bearer {said['token']}"}, zone, process.pid
        connection.close()
    finally:
        process.kill()
        process.communicate()


@contextmanager
def peer(folder: Path) -> Iterator[http.client.HTTPConnection]:
    process = subprocess.Popen(
        [sys.executable, "-c", PEER, str(folder)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        connection = http.client.HTTPConnection("127.0.0.1", int(process.stdout.readline()))
        yield connection
        connection.close()
    finally:
        process.kill()
        process.communicate()


def ask(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    headers: dict[str, str],
    body: bytes | Iterator[bytes] = b"",
) -> None:
    connection.request(method, path, body, headers)
    answer = connection.getresponse()
    answer.read()
    assert answer.status < 300, (method, path, answer.status)


def file_of(megabytes: int) -> bytes:
    """Return a Parquet file of about this size, with keys and markers."""
    rows = megabytes * MB // 64
    table = pa.table(
        {
            "id": pa.array(range(rows), pa.int64()),
            "text": pa.array([os.urandom(24).hex() for _ in range(rows)]),
            "__rowMarker__": pa.array([4] * rows, pa.int32()),
        }
    )
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="none", use_dictionary=["__rowMarker__"])
    return sink.getvalue()


def peak(process: int) -> int:
    """Return the peak memory of a process in bytes."""
    status = Path(f"/proc/{process}/status").read_text(encoding="ascii")
    return int(status.split("VmHWM:")[1].split()[0]) << 10


def pieces(size: int) -> Iterator[bytes]:
    for _ in range(size // MB):
        yield b"x" * MB


def run(pairs: int) -> BenchResult:
    body = file_of(64)
    with (
        tempfile.TemporaryDirectory() as place,
        ours(Path(place)) as (server, headers, zone, process),
        peer(Path(place)) as other,
    ):
        keys = json.dumps({"keyColumns": ["id"]}).encode()
        flush = "action=append&position=0&flush=true"
        ask(server, "PUT", f"{zone}/t/_metadata.json?resource=file", headers)
        ask(server, "PATCH", f"{zone}/t/_metadata.json?{flush}", headers, keys)
        number = 0

        def upload() -> float:
            nonlocal number
            number += 1
            staged = f"{zone}/t/_{number:020d}.parquet"
            began = time.perf_counter()
            ask(server, "PUT", f"{staged}?resource=file", headers)
            ask(server, "PATCH", f"{staged}?action=append&position=0", headers, body)
            ask(server, "PATCH", f"{staged}?action=flush&position={len(body)}", headers)
            source = {"x-ms-rename-source": staged}
            ask(server, "PUT", f"{zone}/t/{number:020d}.parquet", headers | source)
            return time.perf_counter() - began

        def plain() -> float:
            began = time.perf_counter()
            ask(other, "PUT", "/x", {}, body)
            return time.perf_counter() - began

        result = compare("serve", "64 MB, checked", upload, plain, pairs)

        def many(connection: http.client.HTTPConnection, path: str, own: dict[str, str]) -> float:
            began = time.perf_counter()
            for _ in range(REQUESTS):
                ask(connection, "HEAD", path, own)
            return time.perf_counter() - began

        small = compare(
            "serve",
            f"{REQUESTS} small requests",
            lambda: many(server, f"{zone}/t/_metadata.json", headers),
            lambda: many(other, "/x", {}),
            pairs,
        )
        peaks = []
        for megabytes in (20, 2048):
            length = {"Content-Length": str(megabytes * MB)}
            ask(server, "PUT", f"{zone}/big/_x?resource=file", headers)
            path = f"{zone}/big/_x?action=append&position=0"
            ask(server, "PATCH", path, headers | length, pieces(megabytes * MB))
            peaks.append(peak(process))
        memory = {"memory, 2 GB body": round(peaks[0] / peaks[1], 2)}
    return BenchResult(
        "serve", result.seconds | small.seconds, result.ratios | small.ratios | memory
    )
