"""The package that is sent to a cluster's executors, and the check of theirs, without Spark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark import cloudpickle

from mirrorlake.errors import SetupError
from mirrorlake.spark import executors

LOAD = (
    "import pickle, sys; probe = pickle.load(sys.stdin.buffer);"
    "print(list(probe([]))); print('mirrorlake' in sys.modules)"
)
# Modules whose functions run on executors; they are pickled by name.
USED = ("layout.footers", "layout.vorder", "layout.analysis", "history.frame_records")
USED += ("history.vacuum", "mirror.reconcile", "delta.files")
IMPORTS = """
import json, sys
before = set(sys.modules)
for name in sys.argv[1:]:
    __import__(f"mirrorlake.{name}")
there = {name.partition(".")[0] for name in set(sys.modules) - before}
spec = sys.modules["mirrorlake.storage.files"].__file__
print(json.dumps([spec, sorted(there - set(sys.stdlib_module_names))]))
"""


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIRRORLAKE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(executors, "_ready", set())


def python(code: str, *arguments: str, path: str = "", data: bytes = b"") -> str:
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=environment | {"PYTHONPATH": path},
        input=data,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    return done.stdout.decode()


def test_python_imports_what_executors_run_from_the_archive() -> None:
    archive = executors.package_archive()
    assert executors.package_archive() == archive
    place, packages = json.loads(python(IMPORTS, *USED, path=str(archive)))
    assert place.startswith(str(archive))
    found = {name for name in packages if not name.startswith(("_", "cython"))}
    # Py4J comes with PySpark, which also imports psutil if it is installed.
    assert found - {"mirrorlake", "pyspark", "py4j", "psutil"} == set(executors.NEEDED)


def test_the_probe_needs_nothing_where_it_runs() -> None:
    sent = cloudpickle.dumps(executors.make_probe(("json", "no_such_module")))
    told, imported = python(LOAD, data=sent).splitlines()
    assert told == str([(sys.executable, ["no_such_module"])])
    assert imported == "False"


class Context:
    """A fake of a cluster's context that records the calls."""

    master, applicationId, defaultParallelism = "spark://there:7077", "app-1", 2

    def __init__(self, *told: tuple[str, list[str]], error: str = "") -> None:
        self.told, self.error = list(told), error
        self.shipped: list[str] = []
        self.jobs = 0

    def addPyFile(self, path: str) -> None:
        self.shipped.append(path)

    def range(self, _start: int, _end: int, *, numSlices: int) -> Context:
        assert numSlices == self.defaultParallelism
        return self

    def mapPartitions(self, _function: object) -> Context:
        return self

    def collect(self) -> list[tuple[str, list[str]]]:
        self.jobs += 1
        if self.error:
            raise RuntimeError(self.error)
        return self.told


def session(context: Any) -> Any:
    return SimpleNamespace(_sc=context)


def test_a_cluster_gets_the_package_and_is_asked_once() -> None:
    context = Context(("/usr/bin/python3", []))
    for _ in range(3):
        executors.ensure_python(session(context))
    assert (context.shipped, context.jobs) == ([str(executors.package_archive())], 1)


def test_one_machine_and_a_connect_client_are_left_alone() -> None:
    context = Context(error="not to be asked")
    context.master = "local[2]"
    executors.ensure_python(session(context))
    executors.ensure_python(SimpleNamespace())  # type: ignore[arg-type]
    assert context.jobs == 0


def test_what_the_executors_lack_is_said() -> None:
    context = Context(("/usr/bin/python3", []), ("/opt/python", ["obstore", "xxhash"]))
    for _ in range(2):  # the packages may be installed later
        with pytest.raises(SetupError) as caught:
            executors.ensure_python(session(context))
        assert caught.value.message == (
            "The Python of the executors, /opt/python, does not have obstore, xxhash."
        )
        assert "install obstore xxhash there" in caught.value.hint
    assert context.jobs == 2


@pytest.mark.parametrize(
    "line",
    [
        'Cannot run program "/home/me/python": error=2, No such file or directory',
        "PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has different version",
    ],
)
def test_executors_without_such_a_python_are_said(line: str) -> None:
    page = f"An error occurred while calling z:collect.\n: Job aborted\n  {line}\n\tat org.x"
    with pytest.raises(SetupError) as caught:
        executors.ensure_python(session(Context(error=page)))
    assert line in caught.value.message
    assert "PYSPARK_PYTHON" in caught.value.hint
