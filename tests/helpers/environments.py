"""Programs and Python environments that are installed once, in the cache, apart from mirrorlake."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from helpers.project import PROJECT
from mirrorlake.storage import paths

UV = Path(sys.executable).parent / "uv"


def installed(name: str, install: Callable[[Path], object]) -> Path:
    """Return a folder of the cache; make it first if it is missing.

    Args:
        name: the folder's path in the cache, such as `servers/azcopy-10.32.2`.
        install: fills a new folder at the path that it is given.
    """
    target = paths.cache() / name
    paths.make_once(target, target.is_dir, install)
    return target


def make_environment(name: str, *packages: str) -> Path:
    """Return the Python of an environment with these packages; takes minutes the first time."""
    key = hashlib.sha256("\n".join(packages).encode()).hexdigest()[:12]
    target = paths.cache() / "environments" / f"{name}-{key}"
    (target.parent).mkdir(parents=True, exist_ok=True)

    def make(staged: Path) -> None:
        quiet = [str(UV), "--quiet"]
        subprocess.run(
            [*quiet, "venv", "--relocatable", "--python", sys.executable, str(staged)], check=True
        )
        python = ["--python", str(staged / "bin" / "python")]
        subprocess.run([*quiet, "pip", "install", *python, *packages], check=True)

    paths.make_once(target, (target / "bin" / "python").exists, make)
    return target / "bin" / "python"


def add_kernel(folder: Path, name: str) -> dict[str, str]:
    """Install a kernel of this Python and return the variable by which Jupyter finds it."""
    command = [sys.executable, "-m", "ipykernel", "install", "--prefix", str(folder)]
    here = ["--env", "PYTHONPATH", str(PROJECT / "lib")]
    subprocess.run([*command, "--name", name, *here], check=True, capture_output=True)
    return {"JUPYTER_PATH": str(folder / "share" / "jupyter")}


def bare_environment(folder: Path) -> dict[str, str]:
    """Return the environment variables of a scheduler that keeps its files in a folder."""
    names = ("home", "state", "cache")
    found = {f"MIRRORLAKE_{name.upper()}": str(folder / name) for name in names}
    return found | {"PATH": os.environ["PATH"], "HOME": str(folder / "user")}
