"""When a run's steps begin and end: side by side, again after failures, until stopped."""

from __future__ import annotations

import contextlib
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from mirrorlake.errors import SetupError, UsageError
from mirrorlake.spark.session import PROFILE_VARIABLE
from mirrorlake_runs.engine import Execution
from mirrorlake_runs.jvm import OneSpark
from mirrorlake_runs.preparing import Prepared
from mirrorlake_runs.results import StepResult

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0  # seconds before another attempt; twice as long each time
_PATIENCE = 10.0  # seconds for ended kernels to be gone
_SIGNAL = -1

OnStep = Callable[[str, int, int], None]


class Schedule:
    """Executes the steps of one run.

    Args:
        prepared: the run.
        on_step: hears each notebook's name, its index from 1, and how many there are.
        on_change: is called after every begin and end of a step.
    """

    def __init__(self, prepared: Prepared, on_step: OnStep, on_change: Callable[[], None]) -> None:
        self.prepared, self.on_step, self.on_change = prepared, on_step, on_change
        self.results: dict[int, StepResult] = dict(prepared.done)
        self.attempts: dict[int, int] = {}
        self._before = dict(prepared.before)
        self.values: dict[int, dict[str, Any]] = {}
        self.times: dict[int, list[float]] = {}
        self.signal = 0
        self.messages: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
        self._running: dict[int, Execution] = {}
        self._deadlines: dict[int, float] = {}
        self._pauses: dict[int, float] = {}
        self._spark = OneSpark(prepared.plan.one_spark, prepared.roots())

    def execute(self) -> tuple[StepResult, ...]:
        """Executes all steps that can be; the results in the plan's order."""
        try:
            while True:
                if not self.signal:
                    self._begin_ready()
                if not self._running and (self.signal or not self._pauses):
                    break
                self._hear()
        finally:
            for execution in self._running.values():  # after an error of our own: no kernel is left
                execution.end("an error")
            self._spark.close()
        steps = self.prepared.plan.steps
        for index in range(len(steps)):
            self.results.setdefault(index, self.so_far(index, "skipped"))
        return tuple(self.results[index] for index in range(len(steps)))

    def so_far(self, index: int, status: str) -> StepResult:
        """Return the result of the attempts at a step so far, those before a resume included."""
        notebook = self.prepared.plan.steps[index].notebook
        before = self._before.get(index, StepResult(notebook, status))
        attempts = before.attempts + (index in self._running)
        return replace(before, status=status, output=None, error=None, attempts=attempts)

    def _begin_ready(self) -> None:
        plan, now = self.prepared.plan, time.monotonic()
        passed = {
            index
            for index, result in self.results.items()
            if result.status == "done" or plan.steps[index].continue_on_error
        }
        begun = {*self.results, *self._running, *self._pauses}
        due = [index for index, when in self._pauses.items() if when <= now]
        ready = [
            index
            for index, needs in enumerate(plan.edges)
            if index not in begun and passed.issuperset(needs)
        ]
        for index in [*due, *ready]:
            if len(self._running) >= plan.parallel:
                return
            self._pauses.pop(index, None)
            self._begin(index)

    def _begin(self, index: int) -> None:
        step = self.prepared.plan.steps[index]
        self.attempts[index] = self.attempts.get(index, 0) + 1
        self.times[index] = [time.time()]
        if self.attempts[index] == 1:
            self.on_step(step.notebook, index + 1, len(self.prepared.plan.steps))
        try:
            execution = self.prepared.execution(index, self.results)
            execution.environment |= self._spark.environment(
                execution.environment[PROFILE_VARIABLE]
            )
        except (UsageError, SetupError) as error:
            wrong = {"cell": None, "name": type(error).__name__, "message": str(error)}
            self._end(index, StepResult(step.notebook, "failed", error=wrong), again=False)
            self._begin_ready()
            return
        execution.earlier = self.so_far(index, "").records
        self.values[index] = execution.parameters
        self._running[index] = execution
        if step.timeout is not None:
            self._deadlines[index] = time.monotonic() + step.timeout
        self.on_change()
        threading.Thread(
            target=lambda: self.messages.put((index, execution.run())), daemon=True
        ).start()

    def _hear(self) -> None:
        """Waits for what happens next: a step's end, a signal, a deadline, the end of a pause."""
        moments = [*self._deadlines.values(), *self._pauses.values()]
        wait = max(0.0, min(moments) - time.monotonic()) if moments else None
        try:
            index, message = self.messages.get(timeout=wait)
        except queue.Empty:
            for late in [one for one, end in self._deadlines.items() if end <= time.monotonic()]:
                self._running[late].end()
                self._deadlines[late] = time.monotonic() + _PATIENCE
            return
        if index == _SIGNAL:
            self._stop(message)
        else:
            self._end(index, message, again=True)

    def _end(self, index: int, result: StepResult, *, again: bool) -> None:
        step = self.prepared.plan.steps[index]
        self._running.pop(index, None)
        self._deadlines.pop(index, None)
        self.times[index].append(time.time())
        before = self.so_far(index, "")
        result = replace(
            result,
            seconds=round(before.seconds + result.seconds, 1),
            records=result.records or before.records,
            attempts=before.attempts + 1,
        )
        self._before[index] = result
        self._spark.step_ended(done=result.status == "done")
        left = step.retries - self.attempts[index] + 1
        if again and result.status == "failed" and left > 0 and not self.signal:
            pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (self.attempts[index] - 1))
            self._pauses[index] = time.monotonic() + pause
        else:
            self.results[index] = result
        self.on_change()

    def _stop(self, number: int) -> None:
        """Ends all kernels, and waits until their notebooks are written."""
        self.signal = self.signal or number
        name = signal.Signals(number).name
        for execution in self._running.values():
            execution.end(name)
        end = time.monotonic() + _PATIENCE
        while self._running and (left := end - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                index, message = self.messages.get(timeout=left)
                if index != _SIGNAL:
                    self._end(index, message, again=False)
        for index, execution in list(self._running.items()):
            stuck = {"cell": execution.cell, "name": "Stopped", "message": f"Stopped by {name}."}
            self._end(index, StepResult(execution.name, "stopped", error=stuck), again=False)
        for index in self._pauses:  # it waited for another attempt
            self.results[index] = self.so_far(index, "stopped")
        self._pauses.clear()


@contextlib.contextmanager
def stopped_by_signals(schedule: Schedule) -> Iterator[None]:
    """SIGTERM and Ctrl-C stop a run meanwhile; in other threads than the main one they do not."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def hear(number: int, _frame: object) -> None:
        schedule.messages.put((_SIGNAL, number))

    before = {number: signal.signal(number, hear) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
