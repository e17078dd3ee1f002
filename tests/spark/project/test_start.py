"""The start of Spark, also on machines with a broken archive or without Java."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mirrorlake.spark.java import archive_path
from mirrorlake.spark.session import launch_environment
from mirrorlake.storage import paths

GARBAGE = """
from mirrorlake.spark.java import archive_path
from mirrorlake.spark.session import get_spark, launch_environment

path = archive_path(*launch_environment())
path.parent.mkdir(parents=True)
path.write_bytes(b"not an archive " * 1000)
"""
START = "print(get_spark().range(3).count())"
WORK = """
import json
from mirrorlake import Lake

lake = Lake("a lake")
lake.publisher("t", keys=["id"]).write([{"id": 1, "word": "a"}])
states = [table.state for table in lake.mirror().tables]
rows = [tuple(row) for row in lake.sql("SELECT * FROM t@v1").collect()]
java = lake.spark._jvm.java.lang.System.getProperty("java.home")
# A Python worker has to start too.
squares = lake.spark.sparkContext.parallelize([3], 1).map(lambda n: n * n).collect()
print(json.dumps([states, rows, java, squares]))
"""
TOOLS = ("bash", "dirname", "chmod", "ls", "readlink", "uname", "ps")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a space in its name, and with a cache that has only the jars."""
    folder = tmp_path / "a b"
    (folder / "cache").mkdir(parents=True)
    (folder / "cache" / "jars").symlink_to(paths.cache() / "jars")
    return folder


def run(program: str, python: str | Path, folder: Path, environment: dict[str, str]) -> str:
    done = subprocess.run(
        [python, "-c", program],
        env=environment | {"MIRRORLAKE_CACHE": str(folder / "cache")},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    return done.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="what a process has mapped is in /proc")
def test_the_class_archive_is_in_use(spark: Any) -> None:
    java = spark._jvm.java.lang.ProcessHandle.current().pid()
    mapped = Path(f"/proc/{java}/maps").read_text()
    assert str(archive_path(*launch_environment())) in mapped


@pytest.mark.long
def test_a_broken_archive_is_no_obstacle(folder: Path) -> None:
    stdout = run(GARBAGE + START, sys.executable, folder, dict(os.environ))
    assert stdout == "3\n"  # the JVM's warning about it must not be among the results


@pytest.mark.long  # test_packaged_java.py tests this Java also without --long, but not Spark
def test_a_machine_without_java_in_a_folder_with_spaces(folder: Path) -> None:
    (folder / "bin").mkdir()
    (folder / "home").mkdir()
    for tool in TOOLS:
        if found := shutil.which(tool):
            (folder / "bin" / tool).symlink_to(found)
    (folder / "venv").symlink_to(sys.prefix)
    environment = {"PATH": str(folder / "bin"), "HOME": str(folder / "home")}
    program = GARBAGE + WORK
    stdout = run(program, folder / "venv" / "bin" / "python", folder, environment)
    states, rows, java, squares = json.loads(stdout)
    assert states == ["Replicating"]
    assert rows == [[1, "a"]]
    assert Path(java).is_relative_to(folder / "cache" / "java")
    assert squares == [9]
    assert (folder / "a lake" / "Tables" / "t" / "_delta_log").is_dir()
