"""Simulate another machine, or a full, read-only or link-less disk, for a process."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

FULL = 'mount -t tmpfs -o size={kib}k none "$0" && exec "$@"'
READ_ONLY = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && exec "$@"'


def other_machine(folder: Path, *, seconds: int) -> dict[str, str]:
    """Return the environment of a process on a machine of another name whose clock is ahead.

    Args:
        folder: the folder for the preloaded library.
        seconds: by how many seconds the clock is ahead; negative if it is behind.
    """
    chosen = {"ELSEWHERE_SECONDS": str(seconds), "ELSEWHERE_NAME": "far"}
    return {"LD_PRELOAD": str(_compiled(folder)), **chosen}


def without_links(folder: Path) -> dict[str, str]:
    """Return the environment of a process whose disks have no hard links.

    Args:
        folder: the folder for the preloaded library.
    """
    return {"LD_PRELOAD": str(_compiled(folder)), "ELSEWHERE_NO_LINKS": "1"}


def _compiled(folder: Path) -> Path:
    if (compiler := shutil.which("cc")) is None:
        pytest.skip("needs a C compiler: there is no cc on the PATH")
    library = folder / "elsewhere.so"
    if not library.exists():
        source = Path(__file__).with_name("elsewhere.c")
        command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(source)]
        subprocess.run(command, check=True)
    return library


def on_small_disk(place: Path, kib: int, command: Sequence[str]) -> list[str]:
    """Return a command for which a folder is a disk of a size in KiB, or skip the test."""
    return _mounted(FULL.format(kib=kib), place, command)


def on_read_only_disk(place: Path, command: Sequence[str]) -> list[str]:
    """Return a command for which a folder is on a read-only disk, or skip the test."""
    return _mounted(READ_ONLY, place, command)


def _mounted(script: str, place: Path, command: Sequence[str]) -> list[str]:
    def wrapped(*inner: str) -> list[str]:
        spaces = ["unshare", "--user", "--map-root-user", "--mount"]
        return [*spaces, "sh", "-c", script, str(place), *inner]

    if shutil.which("unshare") is None:
        pytest.skip("needs unshare to mount a disk")
    tried = subprocess.run(wrapped("true"), capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"no disk can be mounted here: {tried.stderr.strip()}")
    return wrapped(*command)
