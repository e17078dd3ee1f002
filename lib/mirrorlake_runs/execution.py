"""Execute one notebook with papermill, in a kernel that can be stopped at any time.

The kernel has its own environment variables. Text that it prints outside of the notebook goes to
stderr, without secrets. jupyter_client starts the kernel, so that papermill is imported meanwhile.
"""

from __future__ import annotations

import builtins
import contextlib
import json
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

from mirrorlake import errors
from mirrorlake_runs.parameters import Scrubber
from mirrorlake_runs.records import OWN_LAKES, StepResult

IMPORTED = threading.Event()
"""Set once papermill is imported."""
LONGEST = 80  # characters of a folder; the path of a socket has at most 107
_IMPORTING = threading.Lock()
_TIMED_OUT = "timed out"
_INTERRUPTED = "KeyboardInterrupt caught in kernel.\n"  # printed when an idle kernel is shut down
# Of the library's errors, those with a cause outside of the data, the arguments and the notebook.
_TRANSIENT = (
    errors.BusyError,
    errors.ConflictError,
    errors.QueryError,
    errors.SetupError,
    errors.SourceError,
    errors.TableFailedError,
)
_LASTING = (AttributeError, ImportError, NameError, SyntaxError, TypeError)
# The library's errors for invalid arguments.
_INVALID = (errors.InvalidNameError.__name__, errors.UsageError.__name__)


def lesson_folder(notebook: Path) -> Path | None:
    """Return the folder of a copy of a lesson, which contains its lakes; None for others."""
    line = json.dumps(f"{OWN_LAKES}\n")[1:-1]  # as in the notebook's JSON
    is_copy = line in notebook.read_text(encoding="utf-8")
    return notebook.parent.absolute() if is_copy else None


def may_pass(error: Mapping[str, Any]) -> bool:
    """Return whether another attempt may succeed after the error of a step.

    Unknown errors may pass, for example those of the kernel, a disk or another library.
    """
    name = error["name"]
    kind: Any = getattr(errors, name, None) or getattr(builtins, name, Exception)
    if issubclass(kind, errors.MirrorlakeError):
        return issubclass(kind, _TRANSIENT)
    return not issubclass(kind, _LASTING)


def is_invalid(error: Mapping[str, Any] | None) -> bool:
    """Return whether a step failed because an argument was invalid, such as a parameter's value."""
    return error is not None and error["name"] in _INVALID


def private_sockets(folder: str) -> Config:
    """Return settings with which a kernel and its client use sockets in a private folder.

    Another process could take a TCP port before the kernel binds it, and all users of the machine
    can
    connect to it.

    Args:
        folder: a folder of one kernel that only its user can enter.

    Returns:
        Settings for a kernel's manager; empty if the path is too long for a socket.
    """
    if len(folder) > LONGEST:
        return Config()
    return Config(KernelManager={"transport": "ipc", "connection_file": f"{folder}/kernel.json"})


