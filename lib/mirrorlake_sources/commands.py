"""Commands that publish from sources: PostgreSQL, Debezium, Kafka, and folders of CSV files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from mirrorlake.cli import open_lake, stop_on_signals, verbs
from mirrorlake.cli.options import Json, Root, Watch
from mirrorlake.cli.printing import progress, tell
from mirrorlake.errors import UsageError
from mirrorlake.names import split_names

if TYPE_CHECKING:
    from mirrorlake.names import TableName
    from mirrorlake_sources.source import Source

source = verbs("source", "Publish from databases, event streams and folders, exactly once.")

FolderArgument = Annotated[Path, typer.Argument(help="The folder of the source's files.")]
KeysOption = Annotated[
    list[str] | None, typer.Option(help="Key columns as TABLE=a,b; repeat it for each table.")
]
AtLeast = Annotated[
    float, typer.Option(help="Longest time between two publications, in seconds.", min=0.05)
]


@source.command()
def postgres(
    root: Root,
    tables: Annotated[str, typer.Option(help="Names of tables, separated by commas.")],
    dsn: Annotated[
        str, typer.Option(help="Connection string or URI for libpq.", envvar="MIRRORLAKE_DSN")
    ] = "",
    watch: Watch = False,
    reseed: Annotated[str, typer.Option(help="Tables to load again, separated by commas.")] = "",
    slot: Annotated[str, typer.Option(help="Name of the replication slot.")] = "mirrorlake",
    toast: Annotated[
        Literal["refuse", "lookup", "keep"],
        typer.Option(help="How to treat large values that an update does not change."),
    ] = "refuse",
    text: Annotated[str, typer.Option(help="Columns to publish as text: table.column,…")] = "",
    interval: AtLeast = 5,
    verify: Annotated[
        bool, typer.Option("--verify", help="Compare the lake's tables with the database.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Publish tables of a PostgreSQL database: a snapshot, then every change."""
    from mirrorlake_sources.postgres.catalog import parse_tables
    from mirrorlake_sources.postgres.source import PostgresSource

    if verify:
        if watch or reseed:
            raise UsageError("--verify can't be combined with --watch or --reseed.")
        from mirrorlake_sources.postgres.verify import verify_postgres

        with progress("comparing …"):
            found = verify_postgres(open_lake(root), tables, dsn, slot=slot, toast=toast, text=text)
        tell(as_json, found.as_dict(), found.shown(), *found.lines, found, failed=found.failed)
        return
    one = PostgresSource(
        dsn,
        split_names(tables),
        slot=slot,
        toast=toast,
        text=split_names(text),
        interval=interval,
    )
    _run(root, one, watch=watch, reseed=parse_tables(split_names(reseed)), as_json=as_json)


@source.command()
def debezium(
    root: Root,
    folder: FolderArgument,
    keys: KeysOption = None,
    watch: Watch = False,
    as_json: Json = False,
) -> None:
    """Publish Debezium events from files with one event per line, which may grow."""
    from mirrorlake.storage.files import Storage
    from mirrorlake_sources.folders import DebeziumFiles

    one = DebeziumFiles(folder, Storage(root), keys=_keys(keys))
    _run(root, one, watch=watch, as_json=as_json)


@source.command()
def kafka(
    root: Root,
    servers: Annotated[str, typer.Option(help="Brokers, as host:port,…")],
    topics: Annotated[str, typer.Option(help="Topics, separated by commas; * matches any text.")],
    keys: KeysOption = None,
    name: Annotated[
        str, typer.Option(help="Name of the source; sources of one cluster need different names.")
    ] = "mirrorlake",
    settings: Annotated[
        Path | None, typer.Option(help="File with settings of librdkafka, one name=value per line.")
    ] = None,
    watch: Watch = False,
    interval: AtLeast = 5,
    as_json: Json = False,
) -> None:
    """Publish Debezium events from Kafka topics, as JSON with separate keys."""
    from mirrorlake.storage.files import Storage
    from mirrorlake_sources.kafka import KafkaSource

    one = KafkaSource(
        servers,
        split_names(topics),
        Storage(root),
        name=name,
        keys=_keys(keys),
        settings=_settings(settings),
        interval=interval,
    )
    _run(root, one, watch=watch, as_json=as_json)


def _settings(file: Path | None) -> dict[str, str]:
    """Read settings from a file, because other users can read the arguments of a process."""
    if file is None:
        return {}
    found = {}
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UsageError(f"{file} can't be read: {error.strerror}.") from error
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if text and not text.startswith("#"):
            name, equals, value = text.partition("=")
            if not equals:
                raise UsageError(f"Line {number} of {file} does not have the form name=value.")
            found[name.strip()] = value.strip()
    return found


@source.command(name="csv")
def csv_drops(
    root: Root,
    folder: FolderArgument,
    keys: KeysOption = None,
    watch: Watch = False,
    as_json: Json = False,
) -> None:
    """Publish the CSV files FOLDER/TABLE/*.csv, which may grow and may arrive twice, as text."""
    from mirrorlake_sources.folders import CsvDrops

    one = CsvDrops(folder, keys=_keys(keys))
    _run(root, one, watch=watch, as_json=as_json)


def _keys(given: list[str] | None) -> dict[str, list[str]]:
    found = {}
    for one in given or ():
        table, equals, columns = one.partition("=")
        if not equals or not split_names(columns):
            raise UsageError(f"{one!r} is not a key.", hint="write TABLE=a,b.")
        found[table] = split_names(columns)
    return found


def _run(
    root: str, one: Source, *, watch: bool, as_json: bool, reseed: Sequence[TableName] = ()
) -> None:
    from mirrorlake.storage.files import Storage
    from mirrorlake_sources.engine import problem_lines, run_source

    stop = stop_on_signals()
    report = run_source(Storage(root), one, once=not watch, stop=stop, reseed=reseed)
    shown = (report.shown(), *problem_lines(report), report)
    tell(as_json, report.as_dict(), *shown, failed=report.failed)
