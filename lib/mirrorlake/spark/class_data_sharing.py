"""Class archives (AppCDS): most of Spark's start is loading classes, and an archive halves it.

Made once per Java and class path by a throw-away process that starts Spark, mirrors a tiny table a
few times and queries it. The JVM ignores an archive that is broken or was made for another class
path or for files of another age or size, so using one is never fatal. A `SPARK_CONF_DIR` is part of
the class path: with one, it is not used.
"""

from __future__ import annotations

import hashlib
import logging
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from mirrorlake.errors import SetupError
from mirrorlake.paths import cache, make_once
from mirrorlake.spark.java import Java

_log = logging.getLogger(__name__)
_TRAINING = "MIRRORLAKE_ARCHIVE_TRAINING"
_NOT_TRAINED_WITH = ("SPARK_REMOTE", "SPARK_CONF_DIR", "MIRRORLAKE_PROFILE")
_WARNINGS_TO_STDERR = "-Xlog:disable -Xlog:all=warning:stderr"


def archive_path(java: Java, class_path: list[Path]) -> Path:
    """Where the archive for a Java and a class path, as it is now, lies or would lie.

    The same packages installed again have files of another age.
    """
    import pyspark

    spark = Path(pyspark.__file__).parent
    place = [java.home, java.version, spark, *class_path]
    files = [*java.home.glob("lib/modules"), *sorted(spark.glob("jars/*.jar")), *class_path]
    found = [(file, file.stat()) for file in files]
    state = [(file, status.st_size, status.st_mtime_ns) for file, status in found]
    return cache() / "archives" / f"{_key(place)}-{_key(state)}.jsa"


def _key(parts: Sequence[object]) -> str:
    return hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()[:16]


def archive_flags(java: Java, class_path: list[Path]) -> str:
    """The JVM's flags to use the archive if there is one; in a training process, to make it."""
    # Spark splits its options at spaces, except within quotes.
    if target := os.environ.get(_TRAINING):
        return f'"-XX:ArchiveClassesAtExit={target}"'
    path = archive_path(java, class_path)
    if not path.is_file():
        return ""
    # The JVM would complain of an archive it can't use on stdout, which belongs to the results.
    return f'"-XX:SharedArchiveFile={path}" -Xshare:auto {_WARNINGS_TO_STDERR}'


def ensure_archive(java: Java, class_path: list[Path]) -> Path | None:
    """Makes the archive if there is none, in place of one for the same files as they were before.

    Returns:
        where it lies; None if that did not work: starts are slower then.
    """
    path = archive_path(java, class_path)
    try:
        make_once(path, path.is_file, _train)
    except SetupError as error:
        _log.warning(f"that did not work, so Spark starts as slowly as usual: {error}")
        return None
    for older in path.parent.glob(f"{path.stem.partition('-')[0]}-*.jsa"):
        if older != path:
            older.unlink(missing_ok=True)
    return path


def _train(archive: Path) -> None:
    _log.info("making a class archive, once, so that Spark starts in half the time …")
    environment = {k: v for k, v in os.environ.items() if k not in _NOT_TRAINED_WITH}
    environment[_TRAINING] = str(archive)
    command = [sys.executable, "-m", "mirrorlake.runs.jvm", str(archive.parent)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    # What a process that failed has left behind may be half an archive.
    if done.returncode != 0 or not archive.is_file():
        raise SetupError((done.stderr.strip().splitlines() or ["no reason given"])[-1])
    archive.chmod(0o644)
