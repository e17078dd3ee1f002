"""Commands on notebooks and plans: run, runs list|show|open|prune, notebooks.

Exit status of `run`: 0 done; 1 a step failed; 2 wrong use; 3 the same plan runs already on the same
lake, or another run uses the same `--out`; 143 after SIGTERM and 130 after Ctrl-C.
"""

from __future__ import annotations

import datetime
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mirrorlake.cli import app, verbs, warm_up
from mirrorlake.cli.options import Apply, Json
from mirrorlake.cli.printing import NOT_APPLIED, print_json, say, tell, warn
from mirrorlake.errors import UsageError
from mirrorlake.results import TextTable, moment_text
from mirrorlake.storage.paths import NOTEBOOKS, PARAMETERS

if TYPE_CHECKING:
    from mirrorlake_runs.plan import Plan
    from mirrorlake_runs.records import RunRecord, RunSummary

runs = verbs("runs", "List, show and prune the records of runs.")
_COPIED = (".ipynb", ".yaml", ".py", ".ini", ".cfg")  # the last three are for `pytest --nbval`
Run = Annotated[
    str, typer.Argument(metavar="RUN", help="Id of a run, or the folder or URI of its results.")
]
Folder = Annotated[str | None, typer.Option(help="Folder or URI of the records; by default runs/.")]


