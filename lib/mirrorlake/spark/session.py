"""Starts or joins Spark: local by default, or the cluster or Connect server of the environment.

Nothing local is forced when `SPARK_REMOTE`, `SPARK_MASTER`, spark-submit or a running session says
otherwise. The profiles: `notebook` starts quickly and suits small data, `batch` suits long jobs;
`small` generates no code, which takes longer than it saves for tables with a few thousand rows.

A `SharedJvm` is one JVM for processes that follow each other. A process that has its `environment`
joins this JVM instead of starting one, as under spark-submit. Only one process at a time can have a
session there. The JVM ends with the process that launched it.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any

from mirrorlake.errors import SetupError, UsageError
from mirrorlake.notices import show_notices, watch_cells
from mirrorlake.spark import jars
from mirrorlake.spark.clouds import (
    DELTA_CONFS,
    DRIVER_PATH,
    check_log_store,
    cloud_conf,
    cloud_jars,
)
from mirrorlake.spark.java import Java, archive_flags, find_java
from mirrorlake.spark.jvm import SESSION_CONFS, end_session, prepare
from mirrorlake.storage.paths import cache

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


PROFILES = ("notebook", "batch", "small")
PROFILE_VARIABLE = "MIRRORLAKE_PROFILE"
DRIVER_MEMORY = "spark.driver.memory"
_DAY = 86_400
_DEFAULT = re.compile(r"\s*([^#!\s=:]+)(?:\s*[=:]\s*|\s+)(.*?)\s*$")  # a line of the user's file
_LOCAL = {
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.python.daemon.module": "mirrorlake.spark.executors",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
    "spark.databricks.delta.snapshotPartitions": "2",
    # Of 100 the code of one small cycle drops that of another, and Delta's state compiles for long.
    "spark.sql.codegen.cache.maxEntries": "1000",
    # Nobody sees Spark's notices, but it puts each together: a snapshot's, for one, whole.
    "spark.log.level": "WARN",
    # For errors PySpark notes where each column was written: eight calls of the JVM for every one.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    # What a page that is off would show: plans and tasks of the last thousand queries, in memory.
    **dict.fromkeys(
        (
            "spark.ui.retainedJobs",
            "spark.ui.retainedStages",
            "spark.sql.ui.retainedExecutions",
        ),
        "20",
    ),
    "spark.ui.retainedTasks": "1000",
}
# A sort, an aggregate and a join each take a page at once; of 2 GB Spark makes them 32 MiB large.
_SMALL_PAGES = {"spark.buffer.pageSize": "1m"}
_ONE_MACHINE: dict[str, dict[str, str]] = {
    "notebook": {"spark.sql.shuffle.partitions": "2", **_SMALL_PAGES},
    "batch": {"spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 1))},
    "small": {
        "spark.sql.shuffle.partitions": "2",
        **_SMALL_PAGES,
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        # Each task writes the code of its objects anew, which is most of what it does.
        "spark.sql.files.minPartitionNum": "1",
        "spark.databricks.delta.snapshotPartitions": "1",
    },
}
# Of a cluster nobody knows the cores yet; long jobs there have Spark's own 200 and 50.
_CLUSTER: dict[str, dict[str, str]] = {
    "notebook": {
        "spark.sql.shuffle.partitions": "8",
        "spark.databricks.delta.snapshotPartitions": "2",
    },
    "batch": {},
    "small": {
        "spark.sql.shuffle.partitions": "2",
        "spark.databricks.delta.snapshotPartitions": "2",
    },
}
_MOST_MIB = {"notebook": 2048, "batch": 16 * 1024, "small": 1024}
# Spark's and Delta's classes come to 170 MiB: by the JVM's own mark it collects its whole heap five
# times while it loads them.
_CLASSES = "-XX:MetaspaceSize=192m"
# Ten times the JVM's own numbers: what runs less often is not worth the optimising compiler's time,
# which in sessions of minutes comes to more than that of planning. Without that compiler Spark's
# lambdas are made, and thread locals looked up, by calls into native code.
_SHORT = (
    "-XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000"
    f" -XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000 {_CLASSES}"
)
_FLAGS = {
    "notebook": f"-XX:+UseSerialGC {_SHORT}",
    "batch": f"-XX:+UseParallelGC {_CLASSES}",
    "small": f"-XX:+UseSerialGC {_SHORT}",
}


def get_spark(profile: str | None = None, *, root: str | None = None) -> SparkSession:
    """The running session, or a new one.

    Args:
        profile: one of `PROFILES`; by default what `MIRRORLAKE_PROFILE` says, else `notebook`.
        root: the lake that it is for; one in a cloud needs more, see `spark.clouds`.

    Raises:
        SetupError: no usable Java, no jars, or Spark did not start; with the fix.
    """
    from pyspark.sql import SparkSession

    profile = chosen_profile(profile)
    watch_cells()
    builder, spark = SparkSession.builder, SparkSession.getActiveSession()
    if spark is not None:
        extensions = spark.conf.get("spark.sql.extensions", "") or ""
        if "DeltaSparkSessionExtension" not in extensions:
            raise SetupError(
                "The running Spark session has no Delta.",
                hint="stop it, or start it with Delta's extension and catalog.",
            )
    elif os.environ.get("SPARK_REMOTE"):
        spark = builder.getOrCreate()
    elif "PYSPARK_GATEWAY_PORT" in os.environ:  # under spark-submit its choices stand
        show_notices()
        spark = builder.config(map={**DELTA_CONFS, **SESSION_CONFS}).getOrCreate()
    if spark is not None:
        check_log_store(prepare(spark), root)
        return spark
    show_notices()
    builder = builder.config(map={**launch_conf(profile, root)})
    with _quiet_launch() as log:
        try:
            return prepare(builder.getOrCreate())
        except Exception as error:
            tail = " | ".join(log.read_text(errors="replace").strip().splitlines()[-3:])
            raise SetupError(f"Spark did not start: {error} {tail}", hint=f"see {log}.") from error


def chosen_profile(profile: str | None = None) -> str:
    """A profile by its name; without one that of the environment, else `notebook`.

    Raises:
        UsageError: there is none of this name.
    """
    profile = profile or os.environ.get(PROFILE_VARIABLE) or "notebook"
    if profile not in PROFILES:
        raise UsageError(f"There is no profile {profile!r}.", hint=f"choose one of {PROFILES}.")
    return profile


def launch_conf(profile: str, root: str | None = None) -> dict[str, str]:
    """What to launch a JVM with; under `SPARK_MASTER` only what every cluster needs.

    Jars and class paths of the user's `spark-defaults.conf` stay, behind ours; on a cluster so does
    what it says of partitions, and on one machine what it says of the driver's memory.
    """
    java, delta = launch_environment()
    needed = [*delta, *cloud_jars(root, java, delta)]
    paths = [str(path) for path in needed]
    conf = DELTA_CONFS | SESSION_CONFS | {"spark.app.name": "mirrorlake"}
    master = os.environ.get("SPARK_MASTER")
    conf |= cloud_conf(root, cluster=bool(master))
    theirs = spark_defaults()
    conf[DRIVER_PATH] = joined(paths, theirs.get(DRIVER_PATH), os.pathsep)
    if master:
        chosen = {name: value for name, value in _CLUSTER[profile].items() if name not in theirs}
        jars_of_all = joined(paths, theirs.get("spark.jars"), ",")
        return conf | chosen | {"spark.master": master, "spark.jars": jars_of_all}
    conf |= _LOCAL | _ONE_MACHINE[profile]
    conf["spark.master"] = "local[*]"
    # Spark makes this folder when it starts, by default wherever it was started.
    conf["spark.sql.warehouse.dir"] = str(cache() / "spark-warehouse")
    named = theirs.get(DRIVER_MEMORY)
    conf[DRIVER_MEMORY] = named or f"{driver_memory_mib(profile)}m"
    flags = f"{_FLAGS[profile]} {archive_flags(java, needed)}".strip()
    conf["spark.driver.extraJavaOptions"] = flags
    return conf


def spark_defaults() -> dict[str, str]:
    """The settings in the file that Spark's launcher reads: of `SPARK_CONF_DIR`, or Spark's own."""
    folder = os.environ.get("SPARK_CONF_DIR")
    home = os.environ.get("SPARK_HOME")
    if folder is None and home is not None:
        folder = f"{home}/conf"
    if folder is None:
        folder = str(jars.pyspark_home() / "conf")
    try:
        lines = (Path(folder) / "spark-defaults.conf").read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    return {found[1]: found[2] for line in lines if (found := _DEFAULT.match(line))}


def joined(ours: Iterable[str], theirs: str | None, separator: str) -> str:
    """A setting that is a list: ours first, then what the user's file adds."""
    added = [one for one in (theirs or "").split(separator) if one]
    return separator.join(dict.fromkeys([*ours, *added]))


