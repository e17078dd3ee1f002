"""One JVM for all test processes, in which each has its own session and catalog.

So Spark's classes, their compiled code and the heap exist only once, and are warm for all
processes. The process that starts the others launches the JVM, if one of their tests needs Spark,
and writes its address to a file. The processes share the state of the JVM: running jobs, Delta's
cache of logs, and the one process that Java calls back (`TOGETHER` in conftest.py).
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mirrorlake.errors import SetupError
from mirrorlake.spark.session import SharedJvm, launch_environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_KNOWN_BY = "one_jvm"
_ITS_TESTS = "tests/spark/"


class OneJvm:
    """A plugin that launches the JVM for the processes of pytest-xdist.

    Args:
        profile: the profile of the JVM; see `get_spark`.
    """

    def __init__(self, profile: str) -> None:
        self._profile = profile
        self._folder = tempfile.TemporaryDirectory(
            prefix="mirrorlake-"
        )  # readable only by this user
        self._file = Path(self._folder.name) / "jvm.json"
        self._jvm: SharedJvm | None = None

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput[_KNOWN_BY] = str(self._file)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: Sequence[str]) -> None:
        """Launch the JVM before the first test starts."""
        if self._jvm is None and any(name.startswith(_ITS_TESTS) for name in ids):
            with suppress(SetupError):  # the tests report the error
                self._jvm = SharedJvm(self._profile)
                self._file.write_text(json.dumps(self._jvm.environment))

    def pytest_unconfigure(self) -> None:
        if self._jvm is not None:
            self._jvm.close()
        self._folder.cleanup()


def joined_session(config: pytest.Config) -> SparkSession | None:
    """Return a session of this process in the shared JVM, or None if there is no such JVM."""
    known = getattr(config, "workerinput", {}).get(_KNOWN_BY)
    if known is None or not Path(known).is_file():
        return None
    from pyspark import SparkConf, SparkContext
    from pyspark.core.context import DEFAULT_CONFIGS
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    launch_environment()  # Spark's Python workers must run this Python
    with pytest.MonkeyPatch.context() as patch:
        for name, value in json.loads(Path(known).read_text()).items():
            patch.setenv(name, value)
        gateway: Any = launch_gateway()
    jvm = gateway.jvm
    conf: Any = SparkConf(_jvm=jvm)  # the settings that the JVM was launched with
    for name, value in DEFAULT_CONFIGS.items():
        conf.setIfMissing(name, str(value))
    running = jvm.JavaSparkContext(jvm.org.apache.spark.SparkContext.getOrCreate(conf._jconf))
    context = SparkContext(gateway=gateway, conf=conf, jsc=running)
    return SparkSession(context, jvm.SparkSession(running.sc(), {}))
