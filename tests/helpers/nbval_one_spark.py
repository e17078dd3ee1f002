"""A plugin for nbval: the kernels of all notebooks start Spark in one JVM, one after the other.

The environment names the JVM. The kernels use private sockets, because many tests that run at once
take the ports of the machine.
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
from mirrorlake_runs.execution import private_sockets

_FOLDERS: list[tempfile.TemporaryDirectory[str]] = []  # deleted with the process


class OneSpark:
    def __init__(self) -> None:
        self.gateway: Any = launch_gateway()  # joins the JVM
        self.path: object = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Stop the session that the ended kernel of the previous notebook left in the JVM."""
        if self.path not in (None, item.path):
            end_session(self.gateway.jvm)
        self.path = item.path

    def pytest_unconfigure(self) -> None:
        end_session(self.gateway.jvm)
        self.gateway.close()


def start_kernel(
    startup_timeout: float, kernel_name: str, **options: Any
) -> tuple[KernelManager, BlockingKernelClient]:
    """Start a kernel like `jupyter_client.manager.start_new_kernel`, with private sockets."""
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
