"""Paths on this machine: the project's folders, the roots of lakes, cache and state."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from mirrorlake.errors import SetupError

PROJECT = Path(__file__).resolve().parents[3]
IS_CHECKOUT = (PROJECT / "pyproject.toml").is_file()
_CARRIED = Path(__file__).resolve().parents[1] / "carried"  # a wheel contains the notebooks here
NOTEBOOKS = (PROJECT if IS_CHECKOUT else _CARRIED) / "notebooks"
PARAMETERS = (PROJECT if IS_CHECKOUT else _CARRIED) / "parameters"
PROGRAM = "./mirrorlake" if IS_CHECKOUT else "mirrorlake"
"""The program in a command line that users can copy."""
ON_WINDOWS = os.name == "nt"
URI = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)


def home() -> Path:
    """Return the folder that relative lake paths start from: `MIRRORLAKE_HOME`, or the project.

    If mirrorlake is installed without its source, the default is the working directory.
    """
    here = PROJECT if IS_CHECKOUT else Path.cwd()
    return Path(os.environ.get("MIRRORLAKE_HOME") or here).absolute()


def lake_path(root: str) -> str:
    """Return a path of a notebook's parameter: relative ones start from `home()`, URIs are kept."""
    return root if URI.match(root) else str(home() / Path(root).expanduser())


def may_be_lake(root: str) -> bool:
    """Return whether a lake may exist at a root: an existing folder, or any URI."""
    return bool(URI.match(root)) or Path(root).is_dir()


def shown_path(root: str) -> str:
    """Return a lake's root for display: relative to `home()` if it is below that folder."""
    if URI.match(root) or not Path(root).is_relative_to(home()):
        return root
    return Path(root).relative_to(home()).as_posix()


def docs_page(name: str) -> str:
    """Return how a hint names a page of the documentation, which a wheel does not contain."""
    return f"docs/{name}" if IS_CHECKOUT else f"the page {name} of mirrorlake's documentation"


def cache() -> Path:
    """Return the folder for jars, archives and logs: `MIRRORLAKE_CACHE`, or the user's cache."""
    return _folder_of("MIRRORLAKE_CACHE", "XDG_CACHE_HOME", ".cache")


def state() -> Path:
    """Return the folder for locks of runs: `MIRRORLAKE_STATE`, or the user's state folder."""
    return _folder_of("MIRRORLAKE_STATE", "XDG_STATE_HOME", ".local/state")


def _folder_of(variable: str, users: str, usual: str) -> Path:
    """Return the folder of a variable, or mirrorlake's folder in the user's one of that kind.

    Raises:
        SetupError: neither the variable is set nor does the user have a home folder.
    """
    if chosen := os.environ.get(variable):
        return Path(chosen).absolute()
    try:
        return Path(os.environ.get(users) or Path.home() / usual).absolute() / "mirrorlake"
    except RuntimeError as error:
        raise SetupError(
            "HOME is not set, and this user has no home folder.", hint=f"set HOME or {variable}."
        ) from error


def make_once(target: Path, is_there: Callable[[], bool], make: Callable[[Path], object]) -> None:
    """Create a file or folder of the cache if it is missing: by one process, and atomically.

    Args:
        target: the path to create.
        is_there: returns whether the target exists and is complete; otherwise it is replaced.
        make: creates the target at a temporary path with the same name.
    """
    import fcntl  # Unix only; publishing imports this module

    if is_there():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    lock_path = cache() / f"{target.parent.name}.lock"
    with (
        lock_path.open("w") as lock,
        tempfile.TemporaryDirectory(dir=target.parent) as scratch,
    ):
        fcntl.flock(lock, fcntl.LOCK_EX)  # released when the file is closed
        if not is_there():  # another process may have created it meanwhile
            staged = Path(scratch) / target.name
            make(staged)
            shutil.rmtree(target, ignore_errors=True)
            staged.rename(target)
