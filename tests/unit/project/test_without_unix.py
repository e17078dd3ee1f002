"""Publishing needs no module that exists on Unix only."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PUBLISH = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name in ("fcntl", "grp", "pwd", "resource", "termios"):
            raise ModuleNotFoundError(f"{name} is blocked", name=name)

for name in ("fcntl", "grp", "pwd", "resource", "termios"):
    sys.modules.pop(name, None)
sys.meta_path.insert(0, Blocked())

import mirrorlake
import mirrorlake.storage.lease
import mirrorlake.storage.paths

lake = mirrorlake.Lake(sys.argv[1])
batch = lake.publisher("t", keys=["id"]).upsert([{"id": 1}, {"id": 2}])
assert batch.rows == 2
print(lake.status().tables[0].backlog_files)
"""


def test_publishing_needs_no_unix_module(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PUBLISH, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "1\n"
