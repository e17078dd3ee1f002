from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from mirrorlake import Publisher
from mirrorlake.landing import publisher
from mirrorlake.names import TableName
from mirrorlake.storage.files import Storage


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    """A lake's files on the local disk."""
    return Storage(tmp_path / "lake")


@pytest.fixture(params=["local", "memory"])
def any_storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    """A lake's files, once on the local disk and once in an object store."""
    return Storage(tmp_path / "lake") if request.param == "local" else Storage("memory:///")


@pytest.fixture
def notices(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """The log lines that a user at the terminal would see, as `messages`."""
    caplog.set_level(logging.INFO, "mirrorlake")
    return caplog


@pytest.fixture
def table() -> TableName:
    return TableName(None, "t")


@pytest.fixture
def read(any_storage: Storage, table: TableName) -> Callable[[publisher.Published], list[dict]]:
    """Return a function that reads what a publisher of `any_storage` has published."""

    def rows(published: publisher.Published) -> list[dict]:
        with any_storage.open(f"{table.folder}/{published.file}") as source:
            return pq.read_table(source).to_pylist()

    return rows


@pytest.fixture
def new_publisher(any_storage: Storage) -> Callable[..., Publisher]:
    """Return a function that returns the publisher of a new table at each call."""
    numbers = itertools.count(1)

    def make(*keys: str) -> Publisher:
        return Publisher(any_storage, TableName(None, f"t{next(numbers)}"), keys=keys)

    return make
