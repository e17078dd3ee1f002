"""The library works without its satellites, and finds their commands by entry points."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from mirrorlake import registry
from mirrorlake.cli import main as cli

HIDDEN = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("mirrorlake_"):
            raise ModuleNotFoundError(f"{name} is hidden", name=name)

sys.meta_path.insert(0, Hidden())
"""
STATUS = """
from mirrorlake import Lake
lake = Lake(sys.argv[1])
lake.publisher("t", keys=["id"]).upsert([{"id": 1}])
from mirrorlake.cli.main import command, main
commands = sorted(command().commands)
sys.argv = ["mirrorlake", "status", sys.argv[1], "--json"]
print(*commands)
main()
"""


def test_the_library_works_without_its_satellites(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", HIDDEN + STATUS, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    commands, _, status = done.stdout.partition("\n")
    assert {"publish", "mirror", "status", "sql"} <= set(commands.split())
    assert set(commands.split()).isdisjoint({"run", "serve", "source", "lab", "monitor", "demo"})
    assert [one["name"] for one in json.loads(status)["tables"]] == ["t"]
    assert json.loads(status)["sources"] == []


def test_satellites_register_their_commands() -> None:
    assert {"project", "runs", "monitor", "serve", "sources"} <= set(
        registry.registered("mirrorlake.commands")
    )
    assert {"run", "serve", "source", "lab", "monitor", "demo"} <= set(cli.command().commands)


def test_the_state_of_sources_has_a_reader() -> None:
    (read,) = registry.registered("mirrorlake.source_status").values()
    assert read.__module__.startswith("mirrorlake_sources.")
