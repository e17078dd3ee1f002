"""Separate environments for packages that conflict with mirrorlake's, such as schedulers."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

from mirrorlake.storage.paths import PROJECT, cache, make_once

UV = Path(sys.executable).parent / "uv"


def make_environment(name: str, *packages: str) -> Path:
    """Return the Python of an environment with packages, which takes minutes to create once."""
    key = hashlib.sha256("\n".join(packages).encode()).hexdigest()[:12]
    target = cache() / "environments" / f"{name}-{key}"
    (target.parent).mkdir(parents=True, exist_ok=True)

    def make(staged: Path) -> None:
        quiet = [str(UV), "--quiet"]
        subprocess.run(
            [*quiet, "venv", "--relocatable", "--python", sys.executable, str(staged)], check=True
        )
        python = ["--python", str(staged / "bin" / "python")]
        subprocess.run([*quiet, "pip", "install", *python, *packages], check=True)

    make_once(target, (target / "bin" / "python").exists, make)
    return target / "bin" / "python"


def add_kernel(folder: Path, name: str) -> dict[str, str]:
    """Create a kernel of this Python, and return the environment variable that locates it."""
    command = [sys.executable, "-m", "ipykernel", "install", "--prefix", str(folder)]
    here = ["--env", "PYTHONPATH", str(PROJECT / "lib")]
    subprocess.run([*command, "--name", name, *here], check=True, capture_output=True)
    return {"JUPYTER_PATH": str(folder / "share" / "jupyter")}


def bare_environment(folder: Path) -> dict[str, str]:
    """Return the environment of such a program, with its own folders."""
    names = ("home", "state", "cache")
    found = {f"MIRRORLAKE_{name.upper()}": str(folder / name) for name in names}
    return found | {"PATH": os.environ["PATH"], "HOME": str(folder / "user")}
