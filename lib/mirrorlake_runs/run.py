"""Run a plan: prepare and lock it, execute its steps in order or in parallel, keep its record.

Failed steps are retried after a pause. A signal stops the run. A backfill is one run for each day
of a range, in order, with that day as its `date`.

A plan with `one_spark` starts the Spark of consecutive steps in one JVM, which is warm. Each step
still has its own session. After a step that failed or was stopped, and where the profile changes,
the JVM ends and the next step gets a new one.
"""

from __future__ import annotations

import contextlib
import datetime
import logging
import os
import platform
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, fields, replace
from importlib.metadata import PackageNotFoundError, version
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from obstore.exceptions import BaseError

from mirrorlake.errors import AlreadyRunningError, SetupError, UsageError
from mirrorlake.spark.session import PROFILE_VARIABLE
from mirrorlake.storage.object_stores import CLOUDS, scheme_of
from mirrorlake.storage.paths import home
from mirrorlake_runs.execution import Execution, may_pass
from mirrorlake_runs.plan import (
    Plan,
    Prepared,
    load_plan,
    only_run,
    only_run_in,
    parse_plan,
    prepare,
    with_overrides,
)
from mirrorlake_runs.records import (
    RUNNING,
    RunRecord,
    RunSummary,
    StepResult,
    find_run,
    later_run,
    this_process,
)
from mirrorlake_runs.reporting import RecordKeeper, fetch_notebooks, finish, warm_up_report

if TYPE_CHECKING:
    from mirrorlake.spark.session import SharedJvm


_log = logging.getLogger("mirrorlake.runs.run")
_ELSEWHERE = ("SPARK_MASTER", "SPARK_REMOTE", "PYSPARK_GATEWAY_PORT")


class OneSpark:
    """The common JVM of a run's steps.

    Args:
        wanted: whether the plan requests it. It is not started if Spark runs elsewhere: on a
            cluster, on
            a Connect server, or under spark-submit.
        roots: the lakes of the run.
    """

    def __init__(self, wanted: bool, roots: Iterable[str]) -> None:
        self._wanted = wanted and not set(_ELSEWHERE) & set(os.environ)
        self._root = next((root for root in sorted(roots) if scheme_of(root) in CLOUDS), None)
        self._jvm: SharedJvm | None = None

    def environment(self, profile: str) -> dict[str, str]:
        """Return the environment variables with which the next step joins the JVM.

        Raises:
            SetupError: the JVM did not start.
        """
        if not self._wanted:
            return {}
        if self._jvm is not None and (self._jvm.profile != profile or not self._jvm.alive):
            self.close()
        if self._jvm is None:
            from mirrorlake.spark.session import SharedJvm

            self._jvm = SharedJvm(profile, self._root)
        return self._jvm.environment

    def step_ended(self, *, done: bool) -> None:
        """End the step's session, so that the next step can start one."""
        try:
            if self._jvm is not None and done:
                self._jvm.clear()
                return
        except Exception as error:  # the next step gets a new JVM after any error
            _log.warning(f"The JVM of the steps is replaced after an error: {error}")
        self.close()

    def close(self) -> None:
        """End the JVM; a later step gets a new one."""
        if self._jvm is not None:
            self._jvm.close()
            self._jvm = None


FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0  # seconds before another attempt; doubled each time
_PATIENCE = 10.0  # seconds until killed kernels have ended
_SIGNAL = -1

OnStep = Callable[[str, int, int], None]


