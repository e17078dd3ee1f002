"""Starts a notebook's kernel by jupyter_client alone, so that papermill is imported meanwhile."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Mapping

from jupyter_client.manager import AsyncKernelManager
from jupyter_core.utils import run_sync
from traitlets.config import Config

LONGEST = 80  # characters of a folder; a socket's whole path may have 107


def private_sockets(folder: str) -> Config:
    """How a kernel and its client talk: by sockets in a folder of the user's own.

    A TCP port can be taken by somebody else between the moment in which it is chosen and the one
    in which the kernel binds it, and everybody on the machine can listen to it.

    Args:
        folder: a folder of one kernel, that only its user can enter.

    Returns:
        Settings for a kernel's manager; empty where a path is no socket.
    """
    if os.name == "nt" or len(folder) > LONGEST:
        return Config()
    return Config(KernelManager={"transport": "ipc", "connection_file": f"{folder}/kernel.json"})


class StartedKernel:
    """A kernel that comes up; its processes are a group of their own.

    Args:
        environment: what it has in its environment beyond ours.

    Attributes:
        manager: what a notebook client drives it with.
        group: its processes' number.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="mirrorlake-", ignore_cleanup_errors=True)
        self.manager = AsyncKernelManager(
            kernel_name="python3", config=private_sockets(self._folder.name)
        )
        try:
            run_sync(self.manager.start_kernel)(
                # What it ran is in no history file; of itself it says errors alone.
                extra_arguments=["--log-level=ERROR", "--HistoryManager.hist_file=:memory:"],
                env=os.environ | dict(environment),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
        except BaseException:
            self._folder.cleanup()
            raise
        provisioner = self.manager.provisioner
        self.process: subprocess.Popen[bytes] = provisioner.process  # type: ignore[union-attr]
        self.group: int | None = provisioner.pgid  # type: ignore[union-attr]

    def close(self) -> None:
        """Ends the kernel if nobody has yet, and takes its sockets away."""
        if self.manager.has_kernel:
            run_sync(self.manager.shutdown_kernel)(now=True)
        self._folder.cleanup()
