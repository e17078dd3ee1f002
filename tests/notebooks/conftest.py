"""What the tests of notebooks share: the sample lake, made once, and a lake that others made."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.foreign_lake import FEW, MANY
from helpers.notebooks import CONF, run_nbval
from mirrorlake.paths import NOTEBOOKS, PROJECT


@pytest.fixture(scope="session")
def sample_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with the sample lake, as its notebook makes it; tests work on copies."""
    home = tmp_path_factory.mktemp("home")
    done = run_nbval([NOTEBOOKS / "sample.ipynb"], home)
    assert done.returncode == 0, done.stdout[-6000:]
    return home


@pytest.fixture(scope="session")
def foreign_lake(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Path:
    """A lake whose tables this project did not make; tests work on copies."""
    root = tmp_path_factory.mktemp("foreign") / "lake"
    environment = os.environ | {"SPARK_CONF_DIR": str(CONF)}
    versions = MANY if pytestconfig.getoption("--long") else FEW
    command = [sys.executable, "-m", "helpers.foreign_lake", str(root), str(versions)]
    subprocess.run(command, cwd=PROJECT / "tests", env=environment, check=True)
    return root
