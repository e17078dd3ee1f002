"""Where things lie on this machine: the project's folders and the cache."""

from __future__ import annotations

import os
import re
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
NOTEBOOKS = PROJECT / "notebooks"
PARAMETERS = PROJECT / "parameters"
_URI = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)


def home() -> Path:
    """What a relative lake path in a notebook starts from: `MIRRORLAKE_HOME`, or the project."""
    return Path(os.environ.get("MIRRORLAKE_HOME") or PROJECT).absolute()


def lake_path(root: str) -> str:
    """Where the lake of a notebook lies: relative paths start from `home()`, URIs stay."""
    return root if _URI.match(root) else str(home() / Path(root).expanduser())


def cache() -> Path:
    """Where jars, archives and logs are kept: `MIRRORLAKE_CACHE`, or the user's cache folder."""
    if chosen := os.environ.get("MIRRORLAKE_CACHE"):
        return Path(chosen).absolute()
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base).absolute() / "mirrorlake"
