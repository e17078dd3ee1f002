"""Show log records on stderr, and Spark's progress below a running cell in JupyterLab.

Log records of the logger `mirrorlake` report, for example, that something is being set up. If the
application has no logging handlers, they are printed to stderr, because stdout is for results.

The progress of a cell that runs for more than two seconds is sent by a comm. A comm is not an
output, so nothing is stored in the notebook. `mirrorlake_lab/lab_extension.js` displays it. It is
sent only if the environment variable `MIRRORLAKE_LAB` is set, as the command `lab` does.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from threading import Condition, Thread
from typing import Any

VARIABLE = "MIRRORLAKE_LAB"


TARGET = "mirrorlake.progress"


_PATIENCE = 2.0  # seconds before the progress of a cell is shown


_STEP = 0.5


_watch: CellWatch | None = None


class _Lines(logging.Handler):
    """A handler that writes to the current `sys.stderr`, which notebooks replace."""

    def emit(self, record: logging.LogRecord) -> None:
        sys.stderr.write(f"mirrorlake: {record.getMessage()}\n")


def show_notices() -> None:
    """Print log records to stderr, unless the application has logging handlers."""
    logger = logging.getLogger("mirrorlake")
    if not logger.hasHandlers():
        logger.addHandler(_Lines())
        logger.setLevel(logging.INFO)
        # After Ctrl-C, Py4J logs a traceback with the root logger.
        logging.getLogger().addFilter(_is_no_interrupt)


def _is_no_interrupt(record: logging.LogRecord) -> bool:
    """Return whether a record is anything but the traceback of a KeyboardInterrupt."""
    return not (record.exc_info and isinstance(record.exc_info[1], KeyboardInterrupt))


def watch_cells() -> None:
    """Show the progress of this kernel's cells from now on; does nothing outside of Lab."""
    global _watch
    shell = _lab_shell()
    if shell is None or _watch is not None:
        return
    _watch = CellWatch(shell)
    _watch.begin()
    shell.events.register("pre_run_cell", _watch.begin)
    shell.events.register("post_run_cell", _watch.end)


def _lab_shell() -> Any:
    """Return IPython's shell if the command `lab` started this kernel, else None."""
    found = sys.modules.get("IPython")
    shell = found.get_ipython() if found is not None and os.environ.get(VARIABLE) else None
    return shell if getattr(shell, "kernel", None) is not None else None


class CellWatch:
    """A thread that sends Spark's progress while a cell runs.

    Args:
        shell: IPython's shell.
    """

    def __init__(self, shell: Any) -> None:
        self._kernel = shell.kernel
        self._changed = Condition()
        self._cell: tuple[str, float] | None = None
        Thread(target=self._follow, daemon=True, name="cell-progress").start()

    def begin(self, *_: object) -> None:
        """Note that a cell starts."""
        message = str(self._kernel.get_parent().get("header", {}).get("msg_id", ""))
        self._set((message, time.monotonic()))

    def end(self, *_: object) -> None:
        """Note that the cell has ended."""
        self._set(None)

    def _set(self, cell: tuple[str, float] | None) -> None:
        with self._changed:
            self._cell = cell
            self._changed.notify_all()

    def _follow(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._cell is not None)
                cell = self._cell
            if cell is not None and not self._is_over(cell, _PATIENCE):
                self._tell(cell)

    def _is_over(self, cell: tuple[str, float], within: float) -> bool:
        """Wait for the end of a cell; return whether it ended within these seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: self._cell is not cell, within)

    def _tell(self, cell: tuple[str, float]) -> None:
        """Send Spark's progress until the cell ends."""
        from comm import create_comm

        message, started = cell
        channel: Any = None
        while channel is None or not self._is_over(cell, _STEP):
            progress = {
                "cell": message,
                "text": f"{spark_work()}, {time.monotonic() - started:,.0f} s",
            }
            if channel is None:
                channel = create_comm(target_name=TARGET, data=progress)
            else:
                channel.send(progress)
        channel.close()


def spark_work() -> str:
    """Return the progress of this process's Spark as text.

    Example:
        >>> spark_work()  # doctest: +SKIP
        'Spark: 3 of 8 tasks'
    """
    if os.environ.get("SPARK_REMOTE"):
        return "Spark runs elsewhere"
    known = sys.modules.get("pyspark.core.context")
    context = None if known is None else known.SparkContext._active_spark_context
    if context is None:
        return "Spark is starting" if known is not None else "running"
    try:
        tracker = context.statusTracker()
        stages = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
    except Exception:  # Spark is being stopped; the cell shows the error
        return "Spark is stopping"
    known_stages = [stage for stage in stages if stage is not None]
    done = sum(stage.numCompletedTasks for stage in known_stages)
    total = sum(stage.numTasks for stage in known_stages)
    return f"Spark: {done:,} of {total:,} tasks" if total else "Spark: between two jobs"


def noop(*_ignored: object) -> None:
    """Ignore the arguments: the default of listeners."""
