"""Run the code blocks of a documentation page as a reader would paste them: in order."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from helpers.project import PROJECT

_BLOCK = re.compile(r"^```(sh|python|yaml|sql)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_LAUNCHER = f"""#!/bin/sh
PYTHONPATH={PROJECT / "lib"} exec {sys.executable} -P -m mirrorlake.cli "$@"
"""


def blocks(page: str, *languages: str, **places: Path | str) -> list[str]:
    """Return a page's blocks in some languages, without lines that install packages.

    Args:
        page: its path in `docs`, without the suffix.
        languages: `sh`, `python`, `yaml` or `sql`.
        places: what replaces `/data/` (as `data`), and other texts.
    """
    text = (PROJECT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    text = re.sub(r"^pip install .*\n", "", text, flags=re.MULTILINE)
    for shown, place in places.items():
        text = text.replace(f"/{shown}/", f"{place}/")
    return [block for language, block in _BLOCK.findall(text) if language in languages]


def make_launcher(folder: Path) -> Path:
    """Write a program `mirrorlake` that runs this checkout, as a checkout's launcher does."""
    launcher = folder / "mirrorlake"
    launcher.write_text(_LAUNCHER)
    launcher.chmod(0o755)
    return launcher


def in_shell(
    script: str, folder: Path, environment: Mapping[str, str], longest: float = 600
) -> str:
    """Run a block with bash in a folder; check that each command succeeds; return its output."""
    done = subprocess.run(
        ["bash", "-eu", "-o", "pipefail", "-c", script],
        cwd=folder,
        env=os.environ | dict(environment),
        capture_output=True,
        text=True,
        timeout=longest,
        check=False,
    )
    assert done.returncode == 0, (script, done.stdout[-2000:], done.stderr[-3000:])
    return done.stdout
