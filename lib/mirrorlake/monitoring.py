"""How a lake is: what waits, what stopped, what is wrong, and what is not as it is expected.

Expectations are queries over the lake that must return no row; Spark starts only for them.
Everything is read, nothing written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from mirrorlake.delta.snapshot import delta_tables
from mirrorlake.errors import CheckError, MirrorlakeError, UsageError
from mirrorlake.mirror.ledger import count_quarantined
from mirrorlake.results import Result, TextTable, moment_text
from mirrorlake.source_status import SourceReport, source_reports

if TYPE_CHECKING:
    from mirrorlake.lake import Lake
    from mirrorlake.landing.lint_rules import LintReport
    from mirrorlake.mirror.ledger import Ledger
    from mirrorlake.mirror.status import Report
    from mirrorlake.views.definition import ViewStatus

_MOST = 6
_FILES = 200


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


def check_expectations(lake: Lake, queries: Mapping[str, str], *, limit: int = 5) -> Expectations:
    """Runs the queries; arguments and errors are those of `Lake.check_expectations`."""
    if not isinstance(queries, Mapping) or not all(
        isinstance(text, str) for pair in queries.items() for text in pair
    ):
        raise UsageError(
            f"The expectations are {queries!r}.",
            hint="they are a mapping: what is expected, and a query that must return no row.",
        )
    return Expectations(tuple(_check(lake, name, query, limit) for name, query in queries.items()))


def _check(lake: Lake, name: str, query: str, limit: int) -> Expectation:
    from mirrorlake.show.tables import show_rows

    try:
        found = show_rows(lake.sql(query, read_only=True), limit=limit)
    except MirrorlakeError as error:
        return Expectation(name, query, None, error=str(error))
    return Expectation(name, query, len(found.rows) + found.more, found)


@dataclass(frozen=True)
class Problem:
    """One thing that ends a run with an error: where, and what."""

    what: str
    where: str
    message: str


@dataclass(frozen=True)
class Monitoring(Result):
    """How a lake is.

    Attributes:
        report: the tables that publishers feed.
        views: the views.
        quarantined: rows and files in quarantine, by table.
        lint: what is wrong in the landing zone.
        expectations: queries that must return no row.
        sources: how the sources stood when they last said so.
        problems: what is beyond a limit.
    """

    report: Report
    views: tuple[ViewStatus, ...]
    quarantined: dict[str, int]
    lint: LintReport
    expectations: Expectations
    sources: tuple[SourceReport, ...]
    problems: tuple[Problem, ...]

    def shown(self) -> TextTable:
        """The problems; if there are none, that."""
        if not self.problems:
            return TextTable(("result",), (("Nothing is beyond a limit.",),))
        return TextTable.of(self.problems, ("what", "where", "message"))

    @property
    def tables(self) -> TextTable:
        """One row for each table that a publisher feeds; if there is none, that."""
        if not self.report.tables:
            return _note("No publisher feeds a table of this lake.")
        columns = (
            "table", "state", "rows", "last file", "waiting", "lag", "quarantined", "problem",
        )  # fmt: skip
        rows = tuple(
            (
                line.full_name,
                line.state,
                line.rows,
                line.last_file,
                line.backlog_files,
                f"{line.lag_seconds:.0f} s",
                self.quarantined.get(line.full_name, 0),
                line.error["message"]
                if line.error
                else f"file {line.waiting_for} is missing"
                if line.waiting_for
                else "",
            )
            for line in self.report.tables
        )
        return TextTable(columns, rows)

    @property
    def view_states(self) -> TextTable:
        """One row for each view; if there is none, that."""
        if not self.views:
            return _note("The lake has no views.")
        rows = tuple(
            (
                one.view,
                one.state,
                ", ".join(
                    f"{s.table} at {'?' if s.shown is None else s.shown}"
                    f" of {'?' if s.newest is None else s.newest}"
                    for s in one.sources
                ),
                "?" if one.lag_seconds is None else f"{one.lag_seconds:.0f} s",
            )
            for one in self.views
        )
        return TextTable(("view", "state", "shows", "lag"), rows)

    @property
    def source_states(self) -> TextTable:
        """One row for each source, with its lag and its slot's state; if there is none, that."""
        if not self.sources:
            return _note("No source feeds this lake.")
        rows = tuple(
            (
                one.source,
                one.state,
                moment_text(one.at),
                len(one.tables),
                ", ".join(f"{name} {value}" for name, value in one.facts.items()),
                one.error or "; ".join(f"{t.table}: {t.error}" for t in one.tables if t.error),
            )
            for one in self.sources
        )
        return TextTable(("source", "state", "said at", "tables", "says", "problem"), rows)

    def check(self) -> None:
        """Ends a run with an error if something is beyond a limit.

        Raises:
            CheckError: with the first problem.
        """
        if self.problems:
            first = self.problems[0]
            others = f" ({len(self.problems)} problems in all)" if len(self.problems) > 1 else ""
            raise CheckError(
                f"{first.what} of {first.where}: {first.message}{others}",
                hint="the notebook's tables have the rest.",
            )

    def __repr__(self) -> str:
        return f"{len(self.report.tables)} tables, {len(self.problems)} problems"


