"""Runs a plan: prepares it, keeps others away, executes it, and keeps its record."""

from __future__ import annotations

import contextlib
import datetime
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from mirrorlake.errors import AlreadyRunningError, UsageError
from mirrorlake.mirror.options import noop
from mirrorlake.runs.finishing import finish, ready_report
from mirrorlake.runs.keeping import RecordKeeper, bring_back
from mirrorlake.runs.locks import only_run
from mirrorlake.runs.plan import Plan, load_plan, parse_plan, with_overrides
from mirrorlake.runs.preparing import Prepared, prepare, settle
from mirrorlake.runs.processes import this_process
from mirrorlake.runs.results import RunSummary, StepResult
from mirrorlake.runs.scheduling import OnStep, Schedule, stopped_by_signals
from mirrorlake.runs.secrets import Scrubber
from mirrorlake.runs.store import RUNNING, RunRecord, find_run
from mirrorlake.runs.versions import versions

FORMAT = 1


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
    kept = {key: record.document[key] for key in ("backfill",) if key in record.document}
    again = [*record.document.get("resumed", []), _now()]
    return _run(prepared, {**kept, "resumed": again}, metrics, on_step, noop)


def _prepared_again(record: RunRecord) -> Prepared:
    document = record.document
    plan = parse_plan(
        document["document"], f"the plan of {record.run}", record.plan, Path(document["beside"])
    )
    plan, overrides = with_overrides(
        replace(plan, name=record.plan, single=document["single"]), document["parameters"]
    )
    names = ("notebook", "status", "seconds", "output", "error", "records")
    done = {
        index: StepResult(**{name: step[name] for name in names})
        for index, step in enumerate(document["steps"])
        if step["status"] == "done"
    }
    return settle(
        Prepared(
            plan,
            record.run,
            record.places[0],
            record.folder if record.is_remote else "",
            datetime.date.fromisoformat(document["day"]),
            overrides,
            {},
            Scrubber(),
            datetime.datetime.fromisoformat(document["began"]),
            done,
        )
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
        facts = {**facts, "process": this_process(), "versions": versions(plan.beside)}
        keeper = RecordKeeper(prepared)

        def keep(*, must: bool = False) -> None:
            keeper.keep(record_document(prepared, schedule, facts, None), must=must)

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
            document = record_document(prepared, schedule, facts, summary)
            return finish(prepared, summary, document, metrics)


def record_document(
    prepared: Prepared, schedule: Schedule, facts: dict[str, Any], summary: RunSummary | None
) -> dict[str, Any]:
    """All that is kept of a run, as `run.json` holds it."""
    steps = []
    for index, step in enumerate(prepared.plan.steps):
        result = schedule.results.get(index)
        if result is None:
            waiting = "skipped" if summary else RUNNING if index in schedule.times else "waiting"
            result = StepResult(step.notebook, waiting)
        times = [_iso(moment) for moment in schedule.times.get(index, [])]
        steps.append(
            {
                **asdict(result),
                "name": step.name,
                "parameters": schedule.values.get(index, step.parameters),
                "attempts": schedule.attempts.get(index, 0),
                "times": times,
            }
        )
    document = {
        "format": FORMAT,
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
