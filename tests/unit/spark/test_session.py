"""The settings that Spark is started with, without starting it."""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import PySparkRuntimeError

from mirrorlake.errors import SetupError, UsageError
from mirrorlake.spark import java, jvm, session

JAVA = java.Java(Path("/jdk"), "17.0.1")
JARS = [Path("/c/delta.jar"), Path("/c/storage.jar")]
LOGGERS = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")


PROFILE = {
    "spark.sql.shuffle.partitions": "8",
    "spark.databricks.delta.snapshotPartitions": "2",
}


class FakeSession:
    """A fake session that records its settings."""

    def __init__(self) -> None:
        delta = {"spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension"}
        self.conf = SimpleNamespace(set=self._set, get=delta.get)
        self.set: dict[str, str] = {}

    def _set(self, name: str, value: str) -> None:
        self.set[name] = value

    def newSession(self) -> FakeSession:
        return FakeSession()


class FakeBuilder:
    """A fake builder that records its settings, and fails on request."""

    def __init__(self) -> None:
        self.confs: dict[str, Any] = {}
        self.session = FakeSession()
        self.failure: Exception | None = None

    def config(self, *, map: dict[str, Any]) -> FakeBuilder:
        self.confs |= map
        return self

    def getOrCreate(self) -> FakeSession:
        if self.failure is not None:
            os.write(2, b"first line of the JVM\nlast line of the JVM\n")
            raise self.failure
        return self.session


