"""A cluster of processes: all operations on it, and failures that it survives. Runs under --long.

The workers have another Python environment than the driver, and none of its variables.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers.cluster import SPARK_HOME, Cluster, executor_python
from helpers.cluster_program import SMALL, expected
from helpers.environments import make_environment
from helpers.ports import free_port
from helpers.programs import Program, programs, result_of
from helpers.project import PROJECT
from helpers.s3_server import BUCKET, S3Server, is_built
from mirrorlake import Lake
from mirrorlake.spark.jars import delta_jars
from mirrorlake.spark.java import find_java

pytestmark = pytest.mark.long
COMMANDS = ["publish", "mirror", "sql", "vorder", "analyze"]
_LONGEST = 900  # seconds
_HIDDEN = ("SPARK_MASTER", "SPARK_REMOTE", "SPARK_CONF_DIR", "PYTHONPATH", "PYSPARK_PYTHON")


def bare_variables() -> dict[str, str]:
    """Return the variables of this process without those of Spark."""
    return {name: value for name, value in os.environ.items() if name not in _HIDDEN}


@pytest.fixture(scope="module")
def python() -> Path:
    """Return the workers' Python: another environment, without mirrorlake."""
    return executor_python()


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    cluster = Cluster()
    yield cluster
    cluster.close()


@pytest.fixture
def driver(cluster: Cluster, python: Path) -> Iterator[Program]:
    """Yield a function that starts a program as the cluster's driver; it ends with the test."""
    own = {"SPARK_MASTER": cluster.url, "PYSPARK_PYTHON": str(python)}
    environment = bare_variables() | {"SPARK_LOCAL_IP": "127.0.0.1"} | own
    with programs("helpers.cluster_program", environment) as start:
        yield start


def result(process: subprocess.Popen[str]) -> Any:
    return result_of(process, _LONGEST)


def check_story(seen: dict[str, Any]) -> None:
    print(json.dumps(seen["seconds"]))
    assert (seen["mirror"], seen["change"]) == ([None], [None])
    total = sum(n % 7 for n in range(SMALL)) - 1 % 7 + 100 - 4 % 7
    assert seen["query"] == [SMALL - 1, total]
    assert (seen["vorder"], seen["analyze"]) == (5000, "Analysis")
    assert seen["text"] == [True, [None, None], [499, sum(n % 5 for n in range(500)) - 7 % 5]]
    assert (seen["partition"], seen["views"]) == (sum(range(40)), 8)


def test_the_whole_story_on_a_shared_folder(driver: Program, tmp_path: Path) -> None:
    (tmp_path / "spark-defaults.conf").write_text(
        f"spark.jars {_some_jar(tmp_path)}\n"
        "spark.driver.extraClassPath /of/the/user\n"
        "spark.sql.shuffle.partitions 3\n"
    )
    seen = result(driver("tour", str(tmp_path / "lake"), SPARK_CONF_DIR=str(tmp_path)))
    check_story(seen)
    jars = seen["jars"].split(",")
    assert jars[-1].endswith("/users.jar")  # the user's jars, after ours
    assert any("delta-spark" in jar for jar in jars)
    assert seen["path"].endswith(":/of/the/user")
    assert seen["partitions"] == ["3", "2"]  # the user's value, and the profile's


def _some_jar(folder: Path) -> Path:
    import zipfile

    with zipfile.ZipFile(folder / "users.jar", "w") as jar:
        jar.writestr("of/the/user.txt", "hello")
    return folder / "users.jar"


@pytest.mark.skipif(not is_built(), reason="needs the S3 server, which other tests build")
def test_the_whole_story_on_s3(driver: Program) -> None:
    server = S3Server()
    try:
        root = f"s3://{BUCKET}/{uuid.uuid4().hex}"
        check_story(result(driver("tour", root, **server.variables())))
    finally:
        server.close()


