"""What the person is told meanwhile: notices at the terminal, Spark's progress below a cell of Lab.

Notices say what is being set up, and why it takes a moment. They are log records of the logger
`mirrorlake` and those below it. An application that has set up logging gets them its own way;
otherwise they are lines on stderr, so that stdout stays what was asked for.

The progress of a cell that takes more than two seconds goes by a comm, which is no output: nothing
of it is in the notebook, whoever runs it. Lab's side is `mirrorlake_lab/lab_extension.js`; `lab`
sets the variable without which nothing is sent.
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


_PATIENCE = 2.0  # seconds that a cell may take before anything is said


_STEP = 0.5


_watch: CellWatch | None = None


class _Lines(logging.Handler):
    """Writes to whatever stderr is by then: notebooks put another in its place."""

    def emit(self, record: logging.LogRecord) -> None:
        sys.stderr.write(f"mirrorlake: {record.getMessage()}\n")


def show_notices() -> None:
    """Shows notices on stderr from now on, unless the application has handlers of its own."""
    logger = logging.getLogger("mirrorlake")
    if not logger.hasHandlers():
        logger.addHandler(_Lines())
        logger.setLevel(logging.INFO)


def watch_cells() -> None:
    """Follows the cells of this kernel from now on, the running one too; only in Lab, once."""
    global _watch
    shell = _lab_shell()
    if shell is None or _watch is not None:
        return
    _watch = CellWatch(shell)
    _watch.begin()
    shell.events.register("pre_run_cell", _watch.begin)
    shell.events.register("post_run_cell", _watch.end)


def _lab_shell() -> Any:
    """IPython's shell if it is that of a kernel which `lab` started."""
    found = sys.modules.get("IPython")
    shell = found.get_ipython() if found is not None and os.environ.get(VARIABLE) else None
    return shell if getattr(shell, "kernel", None) is not None else None


class CellWatch:
    """One thread that says what Spark does, as long as a cell runs.

    Args:
        shell: IPython's.
    """

    def __init__(self, shell: Any) -> None:
        self._kernel = shell.kernel
        self._changed = Condition()
        self._cell: tuple[str, float] | None = None
        Thread(target=self._follow, daemon=True, name="cell-progress").start()

    def begin(self, *_: object) -> None:
        """A cell begins."""
        message = str(self._kernel.get_parent().get("header", {}).get("msg_id", ""))
        self._set((message, time.monotonic()))

    def end(self, *_: object) -> None:
        """It has ended."""
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
        """Whether a cell ends within some seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: self._cell is not cell, within)

    def _tell(self, cell: tuple[str, float]) -> None:
        """Says what Spark does until the cell ends."""
        from comm import create_comm

        message, began = cell
        told: Any = None
        while told is None or not self._is_over(cell, _STEP):
            said = {"cell": message, "text": f"{spark_work()}, {time.monotonic() - began:,.0f} s"}
            if told is None:
                told = create_comm(target_name=TARGET, data=said)
            else:
                told.send(said)
        told.close()


def spark_work() -> str:
    """What this process's Spark does right now, in a few words.

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
    except Exception:  # it is being stopped; the cell says what there is to say
        return "Spark is stopping"
    known_stages = [stage for stage in stages if stage is not None]
    done = sum(stage.numCompletedTasks for stage in known_stages)
    total = sum(stage.numTasks for stage in known_stages)
    return f"Spark: {done:,} of {total:,} tasks" if total else "Spark: between two jobs"


def noop(*_ignored: object) -> None:
    """Ignore the arguments: the default of listeners."""
