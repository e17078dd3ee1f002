"""A plugin for nbval: all notebooks' kernels start their Spark in the JVM of the environment, one
after the other, and talk by sockets of their own, since the machine's ports are taken by many tests
at once.
"""

from __future__ import annotations

import tempfile
from typing import Any

import nbval.kernel
import pytest
from jupyter_client.blocking import BlockingKernelClient
from jupyter_client.manager import KernelManager
from pyspark.java_gateway import launch_gateway

from mirrorlake.spark.jvm import end_session
from mirrorlake_runs.engine import private_sockets

_FOLDERS: list[tempfile.TemporaryDirectory[str]] = []  # removed with the process


class OneSpark:
    def __init__(self) -> None:
        self.gateway: Any = launch_gateway()  # joins the JVM
        self.path: object = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Clear the JVM; the previous notebook's kernel has ended."""
        if self.path not in (None, item.path):
            end_session(self.gateway.jvm)
        self.path = item.path

    def pytest_unconfigure(self) -> None:
        end_session(self.gateway.jvm)
        self.gateway.close()


def start_kernel(
    startup_timeout: float, kernel_name: str, **options: Any
) -> tuple[KernelManager, BlockingKernelClient]:
    """Start a kernel as `jupyter_client.manager.start_new_kernel` does, with private sockets."""
    folder = tempfile.TemporaryDirectory(prefix="mirrorlake-", ignore_cleanup_errors=True)
    _FOLDERS.append(folder)
    manager = KernelManager(kernel_name=kernel_name, config=private_sockets(folder.name))
    manager.start_kernel(**options)
    client = manager.client()
    client.start_channels()
    client.wait_for_ready(timeout=startup_timeout)
    return manager, client


def pytest_configure(config: pytest.Config) -> None:
    nbval.kernel.start_new_kernel = start_kernel
    config.pluginmanager.register(OneSpark())
