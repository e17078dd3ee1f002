"""Fixtures of the tests of notebooks: a JVM, the sample lake, and a lake of other writers.

Tests whose program needs another kind of session than the other tests are here, too, because the
JVM is warm: a new one takes several times as long for the same work.
"""

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
    """Record runs in a folder of the tests, unless a test has its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MIRRORLAKE_HOME", str(tmp_path_factory.mktemp("runs")))
        yield


@pytest.fixture(scope="package")  # later tests have their own JVM
def jvm() -> Iterator[SharedJvm]:
    """A JVM that one process after the other uses; `one_spark` connects a test's processes."""
    shared = SharedJvm("small")
    yield shared
    shared.close()


@pytest.fixture
def one_spark(jvm: SharedJvm, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Start the Spark of a test's notebooks in the shared JVM."""
    for name, value in jvm.environment.items():
        monkeypatch.setenv(name, value)
    yield
    jvm.clear()


@pytest.fixture(scope="package")
def sample_home(jvm: SharedJvm, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with the sample lake that the notebook creates; tests use copies."""
    home = tmp_path_factory.mktemp("home")
    done = run_nbval([NOTEBOOKS / "sample.ipynb"], home, jvm)
    assert done.returncode == 0, done.stdout[-6000:]
    return home


@pytest.fixture(scope="package")
def foreign_lake(
    jvm: SharedJvm, tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> Path:
    """A lake with tables of other writers; tests use copies."""
    root = tmp_path_factory.mktemp("foreign") / "lake"
    versions = MANY if pytestconfig.getoption("--long") else FEW
    command = [sys.executable, "-m", "helpers.foreign_lake", str(root), str(versions)]
    environment = os.environ | jvm.environment
    subprocess.run(command, cwd=PROJECT / "tests", env=environment, check=True)
    jvm.clear()
    return root
