"""Where things lie on this machine: the project's folders and the cache."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[3]
IS_CHECKOUT = (PROJECT / "pyproject.toml").is_file()
_CARRIED = Path(__file__).resolve().parents[1] / "carried"  # a wheel has the notebooks in here
NOTEBOOKS = (PROJECT if IS_CHECKOUT else _CARRIED) / "notebooks"
PARAMETERS = (PROJECT if IS_CHECKOUT else _CARRIED) / "parameters"
URI = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)


def home() -> Path:
    """What a relative lake path in a notebook starts from: `MIRRORLAKE_HOME`, or the project.

    Where mirrorlake is installed without its source, it is the working folder.
    """
    here = PROJECT if IS_CHECKOUT else Path.cwd()
    return Path(os.environ.get("MIRRORLAKE_HOME") or here).absolute()


def lake_path(root: str) -> str:
    """Where the lake of a notebook lies: relative paths start from `home()`, URIs stay."""
    return root if URI.match(root) else str(home() / Path(root).expanduser())


def may_be_lake(root: str) -> bool:
    """Whether a lake may be at a root: a folder that is there, or any URI; no store is asked."""
    return bool(URI.match(root)) or Path(root).is_dir()


def shown_path(root: str) -> str:
    """A lake's root as people name it: relative to `home()` where it lies below, else as it is."""
    if URI.match(root) or not Path(root).is_relative_to(home()):
        return root
    return Path(root).relative_to(home()).as_posix()


def cache() -> Path:
    """Where jars, archives and logs are kept: `MIRRORLAKE_CACHE`, or the user's cache folder."""
    return _folder_of("MIRRORLAKE_CACHE", "XDG_CACHE_HOME", ".cache")


def state() -> Path:
    """Where locks of runs are kept: `MIRRORLAKE_STATE`, or the user's state folder."""
    return _folder_of("MIRRORLAKE_STATE", "XDG_STATE_HOME", ".local/state")


def _folder_of(variable: str, users: str, usual: str) -> Path:
    """The folder that a variable names, else ours in the user's folder of that kind."""
    if chosen := os.environ.get(variable):
        return Path(chosen).absolute()
    return Path(os.environ.get(users) or Path.home() / usual).absolute() / "mirrorlake"


def make_once(target: Path, is_there: Callable[[], bool], make: Callable[[Path], object]) -> None:
    """Makes a file or folder of the cache if it is not there: by one process, whole or not at all.

    Args:
        target: what is to be there.
        is_there: whether it is, and whole; what is there otherwise is taken away.
        make: makes it at another path, which has its name and lies in a scratch folder.
    """
    import fcntl  # Unix only; the modules that publish import this one

    if is_there():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    lock_path = cache() / f"{target.parent.name}.lock"
    with (
        lock_path.open("w") as lock,
        tempfile.TemporaryDirectory(dir=target.parent) as scratch,
    ):
        fcntl.flock(lock, fcntl.LOCK_EX)  # until the file is closed
        if not is_there():  # else another process was quicker
            staged = Path(scratch) / target.name
            make(staged)
            shutil.rmtree(target, ignore_errors=True)
            staged.rename(target)
