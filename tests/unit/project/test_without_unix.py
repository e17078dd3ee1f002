"""Publishing, lint, status and ledger run where Unix's modules, links and characters are missing.

Windows itself is not tried: the modules are blocked, links are refused by a preloaded library, and
the output has the encoding of a pipe on Windows.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.elsewhere import without_links
from helpers.zones import MARKER, T, Zone
from mirrorlake.errors import InvalidNameError
from mirrorlake.landing import publisher
from mirrorlake.names import TableName, file_name
from mirrorlake.storage.files import Storage

UNIX = ("fcntl", "grp", "pwd", "resource", "termios")
BLOCKED = f"""
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name in {UNIX}:
            raise ModuleNotFoundError(f"{{name}} is blocked", name=name)

for name in {UNIX}:
    sys.modules.pop(name, None)
sys.meta_path.insert(0, Blocked())
"""
PUBLISH = """
import sys
from concurrent.futures import ThreadPoolExecutor
from mirrorlake import Lake
from mirrorlake.cli.main import command

command()  # imports the modules of all commands
lake = Lake(sys.argv[1])
publishers = [lake.publisher("t", keys=["id"]) for _ in range(4)]
with ThreadPoolExecutor(4) as pool:
    batches = list(pool.map(lambda p: [p.upsert([{"id": n}]).rows for n in range(5)], publishers))
assert batches == [[1] * 5] * 4
print(lake.lint())
print(lake.status().tables[0].backlog_files)
lake.operations.ledger("t")
"""


def run(code: str, *arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, *arguments],
        capture_output=True,
        env={**os.environ, **environment},
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    return done.stdout.decode(environment.get("PYTHONIOENCODING", "utf-8"))


@pytest.mark.parametrize("without", ["modules", "links"])
def test_no_unix_module_and_no_hard_link_is_needed(tmp_path: Path, without: str) -> None:
    environment = without_links(tmp_path) if without == "links" else {}
    root = tmp_path / "lake"
    code = BLOCKED + PUBLISH if without == "modules" else PUBLISH
    said = run(code, str(root), **environment)
    assert said == "0 errors and 0 warnings in 1 table, 20 files read\n20\n"
    found = {path.name for path in (root / T.folder).iterdir()}
    assert found == {"_metadata.json", *(file_name(n) for n in range(1, 21))}


def test_without_hard_links_nothing_is_overwritten(tmp_path: Path) -> None:
    code = """
import sys
from mirrorlake.storage.files import Storage

storage = Storage(sys.argv[1])
for make_folder in (True, False):
    assert storage.create(f"a/{make_folder}", b"1")
    assert not storage.create(f"a/{make_folder}", b"2", make_folder=make_folder)
storage.write("b", b"3")
assert not storage.rename("b", "a/True")
assert storage.rename("b", "a/c")
found = {entry.name: storage.read(f"a/{entry.name}") for entry in storage.list("a").files}
print(found)
"""
    said = run(code, str(tmp_path / "lake"), **without_links(tmp_path))
    assert said == "{'False': b'1', 'True': b'1', 'c': b'3'}\n"


def test_output_survives_the_encoding_of_windows(tmp_path: Path) -> None:
    table = TableName(None, "Größe ✓")
    Zone(Storage(tmp_path)).put(1, {MARKER: [0], "id": [1]}, table)

    def said(*arguments: str) -> str:
        code = "from mirrorlake.cli.main import main; main()"
        return run(code, *arguments, PYTHONIOENCODING="cp1252")

    assert "Größe ?" in said("status", str(tmp_path))
    assert said("lint", str(tmp_path)).startswith("information marker-not-last Größe ?: ")
    (found,) = json.loads(said("lint", str(tmp_path), "--json"))["findings"]
    assert found["table"] == str(table)


def test_a_table_that_windows_cannot_store_is_not_published(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "ON_WINDOWS", True)
    for table in (TableName(None, "con"), TableName("a?b", "t"), TableName(None, "tail.")):
        with pytest.raises(InvalidNameError, match="Windows can't store"):
            publisher.Publisher(storage, table)
    assert storage.list("Files").folders == ()
    publisher.Publisher(Storage("memory:///"), TableName(None, "con"))  # not on a disk of Windows
