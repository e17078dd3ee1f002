"""What all commands share: the app, common options, progress, and how results are printed.

Exit status: 0 done; 1 a problem found; 2 wrong use. Logs and progress go to stderr.

One rule: what loses no row and no history acts, and `--dry-run` only says what would be done; what
deletes, takes back or passes over only says it, and `--apply` does it.
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
from rich.markup import escape
from rich.table import Table as RichTable

from mirrorlake.errors import QueryError, TableNotFoundError, UsageError
from mirrorlake.lake import Lake
from mirrorlake.names import TableName
from mirrorlake.results import TextTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from mirrorlake.lake_table import LakeTable

APPLY_DOES_IT = "--apply does it."
DRY_RUN = "Nothing was changed: a dry run."

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
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Only say what would be done; change nothing.")
]
ApplyOption = Annotated[
    bool, typer.Option("--apply", help="Do it. Without, only say what would be done.")
]
WatchOption = Annotated[bool, typer.Option("--watch/--once", help="Go on until SIGTERM or Ctrl-C.")]
IntervalOption = Annotated[float, typer.Option(help="Seconds between busy rounds.", min=0.1)]
LimitOption = Annotated[int, typer.Option(help="Most rows to show; --json has all.", min=0)]


def verbs(noun: str, text: str) -> typer.Typer:
    """A group of commands: `NOUN VERB ROOT …`, each verb with its own help and options."""
    group = typer.Typer(no_args_is_help=True, help=text)
    app.add_typer(group, name=noun)
    return group


def open_lake(root: str) -> Lake:
    """The lake at a root that must be there; a URI is not checked."""
    if "://" not in root and not Path(root).is_dir():
        raise UsageError(f"There is no lake at {root}.", hint="publish something there first.")
    return Lake(root)


def find_table(lake: Lake, text: str) -> TableName:
    """A table of the lake by the name a person typed.

    Raises:
        TableNotFoundError: there is none of that name.
    """
    wanted = TableName.parse(text)
    found = lake.find(wanted)
    if found is None:
        known = ", ".join(map(str, lake.tables()[:10])) or "no table at all"
        raise TableNotFoundError(
            f"There is no table {wanted} in the lake.", hint=f"it has {known}."
        )
    return found


def open_table(root: str, table: str) -> LakeTable:
    """A Delta table that must be there.

    Raises:
        TableNotFoundError: there is none of that name.
    """
    lake = open_lake(root)
    return lake.table(find_table(lake, table))


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
    with err.status(escape(text)) as shown:
        yield lambda changed: shown.update(escape(changed))


def print_json(document: Any) -> None:
    """The one document that a command prints with `--json`."""
    sys.stdout.write(json.dumps(document, ensure_ascii=False, indent=2) + "\n")


def tell(as_json: bool, document: Any, *shown: object, note: str = "") -> None:
    """Prints a result: its document with `--json`, or else what people read.

    Args:
        as_json: whether `--json` was given.
        document: what JSON holds.
        shown: tables, texts, and results that say in their `repr` what was or would be done.
        note: what to say last, if anything.
    """
    if as_json:
        print_json(document)
        return
    for part in (*shown, *([note] if note else [])):
        if isinstance(part, TextTable):
            rows = [["" if value is None else str(value) for value in row] for row in part.rows]
            out.print(rich_table(part.columns, rows))
        elif isinstance(part, RichTable):
            out.print(part)
        else:
            text = part if isinstance(part, str) else repr(part)
            out.print(text, markup=False, highlight=False)


def rich_table(columns: Any, rows: Any, *, title: str | None = None) -> RichTable:
    """A table for a terminal; nothing in it is taken for rich's markup."""
    table = RichTable(*map(escape, columns), title=title)
    for row in rows:
        table.add_row(*map(escape, row))
    return table


def print_rows(frame: DataFrame, *, as_json: bool, limit: int = 50) -> None:
    """A query's rows: all of them as JSON, or the first few as a table.

    Raises:
        QueryError: Spark failed it.
    """
    from mirrorlake.show.tables import rows_document
    from mirrorlake.spark.sql import spark_message

    with progress("running the query …"):
        try:
            document = rows_document(frame if as_json else frame.limit(limit + 1))
        except Exception as error:
            raise QueryError(spark_message(error)) from error
    tell(as_json, document, *first_rows(document, limit))


def first_rows(document: dict[str, Any], limit: int) -> list[object]:
    """The first few of a document's rows as a table, and how to get more of them."""
    rows = [
        ["NULL" if value is None else str(value) for value in row.values()]
        for row in document["rows"][:limit]
    ]
    more = f"… and more; --limit {limit} shows the first {limit} rows."
    found: list[object] = [rich_table(document["columns"], rows)]
    return [*found, more] if len(document["rows"]) > limit else found


def finding_line(found: Any) -> str:
    """A finding as one line: rule, table, what and where, and the fix."""
    places = (("file", found.file), ("row", found.row), ("column", found.column))
    where = ", ".join(f"{label} {value}" for label, value in places if value is not None)
    text = f"{found.rule} {found.table or 'the zone'}: {found.message}"
    text += f"{f' [{where}]' if where else ''} Fix: {found.fix}"
    # A name from outside must not steer the terminal.
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
