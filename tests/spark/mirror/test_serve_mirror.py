"""`serve --mirror`: published files become rows; the control plane stops and starts it."""

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

import pytest
import requests

from helpers.places import ZONE
from helpers.project import PROJECT
from helpers.serving import number, parquet
from mirrorlake import Lake

DEADLINE = 240


def wait_for(what: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + DEADLINE
    while not what():
        assert process.poll() is None, "the server has ended"
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.2)


@pytest.mark.long
@pytest.mark.parametrize(("writers", "batches"), [(4, 5), (16, 50)])
def test_writers_and_a_mirror_lose_nothing_and_double_nothing(
    tmp_path: Path, writers: int, batches: int
) -> None:
    root = tmp_path / "lake"
    environment = {**os.environ, "PYTHONPATH": str(PROJECT / "lib")}
    command = [sys.executable, "-m", "mirrorlake.cli", "serve", str(root), "--port", "0"]
    # The server logs each request: it would block if the pipe were full because nothing reads it.
    with (
        (tmp_path / "log").open("wb") as log,
        subprocess.Popen(
            [*command, "--mirror", "--interval", "0.2", "--json"],
            stdout=subprocess.PIPE,
            stderr=log,
            env=environment | {"MIRRORLAKE_TOKEN": "t" * 40},
        ) as process,
    ):
        try:
            rows = publish_and_mirror(process, writers, batches)
        finally:
            process.kill()
    lake = Lake(root)
    found = [lake.table(table).read().collect() for table in tables_of(writers)]
    assert sorted(row.id for rows_of in found for row in rows_of) == rows


def tables_of(writers: int) -> list[str]:
    """Four writers compete for the numbers of each table."""
    return [f"t{number}" for number in range(writers // 4)]


def publish_and_mirror(process: subprocess.Popen[bytes], writers: int, batches: int) -> list[int]:
    """Publish while the mirror runs, until all rows are applied; return the published keys."""
    assert process.stdout is not None
    files, tables = writers * batches, tables_of(writers)
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
            after, table = 0, tables[writer % len(tables)]
            for batch in range(batches):
                staged = f"{table}/_Temp/{writer}_{batch}"
                put(staged, parquet(id=[writer * 100 + batch], __rowMarker__=[0]))
                done = 409
                while done == 409:
                    after += 1
                    source = {"x-ms-rename-source": f"{base}/{staged}"}
                    done = call("PUT", f"{base}/{table}/{number(after)}", **source).status_code
                assert done == 201

        def told_rows() -> int:
            """Return the rows in the monitoring file, which is written at the end of a cycle."""
            monitoring = f"{base.removesuffix('LandingZone')}Monitoring/tables.json"
            found = call("GET", monitoring)
            told = found.json()["tables"] if found.ok else []
            return sum(int(one["metrics"]["processedRowCount"]) for one in told)

        def states() -> list[dict[str, Any]]:
            found: list[dict[str, Any]]
            found = call("POST", f"{item}/getTablesMirroringStatus").json()["data"]
            return found

        def applied() -> int:
            return sum(one["metrics"]["processedRows"] for one in states())

        for table in tables:
            put(f"{table}/_metadata.json", b'{"keyColumns": ["id"]}')
        with ThreadPoolExecutor(writers) as pool:
            list(pool.map(publish, range(writers)))
        wait_for(lambda: applied() == files, process)
        assert {one["status"] for one in states()} == {"Replicating"}
        status = f"{item}/getMirroringStatus"
        assert call("POST", status).json() == {"status": "Running"}
        wait_for(lambda: told_rows() == files, process)

        assert call("POST", f"{item}/stopMirroring").ok
        assert call("POST", status).json() == {"status": "Stopped"}
        put(f"t0/{number(files // len(tables) + 1)}", parquet(id=[7777]))
        assert call("POST", f"{item}/startMirroring").ok
        wait_for(lambda: applied() == files + 1, process)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    return sorted([w * 100 + b for w in range(writers) for b in range(batches)] + [7777])