class Launches:
    """A fake of `launch_environment` that counts its calls."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> tuple[java.Java, list[Path]]:
        self.count += 1
        return JAVA, JARS


@pytest.fixture(autouse=True)
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SPARK_REMOTE", "SPARK_MASTER", "PYSPARK_GATEWAY_PORT", "MIRRORLAKE_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MIRRORLAKE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Launches:
    launches = Launches()
    monkeypatch.setattr(session, "launch_environment", launches)
    monkeypatch.setattr(session, "archive_flags", lambda java, paths: "-Xshare:auto")
    return launches


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> list[FakeSession]:
    """Return the list for the running session, which is empty unless a test adds one."""
    return []


@pytest.fixture
def builder(
    monkeypatch: pytest.MonkeyPatch, launches: Launches, running: list[FakeSession]
) -> FakeBuilder:
    builder = FakeBuilder()

    def active() -> FakeSession:
        if not running:
            raise PySparkRuntimeError("there is none")
        return running[0]

    session_class = SimpleNamespace(builder=builder, active=active)
    monkeypatch.setattr("pyspark.sql.SparkSession", session_class)
    return builder


DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}


def test_local_by_default(builder: FakeBuilder) -> None:
    assert session.get_spark() is builder.session
    confs = builder.confs
    assert (DELTA | jvm.SESSION_CONFS).items() <= confs.items()
    assert confs["spark.master"] == "local[*]"
    assert confs["spark.driver.memory"] == f"{session.driver_memory_mib('notebook')}m"
    assert confs["spark.driver.extraClassPath"] == "/c/delta.jar:/c/storage.jar"
    assert confs["spark.driver.host"] == "127.0.0.1"
    assert confs["spark.ui.enabled"] == confs["spark.ui.showConsoleProgress"] == "false"
    assert confs["spark.sql.session.timeZone"] == "UTC"
    assert "spark.jars" not in confs


def test_memory_that_the_user_names_counts(builder, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    (tmp_path / "spark-defaults.conf").write_text("spark.driver.memory 700m\n")
    session.get_spark()
    assert builder.confs["spark.driver.memory"] == "700m"


@pytest.mark.parametrize("way", ["argument", "variable"])
def test_profiles(builder: FakeBuilder, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    found = {}
    for profile in session.PROFILES:
        builder.confs.clear()
        if way == "variable":
            monkeypatch.setenv("MIRRORLAKE_PROFILE", profile)
        session.get_spark(profile if way == "argument" else None)
        found[profile] = builder.confs["spark.driver.extraJavaOptions"]
        expected = 2 * (os.cpu_count() or 1) if profile == "batch" else 2
        assert builder.confs["spark.sql.shuffle.partitions"] == str(expected)
        generates = builder.confs.get("spark.sql.codegen.factoryMode") != "NO_CODEGEN"
        assert generates == (profile != "small")
    classes = "-XX:MetaspaceSize=192m -Xshare:auto"
    short = (
        "-XX:+UseSerialGC -XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000"
        f" -XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000 {classes}"
    )
    assert found == {
        "notebook": short,
        "batch": f"-XX:+UseParallelGC {classes}",
        "small": short,
    }


def test_the_argument_counts_more_than_the_variable(builder, monkeypatch) -> None:
    monkeypatch.setenv("MIRRORLAKE_PROFILE", "notebook")
    session.get_spark("batch")
    assert "ParallelGC" in builder.confs["spark.driver.extraJavaOptions"]
    monkeypatch.setenv("MIRRORLAKE_PROFILE", "")
    session.get_spark()
    assert "SerialGC" in builder.confs["spark.driver.extraJavaOptions"]


@pytest.mark.parametrize("way", ["argument", "variable"])
def test_an_unknown_profile_is_wrong_use(builder, launches, monkeypatch, way) -> None:
    monkeypatch.setenv("MIRRORLAKE_PROFILE", "fast" if way == "variable" else "batch")
    with pytest.raises(UsageError, match=r"no profile 'fast'.*Hint: choose one of .*batch"):
        session.get_spark("fast" if way == "argument" else None)
    assert (builder.confs, launches.count) == ({}, 0)


LOCAL_ONLY = {
    "spark.driver.memory",
    "spark.driver.host",
    "spark.driver.extraJavaOptions",
    "spark.ui.enabled",
    "spark.ui.showConsoleProgress",
    "spark.sql.shuffle.partitions",
    "spark.databricks.delta.snapshotPartitions",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism",
    "spark.log.level",
    "spark.python.sql.dataFrameDebugging.enabled",
    "spark.sql.ui.explainMode",
    "spark.ui.retainedJobs",
    "spark.ui.retainedStages",
    "spark.ui.retainedTasks",
    "spark.sql.ui.retainedExecutions",
}


def test_a_cluster_gets_the_jars_and_nothing_local(builder, monkeypatch) -> None:
    monkeypatch.setenv("SPARK_MASTER", "spark://there:7077")
    assert session.get_spark() is builder.session
    assert LOCAL_ONLY & set(builder.confs) == set(PROFILE)
    assert builder.confs == DELTA | jvm.SESSION_CONFS | PROFILE | {
        "spark.app.name": "mirrorlake",
        "spark.master": "spark://there:7077",
        "spark.jars": "/c/delta.jar,/c/storage.jar",
        "spark.driver.extraClassPath": "/c/delta.jar:/c/storage.jar",
    }


def test_what_the_user_has_for_a_cluster_stays(builder, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("SPARK_MASTER", "spark://there:7077")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    (tmp_path / "spark-defaults.conf").write_text(
        "# jars of ours\nspark.jars  /u/a.jar,/u/b.jar\nspark.driver.extraClassPath=/u/x:/u/y\n"
        "spark.sql.shuffle.partitions: 64\n"
    )
    session.get_spark()
    confs = builder.confs
    assert confs["spark.jars"] == "/c/delta.jar,/c/storage.jar,/u/a.jar,/u/b.jar"
    assert confs["spark.driver.extraClassPath"] == "/c/delta.jar:/c/storage.jar:/u/x:/u/y"
    assert "spark.sql.shuffle.partitions" not in confs  # the value of the file is used
    monkeypatch.delenv("SPARK_MASTER")
    session.get_spark()
    assert builder.confs["spark.driver.extraClassPath"].endswith(":/u/x:/u/y")


def test_long_jobs_on_a_cluster_have_sparks_own_partitions(builder, monkeypatch) -> None:
    monkeypatch.setenv("SPARK_MASTER", "spark://there:7077")
    session.get_spark("batch")
    assert not set(PROFILE) & set(builder.confs)


def test_a_connect_server_gets_what_a_session_may_set(builder, launches, monkeypatch) -> None:
    monkeypatch.setenv("SPARK_REMOTE", "sc://there")
    monkeypatch.setenv("SPARK_MASTER", "spark://not-there:7077")
    assert session.get_spark() is builder.session
    assert (builder.confs, launches.count) == ({}, 0)
    assert builder.session.set == jvm.SESSION_CONFS


def test_no_folder_is_made_where_spark_is_started(builder, tmp_path) -> None:
    """Spark creates its warehouse folder at every start, by default in the working folder."""
    session.get_spark()
    assert builder.confs["spark.sql.warehouse.dir"] == str(tmp_path / "cache" / "spark-warehouse")


def test_under_spark_submit_its_choices_stand(builder, launches, monkeypatch) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    monkeypatch.setenv("SPARK_MASTER", "spark://not-there:7077")
    assert session.get_spark() is builder.session
    assert launches.count == 0
    assert builder.confs == DELTA | jvm.SESSION_CONFS
    assert builder.session.set == jvm.SESSION_CONFS


def test_a_running_session_is_joined(builder, launches, running) -> None:
    running.append(FakeSession())
    assert session.get_spark("batch") is running[0]
    assert (builder.confs, launches.count) == ({}, 0)
    assert running[0].set == jvm.SESSION_CONFS


def test_a_session_whose_context_was_stopped_is_not_joined(builder, running) -> None:
    running.append(FakeSession())
    running[0]._sc = SimpleNamespace(_jsc=None)  # type: ignore[attr-defined]
    assert session.get_spark() is builder.session


def test_a_running_session_without_delta_is_refused(builder, launches, running) -> None:
    plain = FakeSession()
    plain.conf.get = lambda _name, default: default
    running.append(plain)
    with pytest.raises(SetupError, match="no Delta"):
        session.get_spark()


def test_a_new_session_is_prepared_too() -> None:
    spark = FakeSession()
    other = session.new_session(spark)  # type: ignore[arg-type]
    assert (spark.set, other.set) == ({}, jvm.SESSION_CONFS)


def test_a_session_that_nobody_has_is_closed_in_a_thread_of_its_own() -> None:
    closed: SimpleQueue[threading.Thread] = SimpleQueue()

    class Client:
        def close(self) -> None:
            closed.put(threading.current_thread())
            raise ValueError("a server that is gone")

    class Session:
        client = Client()

        def __del__(self) -> None:
            self.client.close()

    for _ in range(2):  # a failure does not end the thread
        one = Session()
        one.__class__ = session.closed_in_thread(Session)
        del one
        assert closed.get(timeout=10) is not threading.current_thread()


@pytest.mark.parametrize("variable", [None, "SPARK_REMOTE", "SPARK_MASTER", "PYSPARK_GATEWAY_PORT"])
def test_refused_queries_are_not_logged_as_json(builder, monkeypatch, variable) -> None:
    for logger in LOGGERS:
        monkeypatch.setattr(logging.getLogger(logger), "level", logging.NOTSET)
    if variable:
        monkeypatch.setenv(variable, "1")
    session.get_spark()
    assert [logging.getLogger(logger).level for logger in LOGGERS] == [logging.CRITICAL] * 2


def test_a_start_that_fails_tells_what_the_jvm_said(builder, tmp_path, capfd) -> None:
    builder.failure = RuntimeError("no gateway")
    with pytest.raises(SetupError) as caught:
        session.get_spark()
    text = str(caught.value)
    assert "Spark did not start: no gateway" in text
    assert "first line of the JVM | last line of the JVM" in text
    (log,) = (tmp_path / "cache" / "logs").iterdir()
    assert caught.value.hint == f"see {log}."
    assert "last line of the JVM" in log.read_text()
    os.write(2, b"back again\n")
    assert capfd.readouterr() == ("", "back again\n")


def test_old_logs_go_when_spark_starts(builder, tmp_path) -> None:
    folder = tmp_path / "cache" / "logs"
    folder.mkdir(parents=True)
    for name, days in (("spark-old.log", 8), ("spark-new.log", 6), ("mine.log", 99)):
        (folder / name).touch()
        moment = (folder / name).stat().st_mtime - days * 86_400
        os.utime(folder / name, (moment, moment))
    session.get_spark()
    names = {path.name for path in folder.iterdir()}
    assert names >= {"spark-new.log", "mine.log"}
    assert "spark-old.log" not in names
    assert len(names) == 3


def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mib: int, limit: str | None) -> None:
    """Set the memory of the machine and the limit of its control group."""
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": mib * 256}.get)
    group = tmp_path / "memory.max"
    if limit is not None:
        group.write_text(limit + "\n")
    real = Path
    name = "/sys/fs/cgroup/memory.max"
    monkeypatch.setattr(session, "Path", lambda p: group if p == name else real(p))


@pytest.mark.parametrize(
    ("mib", "limit", "expected"),
    [
        (8192, None, 4096),
        (8192, "max", 4096),
        (8192, str(6000 * 2**20), 3000),
        (8192, str(16_000 * 2**20), 4096),
        (512, None, 1024),
        (8192, str(2**20), 1024),
        (1024 * 1024, None, 16 * 1024),
        (1024 * 1024, "max", 16 * 1024),
        (5001, None, 2500),
    ],
)
def test_driver_memory_is_half_of_what_there_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mib: int, limit: str | None, expected: int
) -> None:
    machine(monkeypatch, tmp_path, mib, limit)
    assert session.driver_memory_mib("batch") == expected
    assert session.driver_memory_mib("notebook") == min(expected, 2048)
    assert session.driver_memory_mib("small") == 1024


def test_driver_memory_of_this_very_machine() -> None:
    assert 1024 <= session.driver_memory_mib("batch") <= 16 * 1024


def test_what_a_launch_hands_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "find_java", lambda: JAVA)
    monkeypatch.setattr(session.jars, "delta_jars", lambda: JARS)
    monkeypatch.setenv("JAVA_HOME", "/old")
    monkeypatch.setenv("PYSPARK_PYTHON", "python-of-mine")
    assert session.launch_environment() == (JAVA, JARS)
    assert os.environ["JAVA_HOME"] == "/jdk"
    assert os.environ["PYSPARK_PYTHON"] == "python-of-mine"
    monkeypatch.delenv("PYSPARK_PYTHON")
    session.launch_environment()
    assert os.environ["PYSPARK_PYTHON"] == session.sys.executable
