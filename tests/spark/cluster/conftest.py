from __future__ import annotations

import pytest


@pytest.fixture(scope="session", autouse=True)
def spark() -> None:
    """None here: each test's driver is a process of its own, on a cluster."""
