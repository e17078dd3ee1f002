"""The notebooks as production and as a reader run them: papermill, then nbval."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark import SparkConf
from pyspark.java_gateway import launch_gateway

from mirrorlake.paths import NOTEBOOKS, PROJECT
from mirrorlake.runs.results import RunSummary
from mirrorlake.runs.run import run_plan
from mirrorlake.samples.lake import MARKER, open_sample
from mirrorlake.spark.session import launch_conf

SANITIZE = Path(__file__).parent / "sanitize.cfg"
CONF = PROJECT / "tests" / "spark" / "conf"  # papermill's run has Spark's own defaults


@pytest.fixture(scope="module")
def tour(tmp_path_factory: pytest.TempPathFactory) -> RunSummary:
    """The three notebooks by papermill, cut small by parameters."""
    folder = tmp_path_factory.mktemp("tour")
    plan = folder / "plan.yaml"
    plan.write_text(
        "steps:\n"
        "  - {notebook: learn/01_publish, parameters: {every: 60}}\n"
        "  - {notebook: learn/02_mirror, parameters: {every: 60, months: 2}}\n"
        "  - {notebook: learn/03_query, parameters: {every: 60, months: 2}}\n"
    )
    return run_plan(plan, folder / "out", overrides={"root": str(folder / "lake")})


@pytest.mark.promise("LZ-01", "LZ-02")
def test_papermill_runs_them_with_other_parameters(tour: RunSummary) -> None:
    assert [(step.notebook, step.status) for step in tour.steps] == [
        ("learn/01_publish", "done"),
        ("learn/02_mirror", "done"),
        ("learn/03_query", "done"),
    ], tour.failed
    summary = json.loads((Path(tour.folder) / "summary.json").read_text())
    assert [step["status"] for step in summary["steps"]] == ["done"] * 3
    answers = tour.steps[-1].records
    assert set(answers) == {
        "flights in the table",
        "flights cancelled",
        "latest airline",
        "busiest route",
    }


# A kernel that was shut down leaves its context in the JVM, and there can't be two.
STARTUP = """
from pyspark import SparkContext
SparkContext._ensure_initialized()
if (left := SparkContext._jvm.org.apache.spark.SparkContext.getActive()).isDefined():
    left.get().stop()
"""


@pytest.fixture
def shared_jvm(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of kernels that join one JVM in turn, as spark-submit's programs join theirs.

    That saves each the start of a JVM, and its slow first minute. papermill's have one each.
    """
    startup = tmp_path / "ipython" / "profile_default" / "startup"
    startup.mkdir(parents=True)
    (startup / "stop_spark.py").write_text(STARTUP)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_CONF_DIR", str(CONF))
        conf = SparkConf(loadDefaults=False).setAll(list(launch_conf("notebook").items()))
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        gateway = launch_gateway(conf, popen_kwargs=quiet)
    yield {
        "PYSPARK_GATEWAY_PORT": str(gateway.gateway_parameters.port),
        "PYSPARK_GATEWAY_SECRET": gateway.gateway_parameters.auth_token,
        "IPYTHONDIR": str(startup.parents[1]),
    }
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()


def test_nbval_finds_the_committed_outputs(tmp_path: Path, shared_jvm: dict[str, str]) -> None:
    """In the order of their numbers, for each goes on with the lake of the one before."""
    command = [sys.executable, "-m", "pytest", "--nbval", "--nbval-sanitize-with", str(SANITIZE)]
    lessons = sorted((NOTEBOOKS / "learn").glob("*.ipynb"))
    command += ["-p", "no:cacheprovider", "-q", *map(str, lessons)]
    environment = os.environ | shared_jvm | {"MIRRORLAKE_HOME": str(tmp_path)}
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=PROJECT, env=environment, check=False
    )
    assert done.returncode == 0, done.stdout[-6000:]
    lakes = sorted((tmp_path / "lakes").iterdir())
    assert len(lakes) == 9
    for lake in lakes:  # the next run is not refused
        assert json.loads((lake / MARKER).read_text())["state"] == "sealed"
        open_sample(str(lake), tables=[])
