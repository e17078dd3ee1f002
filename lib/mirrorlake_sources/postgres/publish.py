"""A PostgreSQL database in a notebook's words: check it, then publish it; no secret is shown."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from mirrorlake.errors import MirrorlakeError, UsageError
from mirrorlake.results import Result, TextTable
from mirrorlake.source_status import SourceReport
from mirrorlake_sources.engine import run_source
from mirrorlake_sources.postgres.naming import reseeded
from mirrorlake_sources.postgres.source import PostgresSource

if TYPE_CHECKING:
    from mirrorlake.lake import Lake

DSN = "MIRRORLAKE_DSN"


@dataclass(frozen=True)
class CheckedTable:
    """Whether one table can be published.

    Attributes:
        table: its name in the lake.
        keys: its key columns; empty for inserts only.
        problem: what is in the way; None if nothing is.
        hint: what to run at the server.
    """

    table: str
    keys: tuple[str, ...] = ()
    problem: str | None = None
    hint: str | None = None


@dataclass(frozen=True)
class PostgresCheck(Result):
    """What a database would publish.

    Attributes:
        database: the source's name; empty if no database is named.
        tables: those that are asked for.
    """

    database: str
    tables: tuple[CheckedTable, ...] = ()

    @property
    def ready(self) -> bool:
        """Whether there is a table that can be published."""
        return any(one.problem is None for one in self.tables)

    def as_dict(self) -> dict[str, Any]:
        """The check as a document."""
        return asdict(self)

    def shown(self) -> TextTable:
        """A line a table: its key, or what is in the way and the statement that helps."""
        if not self.database:
            text = f"No database is named: set {DSN}, or the parameter dsn, and tables."
            return TextTable(("note",), ((text,),))
        rows = tuple(
            (
                one.table,
                ", ".join(one.keys) or "none: inserts only",
                one.problem or "",
                one.hint or "",
            )
            for one in self.tables
        )
        return TextTable(("table", "key", "problem", "what helps"), rows)

    def __repr__(self) -> str:
        good = sum(one.problem is None for one in self.tables)
        return f"{good} of {len(self.tables)} tables can be published"


def check_postgres(
    tables: Iterable[str], dsn: str = "", *, slot: str = "mirrorlake", toast: str = "refuse"
) -> PostgresCheck:
    """Looks whether tables of a database can be published; changes nothing there.

    Args:
        tables: their names; `public.t` is `t`.
        dsn: libpq's connection string; empty: the variable `MIRRORLAKE_DSN`.
        slot: the name of the slot at the server.
        toast: see `PostgresSource`.

    Returns:
        A line a table; nothing if no database or no table is named.

    Raises:
        SourceError: the server can't be reached, or lacks something for all tables.

    Example:
        >>> check_postgres(["orders"], "host=db dbname=shop")  # doctest: +SKIP
        1 of 1 tables can be published
    """
    place, names = dsn or os.environ.get(DSN, ""), list(tables)
    if not place or not names:
        return PostgresCheck("")
    source = PostgresSource(place, names, slot=slot, toast=toast)
    with source:
        found = source.examine()
        return PostgresCheck(
            source.name,
            tuple(
                CheckedTable(str(table), problem=known.message, hint=known.hint)
                if isinstance(known, MirrorlakeError)
                else CheckedTable(str(table), known)
                for table, known in found.items()
            ),
        )


def publish_postgres(
    lake: Lake,
    tables: Iterable[str],
    dsn: str = "",
    *,
    slot: str = "mirrorlake",
    toast: str = "refuse",
    text: Iterable[str] = (),
    reseed: Iterable[str] = (),
) -> SourceReport:
    """Publishes tables of a database up to now: a snapshot where there is none, then all changes.

    Args:
        lake: where to.
        tables: their names; `public.t` is `t`.
        dsn: libpq's connection string; empty: the variable `MIRRORLAKE_DSN`.
        slot: the name of the slot at the server; two lakes need two.
        toast: see `PostgresSource`.
        text: columns to land as psql prints them, as `table.column`.
        reseed: tables to load again from the start.

    Raises:
        UsageError: no database is named.
        SourceError: the server can't be reached, or has lost the slot.

    Example:
        >>> publish_postgres(lake, ["orders"], "host=db dbname=shop")  # doctest: +SKIP
        postgres:74…/shop/mirrorlake: 12 rows and changes of 1 tables published
    """
    place = dsn or os.environ.get(DSN, "")
    if not place:
        raise UsageError("No database is named.", hint=f"set {DSN}, or hand over a dsn.")
    source = PostgresSource(place, tables, slot=slot, toast=toast, text=text)
    again = reseeded(list(reseed))
    return run_source(lake.storage, source, reseed=again, footer=lake.published_footer)
