"""A plugin for nbval: all notebooks' kernels start their Spark in one JVM, one after the other."""

from __future__ import annotations

import os

import pytest

from mirrorlake.spark.shared import SharedJvm


class OneSpark:
    def __init__(self) -> None:
        self.jvm = SharedJvm("notebook")
        os.environ.update(self.jvm.environment)
        self.path: object = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """The kernel of the notebook before is gone by now."""
        if self.path not in (None, item.path):
            self.jvm.clear()
        self.path = item.path

    def pytest_unconfigure(self) -> None:
        self.jvm.close()


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(OneSpark())
