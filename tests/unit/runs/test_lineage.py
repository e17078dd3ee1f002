"""The events that an OpenLineage endpoint gets; its client is an extra of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from datetime import datetime, timezone
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from helpers.environments import make_environment
from mirrorlake.storage.paths import PROJECT
from mirrorlake_runs.notifications import datasets, send_lineage, wants_lineage

deltalake = pytest.importorskip("deltalake")


class Endpoint(BaseHTTPRequestHandler):
    """Keeps what is sent."""

    events: ClassVar[list[Any]] = []

    def do_POST(self) -> None:
        Endpoint.events.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@pytest.fixture
def step(tmp_path: Path) -> dict[str, Any]:
    """A step that committed version 1 of t, and left u alone."""
    rows = pa.table({"id": [1]})
    for name in ("t", "u"):
        deltalake.write_deltalake(str(tmp_path / "Tables" / name), rows)
    began = datetime.now(timezone.utc)
    deltalake.write_deltalake(str(tmp_path / "Tables" / "t"), rows, mode="append")
    times = [began.isoformat(), datetime.now(timezone.utc).isoformat()]
    return {"name": "s", "status": "done", "times": times, "parameters": {"root": str(tmp_path)}}


def test_inputs_and_outputs_have_versions(step: dict[str, Any], tmp_path: Path) -> None:
    root = str(tmp_path)
    assert datasets(step) == ([(root, "t", 0), (root, "u", 0)], [(root, "t", 1)])
    step["parameters"]["table"] = "u"
    assert datasets(step)[0] == [(root, "u", 0)]
    for absent in ("", str(tmp_path / "gone")):
        step["parameters"]["root"] = absent
        assert absent == "" or datasets(step) == ([], [])


def test_events_are_sent(step: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("openlineage.client", reason="its client is not installed")
    assert not wants_lineage()
    with HTTPServer(("127.0.0.1", 0), Endpoint) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setenv("OPENLINEAGE_URL", f"http://127.0.0.1:{server.server_port}")
        assert wants_lineage()
        send_lineage({"run": "p-1", "plan": "p", "steps": [step, {**step, "status": "skipped"}]})
        server.shutdown()
        thread.join()
    start, complete = Endpoint.events
    assert (start["eventType"], complete["eventType"]) == ("START", "COMPLETE")
    assert start["run"]["runId"] == complete["run"]["runId"]
    assert complete["job"]["name"] == "p.s"
    (output,) = complete["outputs"]
    assert (output["name"], output["facets"]["version"]["datasetVersion"]) == ("t", "1")


@pytest.mark.long
def test_events_are_sent_by_its_own_client() -> None:
    """The test above, with the client in an environment of its own."""
    python = make_environment("openlineage", "openlineage-python==1.54.0")
    (packages,) = python.parent.parent.glob("lib/*/site-packages")
    paths = [str(PROJECT / "lib"), str(PROJECT / "tests"), str(packages)]
    test = f"{__file__}::test_events_are_sent"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "1 passed" in done.stdout, done.stdout
