"""One Spark session for all tests of this layer."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from helpers.one_jvm import joined_session
from mirrorlake.cli import main as cli
from mirrorlake.spark.session import get_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def _configure(patch: pytest.MonkeyPatch, config: pytest.Config) -> None:
    """Set the profile for few rows; long tests run with the profile of users."""
    if not config.getoption("--long"):
        patch.setenv("MIRRORLAKE_PROFILE", "small")


@pytest.fixture(scope="session", autouse=True)
def spark(pytestconfig: pytest.Config) -> Iterator[SparkSession]:
    with pytest.MonkeyPatch.context() as patch:
        _configure(patch, pytestconfig)
        common = joined_session(pytestconfig)
        session = get_spark()
    # Delta keeps the logs of this many tables; its default exceeds the heap. The tests of a module
    # must not clear them, because other processes use the same JVM.
    session.conf.set("spark.databricks.delta.delta.log.cacheSize", "60")
    yield session
    if common is None:
        session.stop()


@pytest.fixture(scope="module", autouse=True)
def _tables_are_let_go(spark: SparkSession | None) -> Iterator[None]:
    """Clear the cached rows after each module, whose tables are not used again."""
    yield
    if spark is not None:  # the tests of a cluster have separate drivers
        spark.catalog.clearCache()


@pytest.fixture(autouse=True)
def _started_alike(monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config) -> None:
    """Give processes that a test starts the same settings, except in the tests of notebooks."""
    _configure(monkeypatch, pytestconfig)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Return a function that runs a command in this process and returns its JSON or its output."""

    def call(*arguments: str, status: int = 0) -> Any:
        monkeypatch.setattr(sys, "argv", ["mirrorlake", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        shown = capsys.readouterr()
        assert (ended.value.code or 0) == status, (shown.out, shown.err)
        return json.loads(shown.out) if "--json" in arguments and shown.out else shown

    return call
