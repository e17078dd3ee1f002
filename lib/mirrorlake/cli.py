"""The command line: thin calls into the library, one JSON document with `--json`, exit status 0-2.

Exit status: 0 done; 1 a problem found; 2 wrong use. Logs and progress go to stderr.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table as RichTable

from mirrorlake.errors import InvalidNameError, MirrorlakeError, QueryError, UsageError

if TYPE_CHECKING:
    from mirrorlake.lake import Lake
    from mirrorlake.mirror.state import Report
    from mirrorlake.runs.plan import RunSummary

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="An open lakehouse in notebooks.",
)
out = Console(soft_wrap=True)
err = Console(stderr=True, soft_wrap=True)

RootArgument = Annotated[str, typer.Argument(metavar="ROOT", help="The lake: a path or a URI.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


class MarkerWord(str, Enum):
    """What `publish --marker` takes."""

    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"
    UPSERT = "upsert"


def main() -> None:
    """Runs a command; an error of ours becomes one line and an exit status."""
    try:
        app(prog_name="./mirrorlake")
    except (UsageError, InvalidNameError) as error:
        _say_error(error)
        sys.exit(2)
    except MirrorlakeError as error:
        _say_error(error)
        sys.exit(1)


def _say_error(error: MirrorlakeError) -> None:
    err.print(f"mirrorlake: {error}", markup=False, highlight=False)


@app.command()
def demo(
    root: Annotated[Path | None, typer.Option(help="Where the demo's lake goes.")] = None,
) -> None:
    """Publish, mirror and query a year of real flights, by the notebooks."""
    from mirrorlake.places import PARAMETERS

    overrides = {} if root is None else {"root": str(root.absolute())}
    summary = _run_plan(PARAMETERS / "plans" / "demo.yaml", None, overrides)
    answers = {k: v for step in summary.steps for k, v in step.records.items()}
    for question, answer in answers.items():
        out.print(f"✓ {question}: {answer}", markup=False, highlight=False)
    _finish_run(summary)


@app.command()
def run(
    plan: Annotated[Path, typer.Argument(help="A plan, such as parameters/plans/demo.yaml.")],
    out_folder: Annotated[Path | None, typer.Option("--out", help="For the results.")] = None,
) -> None:
    """Execute a plan of notebooks by papermill; failures are kept and reported."""
    _finish_run(_run_plan(plan, out_folder, {}))


def _warm_up() -> None:
    """Makes what later starts of a local Spark are quicker with, if it is missing."""
    if not {"SPARK_MASTER", "SPARK_REMOTE"} & set(os.environ):
        from mirrorlake.spark.archive import ensure_archive
        from mirrorlake.spark.session import launch_environment

        ensure_archive(*launch_environment())


def _run_plan(plan: Path, folder: Path | None, overrides: dict[str, Any]) -> RunSummary:
    from mirrorlake.runs.plan import run_plan

    _warm_up()

    def say(name: str, index: int, total: int) -> None:
        err.print(f"[{index}/{total}] {name} …", markup=False, highlight=False)

    return run_plan(plan, folder, overrides=overrides, on_step=say)


def _finish_run(summary: RunSummary) -> None:
    table = RichTable("notebook", "status", "seconds")
    for step in summary.steps:
        table.add_row(step.notebook, step.status, f"{step.seconds:.1f}")
    out.print(table)
    out.print(f"executed notebooks: {summary.folder}", markup=False, highlight=False)
    if (failed := summary.failed) and failed.error:
        where = f", cell {failed.error['cell']}" if failed.error["cell"] else ""
        what = f"{failed.error['name']}: {failed.error['message']}"
        err.print(f"{failed.notebook}{where}: {what}", markup=False, highlight=False)
        raise typer.Exit(1)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def test(
    context: typer.Context,
    long: Annotated[bool, typer.Option("--long", help="Add kill matrices and soaks.")] = False,
) -> None:
    """Run the tests; further arguments go to pytest."""
    from mirrorlake.places import PROJECT

    _warm_up()
    command = [sys.executable, "-m", "pytest", *(["--long"] if long else []), *context.args]
    raise typer.Exit(subprocess.run(command, cwd=PROJECT, check=False).returncode)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def lab(context: typer.Context) -> None:
    """Open JupyterLab on the notebooks; further arguments go to it."""
    from mirrorlake.places import NOTEBOOKS

    _warm_up()
    os.execv(sys.executable, [sys.executable, "-m", "jupyterlab", str(NOTEBOOKS), *context.args])


@app.command()
def publish(
    root: RootArgument,
    table: Annotated[str, typer.Argument(help="table or schema.table")],
    files: Annotated[list[Path], typer.Argument(help="Parquet or CSV files.")],
    keys: Annotated[str, typer.Option(help="Key columns, separated by commas.")] = "",
    marker: Annotated[MarkerWord | None, typer.Option(help="What all rows ask for.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Publish files into the landing zone; without --marker as they are."""
    from dataclasses import asdict

    from mirrorlake.lake import Lake

    publisher = Lake(root).publisher(table, keys=[k.strip() for k in keys.split(",") if k.strip()])
    verb = publisher.write if marker is None else getattr(publisher, marker.value)
    published = []
    for file in files:
        published.append(verb(file))
        if not as_json:  # at once: a later file may be refused
            out.print(repr(published[-1]), markup=False, highlight=False)
    if as_json:
        _print_json({"published": [asdict(batch) for batch in published]})


