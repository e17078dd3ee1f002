"""Python workers of Spark: ships this package to a cluster's executors, and checks their packages.

Executors run some of this package's code: V-Order, footers, listings. They need a Python of the
driver's version with a few packages. The driver sends this package itself, so that both have the
same version. Nothing is sent in a session on one machine or of a Connect server.

As a program, this module forks the Python workers of a local Spark, with their packages already
imported. Spark starts it instead of its own daemon (`spark.python.daemon.module`). A worker lives
for a minute after its last task, and importing pandas and Arrow in each new one takes a core a
second.
"""

from __future__ import annotations

import hashlib
import re
import sys
import zipfile
from collections.abc import Callable, Iterable, Iterator
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mirrorlake.errors import SetupError, first_line
from mirrorlake.storage.paths import cache, make_once

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

NEEDED = ("numpy", "obstore", "pyarrow", "yaml")
"""The packages that this package imports on an executor, besides PySpark."""
Lacking = tuple[str, list[str]]
"""The path of a Python, and the modules that are missing there."""
_PACKAGE = Path(__file__).parent.parent
_CODE = (".py", ".yaml", ".json", ".sha256")
_HINT = "set PYSPARK_PYTHON to a Python that every worker has, of the driver's version"
# The archives that Spark adds to the path of Python workers.
_SPARK_ARCHIVE = re.compile(r"/(pyspark\.zip|py4j-[^/]*\.zip|spark-core_[^/]*\.jar)$")
_ready: set[str] = set()  # the ids of applications whose executors were checked


def map_in_arrow(
    frame: DataFrame,
    function: Callable[[Iterable[Any]], Iterable[Any]],
    schema: StructType | str,
) -> DataFrame:
    """Run `DataFrame.mapInArrow` with a function of this package.

    Raises:
        SetupError: the executors cannot run the function.
    """
    ensure_python(frame.sparkSession)
    return frame.mapInArrow(function, schema)


def parallelism(spark: SparkSession) -> int:
    """Return the number of tasks for a job over files.

    It depends on a setting, because a session of Spark Connect cannot read the number of cores.
    """
    return 2 * int(spark.conf.get("spark.sql.shuffle.partitions") or 2)


def ensure_python(spark: SparkSession) -> None:
    """Send this package to a cluster's executors, once, and check whether they can run it.

    Raises:
        SetupError: the executors do not have this version of Python, or packages are missing there.
    """
    context: Any = getattr(spark, "_sc", None)  # a session of Spark Connect has none
    if context is None or context.master.startswith("local"):
        return
    if context.applicationId in _ready:
        return
    context.addPyFile(str(package_archive()))
    tasks = int(context.defaultParallelism)
    try:
        told = context.range(0, tasks, numSlices=tasks).mapPartitions(make_probe(NEEDED)).collect()
    except Exception as error:
        raise SetupError(
            f"The cluster's executors can't run Python: {_cause(error)}", hint=f"{_HINT}."
        ) from error
    for python, missing in told:
        if missing:
            raise SetupError(
                f"The Python of the executors, {python}, does not have {', '.join(missing)}.",
                hint=f"install {' '.join(missing)} there on every worker, or {_HINT}.",
            )
    _ready.add(context.applicationId)


def make_probe(names: tuple[str, ...]) -> Callable[[Iterable[int]], Iterator[Lacking]]:
    """Return a function that reports the Python that it runs in, and the missing modules.

    The function is pickled by value, because an executor may not have this package.
    """

    def probe(_rows: Iterable[int]) -> Iterator[Lacking]:
        import importlib.util
        import sys

        lost = [name for name in names if importlib.util.find_spec(name) is None]
        yield sys.executable, lost

    return probe


def package_archive() -> Path:
    """Return this package's code as a zip archive that Python can import; it is created once."""
    files = sorted(path for path in _PACKAGE.rglob("*") if path.suffix in _CODE)
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.relative_to(_PACKAGE)}\n".encode() + path.read_bytes())
    target = cache() / "shipped" / digest.hexdigest()[:16] / "mirrorlake.zip"

    def make(staged: Path) -> None:
        with zipfile.ZipFile(staged, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in files:
                archive.write(path, str(path.relative_to(_PACKAGE.parent)))

    make_once(target, target.is_file, make)
    return target


def _cause(error: Exception) -> str:
    """Return the line with the cause of a failed job, out of the pages of Spark's error."""
    lines = [line.strip() for line in str(error).splitlines()]
    marks = ("Cannot run program", "PYTHON_VERSION_MISMATCH", "ModuleNotFoundError", "ImportError")
    found = [line for line in lines if any(mark in line for mark in marks)]
    return (found[0] if found else first_line(error)).rstrip(".") + "."


if __name__ == "__main__":
    # Before each task, PySpark invalidates the caches of all importers. That of an archive then
    # reads the archive's directory again, which takes about 50 ms.
    folders = [path for path in sys.path if not _SPARK_ARCHIVE.search(path)]
    if PathFinder.find_spec("pyspark", folders) and PathFinder.find_spec("py4j", folders):
        sys.path[:] = folders
        sys.path_importer_cache.clear()

    import pandas  # noqa: F401
    import pyarrow.parquet  # noqa: F401
    import pyspark.worker  # noqa: F401
    from pyspark.daemon import manager

    manager()  # type: ignore[no-untyped-call]
