"""A store that ignores conditions is refused before anything is written."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from helpers.fault_proxy import Fault, FaultProxy, no_faults
from helpers.ports import free_port
from helpers.s3_server import SECRET
from helpers.serving import Lake, number, parquet, serving, session_of
from mirrorlake import Publisher
from mirrorlake.errors import SetupError
from mirrorlake.names import TableName
from mirrorlake.storage.files import Storage
from mirrorlake_serve import Workspace


def test_a_store_without_conditional_writes_is_refused(root: str, proxy: FaultProxy):
    proxy.faults = lambda request: Fault(200, times=0) if request.conditional else Fault()
    with pytest.raises(SetupError, match="ignores conditions") as caught:
        Publisher(Storage(root), TableName(None, "t"))
    assert "If-None-Match" in caught.value.hint
    assert Storage(root).files_below("") == ()


def test_a_store_that_is_down_is_a_clear_error_in_time(root: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    before = time.monotonic()
    with pytest.raises(SetupError, match="can't be written to") as caught:
        Publisher(Storage(root), TableName(None, "t"))
    assert "AWS_ENDPOINT_URL" in caught.value.hint
    assert SECRET not in str(caught.value)
    assert time.monotonic() - before < 60


def test_a_server_whose_store_fails_asks_its_clients_to_retry(
    root: str, proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("MIRRORLAKE_CACHE", str(tmp_path))
    workspace = Workspace(root)
    with serving(workspace) as ready, session_of(ready) as session:
        served = Lake(ready, workspace.items[0], session)
        path, data = f"t/{number(1)}", parquet(id=[1])
        proxy.faults = lambda request: Fault(403, times=0) if request.method == "PUT" else Fault()
        failed = served.put(path, data)
        assert (failed.status_code, failed.headers["x-ms-error-code"]) == (503, "ServerBusy")
        proxy.faults = no_faults
        again = served.call("PATCH", path, f"action=flush&position={len(data)}")
        assert again.status_code == 200, again.text
        assert served.files() == [path]


def test_a_good_store_is_asked_once(root: str, proxy: FaultProxy):
    Storage(root).check_conditions()
    assert Storage(root).files_below("") == ()
    proxy.requests.clear()
    Storage(root).check_conditions()
    assert proxy.requests == []