@app.command()
def mirror(
    root: RootArgument,
    table: Annotated[str | None, typer.Option(help="Only this table.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Run one cycle: apply what is published to the Delta tables."""
    lake = _open_lake(root)
    with _progress("mirroring …") as update:
        report = lake.mirror(table, on_step=lambda name, step: update(f"{name}: {step.value}"))
    _finish_report(report, as_json)


@app.command()
def status(root: RootArgument, as_json: JsonOption = False) -> None:
    """Show how each table stands."""
    _finish_report(_open_lake(root).status(), as_json)


def _finish_report(report: Report, as_json: bool) -> None:
    if as_json:
        _print_json(report.as_dict())
    else:
        table = RichTable("table", "state", "rows applied", "last file", "backlog", "problem")
        problems: list[str] = []
        for line in report.tables:
            name = f"{line.schema}.{line.name}" if line.schema else line.name
            problem = f"waiting for {line.waiting_for}" if line.waiting_for else ""
            if line.error:
                problem = "see below"
                places = ((k, line.error[k]) for k in ("file", "row", "column"))
                where = ", ".join(f"{key} {value}" for key, value in places if value is not None)
                problems.append(f"{name}: {line.error['message']}{f' [{where}]' if where else ''}")
            numbers = (f"{line.rows:,}", str(line.last_file), str(line.backlog_files))
            table.add_row(*map(_literal, (name, line.state, *numbers, problem)))
        out.print(table)
        for problem in problems:
            out.print(problem, markup=False, highlight=False)
    if report.failed:
        raise typer.Exit(1)


@app.command()
def sql(
    root: RootArgument,
    query: Annotated[str, typer.Argument(help='For example "SELECT * FROM flights@v2".')],
    as_json: JsonOption = False,
    limit: Annotated[int, typer.Option(help="Most rows to show; --json has all.")] = 50,
) -> None:
    """Query the lake's tables, at any version or moment."""
    from mirrorlake.show.json_rows import rows_document
    from mirrorlake.spark.messages import spark_message

    lake = _open_lake(root)
    with _progress("running the query …"):
        frame = lake.sql(query)
        try:
            document = rows_document(frame if as_json else frame.limit(limit + 1))
        except Exception as error:
            raise QueryError(spark_message(error)) from error
    if as_json:
        _print_json(document)
        return
    table = RichTable(*map(_literal, document["columns"]))
    for row in document["rows"][:limit]:
        table.add_row(*[_literal("NULL" if v is None else str(v)) for v in row.values()])
    out.print(table)
    if len(document["rows"]) > limit:
        out.print(f"… and more; --limit {limit} shows the first {limit} rows.")


@app.command()
def bench(
    name: Annotated[str | None, typer.Argument(help="One bench; by default all.")] = None,
    pairs: Annotated[int, typer.Option(help="Pairs that count.", min=1)] = 3,
    as_json: JsonOption = False,
) -> None:
    """Measure ratios side by side: how many times better than the peer."""
    from dataclasses import asdict

    from mirrorlake.runs.bench import bench_names, run_bench

    _warm_up()
    for chosen in [name] if name else bench_names():
        with _progress(f"bench {chosen} …"):
            result = run_bench(chosen, pairs)
        if as_json:
            _print_json(asdict(result))
            continue
        table = RichTable(f"bench {chosen}", "figure")
        for what, seconds in result.seconds.items():
            table.add_row(_literal(what), f"{seconds:.3f} s")
        for what, ratio in result.ratios.items():
            table.add_row(_literal(what), f"{ratio:.2f} ×")
        out.print(table)


def _open_lake(root: str) -> Lake:
    from mirrorlake.lake import Lake

    if "://" not in root and not Path(root).is_dir():
        raise UsageError(f"There is no lake at {root}.", hint="publish something there first.")
    return Lake(root)


@contextmanager
def _progress(text: str) -> Iterator[Callable[[str], None]]:
    """A spinner on a terminal, whose text can be changed; nothing in a pipe."""
    if not err.is_terminal:
        yield lambda _: None
        return
    with err.status(_literal(text)) as shown:
        yield lambda changed: shown.update(_literal(changed))


def _print_json(document: Any) -> None:
    sys.stdout.write(json.dumps(document, ensure_ascii=False, indent=2) + "\n")


def _literal(text: str) -> str:
    """Text that rich must not take for its markup."""
    from rich.markup import escape

    return escape(text)


if __name__ == "__main__":
    main()
