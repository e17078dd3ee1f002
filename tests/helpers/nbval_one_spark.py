"""A plugin for nbval: all notebooks' kernels start their Spark in one JVM, one after the other.

The environment names it, see `SharedJvm`.
"""

from __future__ import annotations

import pytest
from pyspark.java_gateway import launch_gateway

from mirrorlake.spark.jvm import end_session


class OneSpark:
    def __init__(self) -> None:
        self.gateway = launch_gateway()  # which joins the JVM that is there
        self.path: object = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """The kernel of the notebook before is gone by now."""
        if self.path not in (None, item.path):
            end_session(self.gateway.jvm)
        self.path = item.path

    def pytest_unconfigure(self) -> None:
        self.gateway.close()


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(OneSpark())