class Schedule:
    """Executes the steps of one run.

    Args:
        prepared: the run.
        on_step: called with each notebook's name, its index from 1, and the number of steps.
        on_change: called after each start and end of a step.
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
        """Execute all steps that can run; return the results in the plan's order."""
        try:
            while True:
                if not self.signal:
                    self._begin_ready()
                if not self._running and (self.signal or not self._pauses):
                    break
                self._wait()
        finally:
            for execution in self._running.values():  # after an internal error, kill all kernels
                execution.end("an error")
            self._spark.close()
        steps = self.prepared.plan.steps
        for index in range(len(steps)):
            self.results.setdefault(index, self.so_far(index, "skipped"))
        return tuple(self.results[index] for index in range(len(steps)))

    def so_far(self, index: int, status: str) -> StepResult:
        """Return the result of all attempts of a step so far, those before a resume included."""
        notebook = self.prepared.plan.steps[index].notebook
        before = self._before.get(index, StepResult(notebook, status))
        attempts = before.attempts + (index in self._running)
        errors = [*before.earlier_errors, *([before.error] if before.error else [])]
        return replace(
            before,
            status=status,
            output=None,
            error=None,
            attempts=attempts,
            earlier_errors=errors,
        )

    def _begin_ready(self) -> None:
        while len(self._running) < self.prepared.plan.parallel:
            # Search again after each step: one that can't begin has ended, and others may be ready.
            if (index := self._next()) is None:
                return
            self._pauses.pop(index, None)
            self._begin(index)

    def _next(self) -> int | None:
        """Return the index of a step that can begin now, or None."""
        plan, now = self.prepared.plan, time.monotonic()
        passed = {
            index
            for index, result in self.results.items()
            if result.status == "done" or plan.steps[index].continue_on_error
        }
        begun = {*self.results, *self._running, *self._pauses}
        due = (index for index, when in self._pauses.items() if when <= now)
        ready = (
            index
            for index, needs in enumerate(plan.edges)
            if index not in begun and passed.issuperset(needs)
        )
        return next(chain(due, ready), None)

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

    def _wait(self) -> None:
        """Wait for the end of a step, a signal, a deadline, or the end of a pause."""
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
            earlier_errors=before.earlier_errors,
        )
        self._before[index] = result
        self._spark.step_ended(done=result.status == "done")
        left = step.retries - self.attempts[index] + 1
        again = again and result.error is not None and may_pass(result.error)
        if again and result.status == "failed" and left > 0 and not self.signal:
            pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (self.attempts[index] - 1))
            self._pauses[index] = time.monotonic() + pause
        else:
            self.results[index] = result
        self.on_change()

    def _stop(self, number: int) -> None:
        """Kill all kernels, and wait until their notebooks are written."""
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
        for index in self._pauses:  # steps that wait for another attempt
            self.results[index] = self.so_far(index, "stopped")
        self._pauses.clear()


