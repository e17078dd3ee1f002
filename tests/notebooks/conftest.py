"""What the tests of notebooks share: a JVM, the sample lake, and a lake that others made."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.foreign_lake import FEW, MANY
from helpers.notebooks import run_nbval
from helpers.project import NOTEBOOKS, PROJECT
from mirrorlake.spark.session import SharedJvm


@pytest.fixture(scope="package", autouse=True)
def _home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Runs are kept in a folder of the tests, where a test has none of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MIRRORLAKE_HOME", str(tmp_path_factory.mktemp("runs")))
        yield


@pytest.fixture(scope="package")  # the tests after them have a JVM of their own
def jvm() -> Iterator[SharedJvm]:
    """A JVM for one process after the other; `one_spark` has a test's processes join it."""
    shared = SharedJvm("small")
    yield shared
    shared.close()


@pytest.fixture
def one_spark(jvm: SharedJvm, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The notebooks of a test start their Spark in the same JVM as those before."""
    for name, value in jvm.environment.items():
        monkeypatch.setenv(name, value)
    yield
    jvm.clear()


@pytest.fixture(scope="package")
def sample_home(jvm: SharedJvm, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with the sample lake, as its notebook makes it; tests work on copies."""
    home = tmp_path_factory.mktemp("home")
    done = run_nbval([NOTEBOOKS / "sample.ipynb"], home, jvm)
    assert done.returncode == 0, done.stdout[-6000:]
    return home


@pytest.fixture(scope="package")
def foreign_lake(
    jvm: SharedJvm, tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> Path:
    """A lake whose tables this project did not make; tests work on copies."""
    root = tmp_path_factory.mktemp("foreign") / "lake"
    versions = MANY if pytestconfig.getoption("--long") else FEW
    command = [sys.executable, "-m", "helpers.foreign_lake", str(root), str(versions)]
    environment = os.environ | jvm.environment
    subprocess.run(command, cwd=PROJECT / "tests", env=environment, check=True)
    jvm.clear()
    return root
