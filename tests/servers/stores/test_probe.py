"""A store that ignores conditions is refused before anything is written."""

from __future__ import annotations

import time

import pytest

from helpers.fault_proxy import Fault, FaultProxy
from helpers.ports import free_port
from helpers.s3_server import SECRET
from mirrorlake import Publisher
from mirrorlake.errors import SetupError
from mirrorlake.names import TableName
from mirrorlake.storage.files import Storage


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


def test_a_good_store_is_asked_once(root: str, proxy: FaultProxy):
    Storage(root).check_conditions()
    assert Storage(root).files_below("") == ()
    proxy.requests.clear()
    Storage(root).check_conditions()
    assert proxy.requests == []