class StartedKernel:
    """A kernel process; it and its children are one process group.

    Args:
        environment: additional environment variables.
        scrubber: removes secrets from the text that the kernel prints outside of the notebook.
        folder: the working directory; by default, that of this process.

    Attributes:
        manager: the manager with which a notebook client controls the kernel.
        group: the number of the process group.
    """

    def __init__(
        self, environment: Mapping[str, str], scrubber: Scrubber, folder: Path | None = None
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="mirrorlake-", ignore_cleanup_errors=True)
        self.manager = AsyncKernelManager(
            kernel_name="python3", config=private_sockets(self._folder.name)
        )
        try:
            run_sync(self.manager.start_kernel)(
                # The kernel keeps no history file and logs only errors.
                extra_arguments=["--log-level=ERROR", "--HistoryManager.hist_file=:memory:"],
                env=os.environ | dict(environment),
                cwd=str(folder or Path.cwd()),
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
        printed.close()  # the provisioner does not close it if the kernel is killed
        threading.Thread(target=_pass_on, args=(descriptor, scrubber), daemon=True).start()

    def close(self) -> None:
        """Shut the kernel down if it still runs, and delete its sockets."""
        if self.manager.has_kernel:
            run_sync(self.manager.shutdown_kernel)(now=True)
        self._folder.cleanup()


@dataclass
class Execution:
    """One attempt to execute one notebook; another thread may end it.

    Attributes:
        name: the notebook as the plan names it.
        path: its file.
        target: the path of the executed notebook.
        parameters: the values for the injected cell; secrets are references.
        secret_values: the parameters with secrets, resolved.
        environment: additional environment variables of the kernel.
        scrubber: removes secrets from everything that is written.
        alone: whether no other notebook runs in parallel, so that a terminal can show its progress.
        earlier: the records of earlier attempts.
        cell: the number of the current cell.
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
        """Execute the notebook and return its result; never raise."""
        began = time.monotonic()
        status = "done"
        error: dict[str, Any] | None = None
        try:
            self._execute()
        except BaseException as failure:  # a dead kernel, a full disk, a cancelled task
            status, error = "failed", self._describe(failure)
        seconds = round(time.monotonic() - began, 1)
        if self._ended == _TIMED_OUT:
            text = f"The notebook took longer than its timeout: stopped after {seconds} s."
            status = "failed"
            error = {"cell": self.cell, "name": "TimeoutError", "message": text}
        elif self._ended:
            status = "stopped"
            error = {"cell": self.cell, "name": "Stopped", "message": f"Stopped by {self._ended}."}
        records = dict(self.earlier)
        with contextlib.suppress(Exception):  # the notebook file is incomplete
            from mirrorlake_runs.notebook_files import read_records

            records = read_records(self.target, self.earlier)
        error = self.scrubber.value(error)
        return StepResult(self.name, status, seconds, str(self.target), error, records)

    def end(self, why: str = _TIMED_OUT) -> None:
        """Kill the kernel with all processes that it started, Spark's JVM included.

        Args:
            why: the signal that stops the run; by default the step's timeout has passed.
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
            # papermill and its libraries warn of their own deprecations.
            warnings.simplefilter("ignore")
            try:
                folder = lesson_folder(self.path)
                kernel = StartedKernel(self.environment, self.scrubber, folder)
                self._started(kernel.group)
                import_papermill().execute_notebook(
                    str(self.path),
                    str(self.target),
                    parameters=self.parameters,
                    engine_name="mirrorlake",
                    kernel_name="python3",
                    language="python",  # nbformat's new notebooks name none
                    progress_bar=self.alone and sys.stderr.isatty(),
                    kernel=kernel.manager,
                    secret_values=self.secret_values,
                    scrubber=self.scrubber,
                    on_cell=self._at_cell,
                )
            finally:
                with self._lock:
                    self._group = None  # the system may reuse the number
                if kernel is not None:
                    kernel.close()
                if threading.current_thread() is not threading.main_thread():
                    ensure_event_loop().close()  # nbclient has created one for this thread

    def _started(self, group: int | None) -> None:
        with self._lock:
            self._group = group
        if self._ended:  # another thread has ended it meanwhile
            self.end(self._ended)

    def _at_cell(self, cell: int) -> None:
        self.cell = cell

    def _describe(self, failure: BaseException) -> dict[str, Any]:
        papermill = import_papermill()
        if isinstance(failure, papermill.PapermillExecutionError):
            cell = failure.cell_index + 1 - bool(self.parameters)
            return {"cell": cell, "name": failure.ename, "message": failure.evalue}
        # Cells are counted as in the source, without the cell that papermill injects.
        return {"cell": self.cell, "name": type(failure).__name__, "message": str(failure)}


def import_papermill() -> Any:
    """Import papermill and register our engine; one thread imports while others wait.

    Two threads that import the same packages at once may see half-initialised modules.
    """
    with _IMPORTING:
        # First: it prevents a slow import within papermill.
        import_module("mirrorlake_runs.notebook_files")
        import papermill
        from papermill.engines import papermill_engines

        from mirrorlake_runs.papermill_engine import KernelEngine

        papermill_engines.register("mirrorlake", KernelEngine)
    IMPORTED.set()
    return papermill


def _pass_on(descriptor: int, scrubber: Scrubber) -> None:
    """Copy text that the kernel prints outside of the notebook to stderr, without secrets."""
    with open(descriptor, encoding="utf-8", errors="replace") as source:
        for line in source:
            if line == _INTERRUPTED:
                continue
            sys.stderr.write(scrubber.text(line))
            sys.stderr.flush()
