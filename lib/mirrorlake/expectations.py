"""Expectations: queries over a lake that must return no row, and what they found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from mirrorlake.errors import MirrorlakeError, UsageError
from mirrorlake.results import Result, TextTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class RunsSql(Protocol):
    """Runs a query; see `Lake.sql`."""

    def __call__(self, query: str, *, read_only: bool) -> DataFrame:
        """The query's rows."""


@dataclass(frozen=True)
class Expectation:
    """One query that must return no row.

    Attributes:
        name: what is expected.
        query: the SQL.
        rows: how many rows it returned, at most one more than are kept; None if it failed.
        found: the first of them.
        error: why it failed, or None.
    """

    name: str
    query: str
    rows: int | None = 0
    found: TextTable = field(default_factory=lambda: TextTable((), ()))
    error: str | None = None

    @property
    def is_met(self) -> bool:
        """Whether the query ran and returned no row."""
        return self.rows == 0

    @property
    def problem(self) -> str:
        """What is wrong, as a text; empty if nothing is."""
        if self.error:
            return self.error
        some = f"more than {len(self.found.rows)}" if self.found.more else str(self.rows)
        return "" if self.is_met else f"{some} row{'s' * (self.rows != 1)}"


@dataclass(frozen=True)
class Expectations(Result):
    """All expectations, in the order in which they were given."""

    checked: tuple[Expectation, ...]

    @property
    def broken(self) -> tuple[Expectation, ...]:
        """Those that are not met."""
        return tuple(one for one in self.checked if not one.is_met)

    def as_dict(self) -> dict[str, Any]:
        """The document of the result."""
        entries = [asdict(one) | {"found": one.found.document()} for one in self.checked]
        return {"expectations": entries}

    def shown(self) -> TextTable:
        """One row for each expectation."""
        rows = tuple(
            (one.name, "met" if one.is_met else "not met", one.problem) for one in self.checked
        )
        return TextTable(("expectation", "result", "found"), rows)

    def __repr__(self) -> str:
        if not self.checked:
            return "no expectations were given"
        return f"{len(self.checked) - len(self.broken)} of {len(self.checked)} expectations are met"


def check_expectations(sql: RunsSql, queries: Mapping[str, str], *, limit: int = 5) -> Expectations:
    """Runs the queries; arguments and errors are those of `Lake.check_expectations`."""
    if not isinstance(queries, Mapping) or not all(
        isinstance(text, str) for pair in queries.items() for text in pair
    ):
        raise UsageError(
            f"The expectations are {queries!r}.",
            hint="they are a mapping: what is expected, and a query that must return no row.",
        )
    return Expectations(tuple(_check(sql, name, query, limit) for name, query in queries.items()))


def _check(sql: RunsSql, name: str, query: str, limit: int) -> Expectation:
    from mirrorlake.show.tables import show_rows

    try:
        found = show_rows(sql(query, read_only=True), limit=limit)
    except MirrorlakeError as error:
        return Expectation(name, query, None, error=str(error))
    return Expectation(name, query, len(found.rows) + found.more, found)
