"""The papermill engine and the notebook client behind `engine.py`; imported when one is needed."""

from __future__ import annotations

import os
import sys
import threading
from typing import IO, TYPE_CHECKING, Any

from nbclient.exceptions import CellExecutionError
from papermill.clientwrap import PapermillNotebookClient
from papermill.engines import Engine, NotebookExecutionManager
from papermill.iorw import write_ipynb
from tqdm import tqdm

from mirrorlake.runs.engine import INJECTED, secret_code
from mirrorlake.runs.notebook_files import joined_streams

if TYPE_CHECKING:
    from mirrorlake.runs.engine import Execution


class ScrubbingManager(NotebookExecutionManager):  # type: ignore[misc]  # papermill has no types
    """papermill's state of a notebook, without secrets whenever it is saved."""

    execution: Execution

    def save(self, **_: Any) -> None:
        """Writes the notebook."""
        self.execution.scrubber.in_place(self.nb)
        write_ipynb(self.nb, self.output_path)
        self.last_save_time = self.now()


class KernelClient(PapermillNotebookClient):  # type: ignore[misc]  # papermill has no types
    """papermill's client, which says where it is, and gives the kernel its secrets."""

    execution: Execution

    def papermill_execute_cells(self) -> None:
        """Executes the cells in order, up to the first that fails."""
        before = 0  # papermill's own cell, which the reader's source does not have
        for index, cell in enumerate(self.nb.cells):
            tags = cell.metadata.get("tags", [])
            before += INJECTED in tags
            self.execution.cell = index + 1 - before
            try:
                self.nb_man.cell_start(cell, index)
                self.execute_cell(cell, index)
                if INJECTED in tags and self.execution.secret_values:
                    self._give_secrets()
            except CellExecutionError as failure:
                self.nb_man.cell_exception(cell, cell_index=index, exception=failure)
                break
            except Exception as failure:  # a kernel that is gone
                self.nb_man.cell_exception(cell, cell_index=index, exception=failure)
                raise
            finally:
                self.nb_man.cell_complete(cell, cell_index=index)

    def _give_secrets(self) -> None:
        """Outside of the notebook, silently: nothing is broadcast, no history is kept."""
        code = secret_code(self.execution.secret_values)
        number = self.kc.execute(code, silent=True, store_history=False, allow_stdin=False)
        self.wait_for_reply(number)


class _AboveTheBar:
    """What cells print, on the terminal above papermill's progress bar, without secrets."""

    def __init__(self, execution: Execution) -> None:
        self._execution = execution

    def write(self, text: str) -> None:
        tqdm.write(self._execution.scrubber.text(text).rstrip("\n"), file=sys.stderr)

    def flush(self) -> None:
        sys.stderr.flush()


class KernelEngine(Engine):  # type: ignore[misc]  # papermill has no types
    """papermill's engine: one kernel of its own for each notebook."""

    @classmethod
    def execute_notebook(
        cls,
        nb: Any,
        kernel_name: str,
        output_path: str | None = None,
        progress_bar: bool = True,
        **options: Any,
    ) -> Any:
        """Executes a notebook and keeps it, whatever becomes of its kernel."""
        manager = ScrubbingManager(nb, output_path=output_path, progress_bar=progress_bar)
        manager.execution = options["execution"]
        manager.notebook_start()
        try:
            printed = _AboveTheBar(options["execution"]) if progress_bar else None
            cls._execute(manager, kernel_name, options["execution"], printed)
        finally:
            manager.cleanup_pbar()
            for cell in nb.cells:
                if "outputs" in cell:  # what was printed in parts is scrubbed as a whole
                    cell.outputs = joined_streams(cell.outputs)
            manager.notebook_complete()
        return manager.nb

    @classmethod
    def _execute(
        cls, manager: Any, kernel_name: str, execution: Execution, printed: _AboveTheBar | None
    ) -> None:
        client = KernelClient(
            manager,
            kernel_name=kernel_name,
            startup_timeout=60,
            timeout=None,
            stdout_file=printed,
        )
        client.execution = execution
        assert execution.kernel is not None
        client.km = execution.kernel.manager
        process = execution.kernel.process
        assert process.stdout is not None
        descriptor = os.dup(process.stdout.fileno())
        process.stdout.close()  # nobody else does if the kernel is killed
        threading.Thread(target=_pass_on, args=(descriptor, execution), daemon=True).start()
        client.execute(cleanup_kc=True)


def _pass_on(descriptor: int, execution: Execution) -> None:
    """What the kernel's processes print past the notebook goes to stderr, without secrets."""
    source: IO[str]
    with open(descriptor, encoding="utf-8", errors="replace") as source:
        for line in source:
            sys.stderr.write(execution.scrubber.text(line))
            sys.stderr.flush()
