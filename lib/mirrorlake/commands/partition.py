"""The command `partition`: a table's partitioning policy, and the process that carries it out."""

from __future__ import annotations

import json
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mirrorlake.commands.base import (
    JsonOption,
    RootArgument,
    app,
    err,
    open_lake,
    out,
    print_json,
    print_shown,
    progress,
    stop_on_signals,
)
from mirrorlake.commands.history import find_table
from mirrorlake.errors import UsageError

if TYPE_CHECKING:
    from mirrorlake.lake import Lake
    from mirrorlake.layout.partitioning.process import PartitionReport
    from mirrorlake.text_table import TextTable

EVERY = "*"


class PartitionVerb(str, Enum):
    """What `partition` does."""

    SET = "set"
    ALTER_MERGE = "alter-merge"
    SHOW = "show"
    DELETE = "delete"
    RUN = "run"
    STATS = "stats"
    ADVISE = "advise"


@app.command()
def partition(
    root: RootArgument,
    table: Annotated[
        str, typer.Argument(metavar="TABLE", help="A table; '*' for all: run, stats.")
    ],
    verb: Annotated[
        PartitionVerb, typer.Argument(help="set, alter-merge, show, delete, run, stats or advise")
    ],
    policy: Annotated[
        Path | None, typer.Argument(metavar="POLICY.json", help="For set and alter-merge.")
    ] = None,
    hot: Annotated[
        str | None,
        typer.Option(
            help="set, alter-merge: a timespan such as 31d; older files stay as they are."
        ),
    ] = None,
    guard: Annotated[
        bool, typer.Option("--guard", help="set: CLUSTER BY the keys, against OPTIMIZE by others.")
    ] = False,
    bucket_column: Annotated[
        str | None, typer.Option(help="set: store the bucket in this column, for other engines.")
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch/--once", help="run: go on until SIGTERM or Ctrl-C.")
    ] = False,
    interval: Annotated[float, typer.Option(help="run: seconds between busy rounds.", min=0.1)] = 5,
    as_json: JsonOption = False,
) -> None:
    """Partition a table's files by a policy: hash buckets, ranges of time, in the background."""
    _refuse_idle_options(verb, policy, hot, {"--guard": guard, "--bucket-column": bucket_column})
    lake = open_lake(root)
    if verb is PartitionVerb.RUN:
        _run(lake, table, interval if watch else None, as_json)
    elif verb is PartitionVerb.STATS and table == EVERY:
        with progress("reading the log …"):
            found = lake.partitioning.diagnostics()
        _print(found.shown(), as_json)
        if found.is_behind:
            raise typer.Exit(1)
    else:
        options = {"hot": hot, "guard": guard, "bucket_column": bucket_column}
        _one(lake, table, verb, _read(policy, verb), options, as_json)


def _refuse_idle_options(
    verb: PartitionVerb, policy: Path | None, hot: str | None, only_set: dict[str, object]
) -> None:
    """What a verb would leave unread is not what was meant."""
    changes = verb in (PartitionVerb.SET, PartitionVerb.ALTER_MERGE)
    given = [] if changes else [n for n, v in (("POLICY.json", policy), ("--hot", hot)) if v]
    if verb is not PartitionVerb.SET:
        given += [name for name, value in only_set.items() if value]
    if given:
        raise UsageError(
            f"partition {verb.value} takes no {given[0]}.",
            hint="policies and their options are for set; alter-merge takes POLICY.json and --hot.",
        )


def _one(
    lake: Lake,
    table: str,
    verb: PartitionVerb,
    document: str,
    options: dict[str, Any],
    as_json: bool,
) -> None:
    """The verbs on one table."""
    if table == EVERY:
        raise UsageError(
            f"partition {verb.value} needs a table.", hint="'*' is every table for run and stats."
        )
    partitioning = lake.table(find_table(lake, table)).partitioning
    if verb is PartitionVerb.ADVISE:
        with progress("looking at the columns …"):
            advice = partitioning.advise()
        if as_json:
            print_json(advice.as_dict())
            return
        print_shown(advice.shown())
        out.print(repr(advice), markup=False, highlight=False)
        return
    if verb is PartitionVerb.STATS:
        with progress("reading the log …"):
            _print(partitioning.stats().shown(), as_json)
        return
    if verb is PartitionVerb.SET:
        partitioning.set(document, **options)
    elif verb is PartitionVerb.ALTER_MERGE:
        partitioning.alter_merge(document, hot=options["hot"])
    elif verb is PartitionVerb.DELETE:
        partitioning.delete()
    _print(partitioning.show(), as_json)


def _run(lake: Lake, table: str, interval: float | None, as_json: bool) -> None:
    chosen = None if table == EVERY else find_table(lake, table)
    with progress("partitioning …") as update:
        process = lake.partitioning.process(
            chosen, on_step=lambda name, step: update(f"{name}: {step.value}")
        )
        if interval is None:
            report = process.run()
        else:
            report = process.watch(stop_on_signals(), interval=interval, on_report=_say)
    _finish(report, as_json)


def _say(report: PartitionReport) -> None:
    if report.operations or report.failed:
        err.print(repr(report), markup=False, highlight=False)


def _finish(report: PartitionReport, as_json: bool) -> None:
    if as_json:
        tables = [
            {
                "name": line.table,
                "operations": [receipt.as_dict() for receipt in line.receipts],
                "error": line.error,
            }
            for line in report.tables
        ]
        put_off = list(report.put_off)
        print_json({"tables": tables, "capacity": report.capacity, "put_off": put_off})
    else:
        print_shown(report.shown())
        out.print(repr(report), markup=False, highlight=False)
    if report.failed:
        raise typer.Exit(1)


def _read(path: Path | None, verb: PartitionVerb) -> str:
    if verb not in (PartitionVerb.SET, PartitionVerb.ALTER_MERGE):
        return ""
    if path is None:
        raise UsageError(
            f"partition {verb.value} needs a policy.",
            hint=f"partition ROOT TABLE {verb.value} POLICY.json",
        )
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} can't be read: {error}.") from error


def _print(shown: TextTable, as_json: bool) -> None:
    if not as_json:
        print_shown(shown)
        return
    document = shown.document()
    for row in document["rows"]:
        for name in ("Policy", "PartitioningPolicy"):
            if row.get(name) is not None:
                row[name] = json.loads(row[name])
    print_json(document)
