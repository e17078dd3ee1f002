"""The log store that lets any number of drivers commit to one table on S3, compiled once.

Its source is `ConditionalLogStore.java` beside this module. PySpark ships a compiler, Janino, that
needs no more than the runtime that Spark runs on.
"""

from __future__ import annotations

import hashlib
import logging
import os
import subprocess
import zipfile
from functools import partial
from pathlib import Path

from mirrorlake.errors import SetupError
from mirrorlake.paths import cache, make_once
from mirrorlake.spark.jars import VERSION
from mirrorlake.spark.java import Java

_log = logging.getLogger(__name__)
CLASS = "mirrorlake.ConditionalLogStore"
_SOURCE = Path(__file__).with_name("ConditionalLogStore.java")
_COMPILE = Path(__file__).with_name("Compile.java")
_SECONDS = 300


def log_store_path() -> Path:
    """Where the compiled log store lies, or will."""
    key = hashlib.sha256(_SOURCE.read_bytes() + VERSION.encode()).hexdigest()[:16]
    return cache() / "log_store" / f"mirrorlake-log-store-{key}.jar"


def log_store_jar(java: Java, jars: list[Path]) -> Path:
    """The jar with the log store, compiled now if it is not in the cache.

    Args:
        java: what compiles it.
        jars: Delta's and Hadoop's for S3, which it stands on.

    Raises:
        SetupError: it can't be compiled.
    """
    target = log_store_path()
    make_once(target, target.is_file, partial(_make, java, jars))
    return target


def _make(java: Java, jars: list[Path], target: Path) -> None:
    import pyspark

    spark = Path(pyspark.__file__).parent / "jars"
    classes = target.parent / "classes"
    class_path = os.pathsep.join([f"{spark}/*", *map(str, jars)])
    command = [
        *(str(java.home / "bin" / "java"), "-cp", class_path, "org.codehaus.janino.SimpleCompiler"),
        *(str(_COMPILE), "Compile", str(_SOURCE), str(classes)),
    ]
    _log.info("compiling the log store for S3 (once) …")
    done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    found = sorted(classes.rglob("*.class")) if classes.is_dir() else []
    if done.returncode != 0 or not found:
        raise SetupError(
            f"The log store for S3 could not be compiled: {done.stderr.strip()[-500:]}",
            hint="tables on S3 are not written without it.",
        )
    with zipfile.ZipFile(target, "w") as jar:
        for file in found:
            jar.write(file, file.relative_to(classes).as_posix())
