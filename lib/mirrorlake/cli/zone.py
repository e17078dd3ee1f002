"""Commands of the landing zone and the mirror: publish, mirror, status, lint."""

from __future__ import annotations

import re
from dataclasses import asdict
from datetime import datetime, timezone
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
    status_parts,
    tell,
    warn,
    warn_other_folder,
)
from mirrorlake.errors import UsageError
from mirrorlake.landing.zone import is_other_folder, no_folder
from mirrorlake.names import TableName, as_table, split_names
from mirrorlake.results import TextTable
from mirrorlake.storage.files import Storage
from mirrorlake.storage.paths import may_be_lake

if TYPE_CHECKING:
    from mirrorlake.lake import Lake
    from mirrorlake.mirror.options import MirrorOptions, Step
    from mirrorlake.mirror.status import MirrorReport

MarkerWord = Literal["insert", "update", "delete", "upsert"]
OnError = Literal["stop", "skip-row", "skip-file"]


@app.command()
def publish(
    root: Root,
    table: Table,
    files: Annotated[list[Path], typer.Argument(help="Parquet or CSV files.")],
    keys: Annotated[str, typer.Option(help="Key columns, separated by commas.")] = "",
    marker: Annotated[
        MarkerWord | None,
        typer.Option(
            help="The change of every row; an update or upsert sets missing columns to NULL."
        ),
    ] = None,
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
    """Publish files to the landing zone, unchanged unless --marker is given."""
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
        if not as_json:  # a later file may be refused, so print each at once
            say(published[-1])
            columns = ", ".join(f"{name} {kind}" for name, kind in published[-1].columns.items())
            warn(f"columns of {file.name}: {columns}")
    if as_json:
        print_json({"published": [asdict(batch) for batch in published]})


def _split_types(texts: list[str]) -> dict[str, str]:
    """Return the declared types; commas separate columns, except within parentheses."""
    types = {}
    for one in (one for text in texts for one in re.split(r",(?![^(]*\))", text)):
        name, _, kind = one.rpartition("=")
        if not name.strip() or not kind.strip():
            raise UsageError(
                f"{one!r} is not COLUMN=TYPE.", hint="write it like price=decimal(18,2)."
            )
        types[name.strip()] = kind
    return types


@app.command()
def mirror(
    root: Root,
    table: Only = None,
    watch: Watch = False,
    interval: Interval = 5,
    on_error: Annotated[
        OnError,
        typer.Option(
            metavar="<mode>",
            help="What a bad row or file does: stop its table; or skip-row, skip-file.",
        ),
    ] = "stop",
    widen: Annotated[bool, typer.Option("--widen", help="Allow safe type widening.")] = False,
    late_files: Annotated[
        bool, typer.Option("--late-files", help="With files in time order: apply older ones, too.")
    ] = False,
    deletion_vectors: Annotated[
        bool, typer.Option("--deletion-vectors", help="Switch the tables to deletion vectors.")
    ] = False,
    no_vectors: Annotated[
        bool,
        typer.Option("--no-deletion-vectors", help="Create tables that more readers can open."),
    ] = False,
    vorder: VOrder = False,
    shard: Annotated[
        str | None, typer.Option(help="Mirror only one share of the tables, such as 2/8.")
    ] = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Apply published files to the Delta tables, once or continuously."""
    from mirrorlake.mirror.options import MirrorOptions
    from mirrorlake.mirror.state import Shard
    from mirrorlake.mirror.status import MirrorReport

    at_most_one(watch=watch, dry_run=dry_run)
    at_most_one(table=table, shard=shard)
    Shard.parse(shard)
    at_most_one(deletion_vectors=deletion_vectors, no_deletion_vectors=no_vectors)
    if watch and vorder:
        hint = "run `vorder ROOT TABLE` beside it."
        raise UsageError("--watch and --vorder exclude each other.", hint=hint)
    vectors = False if no_vectors else deletion_vectors or None
    options = MirrorOptions(
        widen=widen,
        late_files=late_files,
        on_error=on_error,
        deletion_vectors=vectors,
        shard=shard,
    )
    if watch and not _await_lake(root, interval):
        tell(as_json, MirrorReport().as_dict())
        return
    lake = open_lake(root)
    if watch:
        report = _watch(lake, table, interval, options, logs=not as_json)
    else:
        warn_other_folder(lake.storage)
        with progress("checking …" if dry_run else "mirroring …") as update:
            report = lake.mirror(
                table,
                options=options,
                on_step=lambda name, step: update(f"{name}: {step.value}"),
                vorder=vorder,
                dry_run=dry_run,
            )
        if table is not None and not report.tables:
            raise no_folder(lake.storage, as_table(table))
    *parts, total = _parts(report)
    total = f"Last cycle: {total!r}" if watch else total
    tell(as_json, report.as_dict(), *parts, total, failed=report.failed)


def _await_lake(root: str, interval: float) -> bool:
    """Wait until a publisher has created the lake; return False if a signal asks to stop."""

    def is_ready() -> bool:
        return may_be_lake(root) and not is_other_folder(Storage(root))

    if is_ready():
        return True
    why = "contains no lake" if may_be_lake(root) else "does not exist yet"
    warn(f"{root} {why}; waiting for its first publisher.")
    stop = stop_on_signals()
    while not is_ready() and not stop.wait(interval):
        pass
    return not stop.is_set()


def _watch(
    lake: Lake, table: str | None, interval: float, options: MirrorOptions, *, logs: bool
) -> MirrorReport:
    """Mirror until a signal asks to stop, with a live table on a terminal, or else with a log."""
    from mirrorlake.mirror.status import MirrorReport

    run = partial(lake.watch, stop_on_signals(), table=table, interval=interval, options=options)
    if not err.is_terminal:
        return run(on_report=_log) if logs else run()
    steps: dict[str, str] = {}
    last = MirrorReport()
    with Live(console=err, refresh_per_second=4) as live:

        def show(report: MirrorReport) -> None:
            nonlocal last
            last = report
            shown = report.shown()
            names = (one.full_name for one in report.tables)
            rows = zip(shown.rows, (steps.get(name, "") for name in names), strict=False)
            table = TextTable((*shown.columns, "last step"), tuple((*row, s) for row, s in rows))
            live.update(rich_table(table if report.tables else shown))

        def step(name: TableName, done: Step) -> None:
            steps[f"{name.schema}.{name.name}" if name.schema else name.name] = done.value
            show(last)

        return run(on_step=step, on_report=show)


def _log(report: MirrorReport) -> None:
    if report.files or report.dropped or report.failed:
        first = "".join(f"; {one.full_name}: {one.problem}" for one in report.failed[:1])
        warn(f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M:%S} UTC: {report!r}{first}")


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
    found = open_lake(root).status(max_lag=max_lag, rebuild=rebuild)
    parts = [found.views.shown()] if found.views else []
    parts += [one.shown() for one in found.sources]
    tables, *problems = status_parts(found)
    for text in (*found.notes, *(found.table_problems if as_json else ())):
        warn(f"mirrorlake: {text}")
    tell(as_json, found.as_dict(), tables, *parts, *problems, failed=found.problems)


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


def _parts(report: MirrorReport) -> list[object]:
    """Return what people read of a cycle: its tables, their problems, what was dropped."""
    from mirrorlake.status import Problem

    back = "was dropped with its folder; for 7 days `undrop` brings it back."
    dropped = [] if report.dry_run else [f"{name} {back}" for name in report.dropped]
    found = (Problem("", one.full_name, one.problem, one.fix) for one in report.tables)
    problems = (str(one) for one in found if one.message)
    return [report.shown().without("problem"), *problems, *dropped, report]
