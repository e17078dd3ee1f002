"""The papermill engine that executes a notebook in a running kernel and removes secrets.

The kernel gets secrets outside of the notebook. Output is scrubbed before each save and before it
reaches the terminal. Import this module only to execute a notebook: importing papermill is slow.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from jupyter_client.manager import AsyncKernelManager
from nbclient.exceptions import CellExecutionError
from papermill.clientwrap import PapermillNotebookClient
from papermill.engines import Engine, NotebookExecutionManager
from papermill.iorw import write_ipynb
from tqdm import tqdm

from mirrorlake_runs.notebook_files import INJECTED, joined_streams
from mirrorlake_runs.parameters import Scrubber


class ScrubbingManager(NotebookExecutionManager):  # type: ignore[misc]  # papermill has no types
    """papermill's state of a notebook, which removes secrets before each save."""

    scrubber: Scrubber

    def save(self, **_: Any) -> None:
        """Write the notebook."""
        self.scrubber.in_place(self.nb)
        write_ipynb(self.nb, self.output_path)
        self.last_save_time = self.now()


class KernelClient(PapermillNotebookClient):  # type: ignore[misc]  # papermill has no types
    """papermill's client; it reports the current cell and passes secrets to the kernel."""

    secret_values: dict[str, Any]
    on_cell: Callable[[int], None]

    def papermill_execute_cells(self) -> None:
        """Execute the cells in order, up to the first that fails."""
        before = 0  # the number of injected cells, which the source notebook does not have
        for index, cell in enumerate(self.nb.cells):
            tags = cell.metadata.get("tags", [])
            before += INJECTED in tags
            self.on_cell(index + 1 - before)
            try:
                self.nb_man.cell_start(cell, index)
                self.execute_cell(cell, index)
                if INJECTED in tags and self.secret_values:
                    self._give_secrets()
            except CellExecutionError as failure:
                self.nb_man.cell_exception(cell, cell_index=index, exception=failure)
                break
            except Exception as failure:  # the kernel died
                self.nb_man.cell_exception(cell, cell_index=index, exception=failure)
                raise
            finally:
                self.nb_man.cell_complete(cell, cell_index=index)

    def _give_secrets(self) -> None:
        """Set the secrets in the kernel, without an output or an entry in its history."""
        code = f"globals().update(__import__('json').loads({json.dumps(self.secret_values)!r}))"
        number = self.kc.execute(code, silent=True, store_history=False, allow_stdin=False)
        self.wait_for_reply(number)


class _BarWriter:
    """A stream that prints text above papermill's progress bar, without secrets."""

    def __init__(self, scrubber: Scrubber) -> None:
        self._scrubber = scrubber

    def write(self, text: str) -> None:
        tqdm.write(self._scrubber.text(text).rstrip("\n"), file=sys.stderr)

    def flush(self) -> None:
        sys.stderr.flush()


class KernelEngine(Engine):  # type: ignore[misc]  # papermill has no types
    """A papermill engine with a separate kernel for each notebook."""

    @classmethod
    def execute_notebook(
        cls,
        nb: Any,
        kernel_name: str,
        output_path: str | None = None,
        progress_bar: bool = True,
        *,
        kernel: AsyncKernelManager,
        secret_values: dict[str, Any],
        scrubber: Scrubber,
        on_cell: Callable[[int], None],
        **_: Any,
    ) -> Any:
        """Execute a notebook; it is saved even if its kernel dies."""
        manager = ScrubbingManager(nb, output_path=output_path, progress_bar=progress_bar)
        manager.scrubber = scrubber
        manager.notebook_start()
        try:
            client = KernelClient(
                manager,
                kernel_name=kernel_name,
                startup_timeout=60,
                timeout=None,
                stdout_file=_BarWriter(scrubber) if progress_bar else None,
            )
            client.secret_values, client.on_cell = secret_values, on_cell
            client.km = kernel
            client.execute(cleanup_kc=True)
        finally:
            manager.cleanup_pbar()
            for cell in nb.cells:
                if "outputs" in cell:  # join parts of a text, so that secrets in it are found
                    cell.outputs = joined_streams(cell.outputs)
            manager.notebook_complete()
        return manager.nb
