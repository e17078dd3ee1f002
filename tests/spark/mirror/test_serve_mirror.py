"""`serve --mirror`: what a publisher sends becomes rows; the control plane stops and starts it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import requests

from helpers.serving import number, parquet
from mirrorlake import Lake
from mirrorlake.names import ZONE
from mirrorlake.paths import PROJECT

DEADLINE = 240
WRITERS, BATCHES = 4, 5


def wait_for(what: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + DEADLINE
    while not what():
        assert process.poll() is None, process.communicate()[1].decode()[-2000:]
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.1)


def test_writers_and_a_mirror_lose_nothing_and_double_nothing(tmp_path: Path) -> None:
    root = tmp_path / "lake"
    environment = {**os.environ, "PYTHONPATH": str(PROJECT / "lib")}
    command = [sys.executable, "-m", "mirrorlake.cli", "serve", str(root), "--port", "0"]
    with subprocess.Popen(
        [*command, "--mirror", "--interval", "0.2", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment | {"MIRRORLAKE_TOKEN": "t" * 40},
    ) as process:
        try:
            rows = publish_and_mirror(process)
        finally:
            process.kill()
    found = Lake(root).table("t").read().collect()
    assert sorted(row.id for row in found) == rows


def publish_and_mirror(process: subprocess.Popen[bytes]) -> list[int]:
    """Publishes beside the mirror, until every row is applied; the keys that were published."""
    assert process.stdout is not None
    told = json.loads(process.stdout.readline())
    base = f"{told['dfs']}/{told['workspace']}/{told['item']}/{ZONE}"
    item = f"{told['rest']}/v1/workspaces/{told['workspace']}/mirroredDatabases/{told['item']}"
    with requests.Session() as session:
        session.trust_env, session.verify = False, told["ca"]
        session.headers["Authorization"] = f"Bearer {told['token']}"

        def call(method: str, url: str, data: bytes = b"", **headers: str) -> requests.Response:
            return session.request(method, url, data=data, headers=headers, timeout=60)

        def put(path: str, body: bytes) -> None:
            assert call("PUT", f"{base}/{path}?resource=file").ok
            flush = "action=append&position=0&flush=true"
            assert call("PATCH", f"{base}/{path}?{flush}", body).ok

        def publish(writer: int) -> None:
            after = 0
            for batch in range(BATCHES):
                staged = f"t/_Temp/{writer}_{batch}"
                put(staged, parquet(id=[writer * 100 + batch], __rowMarker__=[0]))
                done = 409
                while done == 409:
                    after += 1
                    source = {"x-ms-rename-source": f"{base}/{staged}"}
                    done = call("PUT", f"{base}/t/{number(after)}", **source).status_code
                assert done == 201

        def table() -> dict[str, Any]:
            found = call("POST", f"{item}/getTablesMirroringStatus").json()["data"]
            return next((t for t in found if t["sourceTableName"] == "t"), {})

        put("t/_metadata.json", b'{"keyColumns": ["id"]}')
        with ThreadPoolExecutor(WRITERS) as pool:
            list(pool.map(publish, range(WRITERS)))
        wait_for(lambda: table()["metrics"]["processedRows"] == WRITERS * BATCHES, process)
        assert table()["status"] == "Replicating"
        status = f"{item}/getMirroringStatus"
        assert call("POST", status).json() == {"status": "Running"}
        monitoring = f"{base.removesuffix('LandingZone')}Monitoring/tables.json"

        def told_rows() -> int:
            """As the monitoring file has it, which a cycle writes at its end."""
            return call("GET", monitoring).json()["tables"][0]["metrics"]["processedRowCount"]

        wait_for(lambda: told_rows() == WRITERS * BATCHES, process)

        assert call("POST", f"{item}/stopMirroring").ok
        assert call("POST", status).json() == {"status": "Stopped"}
        put(f"t/{number(WRITERS * BATCHES + 1)}", parquet(id=[7777]))
        assert call("POST", f"{item}/startMirroring").ok
        wait_for(lambda: table()["metrics"]["processedRows"] == WRITERS * BATCHES + 1, process)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    return sorted([w * 100 + b for w in range(WRITERS) for b in range(BATCHES)] + [7777])
