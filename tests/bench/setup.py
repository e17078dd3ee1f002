"""Install the packages of `requirements.lock` into a new environment with uv; the peer is pip.

Both download everything, without a cache; the download of uv is included. The creation of the
environment is not included, because both need it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from helpers.bench import BenchResult, compare
from helpers.project import PROJECT

LOCK = PROJECT / "requirements.lock"
LOCKED = ["--quiet", "--require-hashes", "-r"]


def run(pairs: int) -> BenchResult:
    return compare(
        "setup",
        "the packages of the lock",
        lambda: in_new_environment(by_uv),
        lambda: in_new_environment(by_pip),
        pairs,
        warm_up=lambda: None,
    )


def in_new_environment(install: Callable[[Path], None]) -> float:
    """Return the seconds of an installation."""
    with tempfile.TemporaryDirectory() as folder:
        python = Path(folder) / "venv" / "bin" / "python"
        call([sys.executable, "-m", "venv", f"{folder}/venv"])
        began = time.monotonic()
        install(python)
        return time.monotonic() - began


def by_uv(python: Path) -> None:
    entry = re.search(r"^uv==(?:.*\\\n)+.*\n", LOCK.read_text(encoding="utf-8"), re.M)
    assert entry is not None
    alone = python.parent / "uv.txt"
    alone.write_text(entry[0])
    call([python, "-m", "pip", "install", "--no-cache-dir", "--no-deps", *LOCKED, alone])
    uv = python.parent / "uv"
    call([uv, "pip", "install", "--no-cache", "--python", python, *LOCKED, LOCK])


def by_pip(python: Path) -> None:
    call([python, "-m", "pip", "install", "--no-cache-dir", *LOCKED, LOCK])


def call(command: list[str | Path]) -> None:
    hidden = ("PYTHONPATH", "VIRTUAL_ENV")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    subprocess.run(command, check=True, env=environment)
