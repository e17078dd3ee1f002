"""Runs a plan: prepares it, keeps others away, executes it, and keeps its record.

A backfill is a run for each day of a range, in order, that day as its `date`.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import platform
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, fields, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from mirrorlake.errors import AlreadyRunningError, UsageError
from mirrorlake.notices import noop
from mirrorlake_runs.keeping import RecordKeeper, bring_back, finish, ready_report
from mirrorlake_runs.plan import Plan, load_plan, parse_plan, with_overrides
from mirrorlake_runs.preparing import Prepared, only_run, prepare
from mirrorlake_runs.results import RunSummary, StepResult
from mirrorlake_runs.scheduling import OnStep, Schedule, stopped_by_signals
from mirrorlake_runs.store import RUNNING, RunRecord, find_run, this_process

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
    on_step: OnStep = noop,
    before: Callable[[], None] = lambda: None,
) -> RunSummary:
    """Executes a plan.

    Args:
        plan: a plan, or its file.
        out: where the results go, a folder or URI; by default a new folder under `runs/`.
        overrides: parameters that count in every notebook that has them.
        as_text: whether these are texts from a command line.
        day: the run's date in templates; by default today's, in UTC.
        backfill: what the record keeps of the days that follow.
        metrics: a file for Prometheus.
        on_step: hears each notebook's name, its index from 1, and how many there are.
        before: is called once everything is checked, before the first step.

    Raises:
        UsageError: the plan or a value is wrong; nothing has started then.
        AlreadyRunningError: the same plan runs on the same lake.
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
    on_step: OnStep = noop,
) -> RunSummary:
    """Goes on with a run after the steps that are done, with the same parameters.

    Args:
        run: its id, or the folder or URI of its results.
        metrics: a file for Prometheus.
        on_step: see `run_plan`.

    Raises:
        UsageError: the run is done, or its plan no longer fits its notebooks.
        AlreadyRunningError: it runs.
    """
    record = find_run(run)
    if record.status == RUNNING:
        process = record.document["process"]
        raise AlreadyRunningError(
            f"The run {record.run} runs: process {process['pid']} on {process['host']}.",
            hint="wait for it, or stop that process.",
        )
    if record.status == "done":
        raise UsageError(f"The run {record.run} is done.", hint="start a new one.")
    prepared = _prepared_again(record)
    bring_back(record, prepared.work)
    facts = {"resumed": [*record.document.get("resumed", []), _now()]}
    if "backfill" in record.document:
        facts["backfill"] = record.document["backfill"]
    return _run(prepared, facts, metrics, on_step, noop)


def recorded_plan(document: dict[str, Any]) -> Plan:
    """The plan that a run's record keeps.

    Raises:
        UsageError: it no longer fits its notebooks.
    """
    name, origin = document["plan"], f"the plan of {document['run']}"
    plan = parse_plan(document["document"], origin, name, Path(document["beside"]))
    return replace(plan, name=name, single=document["single"])


def _prepared_again(record: RunRecord) -> Prepared:
    document = record.document
    plan, overrides = with_overrides(recorded_plan(document), document["parameters"])
    names = [field.name for field in fields(StepResult)]
    steps = [StepResult(**{name: step[name] for name in names}) for step in document["steps"]]
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
            hint="the rows go into a lake: name it in a step's parameter root, or by -p root=….",
        )
    guard = contextlib.nullcontext() if plan.single else only_run(plan.name, prepared.roots())
    with guard:
        facts = {**facts, "process": this_process(), "versions": _versions(plan.beside)}
        keeper = RecordKeeper(prepared)

        def keep(*, must: bool = False) -> None:
            keeper.keep(_record_document(prepared, schedule, facts, None), must=must)

        schedule = Schedule(prepared, on_step, keep)
        with stopped_by_signals(schedule):
            with keeper:
                keep(must=True)
                before()
                ready_report()
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
    """All that is kept of a run, as `run.json` holds it."""
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
    """The days that `--for` names: `date=2026-01-01..2026-01-31`, or one day.

    Raises:
        UsageError: it is no such range.
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
            f"--for {text!r} is no range of days.", hint="write date=2026-01-01..2026-01-31."
        ) from error
    if end < begin:
        raise UsageError(f"--for {text!r} ends before it begins.", hint="swap the two days.")
    return _days(begin, end)


def run_days(
    days: list[datetime.date], run_day: Callable[[datetime.date, dict[str, Any]], RunSummary]
) -> Iterator[RunSummary]:
    """Runs each day; after one that is not done, no other begins.

    Args:
        days: in order.
        run_day: runs one day; is also given what its record keeps of the days to come.
    """
    for day in days:
        summary = run_day(day, {"until": days[-1].isoformat()})
        yield summary
        if summary.status != "done":
            return


def days_after(document: dict[str, Any]) -> list[datetime.date]:
    """The days of a backfill that come after a run of it; none if it was a run of its own."""
    until = (document.get("backfill") or {}).get("until")
    if until is None:
        return []
    day = datetime.date.fromisoformat(document["day"])
    return _days(day, datetime.date.fromisoformat(until))[1:]


def _days(first: datetime.date, last: datetime.date) -> list[datetime.date]:
    return [first + datetime.timedelta(days=n) for n in range((last - first).days + 1)]


def _versions(folder: Path) -> dict[str, str]:
    """What a run's record says of the software: mirrorlake, Spark, Delta, Python, the git commit.

    Args:
        folder: the plan's; if it lies in a git repository, its commit is named.
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
    """The commit that is checked out; nothing where there is no git."""
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