def test_the_commands_of_the_page(cluster: Cluster, python: Path, tmp_path: Path) -> None:
    text = (PROJECT / "docs" / "how-to" / "cluster.md").read_text(encoding="utf-8")
    commands = re.findall(r"^\./mirrorlake (.+)$", text, re.M)
    assert [line.split()[0] for line in commands] == COMMANDS
    (tmp_path / "stock.csv").write_text("id,n\n1,5\n2,6\n")
    own = {
        "SPARK_MASTER": cluster.url,
        "PYSPARK_PYTHON": str(python),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    own["PYTHONPATH"] = str(PROJECT / "lib")
    for line in commands:
        done = subprocess.run(
            [sys.executable, "-m", "mirrorlake.cli", *shlex.split(line)],
            cwd=tmp_path,
            env=bare_variables() | own,
            capture_output=True,
            text=True,
            timeout=_LONGEST,
            check=False,
        )
        assert done.returncode == 0, (line, done.stderr[-3000:])


def test_a_program_that_is_submitted_keeps_its_settings(
    cluster: Cluster, python: Path, tmp_path: Path
) -> None:
    """The settings of spark-submit are kept: master, name, partitions, jars; as on the page."""
    jars = ",".join(str(path) for path in delta_jars())
    program = PROJECT / "tests" / "helpers" / "cluster_program.py"
    confs = ("spark.sql.shuffle.partitions=3", "spark.databricks.delta.snapshotPartitions=2")
    own = {
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYSPARK_PYTHON": str(python),
        "JAVA_HOME": str(find_java().home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONPATH": os.pathsep.join([str(PROJECT / "lib"), str(PROJECT / "tests")]),
    }
    done = subprocess.run(
        [
            *(str(SPARK_HOME / "bin" / "spark-submit"), "--master", cluster.url),
            *("--name", "theirs", "--jars", jars),
            *(word for conf in confs for word in ("--conf", conf)),
            *(str(program), "least", str(tmp_path / "lake")),
        ],
        env=bare_variables() | own,
        capture_output=True,
        text=True,
        timeout=_LONGEST,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    seen = json.loads(done.stdout.splitlines()[-1])
    assert (seen["errors"], seen["found"], seen["analyze"]) == ([None], [20, 57], "Analysis")
    assert (seen["master"], seen["app"]) == (cluster.url, "theirs")
    assert (seen["partitions"], seen["cores"]) == ("3", 2)


def test_the_program_of_the_page(cluster: Cluster, python: Path, tmp_path: Path) -> None:
    """The lines of the page work, with another master, another Python and another lake."""
    text = (PROJECT / "docs" / "how-to" / "cluster.md").read_text(encoding="utf-8")
    section = text.partition("## Submit a program")[2].partition("\n## ")[0]
    (command,) = re.findall(r"^```sh\n(.*?)^```", section, re.DOTALL | re.MULTILINE)
    (program,) = re.findall(r"^```python\n(.*?)^```", section, re.DOTALL | re.MULTILINE)
    lake = Lake(tmp_path / "lake")
    lake.publisher("t", keys=["id"]).upsert([{"id": 1}])
    (tmp_path / "nightly.py").write_text(program.replace("s3://bucket/lake", lake.storage.root))
    command = command.replace("/every/worker/has/python", str(python))
    done = subprocess.run(
        ["bash", "-ec", command.replace("spark://host:7077", cluster.url)],
        cwd=tmp_path,
        env=bare_variables() | on_path(),
        capture_output=True,
        text=True,
        timeout=_LONGEST,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert [line.state for line in lake.status().tables] == ["Replicating"]


def on_path() -> dict[str, str]:
    """Return the variables by which a shell finds this Python, Spark's programs and a Java."""
    folders = [str(Path(sys.executable).parent), str(SPARK_HOME / "bin"), os.environ["PATH"]]
    return {
        "PATH": os.pathsep.join(folders),
        "JAVA_HOME": str(find_java().home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONPATH": str(PROJECT / "lib"),
    }


def test_the_lines_that_start_a_cluster(tmp_path: Path) -> None:
    text = (PROJECT / "docs" / "how-to" / "cluster.md").read_text(encoding="utf-8")
    section = text.partition("## Try it on one machine")[2].partition("\n## ")[0]
    (lines,) = re.findall(r"^```sh\n(.*?)^```", section, re.DOTALL | re.MULTILINE)
    log = tmp_path / "log"
    with log.open("wb") as target:
        started = subprocess.Popen(
            ["bash", "-c", lines.replace("7077", str(free_port())) + "wait"],
            env=bare_variables() | on_path() | {"SPARK_WORKER_DIR": str(tmp_path / "work")},
            stdout=target,
            stderr=target,
            start_new_session=True,
        )
    try:
        until = time.monotonic() + 120
        while "Successfully registered with master" not in (told := log.read_text()):
            assert time.monotonic() < until, told[-3000:]
            assert started.poll() is None, told[-3000:]
            time.sleep(0.2)  # another process's log offers no event to wait for
    finally:
        os.killpg(started.pid, signal.SIGKILL)
        started.wait()


def test_as_many_tables_are_worked_on_at_once_as_the_cluster_has_cores_for(
    python: Path, tmp_path: Path
) -> None:
    cluster = Cluster(workers=1, cores=9)  # more than the limit of a small machine, which is 8
    own = {"SPARK_MASTER": cluster.url, "PYSPARK_PYTHON": str(python)}
    environment = bare_variables() | {"SPARK_LOCAL_IP": "127.0.0.1"} | own
    try:
        with programs("helpers.cluster_program", environment) as start:
            seen = result(start("many", str(tmp_path / "lake")))
    finally:
        cluster.close()
    assert seen["errors"] == [None] * 12
    assert seen["most"] == seen["wanted"] == 10 > seen["here"]


def test_executors_that_lack_packages_are_told_of_before_a_job_fails(
    driver: Program, tmp_path: Path
) -> None:
    other = make_environment("poor-executor", "pyyaml")
    seen = result(driver("refused", str(tmp_path / "lake"), PYSPARK_PYTHON=str(other)))
    assert "does not have numpy, obstore, pyarrow." in seen["message"]
    assert "install numpy obstore pyarrow there" in seen["hint"]
    seen = result(driver("refused", str(tmp_path / "lake"), PYSPARK_PYTHON="/no/such/python"))
    assert "/no/such/python" in seen["message"]
    assert "PYSPARK_PYTHON" in seen["hint"]


@pytest.mark.parametrize("killed", ["executor", "worker", "driver"])
def test_a_mirror_survives_that_a_part_is_killed(
    cluster: Cluster, driver: Program, tmp_path: Path, killed: str
) -> None:
    root = str(tmp_path / "lake")
    result(driver("publish", root))
    mirror = driver("mirror", root)
    _await(mirror, "step created")  # the table exists, and its rows are being written
    if killed == "driver":
        os.killpg(mirror.pid, signal.SIGKILL)
        mirror.communicate(timeout=60)
        mirror = driver("mirror", root)
    elif killed == "worker":
        cluster.kill_worker()
    else:
        cluster.kill_executor()
    seen = result(mirror)
    assert seen["errors"] == [None]
    assert seen["found"] == expected()
    assert seen["commits"] == sorted(set(seen["commits"]))
    assert seen["commits"][-1] == 3


def _await(process: subprocess.Popen[str], line: str) -> None:
    assert process.stderr is not None
    seen = []
    for told in process.stderr:
        seen.append(told)
        if line in told:
            return
    raise AssertionError("".join(seen)[-3000:])
