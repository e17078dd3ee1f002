from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from helpers.fault_proxy import FaultProxy, no_faults
from helpers.s3_server import BUCKET, S3Server, check_races, is_built


@pytest.fixture(scope="package")
def _server(request: pytest.FixtureRequest) -> Iterator[S3Server]:
    if not is_built() and not request.config.getoption("--long"):
        pytest.skip("the S3 server is built, once, under --long: that takes minutes")
    server = S3Server()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in server.variables().items():
            patch.setenv(name, value)
        check_races(f"s3://{BUCKET}/{uuid.uuid4().hex}")
    yield server
    server.close()


@pytest.fixture(scope="package")
def _one_proxy(_server: S3Server) -> Iterator[FaultProxy]:
    proxy = FaultProxy(_server.port)
    yield proxy
    proxy.close()


@pytest.fixture
def proxy(
    _server: S3Server, _one_proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> Iterator[FaultProxy]:
    """Yield a proxy without faults in front of a real S3 server, set in the standard variables."""
    for name, value in _server.variables(_one_proxy.port).items():
        monkeypatch.setenv(name, value)
    _one_proxy.requests.clear()
    yield _one_proxy
    _one_proxy.faults = no_faults


@pytest.fixture
def root(proxy: FaultProxy) -> str:
    """Return a new root for a lake behind the proxy."""
    return f"s3://{BUCKET}/{uuid.uuid4().hex}"
