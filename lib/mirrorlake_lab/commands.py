"""Commands for the project itself: demo, sample, test, lab, bench, course, docs."""

from __future__ import annotations

import importlib
import os
import shlex
import subprocess
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from mirrorlake.cli import app, stop_on_signals, warm_up
from mirrorlake.cli.options import Json, Port, at_most_one
from mirrorlake.cli.printing import print_json, progress, say, tell, warn
from mirrorlake.errors import UsageError
from mirrorlake.results import TextTable, counted, size_text
from mirrorlake.storage.paths import PARAMETERS, PROGRAM, PROJECT, docs_page


@app.command()
def demo(
    root: Annotated[Path | None, typer.Option(help="The folder of the demo's lake.")] = None,
) -> None:
    """Publish, mirror and query a year of real flights with the notebooks."""
    from mirrorlake_runs.commands import finish_run, tell_step
    from mirrorlake_runs.run import run_plan

    summary = run_plan(
        _source(PARAMETERS, "notebooks") / "plans" / "demo.yaml",
        overrides={} if root is None else {"root": str(root.absolute())},
        on_step=tell_step,
        before=warm_up,
    )
    answers = {k: v for step in summary.steps for k, v in step.records.items()}
    finish_run(summary, *(f"✓ {question}: {text}" for question, text in answers.items()))
    say(
        f"Next: {PROGRAM} lab opens JupyterLab; start with the lesson learn/01_publish.ipynb",
        f"Your own data: {PROGRAM} publish ROOT TABLE FILE ({docs_page('how-to/csv.md')})",
    )


@app.command()
def sample(
    root: Annotated[str, typer.Argument(help="An absent or empty folder, or a sample lake.")],
) -> None:
    """Create the sample lake: a year of flights, and small tables with one problem each."""
    from mirrorlake_lab.samples.lake import make_sample

    warm_up()
    with progress("creating the sample lake …") as update:
        lake = make_sample(
            str(Path(root).absolute()) if "://" not in root else root, on_step=update
        )
    say(f"✓ {lake.storage.root}")


def _source(folder: Path, what: str) -> Path:
    """Return a folder of the project's source, which an installed package lacks."""
    if not folder.is_dir():
        raise UsageError(
            f"The {what} are not installed.",
            hint="clone the project's repository and run this there.",
        )
    return folder


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def test(
    context: typer.Context,
    long: Annotated[bool, typer.Option("--long", help="Add kill matrices and soak tests.")] = False,
    changed: Annotated[
        bool,
        typer.Option("--changed", help="Only tests that changes since the last commit can affect."),
    ] = False,
) -> None:
    """Run the tests, in three processes; further arguments go to pytest (`-n 0`: in one)."""
    source = _source(PROJECT / "tests", "tests").parent
    if not needs_no_spark(context.args):
        warm_up()
    # The tests of a file run in one process, and the files in order: notebooks take longest.
    options = ["--dist", "loadfile", "--no-loadscope-reorder", "--durations=10"]
    # Three processes share a JVM and keep two cores busy; with --long each has a larger JVM.
    options += ["-n", "2", "--long"] if long else ["-n", "3"]
    options += ["--changed"] if changed else []
    command = [sys.executable, "-m", "pytest", *options, *context.args]
    raise typer.Exit(subprocess.run(command, cwd=source, check=False).returncode)


def needs_no_spark(arguments: list[str]) -> bool:
    """Check whether all paths among pytest's arguments are in test layers without a JVM."""
    layers = [PROJECT / "tests" / layer for layer in ("unit", "servers", "browser")]
    files = [PROJECT / argument.split("::")[0] for argument in arguments]
    paths = [file.resolve() for file in files if file.exists()]
    return bool(paths) and all(any(map(path.is_relative_to, layers)) for path in paths)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def lab(
    context: typer.Context,
    reset: Annotated[
        bool, typer.Option("--reset", help="Replace changed copies; they are moved to kept/.")
    ] = False,
    folder: Annotated[Path | None, typer.Option(help="The folder of the copies.")] = None,
) -> None:
    """Open JupyterLab on copies of the notebooks; further arguments are passed to it."""
    from mirrorlake_lab.workbench import (
        LAB_ENVIRONMENT,
        lab_command,
        lab_folder,
        make_workbench,
    )

    place = (folder or lab_folder()).absolute()
    changed = make_workbench(place, reset=reset)
    if changed:
        copies = f"{counted(changed, 'changed file')} in {place}"
        hint = "add --reset to replace changed copies."
        warn(f"Moved to kept/: {copies}." if reset else f"Not updated: {copies}. Hint: {hint}")
    warm_up()
    command = lab_command(sys.executable, place, *context.args)
    os.execve(command[0], command, os.environ | LAB_ENVIRONMENT)


