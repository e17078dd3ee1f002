"""Execute one notebook with papermill, in a kernel that can be stopped at any time.

The kernel has its own environment variables. Text that it prints outside of the notebook goes to
stderr, without secrets. jupyter_client starts the kernel, so that papermill is imported meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from jupyter_client.manager import AsyncKernelManager
from jupyter_core.utils import ensure_event_loop, run_sync
from traitlets.config import Config

from mirrorlake_runs.parameters import Scrubber
from mirrorlake_runs.records import StepResult

IMPORTED = threading.Event()
"""papermill is there."""
LONGEST = 80  # characters of a folder; a socket's whole path may have 107
_IMPORTING = threading.Lock()
_TIMED_OUT = "timed out"


def private_sockets(folder: str) -> Config:
    """How a kernel and its client talk: by sockets in a folder of the user's own.

    A TCP port can be taken by somebody else between the moment in which it is chosen and the one
    in which the kernel binds it, and everybody on the machine can listen to it.

    Args:
        folder: a folder of one kernel, that only its user can enter.

    Returns:
        Settings for a kernel's manager; empty where the path is too long for a socket.
    """
    if len(folder) > LONGEST:
        return Config()
    return Config(KernelManager={"transport": "ipc", "connection_file": f"{folder}/kernel.json"})


class StartedKernel:
    """A kernel that comes up; its processes are a group of their own.

    Args:
        environment: what it has in its environment beyond ours.
        scrubber: takes the secrets out of what it prints past the notebook.

    Attributes:
        manager: what a notebook client drives it with.
        group: its processes' number.
    """

    def __init__(self, environment: Mapping[str, str], scrubber: Scrubber) -> None:
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
        self.group: int | None = provisioner.pgid  # type: ignore[union-attr]
        printed = provisioner.process.stdout  # type: ignore[union-attr]
        descriptor = os.dup(printed.fileno())
        printed.close()  # nobody else does if the kernel is killed
        threading.Thread(target=_pass_on, args=(descriptor, scrubber), daemon=True).start()

    def close(self) -> None:
        """Ends the kernel if nobody has yet, and takes its sockets away."""
        if self.manager.has_kernel:
            run_sync(self.manager.shutdown_kernel)(now=True)
        self._folder.cleanup()


@dataclass
class Execution:
    """One attempt at one notebook; another thread may end it.

    Attributes:
        name: the notebook as the plan names it.
        path: its file.
        target: where the executed notebook is written.
        parameters: what stands in its first cell; references to secrets as references.
        secret_values: the parameters with secrets, resolved.
        environment: what the kernel has in its environment beyond ours.
        scrubber: takes the secrets out of what is written.
        alone: whether no other notebook runs beside it, so that a terminal can show its progress.
        earlier: what earlier attempts recorded.
    """

    name: str
    path: Path
    target: Path
    parameters: dict[str, Any]
    secret_values: dict[str, Any]
    environment: dict[str, str]
    scrubber: Scrubber
    alone: bool
    earlier: Mapping[str, Any] = field(default_factory=dict)
    cell: int | None = None
    _ended: str = ""
    _group: int | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self) -> StepResult:
        """Executes the notebook; how it went, whatever happened."""
        began = time.monotonic()
        status = "done"
        error: dict[str, Any] | None = None
        try:
            self._execute()
        except BaseException as failure:  # a kernel that died, a disk that is full, one cancelled
            status, error = "failed", self._describe(failure)
        seconds = round(time.monotonic() - began, 1)
        if self._ended == _TIMED_OUT:
            text = f"The notebook took longer than its timeout: ended after {seconds} s."
            status = "failed"
            error = {"cell": self.cell, "name": "TimeoutError", "message": text}
        elif self._ended:
            status = "stopped"
            error = {"cell": self.cell, "name": "Stopped", "message": f"Stopped by {self._ended}."}
        records = dict(self.earlier)
        with contextlib.suppress(Exception):  # a file that could not be written whole
            from mirrorlake_runs.notebook_files import read_records

            records = read_records(self.target, self.earlier)
        error = self.scrubber.value(error)
        return StepResult(self.name, status, seconds, str(self.target), error, records)

    def end(self, why: str = _TIMED_OUT) -> None:
        """Kills the kernel with all that it started, Spark's JVM too.

        Args:
            why: the signal that stops the run; by default the step's time is over.
        """
        with self._lock:
            self._ended = self._ended or why
            if self._group is not None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._group, signal.SIGKILL)

    def _execute(self) -> None:
        if self._ended:
            return
        kernel = None
        with warnings.catch_warnings():
            # papermill and its kernels' libraries warn of their own future, not of ours.
            warnings.simplefilter("ignore")
            try:
                kernel = StartedKernel(self.environment, self.scrubber)
                self._started(kernel.group)
                import_papermill().execute_notebook(
                    str(self.path),
                    str(self.target),
                    parameters=self.parameters,
                    engine_name="mirrorlake",
                    kernel_name="python3",
                    progress_bar=self.alone and sys.stderr.isatty(),
                    kernel=kernel.manager,
                    secret_values=self.secret_values,
                    scrubber=self.scrubber,
                    on_cell=self._at_cell,
                )
            finally:
                with self._lock:
                    self._group = None  # the number may be another's now
                if kernel is not None:
                    kernel.close()
                if threading.current_thread() is not threading.main_thread():
                    ensure_event_loop().close()  # nbclient has made one for this thread

    def _started(self, group: int | None) -> None:
        with self._lock:
            self._group = group
        if self._ended:  # meanwhile, by another thread
            self.end(self._ended)

    def _at_cell(self, cell: int) -> None:
        self.cell = cell

    def _describe(self, failure: BaseException) -> dict[str, Any]:
        papermill = import_papermill()
        if isinstance(failure, papermill.PapermillExecutionError):
            cell = failure.cell_index + 1 - bool(self.parameters)
            return {"cell": cell, "name": failure.ename, "message": failure.evalue}
        # Counted as in the source: papermill's own cell with the parameters is left out.
        return {"cell": self.cell, "name": type(failure).__name__, "message": str(failure)}


def import_papermill() -> Any:
    """papermill, with our engine; imported by one thread, while others wait.

    Two that import the same packages at once may find them half made.
    """
    with _IMPORTING:
        # First, since it spares papermill's imports what takes long.
        import_module("mirrorlake_runs.notebook_files")
        import papermill
        from papermill.engines import papermill_engines

        from mirrorlake_runs.papermill_engine import KernelEngine

        papermill_engines.register("mirrorlake", KernelEngine)
    IMPORTED.set()
    return papermill


def _pass_on(descriptor: int, scrubber: Scrubber) -> None:
    """What the kernel's processes print past the notebook goes to stderr, without secrets."""
    with open(descriptor, encoding="utf-8", errors="replace") as source:
        for line in source:
            sys.stderr.write(scrubber.text(line))
            sys.stderr.flush()
