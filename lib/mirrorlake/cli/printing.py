"""The output of commands: results on stdout, as text or JSON; progress and warnings on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from mirrorlake.errors import with_place
from mirrorlake.results import Count, Finding, TextTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from mirrorlake.status import LakeStatus
    from mirrorlake.storage.files import Storage

APPLY_DOES_IT = "--apply does it."
DRY_RUN = "Nothing was changed: a dry run."
NOT_APPLIED = f"{DRY_RUN} {APPLY_DOES_IT}"
_NAME = 40  # characters of a name that are kept on one line
_NARROW = 19  # characters to which a column may be folded; a time fits

out = Console(soft_wrap=True)
err = Console(stderr=True, soft_wrap=True)


@contextmanager
def progress(text: str) -> Iterator[Callable[[str], None]]:
    """Show a spinner on a terminal; the yielded function changes its text."""
    if not err.is_terminal:
        yield lambda _: None
        return
    with err.status(escape(text)) as shown:
        yield lambda changed: shown.update(escape(changed))


def tell(as_json: bool, document: Any, *shown: object, failed: object = False) -> None:
    """Print a result, and exit with status 1 if a problem was found.

    Args:
        as_json: whether `--json` was given.
        document: the JSON document.
        shown: the parts for people; see `say`.
        failed: true if there is a problem.
    """
    if as_json:
        print_json(document)
    else:
        say(*shown)
    if failed:
        raise typer.Exit(1)


def print_json(document: Any) -> None:
    """Print the document of `--json`; in ASCII unless the output is UTF-8."""
    is_utf8 = (sys.stdout.encoding or "utf-8").lower() == "utf-8"  # a StringIO has none
    sys.stdout.write(json.dumps(document, ensure_ascii=not is_utf8, indent=2) + "\n")


def say(*shown: object) -> None:
    """Print tables, texts, and the `repr` of results; skip empty texts."""
    for part in shown:
        if isinstance(part, TextTable):
            if part.columns:  # a statement can have no result
                out.print(rich_table(part))
        elif part != "":
            text = part if isinstance(part, str) else repr(part)
            out.print(text, markup=False, highlight=False)


def warn(text: str) -> None:
    """Print a line on stderr."""
    err.print(text, markup=False, highlight=False)


def warn_other_folder(storage: Storage) -> None:
    """Warn about a root that contains something, but no lake."""
    from mirrorlake.landing.zone import is_other_folder

    if is_other_folder(storage):
        warn(f"mirrorlake: {storage.root} contains no lake. Hint: correct the root.")


def rich_table(shown: TextTable) -> RichTable:
    """Return a table for a terminal, with rich's markup escaped and long values wrapped.

    The first column is not wrapped, because people copy names from it. If the columns do not fit
    the terminal, each row becomes a block with one line per value, and no rows become one line.
    """
    rows = [[_cell(value) for value in row] for row in shown.rows]
    named = all(len(row[0]) <= _NAME for row in rows)
    lines = [shown.columns, *rows]
    widths = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
    least = [min(width, _NARROW) for width in widths]
    least[0] = widths[0] if named else least[0]
    if sum(least) + 3 * len(least) + 1 > out.width:
        table = RichTable(show_header=False)
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for row in rows:
            for column, value in zip(shown.columns, row, strict=True):
                table.add_row(escape(column), escape(value))
            table.add_section()
        if not rows:
            table.add_row("no rows", escape(", ".join(shown.columns)))
        return table
    table = RichTable()
    for n, (column, width) in enumerate(zip(shown.columns, least, strict=True)):
        no_wrap = named and n == 0
        table.add_column(escape(column), overflow="fold", no_wrap=no_wrap, min_width=width)
    for row in rows:
        table.add_row(*map(escape, row))
    return table


def status_parts(status: LakeStatus) -> list[object]:
    """Return what people read of a lake's status: the tables, then each problem as a line."""
    problems = [str(one) for one in (*status.problems, *status.warnings)]
    return [status.shown().without("problem", "fix"), *problems, status]


def _cell(value: object) -> str:
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, Count) else str(value)


def facts_of(done: Any) -> dict[str, Any]:
    """Return the document of a result on one table: its fields, with the table's name as text."""
    return {**asdict(done), "table": str(done.table)}


def print_rows(frame: DataFrame, *, as_json: bool, limit: int = 50) -> None:
    """Print the rows of a query: all as JSON, or the first `limit` as a table.

    Raises:
        QueryError: the query failed.
    """
    from mirrorlake.spark.dataframes import rows_document
    from mirrorlake.spark.sql import query_errors

    with progress("running the query …"), query_errors():
        document = rows_document(frame if as_json else frame.limit(limit + 1))
    tell(as_json, document, *first_rows(document, limit))


def first_rows(document: dict[str, Any], limit: int) -> tuple[TextTable, str]:
    """Return the first rows of a document as a table, and a note if there are more."""
    rows = tuple(
        tuple("NULL" if value is None else value for value in row.values())
        for row in document["rows"][:limit]
    )
    more = f"… and more; --limit {limit} shows the first {limit} rows."
    return TextTable(tuple(document["columns"]), rows), more * (len(document["rows"]) > limit)


def finding_line(found: Finding) -> str:
    """Return a finding as one line: rule, table, message with its place, and fix."""
    what = with_place(found.message, found.as_dict())
    text = f"{found.rule} {found.table or 'the zone'}: {what} Fix: {found.fix}"
    # A name from outside must not contain control sequences of the terminal.
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