@app.command()
def bench(
    name: Annotated[str | None, typer.Argument(help="The benchmark; by default all.")] = None,
    pairs: Annotated[int, typer.Option(help="The number of pairs to measure.", min=1)] = 3,
    part: Annotated[str | None, typer.Option(help="One part of the benchmark.")] = None,
    as_json: Json = False,
) -> None:
    """Run benchmarks side by side with a peer; a ratio is how many times better it is."""
    if part and not name:
        raise UsageError("--part needs a benchmark.", hint="give the name of one.")
    sys.path.append(str(_source(PROJECT / "tests", "benches")))
    benches = importlib.import_module("helpers.bench")
    warm_up()
    documents = []
    for chosen in [name] if name else benches.bench_names():
        with progress(f"bench {chosen} …"):
            result = benches.run_bench(chosen, pairs, part)
        figures = [(what, f"{seconds:.3f} s") for what, seconds in result.seconds.items()]
        figures += [(what, f"{ratio:.2f} ×") for what, ratio in result.ratios.items()]
        figures += [(what, f"{number:,}") for what, number in result.requests.items()]
        figures += [(what, f"{number:,.2f}") for what, number in result.costs.items()]
        figures += [(what, size_text(size)) for what, size in result.sizes.items()]
        figures += [(what, f"{number:,}") for what, number in result.counts.items()]
        document = asdict(result)
        for some in ("requests", "costs", "sizes", "counts"):
            if not document[some]:
                del document[some]
        documents.append(document)
        if not as_json:  # print each result at once, because a benchmark takes minutes
            say(TextTable((f"bench {chosen}", "figure"), tuple(figures)))
    if as_json:
        print_json(documents[0] if name else {"benches": documents})


@app.command()
def course(
    folder: Annotated[
        Path | None, typer.Argument(metavar="[DIR]", help="An empty folder for the copies.")
    ] = None,
    solutions: Annotated[
        bool,
        typer.Option("--solutions", help="Keep the solutions, for teachers, in nbgrader's layout."),
    ] = False,
    show: Annotated[
        str | None,
        typer.Option("--show", metavar="TASK", help="Only print the solution of a task."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Copy the lessons: without solutions for students, with solutions for teachers."""
    from mirrorlake_lab.course.lessons import find_solution, make_course

    if (folder is None) == (show is None):
        raise UsageError("No folder and no task is named.", hint="give DIR or --show TASK.")
    if show is not None:
        solution = find_solution(show)
        tell(as_json, {"task": show, "solution": solution}, solution)
        return
    made = make_course(Path(str(folder)).absolute(), solutions=solutions)
    lessons, tasks = counted(len(made.notebooks), "lesson"), counted(len(made.tasks), "task")
    done = f"✓ {lessons}, {tasks}: {made.folder}"
    place = shlex.quote(str(made.folder))
    step = f"{PROGRAM} lab --folder {place}"
    if solutions:
        step = f"cd {place} && nbgrader generate_assignment mirrorlake"
    document = {"course": str(made.folder), "tasks": list(made.tasks), "next": step}
    tell(as_json, document, f"{done}\nNext: {step}")


@app.command()
def docs(
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="The site's folder; by default site/."),
    ] = None,
    serve: Annotated[bool, typer.Option("--serve", help="Serve the site until Ctrl-C.")] = False,
    port: Port = 0,
    as_json: Json = False,
) -> None:
    """Build the documentation's site: lessons, tools, how-to pages, reference; needs no network."""
    from mirrorlake_lab.site import build_site

    at_most_one(serve=serve, json=as_json)
    with progress("building the site …"):
        site = build_site((out or PROJECT / "site").absolute())
    first = site.folder / "index.html"
    document = {"site": str(first), "pages": site.pages}
    tell(as_json, document, f"✓ {counted(site.pages, 'page')}: {first}")
    if serve:
        serve_folder(site.folder, port)


def serve_folder(folder: Path, port: int) -> None:
    """Serve a folder until SIGTERM or Ctrl-C; only this machine can reach the server.

    Args:
        folder: the folder.
        port: the port; 0 chooses a free one.

    Raises:
        SetupError: the port is in use.
    """
    from mirrorlake_lab.pages.html import FolderHandler, LocalServer

    stop = stop_on_signals()
    server = LocalServer(partial(FolderHandler, directory=str(folder)), port)
    say(server.address)
    server.run(stop)
