"""Start or join Spark: local by default, or the cluster or Connect server of the environment.

`SPARK_REMOTE`, `SPARK_MASTER`, spark-submit and a running session take precedence over the local
default. The profiles: `notebook` starts quickly and suits small data, `batch` suits long jobs;
`small` generates no code: for a few thousand rows, generation takes longer than it saves.

A `SharedJvm` is one JVM for processes that run in sequence. A process that has its `environment`
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
_DEFAULT = re.compile(
    r"\s*([^#!\s=:]+)(?:\s*[=:]\s*|\s+)(.*?)\s*$"
)  # a line of `spark-defaults.conf`
_LOCAL = {
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.python.daemon.module": "mirrorlake.spark.executors",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
    "spark.databricks.delta.snapshotPartitions": "2",
    # With the default of 100 entries, one small cycle evicts the compiled code of another, and the
    # code that reads Delta's state takes long to compile. 22 views of TPC-H need 1,300 entries.
    "spark.sql.codegen.cache.maxEntries": "4000",
    # Messages of level INFO are not shown, but formatting them is expensive: one has a whole
    # snapshot.
    "spark.log.level": "WARN",
    # For error messages, PySpark records where each column is created, in eight JVM calls each.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    # The web UI is off, but for it Spark would describe each plan in detail, and keep the plans and
    # tasks of the last 1,000 queries in memory.
    "spark.sql.ui.explainMode": "simple",
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
# Each sort, aggregate and join allocates a page. With 2 GB of memory, Spark's pages have 32 MiB.
# With 16 GB, they have 64 MiB, and most of the used memory is pages of tasks with few rows.
_SMALL_PAGES = {"spark.buffer.pageSize": "1m"}
_ONE_MACHINE: dict[str, dict[str, str]] = {
    "notebook": {"spark.sql.shuffle.partitions": "2", **_SMALL_PAGES},
    "batch": {
        "spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 1)),
        "spark.buffer.pageSize": "4m",
    },
    "small": {
        "spark.sql.shuffle.partitions": "2",
        **_SMALL_PAGES,
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        # Each task generates the code for its objects again, which takes most of its time.
        "spark.sql.files.minPartitionNum": "1",
        "spark.databricks.delta.snapshotPartitions": "1",
    },
}
# The cores of a cluster are not known yet. Long jobs have Spark's defaults, 200 and 50 partitions.
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
# The classes of Spark and Delta take 170 MiB. With its default, the JVM collects the whole heap
# five times while it loads them.
_CLASSES = "-XX:MetaspaceSize=192m"
# Ten times the JVM's defaults: code that runs less often is not worth the time of the optimizing
# compiler, which in sessions of minutes takes longer than planning. Without that compiler, Spark's
# lambdas are created, and thread locals looked up, through native code.
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
    """Return the running session, or start one.

    Args:
        profile: one of `PROFILES`. The default is the variable `MIRRORLAKE_PROFILE`, else
            `notebook`.
        root: the root of the lake, for the jars and settings of a cloud; see `spark.clouds`.

    Raises:
        SetupError: there is no usable Java, the jars are missing, or Spark did not start. The hint
            has the fix.
    """
    from pyspark.sql import SparkSession

    profile = chosen_profile(profile)
    watch_cells()
    builder, spark = SparkSession.builder, running_session()
    if spark is not None:
        extensions = spark.conf.get("spark.sql.extensions", "") or ""
        if "DeltaSparkSessionExtension" not in extensions:
            raise SetupError(
                "The running Spark session has no Delta: its extension is not configured.",
                hint="stop the session, or start it with Delta's extension and catalog.",
            )
    elif os.environ.get("SPARK_REMOTE"):
        spark = builder.getOrCreate()
    elif "PYSPARK_GATEWAY_PORT" in os.environ:  # spark-submit decides the other settings
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


def running_session() -> SparkSession | None:
    """Return the session of this thread, else the one of the process; None if none is running."""
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    try:
        spark = SparkSession.active()  # threads of a pool have no session of their own
    except PySparkRuntimeError:
        return None
    # A classic session is still found after its context was stopped.
    context = getattr(spark, "_sc", None)
    return None if context is not None and context._jsc is None else spark


def chosen_profile(profile: str | None = None) -> str:
    """Return a valid profile: the given one, else that of the environment, else `notebook`.

    Raises:
        UsageError: there is no profile of this name.
    """
    profile = profile or os.environ.get(PROFILE_VARIABLE) or "notebook"
    if profile not in PROFILES:
        raise UsageError(
            f"There is no profile {profile!r}.", hint=f"choose one of {', '.join(PROFILES)}."
        )
    return profile


def launch_conf(profile: str, root: str | None = None) -> dict[str, str]:
    """Return the settings to launch a JVM with; for `SPARK_MASTER`, only those for any cluster.

    Jars and class paths of the user's `spark-defaults.conf` are kept, after the ones of mirrorlake.
    The number of partitions in that file is kept on a cluster, the driver's memory on one machine.
    """
    java, delta = launch_environment()
    needed = [*delta, *cloud_jars(root, java, delta)]
    paths = [str(path) for path in needed]
    conf = DELTA_CONFS | SESSION_CONFS | {"spark.app.name": "mirrorlake"}
    master = os.environ.get("SPARK_MASTER")
    conf |= cloud_conf(root, cluster=bool(master))
    defaults = spark_defaults()
    conf[DRIVER_PATH] = _join_lists(paths, defaults.get(DRIVER_PATH), os.pathsep)
    if master:
        chosen = {name: value for name, value in _CLUSTER[profile].items() if name not in defaults}
        all_jars = _join_lists(paths, defaults.get("spark.jars"), ",")
        return conf | chosen | {"spark.master": master, "spark.jars": all_jars}
    conf |= _LOCAL | _ONE_MACHINE[profile]
    conf["spark.master"] = "local[*]"
    # Spark creates this folder when it starts, by default in the working folder.
    conf["spark.sql.warehouse.dir"] = str(cache() / "spark-warehouse")
    conf[DRIVER_MEMORY] = defaults.get(DRIVER_MEMORY) or f"{driver_memory_mib(profile)}m"
    flags = f"{_FLAGS[profile]} {archive_flags(java, needed)}".strip()
    conf["spark.driver.extraJavaOptions"] = flags
    return conf


def spark_defaults() -> dict[str, str]:
    """Return the settings of `spark-defaults.conf` in `SPARK_CONF_DIR`, else in Spark's folder."""
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


