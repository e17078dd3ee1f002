"""Runs on an object store: visible and resumable from other machines, whatever their clocks are."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from helpers.elsewhere import other_machine
from helpers.environments import bare_environment
from helpers.project import PROJECT
from helpers.runs_behind_uri import check_runs_behind
from helpers.s3_server import BUCKET, S3Server
from helpers.small_notebooks import RECORD, put_notebook, put_plan
from mirrorlake.storage import lease
from mirrorlake.storage.files import Storage

pytestmark = pytest.mark.long
PATH = "Files/_mirrorlake/plans/p.lease"
HOLDS = """
import sys
from mirrorlake.storage.lease import Lease
from mirrorlake.storage.files import Storage
with Lease(Storage(sys.argv[1]), sys.argv[2], "it", ttl=3):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def bucket(_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the URI of a bucket on a real S3 server."""
    for name, value in _server.variables().items():
        monkeypatch.setenv(name, value)
    return f"s3://{BUCKET}/{uuid.uuid4().hex}"


@pytest.fixture
def variables(_server: S3Server, tmp_path: Path) -> dict[str, str]:
    """Return the environment variables to reach the server and the library."""
    found = _server.variables() | bare_environment(tmp_path)
    return found | {"PYTHONPATH": str(PROJECT / "lib")}


def test_runs_on_s3(bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIRRORLAKE_STATE", str(tmp_path / "state"))
    check_runs_behind(bucket, tmp_path, monkeypatch)


@pytest.mark.parametrize("seconds", [800, -800])
def test_a_lease_goes_by_the_clock_of_the_store(
    bucket: str, variables: dict[str, str], seconds: int, tmp_path: Path
) -> None:
    """With clocks 15 minutes apart, S3's limit, one process holds the lease until it is dead."""
    command = [sys.executable, "-c", HOLDS, bucket, PATH]
    far = variables | other_machine(tmp_path, seconds=seconds)
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=far, stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        end = time.monotonic() + 5  # longer than the lease lasts if it is not renewed
        while time.monotonic() < end:
            with pytest.raises(lease.LeaseHeldError, match=f"process {process.pid} on far since"):
                lease.Lease(Storage(bucket), PATH, "it", ttl=3).__enter__()
            time.sleep(0.5)
        process.kill()
    end = time.monotonic() + 60
    while True:
        try:
            with lease.Lease(Storage(bucket), PATH, "it", ttl=3):
                break
        except lease.LeaseHeldError:
            assert time.monotonic() < end
            time.sleep(0.2)


def test_a_machine_that_is_an_hour_off_is_told_so(
    bucket: str, variables: dict[str, str], tmp_path: Path
) -> None:
    """S3 refuses its requests, so a run with results on that store does not start."""
    put_notebook(tmp_path, "n", RECORD)
    plan = put_plan(tmp_path, "name: p\nsteps: [{notebook: n.ipynb}]")
    command = [sys.executable, "-m", "mirrorlake.cli", "run", str(plan), "--out", bucket]
    far = os.environ | variables | other_machine(tmp_path, seconds=3600)
    done = subprocess.run(command, env=far, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, ""), done.stderr
    assert "can't be recorded in s3://" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list((tmp_path / "home").rglob("*n.ipynb"))
