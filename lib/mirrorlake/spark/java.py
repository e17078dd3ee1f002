"""Finds a Java that Spark 4.1 runs on: 17 or 21."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from mirrorlake.errors import SetupError

SUPPORTED = (17, 21)
_HINT = "install Java 17 or 21 (for example Debian's openjdk-17-jre-headless), or point JAVA_HOME at it."


@dataclass(frozen=True)
class Java:
    """One Java installation."""

    home: Path
    version: str

    @property
    def major(self) -> int:
        """The feature release, such as 17."""
        return int(self.version.split(".")[0])


def find_java() -> Java:
    """The Java of `JAVA_HOME`, else the one on the PATH.

    Raises:
        SetupError: there is none, or only one that Spark can't run on.
    """
    tried = []
    for home in _candidates():
        java = _look(home)
        if java is not None and java.major in SUPPORTED:
            return java
        tried.append(f"{home} ({'not a Java' if java is None else f'Java {java.version}'})")
    if not tried:
        raise SetupError("There is no Java on this machine.", hint=_HINT)
    raise SetupError(f"Spark runs on Java 17 or 21; found {', '.join(tried)}.", hint=_HINT)


def _candidates() -> list[Path]:
    homes = []
    if chosen := os.environ.get("JAVA_HOME"):
        homes.append(Path(chosen))
    if on_path := shutil.which("java"):
        homes.append(Path(on_path).resolve().parent.parent)
    return homes


def _look(home: Path) -> Java | None:
    executable = home / "bin" / "java"
    if not executable.is_file():
        return None
    release = home / "release"
    text = release.read_text(errors="replace") if release.is_file() else ""
    found = re.search(r'JAVA_VERSION="([^"]+)"', text)
    if found is None:
        # Not every distribution ships the release file; asking the program takes a tenth of a second.
        try:
            asked = subprocess.run(
                [executable, "-version"], capture_output=True, text=True, timeout=60, check=False
            )
        except OSError:
            return None
        found = re.search(r'version "([^"]+)"', asked.stderr)
    return Java(home, found[1]) if found else None