def _note(text: str) -> TextTable:
    return TextTable(("note",), ((text,),))


def monitor_lake(
    lake: Lake,
    *,
    max_lag: float = 0,
    max_backlog: int = 0,
    expectations: Mapping[str, str] | None = None,
) -> Monitoring:
    """Looks at a lake's tables, views, sources, zone and quarantine, and what is expected of it.

    A table that an error stopped, a source or a table of it that is stopped, and an expectation
    that is not met are always problems.

    Args:
        lake: the lake.
        max_lag: most seconds that a published file, or a view's source, may wait; 0 for no limit.
        max_backlog: most files that may wait in one table's folder; 0 for no limit.
        expectations: see `Lake.check_expectations`.

    Raises:
        UsageError: a limit is less than 0, or the expectations are no mapping.

    Example:
        >>> monitor_lake(lake, max_lag=3600).problems  # doctest: +SKIP
        ()
    """
    if max_lag < 0 or max_backlog < 0:
        raise UsageError("A limit is less than 0.", hint="0 stands for no limit.")
    met = check_expectations(lake, expectations or {})
    report = lake.status()
    others = delta_tables(lake.storage, but=report.fed)
    views = tuple(lake.views.status(others)) if others else ()
    problems = [
        Problem("error", line.full_name, line.error["message"])
        for line in report.tables
        if line.error
    ]
    for line in report.tables:
        if 0 < max_lag < line.lag_seconds:
            text = f"{line.lag_seconds:.0f} s, {max_lag:g} s are allowed"
            problems.append(Problem("lag", line.full_name, text))
        if 0 < max_backlog < line.backlog_files:
            text = f"{line.backlog_files} files, {max_backlog} are allowed"
            problems.append(Problem("backlog", line.full_name, text))
    for view in views:
        if 0 < max_lag < (view.lag_seconds or 0):
            text = f"{view.lag_seconds:.0f} s, {max_lag:g} s are allowed"
            problems.append(Problem("lag", view.view, text))
    sources = tuple(source_reports(lake.storage))
    for source in sources:
        problems += [Problem("source", where, text) for where, text in source.problems]
    problems += [Problem("expectation", one.name, one.problem) for one in met.broken]
    lint, quarantined = lake.lint(), count_quarantined(lake.storage)
    return Monitoring(report, views, quarantined, lint, met, sources, tuple(problems))


def recent_ledgers(lake: Lake) -> tuple[Ledger, ...]:
    """The newest batches of the tables that publishers feed, for a picture of their lag.

    Returns:
        Of at most six tables, those with the most files first; at most 200 batches of each.
    """
    lines = sorted(lake.status().tables, key=lambda line: (-line.last_file, line.full_name))
    names = [table for line in lines if line.last_file and (table := line.table)]
    return tuple(lake.operations.ledger(name, last=_FILES) for name in names[:_MOST])
