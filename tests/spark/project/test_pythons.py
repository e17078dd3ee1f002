"""Each supported Python: the launcher sets it up from nothing, and it mirrors a table."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from helpers.project import PROJECT
from mirrorlake.storage import paths

pytestmark = pytest.mark.long
MINORS = range(10, 14)


def find_python(minor: int) -> str | None:
    """Return a working Python of this version, from the PATH or pyenv's folder."""
    name = f"python3.{minor}"
    kept = Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/{name}")
    for path in filter(None, [shutil.which(name), *map(str, kept)]):
        tried = subprocess.run([path, "-c", ""], capture_output=True, check=False)
        if tried.returncode == 0:
            return path
    return None


@pytest.mark.parametrize("minor", MINORS)
def test_set_up_and_mirror(minor: int, tmp_path: Path) -> None:
    if (python := find_python(minor)) is None:
        pytest.skip(f"there is no Python 3.{minor} here")
    project = tmp_path / "project"
    project.mkdir()
    for name in ("mirrorlake", "requirements.lock", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(PROJECT / name, project / name)
    shutil.copytree(PROJECT / "lib", project / "lib", ignore=shutil.ignore_patterns("*.egg-info"))
    unset = ("PYTHONPATH", "MIRRORLAKE_PROFILE")
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    environment |= {"MIRRORLAKE_PYTHON": python, "MIRRORLAKE_CACHE": str(paths.cache())}

    def run(*arguments: str | Path) -> str:
        done = subprocess.run(
            [project / "mirrorlake", *arguments],
            capture_output=True,
            text=True,
            env=environment,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    (tmp_path / "rows.csv").write_text("id,word\n1,a\n2,b\n")
    lake = tmp_path / "lake"
    run("publish", lake, "t", tmp_path / "rows.csv", "--keys", "id")
    run("mirror", lake)
    answer = json.loads(run("sql", lake, "SELECT * FROM t ORDER BY id", "--json"))
    assert [row["word"] for row in answer["rows"]] == ["a", "b"]
    used = project / ".venv" / "bin" / "python"
    version = subprocess.run([used, "-V"], capture_output=True, text=True, check=True).stdout
    assert version.startswith(f"Python 3.{minor}.")
