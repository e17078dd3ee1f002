"""Notebooks as tests run them: by nbval, and what a lake holds before and after."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from mirrorlake.paths import PROJECT

SANITIZE = PROJECT / "tests" / "notebooks" / "sanitize.cfg"
CONF = PROJECT / "tests" / "spark" / "conf"


def lake_state(root: Path) -> dict[str, str]:
    """Every file's content, and every folder."""
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        if path.is_file()
        else "a folder"
        for path in sorted(root.rglob("*"))
    }


def run_nbval(
    notebooks: Sequence[Path], home: Path, *options: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Executes notebooks in their order and compares with their committed outputs."""
    command = [sys.executable, "-m", "pytest", "--nbval", "--nbval-sanitize-with", str(SANITIZE)]
    command += ["-p", "no:cacheprovider", "-p", "helpers.nbval_one_spark", "-q"]
    command += [*options, *map(str, notebooks)]
    paths = os.pathsep.join([str(PROJECT / "tests"), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=PROJECT,
        env=os.environ
        | {"MIRRORLAKE_HOME": str(home), "SPARK_CONF_DIR": str(CONF), "PYTHONPATH": paths}
        | environment,
        check=False,
    )
