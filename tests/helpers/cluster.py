"""A standalone Spark cluster of processes: a master and workers, from PySpark's own package.

The workers are isolated from the driver: they have their own environment, without its variables and
without its Python path.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import pyspark

from helpers.environments import make_environment
from helpers.ports import free_port
from mirrorlake.spark.java import find_java

SPARK_HOME = Path(pyspark.__file__).parent
MASTER = "org.apache.spark.deploy.master.Master"
WORKER = "org.apache.spark.deploy.worker.Worker"
EXECUTOR = "CoarseGrainedExecutorBackend"
_PATIENCE = 120  # seconds


class Cluster:
    """A master and workers; `close` stops them and deletes their folder.

    Args:
        workers: the number of workers.
        variables: the variables of the workers, besides the path and Java.
        cores: the number of cores that each worker reports; the machine may have fewer.
    """

    def __init__(
        self, workers: int = 2, variables: Mapping[str, str] | None = None, *, cores: int = 1
    ) -> None:
        self._cores = cores
        self.folder = Path(tempfile.mkdtemp(prefix="mlcluster-"))
        self._port = free_port()
        self._variables = dict(variables or {})
        self._master = self._start("master", MASTER, "--port", str(self._port))
        self._wait("master", "New state: ALIVE")
        self._workers: list[subprocess.Popen[bytes]] = []
        for _ in range(workers):
            self.add_worker()

    @property
    def url(self) -> str:
        """The value for `SPARK_MASTER`."""
        return f"spark://127.0.0.1:{self._port}"

    def add_worker(self) -> None:
        """Start one more worker, and wait until it is registered with the master."""
        name = f"worker-{len(self._workers)}"
        place = [
            "--cores",
            str(self._cores),
            "--memory",
            "1g",
            "--work-dir",
            str(self.folder / name),
        ]
        self._workers.append(self._start(name, WORKER, *place, self.url))
        self._wait(name, "Successfully registered with master")

    def executors(self) -> list[int]:
        """Return the processes of all executors."""
        parents = {process.pid for process in self._workers}
        found = []
        for place in Path("/proc").iterdir():
            if place.name.isdigit() and _is_executor(place, parents):
                found.append(int(place.name))
        return found

    def kill_executor(self) -> None:
        """Kill one executor, as a machine without free memory does."""
        os.kill(self.executors()[0], signal.SIGKILL)

    def kill_worker(self) -> None:
        """Kill one worker with its executors, as if its machine failed."""
        process = self._workers[0]
        children = [e for e in self.executors() if _parent(Path(f"/proc/{e}")) == process.pid]
        for pid in (process.pid, *children):
            os.kill(pid, signal.SIGKILL)
        process.wait(30)

    def close(self) -> None:
        """Stop all processes."""
        for process in (*self._workers, self._master):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(30)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _start(self, name: str, kind: str, *arguments: str) -> subprocess.Popen[bytes]:
        environment = {
            "PATH": "/usr/bin:/bin",
            "HOME": str(self.folder),
            "JAVA_HOME": str(find_java().home),
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            **self._variables,
        }
        command = [str(SPARK_HOME / "bin" / "spark-class"), kind, "--host", "127.0.0.1"]
        with (self.folder / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                [*command, "--webui-port", "0", *arguments],
                env=environment,
                cwd=self.folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _wait(self, name: str, words: str) -> None:
        until = time.monotonic() + _PATIENCE
        log = self.folder / f"{name}.log"
        while words not in (text := log.read_text(errors="replace")):
            assert time.monotonic() < until, text[-3000:]
            time.sleep(0.1)  # another process's log offers no event to wait for


def _is_executor(place: Path, parents: set[int]) -> bool:
    try:
        command = (place / "cmdline").read_bytes()
    except OSError:
        return False  # the process has just ended
    return EXECUTOR.encode() in command and _parent(place) in parents


def _parent(place: Path) -> int:
    try:
        return int((place / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return -1


def executor_python() -> Path:
    """Return the workers' Python: an environment with their packages, without mirrorlake."""
    return make_environment("executor", "numpy", "obstore", "pyarrow", "pyyaml")
