"""Commands from the landing zone to the tables: publish, mirror, status, lint."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.live import Live

from mirrorlake.cli import app, open_lake, stop_on_signals
from mirrorlake.cli.options import (
    DryRun,
    Interval,
    Json,
    Only,
    Root,
    Table,
    VOrder,
    Watch,
    at_most_one,
)
from mirrorlake.cli.printing import (
    err,
    finding_line,
    print_json,
    progress,
    rich_table,
    say,
    tell,
    warn,
)
from mirrorlake.errors import SetupError, UsageError, with_place
from mirrorlake.names import TableName, split_names
from mirrorlake.results import TextTable

if TYPE_CHECKING:
    from mirrorlake.lake import Lake
    from mirrorlake.mirror.options import MirrorOptions, Step
    from mirrorlake.mirror.status import Report, TableStatus
    from mirrorlake.views.definition import ViewStatus

MarkerWord = Literal["insert", "update", "delete", "upsert"]
OnError = Literal["stop", "skip-row", "skip-file"]


@app.command()
def publish(
    root: Root,
    table: Table,
    files: Annotated[list[Path], typer.Argument(help="Parquet or CSV files.")],
    keys: Annotated[str, typer.Option(help="Key columns, separated by commas.")] = "",
    marker: Annotated[MarkerWord | None, typer.Option(help="The change of every row.")] = None,
    types: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN=TYPE", help="A column's type, as price=decimal(18,2); may be repeated."
        ),
    ] = None,
    widen: Annotated[
        bool, typer.Option("--widen", help="Publish wider types, for a mirror with --widen.")
    ] = False,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Publish files to the landing zone; without --marker as they are."""
    from mirrorlake.lake import Lake

    publisher = Lake(root).publisher(
        table,
        keys=split_names(keys),
        dry_run=dry_run,
        types=_split_types(types or []),
        widen=widen,
    )
    published = []
    for file in files:
        published.append(publisher.publish(file, marker or ""))
        if not as_json:  # at once: a later file may be refused
            say(published[-1])
            columns = ", ".join(f"{name} {kind}" for name, kind in published[-1].columns.items())
            warn(f"columns of {file.name}: {columns}")
    if any(batch.warning for batch in published):
        warn(
            "mirrorlake: add --marker upsert to replace rows of the same keys, "
            "or --marker insert if all keys are new."
        )
    if as_json:
        print_json({"published": [asdict(batch) for batch in published]})


def _split_types(texts: list[str]) -> dict[str, str]:
    """Return the declared types; commas separate columns, but for those in parentheses."""
    types = {}
    for one in (one for text in texts for one in re.split(r",(?![^(]*\))", text)):
        name, _, kind = one.rpartition("=")
        if not name.strip() or not kind.strip():
            raise UsageError(f"{one!r} is no COLUMN=TYPE.", hint="--types 'price=decimal(18,2)'")
        types[name.strip()] = kind
    return types