@app.command()
def run(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME|PATH|PLAN.yaml", help="Name of a tool, a notebook, or a plan."
        ),
    ] = None,
    parameter: Annotated[
        list[str] | None,
        typer.Option("-p", metavar="KEY=VALUE", help="Value of a parameter; may be repeated."),
    ] = None,
    out: Annotated[str | None, typer.Option("--out", help="Folder or URI of the results.")] = None,
    resume: Annotated[
        str | None, typer.Option(help="Continue this run after its last completed step.")
    ] = None,
    days: Annotated[
        str | None,
        typer.Option("--for", help="Run once for each day: date=2026-01-01..2026-01-31."),
    ] = None,
    metrics: Annotated[
        Path | None,
        typer.Option(help="Text file with metrics for Prometheus; each run replaces it."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Run a notebook or a plan with papermill; keep the executed notebooks and a report."""
    values = _values(parameter or [])
    if resume is not None:
        if target or values or out or days:
            raise UsageError(
                "--resume takes all settings from the run.",
                hint="omit the notebook, -p, --out and --for.",
            )
        _finish(_resumed(resume, metrics), as_json)
    elif target is None:
        raise UsageError(
            "No notebook or plan is named.", hint="name a notebook or a plan, or use --resume RUN."
        )
    else:
        _finish(_started(target, values, out, days, metrics), as_json, backfill=days is not None)


def _values(given: list[str]) -> dict[str, str]:
    found = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"-p {text!r} is not a parameter.", hint="write -p name=value.")
        found[name.strip()] = value
    return found


def _started(
    target: str, values: dict[str, str], out: str | None, days: str | None, metrics: Path | None
) -> list[RunSummary]:
    from mirrorlake_runs.plan import open_target
    from mirrorlake_runs.run import days_of, run_days, run_plan

    plan = open_target(target)

    def one(day: datetime.date | None, backfill: dict[str, Any] | None) -> RunSummary:
        place = out if backfill is None or out is None else f"{out.rstrip('/')}/{day}"
        return run_plan(
            plan,
            place,
            overrides=values,
            as_text=True,
            day=day,
            backfill=backfill,
            metrics=metrics,
            on_step=tell_step,
            before=lambda: _warm_up_for(plan),
        )

    return [one(None, None)] if days is None else list(run_days(days_of(days), one))


def _resumed(run: str, metrics: Path | None) -> list[RunSummary]:
    from mirrorlake_runs.records import find_run
    from mirrorlake_runs.run import days_after, recorded_plan, resume_run, run_days, run_plan

    document = find_run(run).document
    done = [resume_run(run, metrics=metrics, on_step=tell_step)]
    plan = recorded_plan(document)
    place, _, name = document["folder"].rpartition("/")
    followed = place if name == document["day"] else ""

    def one(day: datetime.date, backfill: dict[str, Any]) -> RunSummary:
        return run_plan(
            plan,
            f"{followed}/{day}" if followed else None,
            overrides=document["parameters"],
            day=day,
            backfill=backfill,
            metrics=metrics,
            on_step=tell_step,
        )

    if done[0].status == "done":
        done += run_days(days_after(document), one)
    return done


def tell_step(name: str, index: int, total: int) -> None:
    """Report on stderr which step of a plan begins."""
    warn(f"[{index}/{total}] {name} …")


def _warm_up_for(plan: Plan) -> None:
    """Prepare Spark's class archive if a notebook of the plan starts Spark."""
    texts = (step.path.read_text(encoding="utf-8", errors="replace") for step in plan.steps)
    if any(
        word in text for text in texts for word in ("Lake(", "Lake.open", "open_sample", "spark")
    ):
        warm_up()


def _finish(summaries: list[RunSummary], as_json: bool, *, backfill: bool = False) -> None:
    if as_json:
        documents = [summary.as_dict() for summary in summaries]
        print_json({"runs": documents} if backfill or len(documents) > 1 else documents[0])
    for summary in summaries:
        finish_run(summary, printed=as_json)


def finish_run(summary: RunSummary, *answers: str, printed: bool = False) -> None:
    """Print a run's summary, and exit with an error status if the run did not complete.

    Args:
        summary: the run.
        answers: lines to print first.
        printed: whether the run's document was printed instead of the summary.
    """
    rows = tuple(
        (step.notebook, step.status, step.attempts, f"{step.seconds:.1f}") for step in summary.steps
    )
    table = TextTable(("notebook", "status", "attempts", "seconds"), rows)
    if not printed:
        say(*answers, table, f"executed notebooks: {summary.folder}")
    for step in summary.steps:
        if step.error:
            where = f", cell {step.error['cell']}" if step.error["cell"] else ""
            warn(f"{step.notebook}{where}: {step.error['name']}: {step.error['message']}")
    if summary.next_steps:
        from mirrorlake_runs.records import REPORT

        warn("\n".join([*summary.next_steps, f"Report: {summary.folder}/{REPORT}"]))
    if summary.signal:
        raise typer.Exit(128 + summary.signal)
    if summary.failed or not summary.kept:
        raise typer.Exit(1)


@runs.command("list")
def list_command(
    plan: Annotated[str | None, typer.Option(help="List only runs of this plan.")] = None,
    failed: Annotated[
        bool, typer.Option("--failed", help="List only runs that failed, were stopped or are lost.")
    ] = False,
    folder: Folder = None,
    as_json: Json = False,
) -> None:
    """List the runs, newest first; a run whose process is gone is `lost`."""
    from mirrorlake_runs.records import DECIDES, list_runs, runs_folder

    found = list_runs(plan=plan, failed=failed, folder=folder)
    none = f"No runs were found in {folder or runs_folder()}."
    note = none if folder else f"{none} {DECIDES}"
    document = {"runs": [record.as_dict() for record in found]}
    tell(as_json, document, _table(found), "" if found else note)


@runs.command("show")
def show_command(run: Run, as_json: Json = False) -> None:
    """Show a run: its parameters, versions, steps and records."""
    from mirrorlake_runs.records import LOST, earlier_attempts, find_run, resume_command

    record = find_run(run)
    document = {**record.document, "status": record.status}
    if as_json:
        print_json(document)
        return
    facts = [(name, getattr(record, name)) for name in record.as_dict()]
    facts.append(("host", document["process"]["host"]))
    if record.status == LOST:  # it has ended without a report
        facts.append(("continue", resume_command(record.run)))
    else:
        facts.append(("report", f"{record.folder}/report.html"))
    facts += [*document["versions"].items(), *document["parameters"].items()]
    steps = tuple(
        (
            step["name"],
            step["status"],
            step["attempts"],
            f"{step['seconds']:.1f}",
            ", ".join(f"{name}: {value}" for name, value in step["records"].items()),
            step["error"]["message"] if step["error"] else "",
        )
        for step in document["steps"]
    )
    head = ("step", "status", "attempts", "seconds", "recorded", "error")
    lines = earlier_attempts(document)
    say(TextTable(("what", "value"), tuple(facts)), TextTable(head, steps), *lines)


@runs.command("open")
def open_command(run: Run) -> None:
    """Open a run's report in the browser."""
    import webbrowser

    from mirrorlake_runs.records import LOST, find_report, find_run, resume_command

    record = find_run(run)
    page = find_report(record)
    if page is None:
        hint = "a run writes its report at its end; a later run with the same --out replaces it."
        if record.status == LOST:
            hint = f"its process has ended; continue it with {resume_command(record.run)}"
        raise UsageError(f"The run {record.run} has no report.", hint=hint)
    say(page.absolute().as_uri())
    webbrowser.open(page.absolute().as_uri())


@runs.command("prune")
def prune_command(
    keep: Annotated[
        int, typer.Option(help="Number of completed runs of each plan to keep.", min=0)
    ],
    days: Annotated[
        float | None,
        typer.Option(help="Also keep completed runs that are younger than this.", min=0),
    ] = None,
    keep_failed: Annotated[
        int | None,
        typer.Option(help="Number of other runs of each plan to keep; by default all.", min=0),
    ] = None,
    folder: Folder = None,
    apply: Apply = False,
    as_json: Json = False,
) -> None:
    """Delete old runs with their notebooks and reports; never a run in progress."""
    from mirrorlake_runs.records import prune_runs

    found = prune_runs(keep=keep, days=days, keep_failed=keep_failed, apply=apply, folder=folder)
    document = {"runs": [record.as_dict() for record in found], "applied": apply}
    tell(as_json, document, _table(found), "" if apply else NOT_APPLIED)


def _table(found: list[RunRecord]) -> TextTable:
    names = ("run", "status", "started", "ended", "folder")
    rows = tuple(
        (
            one.run,
            one.status,
            *(moment_text(at or "") for at in (one.started, one.ended)),
            one.folder,
        )
        for one in found
    )
    return TextTable(names, rows)


@app.command()
def notebooks(
    folder: Annotated[Path, typer.Argument(help="Folder for the copies.")],
) -> None:
    """Copy the notebooks, their parameters and the plans into a folder, to change them there.

    `pytest --nbval DIR/notebooks/mirror.ipynb` compares a copy with its outputs.
    """
    for source in (NOTEBOOKS, PARAMETERS):
        if not source.is_dir():
            raise UsageError(f"There is no folder {source}.")
        for path in sorted(source.rglob("*")):
            target = folder / source.name / path.relative_to(source)
            if path.suffix not in _COPIED or ".ipynb_checkpoints" in path.parts:
                continue
            if target.exists() and target.read_bytes() != path.read_bytes():
                raise UsageError(
                    f"{target} exists with other content.", hint="choose an empty folder."
                )
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
    say(f"✓ {folder}")
