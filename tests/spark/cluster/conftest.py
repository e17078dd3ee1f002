from __future__ import annotations

import pytest


@pytest.fixture(scope="session", autouse=True)
def spark() -> None:
    """Return no session: the driver of each test is a separate process on a cluster."""
