"""Commands from the landing zone to the tables: publish, mirror, status."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.live import Live
from rich.table import Table as RichTable

from mirrorlake.commands.base import (
    JsonOption,
    RootArgument,
    app,
    err,
    literal,
    open_lake,
    out,
    print_json,
    progress,
    split_names,
    stop_on_signals,
)
from mirrorlake.delta.snapshot import delta_tables
from mirrorlake.errors import SetupError, UsageError
from mirrorlake.names import TableName

if TYPE_CHECKING:
    from mirrorlake.lake import Lake
    from mirrorlake.mirror.options import MirrorOptions, Step
    from mirrorlake.mirror.state import Report
    from mirrorlake.rows.views.state import ViewStatus


class MarkerWord(str, Enum):
    """What `publish --marker` takes."""

    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"
    UPSERT = "upsert"


class OnError(str, Enum):
    """What `mirror --on-error` takes."""

    STOP = "stop"
    SKIP_ROW = "skip-row"
    SKIP_FILE = "skip-file"


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

    publisher = Lake(root).publisher(table, keys=split_names(keys))
    verb = publisher.write if marker is None else getattr(publisher, marker.value)
    published = []
    for file in files:
        published.append(verb(file))
        if not as_json:  # at once: a later file may be refused
            out.print(repr(published[-1]), markup=False, highlight=False)
    if as_json:
        print_json({"published": [asdict(batch) for batch in published]})


@app.command()
def mirror(
    root: RootArgument,
    table: Annotated[str | None, typer.Option(help="Only this table.")] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Go on until SIGTERM or Ctrl-C.")] = False,
    interval: Annotated[float, typer.Option(help="Seconds between busy cycles.", min=0.1)] = 5,
    on_error: Annotated[OnError, typer.Option(help="What a bad row or file does.")] = OnError.STOP,
    widen: Annotated[bool, typer.Option("--widen", help="Let types grow safely.")] = False,
    vorder: Annotated[bool, typer.Option("--vorder", help="Then order rows within files.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Apply what is published to the Delta tables, once or again and again."""
    from mirrorlake.mirror.options import MirrorOptions

    lake = open_lake(root)
    options = MirrorOptions(widen=widen, on_error=on_error.value)
    if watch and vorder:
        raise UsageError(
            "A watch can't order rows.", hint="run `vorder ROOT TABLE --apply` beside it."
        )
    if watch:
        _finish_report(_watch(lake, table, interval, options), as_json)
        return
    with progress("mirroring …") as update:
        report = lake.mirror(
            table,
            options=options,
            on_step=lambda name, step: update(f"{name}: {step.value}"),
            vorder=vorder,
        )
    _finish_report(report, as_json)


def _watch(lake: Lake, table: str | None, interval: float, options: MirrorOptions) -> Report:
    """Mirrors until a signal asks to stop; on a terminal with a live table."""
    from mirrorlake.mirror.state import Report

    stop = stop_on_signals()
    if not err.is_terminal:
        return lake.watch(stop, table=table, interval=interval, options=options)
    steps: dict[str, str] = {}
    last = Report()
    with Live(console=err, refresh_per_second=4) as live:

        def show(report: Report) -> None:
            nonlocal last
            last = report
            live.update(_report_table(report, steps))

        def step(name: TableName, done: Step) -> None:
            steps[f"{name.schema}.{name.name}" if name.schema else name.name] = done.value
            live.update(_report_table(last, steps))

        return lake.watch(
            stop, table=table, interval=interval, options=options, on_step=step, on_report=show
        )


@app.command()
def status(
    root: RootArgument,
    max_lag: Annotated[
        float | None, typer.Option(help="Exit with 1 if a table lags more seconds than this.")
    ] = None,
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="Read the kept state anew from the tables' logs.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show how each table stands."""
    lake = open_lake(root)
    report = lake.status(rebuild=rebuild)
    mirrored = {TableName(line.schema, line.name) for line in report.tables}
    others = delta_tables(lake.storage, but=mirrored)
    try:
        views = lake.views.status(others) if others else []
    except SetupError as error:  # the tables' status needs no extra
        views = []
        err.print(f"mirrorlake: views are left out: {error}", markup=False, highlight=False)
    if as_json:
        print_json(report.as_dict() | {"views": [one.as_dict() for one in views]})
    else:
        _print_report(report)
        if views:
            out.print(_view_table(views))
    late = [t for t in report.tables if max_lag is not None and t.lag_seconds > max_lag]
    for line in late:
        text = f"{line.full_name} lags {line.lag_seconds:.0f} s."
        err.print(text, markup=False, highlight=False)
    if late or report.failed:
        raise typer.Exit(1)


@app.command()
def undrop(
    root: RootArgument,
    table: Annotated[str, typer.Argument(help="table or schema.table")],
) -> None:
    """Bring back a table that was dropped with its folder in the last 7 days."""
    open_lake(root).operations.undrop(table)
    out.print(f"{table} is back, and so is its folder.", markup=False, highlight=False)


def _finish_report(report: Report, as_json: bool) -> None:
    if as_json:
        print_json(report.as_dict())
    else:
        _print_report(report)
    if report.failed:
        raise typer.Exit(1)


def _print_report(report: Report) -> None:
    out.print(_report_table(report))
    for line in report.tables:
        if line.error:
            places = ((k, line.error[k]) for k in ("file", "row", "column"))
            where = ", ".join(f"{key} {value}" for key, value in places if value is not None)
            text = f"{line.full_name}: {line.error['message']}{f' [{where}]' if where else ''}"
            out.print(text, markup=False, highlight=False)
    for name in report.dropped:
        text = f"{name} was dropped with its folder; for 7 days `undrop` brings it back."
        out.print(text, markup=False, highlight=False)


def _view_table(views: list[ViewStatus]) -> RichTable:
    table = RichTable("view", "state", "version", "sources at versions", "lag")
    for line in views:
        sources = ", ".join(
            f"{s.table} {'?' if s.shown is None else s.shown}"
            + (f" of {'none' if s.newest is None else s.newest}" if s.newest != s.shown else "")
            for s in line.sources
        )
        state = f"{line.state}: {line.reason}" if line.reason else line.state
        lag = "?" if line.lag_seconds is None else f"{line.lag_seconds:.0f} s"
        table.add_row(*map(literal, (line.view, state, str(line.version), sources, lag)))
    return table


def _report_table(report: Report, steps: dict[str, str] | None = None) -> RichTable:
    columns = ["table", "state", "rows applied", "last file", "backlog", "lag", "problem"]
    table = RichTable(*columns, *(["last step"] if steps else []))
    for line in report.tables:
        problem = ""
        if line.waiting_for:
            problem = f"waiting for {line.waiting_for} since {line.waiting_since}"
        if line.error:
            problem = "see below" if steps is None else line.error["message"]
        backlog = f"{line.backlog_files}, {line.backlog_bytes:,} B" if line.backlog_files else "0"
        numbers = (f"{line.rows:,}", str(line.last_file), backlog, f"{line.lag_seconds:.0f} s")
        cells = [line.full_name, line.state, *numbers, problem]
        table.add_row(*map(literal, cells + ([steps.get(line.full_name, "")] if steps else [])))
    return table
