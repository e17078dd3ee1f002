"""Hadoop's own file systems, through the JVM: only they can name the markers of folders.

Beside `gateway` the one module that talks to the JVM.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def remove_empty_folders(spark: SparkSession, path: str) -> None:
    """Removes a folder that holds folders alone. A file in it, or one that comes, is safe.

    Args:
        spark: the session; without a JVM, on Spark Connect, nothing happens.
        path: the folder, in full.
    """
    session: Any = spark
    if not hasattr(session, "_jsparkSession"):
        return
    folder = session._jvm.org.apache.hadoop.fs.Path(path)
    with suppress(Exception):  # it is not there, or not empty: nothing is to be removed
        _remove(folder.getFileSystem(session._jsparkSession.sessionState().newHadoopConf()), folder)


def _remove(files: Any, folder: Any) -> None:
    for one in files.listStatus(folder):
        if one.isDirectory():
            _remove(files, one.getPath())
    files.delete(folder, False)  # never what is in it
