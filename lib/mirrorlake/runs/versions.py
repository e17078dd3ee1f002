"""What a run's record says of the software: mirrorlake, Spark, Delta, Python, the git commit."""

from __future__ import annotations

import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def versions(folder: Path) -> dict[str, str]:
    """The versions that matter for what a run computed.

    Args:
        folder: the plan's; if it lies in a git repository, its commit is named.
    """
    found = {"python": platform.python_version()}
    for name, package in (
        ("mirrorlake", "mirrorlake"),
        ("spark", "pyspark"),
        ("delta", "delta-spark"),
    ):
        try:
            found[name] = version(package)
        except PackageNotFoundError:
            continue
    if commit := _commit(folder):
        found["git"] = commit
    return found


def _commit(folder: Path) -> str:
    """The commit that is checked out; nothing where there is no git."""
    if not any((one / ".git").exists() for one in (folder, *folder.parents)):
        return ""
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), "rev-parse", "HEAD"],
            capture_output=True,
            text=True,
            timeout=2,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()
