"""What all commands share: the app, its common options, progress, and how results are printed.

Exit status: 0 done; 1 a problem found; 2 wrong use. Logs and progress go to stderr.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table as RichTable

from mirrorlake.errors import QueryError, UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from mirrorlake.lake import Lake
    from mirrorlake.text_table import TextTable

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="An open lakehouse in notebooks.",
)
out = Console(soft_wrap=True)
err = Console(stderr=True, soft_wrap=True)

RootArgument = Annotated[str, typer.Argument(metavar="ROOT", help="The lake: a path or a URI.")]
TableArgument = Annotated[str, typer.Argument(metavar="TABLE", help="table or schema.table")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


def open_lake(root: str) -> Lake:
    """The lake at a root that must be there; a URI's is taken on trust."""
    from mirrorlake.lake import Lake

    if "://" not in root and not Path(root).is_dir():
        raise UsageError(f"There is no lake at {root}.", hint="publish something there first.")
    return Lake(root)


def split_names(text: str) -> list[str]:
    """Names that were given with commas between them."""
    return [name.strip() for name in text.split(",") if name.strip()]


def stop_on_signals() -> Event:
    """An event that SIGTERM and Ctrl-C set, for what ends after the work at hand."""
    stop = Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: stop.set())
    return stop


@contextmanager
def progress(text: str) -> Iterator[Callable[[str], None]]:
    """A spinner on a terminal, whose text can be changed; nothing in a pipe."""
    if not err.is_terminal:
        yield lambda _: None
        return
    with err.status(literal(text)) as shown:
        yield lambda changed: shown.update(literal(changed))


def print_json(document: Any) -> None:
    """The one document that a command prints with `--json`."""
    sys.stdout.write(json.dumps(document, ensure_ascii=False, indent=2) + "\n")


def literal(text: str) -> str:
    """Text that rich must not take for its markup."""
    from rich.markup import escape

    return escape(text)


def print_shown(shown: TextTable) -> None:
    """A small result, as a table."""
    table = RichTable(*map(literal, shown.columns))
    for row in shown.rows:
        table.add_row(*[literal("" if value is None else str(value)) for value in row])
    out.print(table)


def print_rows(frame: DataFrame, *, as_json: bool, limit: int = 50) -> None:
    """A query's rows: all of them as JSON, or the first few as a table.

    Raises:
        QueryError: Spark failed it.
    """
    from mirrorlake.show.json_rows import rows_document
    from mirrorlake.spark.messages import spark_message

    with progress("running the query …"):
        try:
            document = rows_document(frame if as_json else frame.limit(limit + 1))
        except Exception as error:
            raise QueryError(spark_message(error)) from error
    print_document(document, as_json=as_json, limit=limit)


def print_document(document: dict[str, Any], *, as_json: bool, limit: int = 50) -> None:
    """Columns and rows: as they are with `--json`, or the first few as a table."""
    if as_json:
        print_json(document)
        return
    table = RichTable(*map(literal, document["columns"]))
    for row in document["rows"][:limit]:
        table.add_row(*[literal("NULL" if v is None else str(v)) for v in row.values()])
    out.print(table)
    if len(document["rows"]) > limit:
        out.print(f"… and more; --limit {limit} shows the first {limit} rows.")