def _join_lists(ours: Iterable[str], default: str | None, separator: str) -> str:
    """Return a setting that is a list: our values first, then those of the user's file."""
    added = [one for one in (default or "").split(separator) if one]
    return separator.join(dict.fromkeys([*ours, *added]))


def new_session(spark: SparkSession) -> SparkSession:
    """Return another session on the same engine, with its own settings and temporary views."""
    clone = getattr(type(spark), "cloneSession", None)  # Connect's sessions have no newSession
    if clone is None:
        return prepare(spark.newSession())
    own: Any = clone(spark)
    own.__class__ = closed_in_thread(own.__class__)
    return prepare(own)


@functools.cache
def closed_in_thread(kind: Any) -> Any:
    """Return a subclass of a Connect session that a separate thread closes when it is unused.

    Python's garbage collector may run in a thread of gRPC. A session that closes itself there waits
    for other threads, which wait for that thread: a deadlock.

    Args:
        kind: the class of the session.
    """
    unused: SimpleQueue[Any] = SimpleQueue()

    def close() -> None:
        while True:
            with contextlib.suppress(Exception):
                unused.get().close()

    Thread(target=close, name="mirrorlake-closes-sessions", daemon=True).start()
    return type(kind.__name__, (kind,), {"__del__": lambda session: unused.put(session.client)})


def cluster_cores(start: Callable[[], SparkSession]) -> int | None:
    """Return how many tasks a cluster runs at a time; None on one machine, or if it is unknown.

    Args:
        start: returns the session. It is called only if the environment names a cluster; otherwise
            only a running session is examined.
    """
    from pyspark import SparkContext

    if not os.environ.get("SPARK_MASTER", "local").startswith("local"):
        start()
    # The active session differs between threads, the context does not. Connect has no context.
    context = SparkContext._active_spark_context
    if context is None or (context.master or "local").startswith("local"):
        return None
    return int(context.defaultParallelism)


def driver_memory_mib(profile: str) -> int:
    """Return the driver's memory in MiB: half of the memory that this process may use.

    It is at least 1 GiB, and at most 2 (`notebook`), 16 (`batch`) or 1 GiB (`small`). Two open
    notebooks, or long tests in two processes, must fit into 8 GiB.
    """
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")
    if limit.is_file() and (text := limit.read_text().strip()).isdigit():
        total = min(total, int(text))
    return max(1024, min(_MOST_MIB[profile], total // 2 // 2**20))


def launch_environment() -> tuple[Java, list[Path]]:
    """Return the Java and the jars to launch with; at the first start both are fetched now."""
    java = find_java()
    os.environ["JAVA_HOME"] = str(java.home)
    # Python workers must run this Python, not the one on the PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    return java, jars.delta_jars()


def new_log() -> tuple[int, str]:
    """Open a log for a JVM, and return its descriptor and path; delete logs older than a week."""
    folder = cache() / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("spark-*.log"):
        if time.time() - old.stat().st_mtime > 7 * _DAY:
            old.unlink(missing_ok=True)
    return tempfile.mkstemp(prefix="spark-", suffix=".log", dir=folder)


@contextlib.contextmanager
def _quiet_launch() -> Iterator[Path]:
    """Redirect file descriptors 1 and 2 to a log while the JVM, which inherits them, is launched.

    Otherwise the JVM's warnings would appear in the notebook's cell, and messages of VACUUM before
    the JSON of a command.
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
    """A JVM without a session, in which other processes start theirs.

    Args:
        profile: the profile of all sessions; see `get_spark`.
        root: the root of their lake, if it is in a cloud.

    Attributes:
        environment: the variables of a process that joins the JVM.

    Raises:
        SetupError: there is no usable Java, or the JVM did not start.
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
        """True while the JVM is running."""
        return self._gateway.proc.poll() is None

    def clear(self) -> None:
        """Stop the session that a process left, so that the next process can start one."""
        end_session(self._gateway.jvm)

    def close(self) -> None:
        """Stop the JVM, even if jobs run in it."""
        self._gateway.close()
        with self._gateway.proc as process:  # closes the pipe to it
            process.kill()