@app.command()
def mirror(
    root: Root,
    table: Only = None,
    watch: Watch = False,
    interval: Interval = 5,
    on_error: Annotated[OnError, typer.Option(help="What to do about a bad row or file.")] = "stop",
    widen: Annotated[bool, typer.Option("--widen", help="Allow safe type widening.")] = False,
    deletion_vectors: Annotated[
        bool,
        typer.Option("--deletion-vectors", help="Switch the tables to deletion vectors."),
    ] = False,
    vorder: VOrder = False,
    shard: Annotated[
        str | None, typer.Option(help="One of several shares of the tables, such as 2/8.")
    ] = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Apply published files to the Delta tables, once or continuously."""
    from mirrorlake.mirror.options import MirrorOptions

    lake = open_lake(root)
    options = MirrorOptions(
        widen=widen, on_error=on_error, deletion_vectors=deletion_vectors, shard=shard
    )
    if watch and vorder:
        hint = "run `vorder ROOT TABLE` beside it."
        raise UsageError("--watch and --vorder exclude each other.", hint=hint)
    at_most_one(watch=watch, dry_run=dry_run)
    if dry_run:
        with progress("checking …"):
            plan = lake.preview(table, options=options)
        problems = _problems(one.status for one in plan.tables)
        tell(as_json, plan.as_dict(), plan.shown(), *problems, plan, failed=plan.failed)
        return
    if watch:
        report = _watch(lake, table, interval, options)
    else:
        with progress("mirroring …") as update:
            report = lake.mirror(
                table,
                options=options,
                on_step=lambda name, step: update(f"{name}: {step.value}"),
                vorder=vorder,
            )
    tell(as_json, report.as_dict(), *_report_parts(report), failed=report.failed)


def _watch(lake: Lake, table: str | None, interval: float, options: MirrorOptions) -> Report:
    """Mirrors until a signal asks to stop; on a terminal with a live table."""
    from mirrorlake.mirror.status import Report

    run = partial(lake.watch, stop_on_signals(), table=table, interval=interval, options=options)
    if not err.is_terminal:
        return run()
    steps: dict[str, str] = {}
    last = Report()
    with Live(console=err, refresh_per_second=4) as live:

        def show(report: Report) -> None:
            nonlocal last
            last = report
            live.update(rich_table(_report_table(report, steps)))

        def step(name: TableName, done: Step) -> None:
            steps[f"{name.schema}.{name.name}" if name.schema else name.name] = done.value
            show(last)

        return run(on_step=step, on_report=show)


@app.command()
def status(
    root: Root,
    max_lag: Annotated[
        float | None, typer.Option(help="Exit with status 1 if a table lags by more seconds.")
    ] = None,
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="Rebuild the kept state from the tables' logs.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show the state of each table."""
    from mirrorlake.delta.snapshot import delta_tables
    from mirrorlake.source_status import source_reports

    lake = open_lake(root)
    report = lake.status(rebuild=rebuild)
    others = delta_tables(lake.storage, but=report.fed)
    try:
        views = lake.views.status(others) if others else []
    except SetupError as error:  # the tables' status needs no extra
        views = []
        warn(f"mirrorlake: views are left out: {error}")
    sources = source_reports(lake.storage)
    document = report.as_dict() | {"views": [one.as_dict() for one in views]}
    document |= {"sources": [one.as_dict() for one in sources]}
    parts = [*([_view_table(views)] if views else []), *(one.shown() for one in sources)]
    tell(as_json, document, *_report_parts(report), *parts)
    late = [t for t in report.tables if max_lag is not None and t.lag_seconds > max_lag]
    for line in late:
        warn(f"{line.full_name} lags {line.lag_seconds:.0f} s.")
    if late or report.failed:
        raise typer.Exit(1)


@app.command()
def lint(
    root: Root,
    table: Only = None,
    as_json: Json = False,
) -> None:
    """Check the landing zone against the rules of its format; changes nothing."""
    lake = open_lake(root)
    with progress("linting …") as update:
        report = lake.lint(
            table, on_file=lambda name, done, total: update(f"{name}: {done:,} of {total:,} files")
        )
    lines = [f"{found.severity} {finding_line(found)}" for found in report.findings]
    tell(as_json, report.as_dict(), *lines, report, failed=report.errors)


def _report_parts(report: Report) -> list[object]:
    back = "was dropped with its folder; for 7 days `undrop` brings it back."
    dropped = (f"{name} {back}" for name in report.dropped)
    return [_report_table(report), *_problems(report.tables), *dropped]


def _problems(tables: Iterable[TableStatus]) -> list[str]:
    """What is wrong with each table, and where."""
    failed = ((line.full_name, line.error) for line in tables if line.error)
    return [f"{name}: {with_place(error['message'], error)}" for name, error in failed]


def _view_table(views: list[ViewStatus]) -> TextTable:
    rows = []
    for line in views:
        sources = ", ".join(
            f"{s.table} {'?' if s.shown is None else s.shown}"
            + (f" of {'none' if s.newest is None else s.newest}" if s.newest != s.shown else "")
            for s in line.sources
        )
        state = f"{line.state}: {line.reason}" if line.reason else line.state
        lag = "?" if line.lag_seconds is None else f"{line.lag_seconds:.0f} s"
        rows.append((line.view, state, line.version, sources, lag))
    return TextTable(("view", "state", "version", "sources at versions", "lag"), tuple(rows))


def _report_table(report: Report, steps: dict[str, str] | None = None) -> TextTable:
    columns = ("table", "state", "rows applied", "last file", "backlog", "lag", "problem")
    rows = []
    for line in report.tables:
        problem = ""
        if line.waiting_for:
            problem = f"waiting for {line.waiting_for} since {line.waiting_since}"
        if line.error:
            problem = "see below" if steps is None else line.error["message"]
        backlog = f"{line.backlog_files}, {line.backlog_bytes:,} B" if line.backlog_files else "0"
        numbers = (f"{line.rows:,}", line.last_file, backlog, f"{line.lag_seconds:.0f} s")
        last = (steps.get(line.full_name, ""),) if steps else ()
        rows.append((line.full_name, line.state, *numbers, problem, *last))
    return TextTable((*columns, *(("last step",) if steps else ())), tuple(rows))