@contextlib.contextmanager
def stopped_by_signals(schedule: Schedule) -> Iterator[None]:
    """Let SIGTERM and Ctrl-C stop a run while the block runs, if this is the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def on_signal(number: int, _frame: object) -> None:
        schedule.messages.put((_SIGNAL, number))

    before = {
        number: signal.signal(number, on_signal) for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


_FORMAT = 1


def run_plan(
    plan: Path | Plan,
    out: str | os.PathLike[str] | None = None,
    *,
    overrides: Mapping[str, Any] | None = None,
    as_text: bool = False,
    day: datetime.date | None = None,
    backfill: dict[str, Any] | None = None,
    metrics: Path | None = None,
    on_step: OnStep = lambda *_: None,
    before: Callable[[], None] = lambda: None,
) -> RunSummary:
    """Run a plan.

    Args:
        plan: a plan, or its file.
        out: the folder or URI of the results; by default a new folder under `runs/`.
        overrides: values for every notebook that has the parameter.
        as_text: whether these values are texts from a command line.
        day: the run's date in templates; by default today in UTC.
        backfill: the entry of the record about the days that follow.
        metrics: a file for Prometheus.
        on_step: called with each notebook's name, its index from 1, and the number of steps.
        before: called after all checks, before the first step.

    Returns:
        The result of each step.

    Raises:
        UsageError: the plan or a value is invalid; no step has started.
        AlreadyRunningError: the same plan runs on the same lake, or another run uses `out`.

    Example:
        >>> run_plan(Path("nightly.yaml"), overrides={"root": "lake"}).status  # doctest: +SKIP
        'done'
    """
    plan = plan if isinstance(plan, Plan) else load_plan(plan)
    plan, read = with_overrides(plan, overrides or {}, as_text=as_text)
    prepared = prepare(plan, read, out=out, day=day)
    facts = {"backfill": backfill} if backfill else {}
    return _run(prepared, facts, metrics, on_step, before)


def resume_run(
    run: str,
    *,
    metrics: Path | None = None,
    on_step: OnStep = lambda *_: None,
) -> RunSummary:
    """Continue a run after its completed steps, with the same parameters.

    Args:
        run: its id, or the folder or URI of its results.
        metrics: a file for Prometheus.
        on_step: see `run_plan`.

    Returns:
        The result of each step.

    Raises:
        UsageError: the run is done, a later run has replaced its results, or its plan does not
            fit its notebooks any more.
        AlreadyRunningError: the run is in progress, or another run uses its folder.

    Example:
        >>> resume_run("nightly-20260101T020000000000").status  # doctest: +SKIP
        'done'
    """
    with only_run_in(find_run(run).folder):
        record = find_run(run)  # another process may have completed it meanwhile
        return _resume(record, metrics, on_step)


def _resume(record: RunRecord, metrics: Path | None, on_step: OnStep) -> RunSummary:
    if record.status == RUNNING:
        process = record.document["process"]
        raise AlreadyRunningError(
            f"The run {record.run} is already running: process {process['pid']} on"
            f" {process['host']}.",
            hint="wait for it, or stop that process.",
        )
    if record.status == "done":
        raise UsageError(f"The run {record.run} is done.", hint="start a new run.")
    if (later := later_run(record)) is not None:
        raise UsageError(
            f"The run {later} has replaced the results of {record.run} in {record.folder}.",
            hint="start a new run, with another folder in --out.",
        )
    prepared = _prepared_again(record)
    fetch_notebooks(record, prepared.work)
    facts = {"resumed": [*record.document.get("resumed", []), _now()]}
    if "backfill" in record.document:
        facts["backfill"] = record.document["backfill"]
    return _run(prepared, facts, metrics, on_step, lambda: None)


def recorded_plan(document: dict[str, Any]) -> Plan:
    """Return the plan in a run's record.

    Raises:
        UsageError: it does not fit its notebooks any more.
    """
    name, origin = document["plan"], f"the plan of {document['run']}"
    plan = parse_plan(document["document"], origin, name, Path(document["beside"]))
    start = str(document.get("home", ""))
    # On another machine the folder may not exist.
    is_elsewhere = start not in ("", str(home())) and Path(start).is_dir()
    return replace(plan, name=name, single=document["single"], home=start if is_elsewhere else "")


def _prepared_again(record: RunRecord) -> Prepared:
    document = record.document
    plan, overrides = with_overrides(recorded_plan(document), document["parameters"])
    names = {field.name for field in fields(StepResult)}
    steps = [
        StepResult(**{name: value for name, value in step.items() if name in names})
        for step in document["steps"]
    ]
    done = {index: step for index, step in enumerate(steps) if step.status == "done"}
    return Prepared(
        plan,
        record.run,
        record.places[0],
        record.folder if record.is_remote else "",
        datetime.date.fromisoformat(document["day"]),
        overrides,
        datetime.datetime.fromisoformat(document["began"]),
        done,
        {index: step for index, step in enumerate(steps) if index not in done},
    )


def _run(
    prepared: Prepared,
    facts: dict[str, Any],
    metrics: Path | None,
    on_step: OnStep,
    before: Callable[[], None],
) -> RunSummary:
    plan = prepared.plan
    if plan.history and not any(step.parameters.get("root") for step in plan.steps):
        raise UsageError(
            "The plan has history, but no step has a root.",
            hint="name the lake in a step's parameter root, or with -p root=….",
        )
    prepared.check_lakes()
    with contextlib.ExitStack() as held:
        if not plan.single:
            held.enter_context(only_run(plan.name, prepared.roots()))
        if "resumed" not in facts:  # `resume_run` holds this lease already
            # Some disks have no locks. If the folder is not writable, writing the record fails.
            with contextlib.suppress(OSError, BaseError):
                held.enter_context(only_run_in(prepared.folder))
        facts = {**facts, "process": this_process(), "versions": _versions(plan.beside)}
        keeper = RecordKeeper(prepared)

        def keep(*, must: bool = False) -> None:
            keeper.keep(_record_document(prepared, schedule, facts, None), must=must)

        schedule = Schedule(prepared, on_step, keep)
        with stopped_by_signals(schedule):
            with keeper:
                keep(must=True)
                before()
                warm_up_report()
                steps = schedule.execute()
            summary = RunSummary(
                plan.name,
                prepared.folder,
                prepared.started.isoformat(timespec="seconds"),
                tuple(StepResult(**prepared.scrubber.value(asdict(step))) for step in steps),
                _now(),
                prepared.overrides,
                prepared.run,
                schedule.signal,
            )
            document = _record_document(prepared, schedule, facts, summary)
            return finish(prepared, summary, document, metrics)


def _record_document(
    prepared: Prepared, schedule: Schedule, facts: dict[str, Any], summary: RunSummary | None
) -> dict[str, Any]:
    """Return the complete record of a run, the content of `run.json`."""
    steps = []
    for index, step in enumerate(prepared.plan.steps):
        result = schedule.results.get(index)
        if result is None:
            result = schedule.so_far(index, RUNNING if index in schedule.times else "waiting")
        times = [_iso(moment) for moment in schedule.times.get(index, [])]
        steps.append(
            {
                **asdict(result),
                "name": step.name,
                "parameters": schedule.values.get(index, step.parameters),
                "times": times,
            }
        )
    document = {
        "format": _FORMAT,
        "run": prepared.run,
        "plan": prepared.plan.name,
        "status": summary.status if summary else RUNNING,
        "started": prepared.started.isoformat(timespec="seconds"),
        "began": prepared.started.isoformat(),
        "ended": summary.ended if summary else "",
        "folder": prepared.folder,
        "parameters": prepared.overrides,
        "day": prepared.day.isoformat(),
        "steps": steps,
        "document": prepared.plan.document,
        "beside": str(prepared.plan.beside),
        "home": prepared.plan.home or str(home()),
        "single": prepared.plan.single,
        "files": [f"{n:02d}-{s.path.name}" for n, s in enumerate(prepared.plan.steps, 1)],
        **facts,
    }
    scrubbed: dict[str, Any] = prepared.scrubber.value(document)
    return scrubbed


def _now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")


def _iso(moment: float) -> str:
    found = datetime.datetime.fromtimestamp(moment, datetime.timezone.utc)
    return found.isoformat(timespec="milliseconds")


def days_of(text: str) -> list[datetime.date]:
    """Return the days of the option `--for`: `date=2026-01-01..2026-01-31`, or one day.

    Raises:
        UsageError: the text is not a range of days.
    """
    name, _, span = text.partition("=")
    first, dots, last = span.partition("..")
    try:
        if name.strip() != "date":
            raise ValueError(name)
        begin = datetime.date.fromisoformat(first.strip())
        end = datetime.date.fromisoformat(last.strip()) if dots else begin
    except ValueError as error:
        raise UsageError(
            f"--for {text!r} is not a range of days.", hint="write date=2026-01-01..2026-01-31."
        ) from error
    if end < begin:
        raise UsageError(f"--for {text!r} ends before it begins.", hint="swap the two days.")
    return _days(begin, end)


def run_days(
    days: list[datetime.date], run_day: Callable[[datetime.date, dict[str, Any]], RunSummary]
) -> Iterator[RunSummary]:
    """Run each day in order; stop after a run that is not done.

    Args:
        days: in order.
        run_day: runs one day; its second argument is the entry of the record about the days that
            follow.
    """
    for day in days:
        summary = run_day(day, {"until": days[-1].isoformat()})
        yield summary
        if summary.status != "done":
            return


def days_after(document: dict[str, Any]) -> list[datetime.date]:
    """Return the days of a backfill after one of its runs; empty if the run is not a backfill."""
    until = (document.get("backfill") or {}).get("until")
    if until is None:
        return []
    day = datetime.date.fromisoformat(document["day"])
    return _days(day, datetime.date.fromisoformat(until))[1:]


def _days(first: datetime.date, last: datetime.date) -> list[datetime.date]:
    return [first + datetime.timedelta(days=n) for n in range((last - first).days + 1)]


def _versions(folder: Path) -> dict[str, str]:
    """Return the versions for a run's record: mirrorlake, Spark, Delta, Python, and the git commit.

    Args:
        folder: the plan's; if it is in a git repository, its commit is included.
    """
    found = {"python": platform.python_version()}
    packages = {"mirrorlake": "mirrorlake", "spark": "pyspark", "delta": "delta-spark"}
    for name, package in packages.items():
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(package)
    if commit := _commit(folder):
        found["git"] = commit
    return found


def _commit(folder: Path) -> str:
    """Return the commit that is checked out; empty without git."""
    if not any((one / ".git").exists() for one in (folder, *folder.parents)):
        return ""
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), "rev-parse", "HEAD"],
            capture_output=True,
            text=True,
            timeout=2,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()