def new_session(spark: SparkSession) -> SparkSession:
    """A session of its own on the same engine: own settings, own temporary views."""
    clone = getattr(type(spark), "cloneSession", None)  # Connect's sessions have no newSession
    if clone is None:
        return prepare(spark.newSession())
    own: Any = clone(spark)
    own.__class__ = closed_aside(own.__class__)
    return prepare(own)


@functools.cache
def closed_aside(kind: Any) -> Any:
    """A kind of Connect session that a thread of its own closes once nobody has it any more.

    Python's garbage collector may notice that in a thread of gRPC. A session that closes itself
    there waits for other threads, which wait for that one: forever.

    Args:
        kind: the session's class.
    """
    unused: SimpleQueue[Any] = SimpleQueue()

    def close() -> None:
        while True:
            with contextlib.suppress(Exception):
                unused.get().close()

    Thread(target=close, name="mirrorlake-closes-sessions", daemon=True).start()
    return type(kind.__name__, (kind,), {"__del__": lambda session: unused.put(session.client)})


def cluster_cores(start: Callable[[], SparkSession]) -> int | None:
    """How many tasks a cluster runs at a time; None on one machine, and where nobody can tell.

    Args:
        start: called where the environment names a cluster; else only a running session is asked.
    """
    from pyspark import SparkContext

    if not os.environ.get("SPARK_MASTER", "local").startswith("local"):
        start()
    # Each thread has an active session of its own, or none; a Connect client has no context.
    context = SparkContext._active_spark_context
    if context is None or (context.master or "local").startswith("local"):
        return None
    return int(context.defaultParallelism)


