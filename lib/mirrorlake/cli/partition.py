"""The commands `partition …`: a table's partitioning policy, and the process that applies it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mirrorlake.cli import open_lake, open_table, stop_on_signals, verbs
from mirrorlake.cli.options import DryRun, Interval, Json, Root, Table, Watch, at_most_one
from mirrorlake.cli.printing import DRY_RUN, progress, tell, warn
from mirrorlake.errors import UsageError
from mirrorlake.results import TextTable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mirrorlake.partitioning.process import ProcessReport
    from mirrorlake.partitioning.statistics import TableStatistics
    from mirrorlake.partitioning.table_policy import TablePolicy

partition = verbs(
    "partition", "Partitioning policies: set and show them, and partition in the background."
)

EVERY = "*"

PolicyFile = Annotated[Path, typer.Argument(metavar="POLICY.json", help="A JSON file.")]
TableOrEvery = Annotated[str, typer.Argument(metavar="TABLE", help="A table, or '*' for all.")]
Hot = Annotated[
    str | None, typer.Option(help="A timespan such as 31d; older files are not touched.")
]


@partition.command("set")
def set_(
    root: Root,
    table: Table,
    policy: PolicyFile,
    hot: Hot = None,
    guard: Annotated[
        bool, typer.Option("--guard", help="CLUSTER BY the keys: other OPTIMIZEs leave the files.")
    ] = False,
    bucket_column: Annotated[
        str | None, typer.Option(help="Store the bucket in this column, for other engines.")
    ] = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Give a table a partitioning policy."""
    found, text = _policy_of(root, table), _read(policy)
    made = found.set(text, hot=hot, guard=guard, bucket_column=bucket_column, dry_run=dry_run)
    _tell(found.show(made), as_json, dry_run)


@partition.command()
def alter_merge(
    root: Root,
    table: Table,
    policy: PolicyFile,
    hot: Hot = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Change some properties of a table's policy."""
    found = _policy_of(root, table)
    _tell(found.show(found.alter_merge(_read(policy), hot=hot, dry_run=dry_run)), as_json, dry_run)


@partition.command()
def show(root: Root, table: Table, as_json: Json = False) -> None:
    """Show a table's policy."""
    _tell(_policy_of(root, table).show(), as_json)


@partition.command()
def delete(root: Root, table: Table, dry_run: DryRun = False, as_json: Json = False) -> None:
    """Delete a table's policy; its files are not changed."""
    found = _policy_of(root, table)
    found.delete(dry_run=dry_run)
    _tell(found.show(), as_json, dry_run)


@partition.command()
def run(
    root: Root,
    table: TableOrEvery,
    watch: Watch = False,
    interval: Interval = 5,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Partition new files and merge small ones; a dry run counts the pending files."""
    at_most_one(watch=watch, dry_run=dry_run)
    lake = open_lake(root)
    chosen = None if table == EVERY else lake.table(table).name
    if dry_run:
        with progress("reading the log …"):
            pending = (
                lake.partitioning.stats()
                if chosen is None
                else [lake.table(chosen).partitioning.stats()]
            )
        _tell(_one_table(pending), as_json, dry_run)
        return
    with progress("partitioning …") as update:
        process = lake.partitioning.process(
            chosen, on_step=lambda name, step: update(f"{name}: {step.value}")
        )
        if watch:
            report = process.watch(stop_on_signals(), interval=interval, on_report=_say)
        else:
            report = process.run()
    tables = [
        {
            "name": line.table,
            "operations": [receipt.as_dict() for receipt in line.receipts],
            "error": line.error,
        }
        for line in report.tables
    ]
    document = {"tables": tables, "capacity": report.capacity, "put_off": list(report.put_off)}
    tell(as_json, document, report.shown(), report, failed=report.failed)
    if chosen is not None and not report.tables and lake.table(chosen).partitioning.policy is None:
        warn(f"{chosen} has no partitioning policy. Hint: set one with `partition set`.")


@partition.command()
def stats(root: Root, table: TableOrEvery, as_json: Json = False) -> None:
    """Show the partitioned and pending files of each table; for '*' exit 1 if one is far behind."""
    with progress("reading the log …"):
        if table != EVERY:
            _tell(_policy_of(root, table).stats().shown(), as_json)
            return
        found = open_lake(root).partitioning.diagnostics()
    _tell(_one_table(found.tables), as_json, more=found.shown(), failed=found.is_behind)


@partition.command()
def advise(root: Root, table: Table, as_json: Json = False) -> None:
    """Advise whether the table should have a policy, and which."""
    with progress("looking at the columns …"):
        advice = _policy_of(root, table).advise()
    tell(as_json, advice.as_dict(), advice.shown(), advice)


def _policy_of(root: str, table: str) -> TablePolicy:
    if table == EVERY:
        raise UsageError(
            "A single table is needed, not '*'.", hint="only run and stats take all tables."
        )
    return open_table(root, table).partitioning


def _say(report: ProcessReport) -> None:
    if report.operations or report.failed:
        warn(repr(report))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} can't be read: {error}.") from error


def _one_table(tables: Sequence[TableStatistics]) -> TextTable:
    """Return the statistics of several tables, one row per table."""
    shown = [one.shown() for one in tables]
    columns = shown[0].columns if shown else ("TableName",)
    return TextTable(columns, tuple(row for one in shown for row in one.rows))


def _tell(
    shown: TextTable,
    as_json: bool,
    dry_run: bool = False,
    *,
    more: TextTable | None = None,
    failed: bool = False,
) -> None:
    document = shown.document()
    for row in document["rows"]:
        for name in ("Policy", "PartitioningPolicy"):
            if row.get(name) is not None:
                row[name] = json.loads(row[name])
    if more is not None:
        document["diagnostics"] = more.document()["rows"][0]
    tell(as_json, document, shown, more or "", DRY_RUN * dry_run, failed=failed)