def driver_memory_mib(profile: str) -> int:
    """Half of the memory this process may use: 1 to 16 GiB, in a notebook 2, with `small` 1.

    Two notebooks are often open, and long tests run in two processes: that has to fit into 8 GiB.
    """
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")
    if limit.is_file() and (text := limit.read_text().strip()).isdigit():
        total = min(total, int(text))
    return max(1024, min(_MOST_MIB[profile], total // 2 // 2**20))


def launch_environment() -> tuple[Java, list[Path]]:
    """The Java and the jars to launch with; both are fetched now if this is the first start."""
    java = find_java()
    os.environ["JAVA_HOME"] = str(java.home)
    # Python workers must be this very Python, not whatever the PATH has.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    return java, jars.delta_jars()


def new_log() -> tuple[int, str]:
    """A file for what a JVM prints, open, and its path; those of a week ago are removed."""
    folder = cache() / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("spark-*.log"):
        if time.time() - old.stat().st_mtime > 7 * _DAY:
            old.unlink(missing_ok=True)
    return tempfile.mkstemp(prefix="spark-", suffix=".log", dir=folder)


@contextlib.contextmanager
def _quiet_launch() -> Iterator[Path]:
    """Points file descriptors 1 and 2 at a log while the JVM is launched, which keeps them.

    The JVM writes to them itself: its warnings would land in the notebook's cell, and what VACUUM
    has to say before a command's JSON.
    """
    handle, name = new_log()
    sys.stdout.flush()
    saved = {descriptor: os.dup(descriptor) for descriptor in (1, 2)}
    try:
        for descriptor in saved:
            os.dup2(handle, descriptor)
        yield Path(name)
    finally:
        for descriptor, copy in saved.items():
            os.dup2(copy, descriptor)
            os.close(copy)
        os.close(handle)


class SharedJvm:
    """A JVM without a session, for others to start theirs in.

    Args:
        profile: see `get_spark`; it holds for all sessions.
        root: the lake that they are for, if it lies in a cloud.

    Raises:
        SetupError: there is no usable Java, or it did not start.
    """

    def __init__(self, profile: str, root: str | None = None) -> None:
        from pyspark import SparkConf
        from pyspark.java_gateway import launch_gateway

        conf = SparkConf(loadDefaults=False).setAll(list(launch_conf(profile, root).items()))
        handle, name = new_log()
        with open(handle, "wb") as log:
            try:
                self._gateway: Any = launch_gateway(  # type: ignore[no-untyped-call]
                    conf, {"stdout": log, "stderr": subprocess.STDOUT, "start_new_session": True}
                )
            except Exception as error:
                raise SetupError(f"Spark did not start: {error}", hint=f"see {name}.") from error
        known = self._gateway.gateway_parameters
        self.profile = profile
        self.environment = {
            "PYSPARK_GATEWAY_PORT": str(known.port),
            "PYSPARK_GATEWAY_SECRET": known.auth_token,
        }

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self._gateway.proc.poll() is None

    def clear(self) -> None:
        """Ends the session that a process has left, for the next one's."""
        end_session(self._gateway.jvm)

    def close(self) -> None:
        """Ends the JVM, whatever runs in it."""
        self._gateway.close()
        with self._gateway.proc as process:  # which closes the pipe to it
            process.kill()
