"""The status of a lake: tables, views, sources, quarantine, expectations, and the problems.

Everything is read from listings, kept states and logs; nothing is written. Spark starts only for
expectations, which are queries that must return no row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from mirrorlake.delta.snapshot import (
    MAPPING_FIX,
    VECTOR_READERS,
    Snapshot,
    delta_tables,
    mapping_problem,
    read_snapshot,
)
from mirrorlake.errors import CheckError, MirrorlakeError, UsageError
from mirrorlake.landing.zone import is_lake
from mirrorlake.mirror.ledger import count_quarantined
from mirrorlake.mirror.options import VIEW_PROPERTY
from mirrorlake.mirror.status import TableStatus as TableStatus
from mirrorlake.mirror.status import (
    error_table,
    lag_text,
    largest_first,
    names_of,
    skip_note,
    table_statuses,
)
from mirrorlake.names import TABLES, ZONE, TableName
from mirrorlake.results import (
    Count,
    Entries,
    Result,
    TextTable,
    counted,
    moment_text,
    optional_figure,
)
from mirrorlake.source_status import SourceReport, source_reports
from mirrorlake.storage.files import Storage, map_concurrently

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from mirrorlake.mirror.lag import What
    from mirrorlake.show.chart import Chart
    from mirrorlake.views.definition import ViewStatus as ViewStatus


@dataclass(frozen=True)
class Expectation:
    """One query that must return no row.

    Attributes:
        name: the expectation, in words.
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
        """The number of rows, or why the query failed; empty if the expectation is met."""
        if self.error:
            return self.error
        if self.is_met:
            return ""
        rows = len(self.found.rows)
        return f"more than {counted(rows, 'row')}" if self.found.more else counted(rows, "row")


@dataclass(frozen=True)
class Expectations(Result):
    """The results of all expectations, in the order in which they were given."""

    checked: tuple[Expectation, ...] = ()

    @property
    def broken(self) -> tuple[Expectation, ...]:
        """The expectations that are not met."""
        return tuple(one for one in self.checked if not one.is_met)

    def as_dict(self) -> dict[str, Any]:
        """Return the document of the result."""
        entries = [asdict(one) | {"found": one.found.document()} for one in self.checked]
        return {"expectations": entries}

    def shown(self) -> TextTable:
        """Return one row per expectation."""
        rows = tuple(
            (one.name, "met" if one.is_met else "not met", one.problem) for one in self.checked
        )
        return TextTable(("expectation", "result", "found"), rows)

    def __repr__(self) -> str:
        if not self.checked:
            return "no expectations were given"
        total, verb = len(self.checked), "is" if len(self.checked) == 1 else "are"
        return f"{total - len(self.broken):,} of {counted(total, 'expectation')} {verb} met"


def check_expectations(
    run: Callable[[str], DataFrame], queries: Mapping[str, str], *, limit: int = 5
) -> Expectations:
    """Run the queries; the other arguments and errors are those of `Lake.check_expectations`.

    Args:
        run: runs one query of the lake.
        queries: SQL by expectation.
        limit: the most rows to keep of each query.
    """
    if not isinstance(queries, Mapping) or not all(
        isinstance(text, str) for pair in queries.items() for text in pair
    ):
        raise UsageError(
            f"The expectations are {queries!r}.",
            hint="give a mapping from each expectation to a query that must return no row.",
        )
    return Expectations(tuple(_check(run, name, text, limit) for name, text in queries.items()))


def _check(run: Callable[[str], DataFrame], name: str, query: str, limit: int) -> Expectation:
    from mirrorlake.spark.dataframes import show_rows

    try:
        found = show_rows(run(query), limit=limit)
    except MirrorlakeError as error:
        return Expectation(name, query, None, error=str(error))
    return Expectation(name, query, len(found.rows) + found.more, found)


@dataclass(frozen=True)
class Problem:
    """One problem of a lake.

    Attributes:
        kind: `error`, `missing file`, `column mapping`, `lag`, `backlog`, `source` or
            `expectation`.
        where: the table, view, source or expectation.
        message: the problem, as a sentence.
        fix: the action that solves it; empty if none is known.
    """

    kind: str
    where: str
    message: str
    fix: str = ""

    def __str__(self) -> str:
        return f"{self.where}: {self.message}{f' Fix: {self.fix}' if self.fix else ''}"


@dataclass(frozen=True)
class LakeStatus(Result):
    """The status of a lake.

    The tables were read when the status was asked for; views, sources and quarantine are read
    when they are first used.

    Attributes:
        tables: the tables that publishers feed, ordered by name.
        storage: the lake's files.
        max_lag: most seconds that a published file, or a change of a view's source, may wait; None
            for no limit.
        max_backlog: most files of a table that may wait; None for no limit.
        expectations: the results of the queries that must return no row.
        must_exist: whether it is a problem if the folder contains no lake.
    """

    tables: Entries[TableStatus]
    storage: Storage = field(repr=False, compare=False)
    max_lag: float | None = None
    max_backlog: int | None = None
    expectations: Expectations = Expectations()
    must_exist: bool = False

    @cached_property
    def _views(self) -> tuple[list[ViewStatus], str]:
        others = delta_tables(self.storage, but=names_of(self.tables))
        try:
            return read_views(self.storage, others), ""
        except ImportError as error:  # the tables' status needs no extra
            return [], f"Views are left out: {error}"

    @property
    def notes(self) -> tuple[str, ...]:
        """Which readers can't read the tables, whether views are left out, and pending skips."""
        marked = sum(snapshot.requires_vectors for _, snapshot in self._snapshots)
        text = f"{counted(marked, 'table')}: {VECTOR_READERS}." if marked else ""
        skips = ((one.full_name, skip_note(one.skipped)) for one in self.tables)
        found = (f"{table}: {skip}" for table, skip in skips if skip)
        return tuple(filter(None, (self._views[1], text, *found)))

    @cached_property
    def views(self) -> Entries[ViewStatus]:
        """The views with the versions of their sources that they show."""
        return Entries(
            self._views[0],
            ("view", "state", "version", "sources at versions", "lag", "reason"),
            _view_row,
            "The lake has no views.",
        )

    @cached_property
    def sources(self) -> Entries[SourceReport]:
        """The databases and streams that feed the lake, as each last reported."""
        return Entries(
            source_reports(self.storage),
            ("source", "state", "reported at", "tables", "details", "problem"),
            _source_row,
            "No source feeds this lake.",
        )

    @cached_property
    def quarantine(self) -> dict[str, int]:
        """The number of rows and files in quarantine, by table."""
        return count_quarantined(self.storage)

    @cached_property
    def problems(self) -> Entries[Problem]:
        """Failed tables, views and sources, exceeded limits, and expectations that are not met."""
        found = [*self.table_problems, *self._view_problems()]
        found += [
            Problem("source", where, text)
            for source in self.sources
            for where, text in source.problems
        ]
        found += [Problem("expectation", one.name, one.problem) for one in self.expectations.broken]
        return _problems(found, "There are no problems.")

    @cached_property
    def table_problems(self) -> Entries[Problem]:
        """The problems of the tables: errors, and a lag or backlog beyond its limit."""
        found = [
            Problem("error", one.full_name, one.problem, one.fix)
            for one in self.tables
            if one.error
        ]
        if self.must_exist and not self.tables and not is_lake(self.storage):
            # For example, the disk of the lake is not mounted.
            text = f"It is not a lake: it has neither {ZONE} nor {TABLES}."
            fix = "correct the root, or mount the disk of the lake."
            found.append(Problem("error", self.storage.root, text, fix))
        for one in self.tables:
            found += self._late(one.full_name, one.lag_seconds)
            if self.max_backlog is not None and one.backlog_files > self.max_backlog:
                text = f"The backlog of {counted(one.backlog_files, 'file')} exceeds the limit of "
                text += f"{counted(self.max_backlog, 'file')}."
                found.append(Problem("backlog", one.full_name, text))
        return _problems(found, "The tables have no problems.")

    @cached_property
    def warnings(self) -> Entries[Problem]:
        """Missing files, which may still be published, and tables that some readers can't read."""
        found = [
            Problem("missing file", one.full_name, one.problem, one.fix)
            for one in self.tables
            if one.waiting_for is not None and not one.error
        ]
        found += [
            Problem("column mapping", str(table), mapping_problem(snapshot.schema), MAPPING_FIX)
            for table, snapshot in self._snapshots
            if snapshot.is_mapped
        ]
        return _problems(found, "There are no warnings.")

    @cached_property
    def _snapshots(self) -> list[tuple[TableName, Snapshot]]:
        """The mirrored tables whose logs can be read."""

        def read(table: TableName) -> Snapshot | None:
            with suppress(MirrorlakeError):  # the table's own status has the error
                return read_snapshot(self.storage, table.table_path)
            return None

        tables = largest_first(self.tables)
        found = map_concurrently(self.storage, read, tables)
        return [(t, one) for t, one in zip(tables, found, strict=True) if one is not None]

    def _view_problems(self) -> Iterator[Problem]:
        for view in self.views:
            from mirrorlake.views.definition import GONE_FIX  # imported for a view in any case

            for source in (source for source in view.sources if source.newest is None):
                text = (
                    f"The view can't be refreshed, because its source {source.table} was removed."
                )
                yield Problem("error", view.view, text, GONE_FIX)
            if self.max_lag is not None:
                yield from self._late(view.view, view.lag_seconds or 0)

    def _late(self, where: str, seconds: float) -> Iterator[Problem]:
        if self.max_lag is not None and seconds > self.max_lag:
            text = f"The lag of {lag_text(seconds)} exceeds the limit of {self.max_lag:g} s."
            yield Problem("lag", where, text)

    @property
    def failed(self) -> tuple[TableStatus, ...]:
        """The tables that an error stopped."""
        return tuple(one for one in self.tables if one.error)

    @property
    def errors(self) -> TextTable:
        """One row per table that an error stopped: its file, row, column and message."""
        return error_table(self.tables)

    def as_dict(self) -> dict[str, Any]:
        """Return the document that `status --json` prints."""
        return {
            "tables": [one.as_dict() for one in self.tables],
            "views": [one.as_dict() for one in self.views],
            "sources": [one.as_dict() for one in self.sources],
        }

    def shown(self) -> TextTable:
        """Return one row per table that a publisher feeds."""
        return self.tables.shown()

    @optional_figure
    def plot(self, what: What = "lag") -> Chart | None:
        """Draw the newest files of at most six tables over time, one line per table.

        Args:
            what: `lag`, the seconds from a file's publication to its commit; or `backlog`, the
                number of published files that were not yet applied.

        Returns:
            None if no file was applied yet.

        Raises:
            UsageError: `what` is neither.
        """
        from mirrorlake.mirror.lag import plot_replication

        return plot_replication(self.storage, largest_first(self.tables), what)

    def check(self) -> None:
        """Raise an error if there is a problem.

        Raises:
            CheckError: with the first problem and its fix.
        """
        if self.problems:
            first, others = self.problems[0], len(self.problems) - 1
            more = f" ({counted(others, 'more problem')}.)" if others else ""
            raise CheckError(f"{first.where}: {first.message}{more}", hint=first.fix)

    def __repr__(self) -> str:
        tables, problems = len(self.tables), len(self.problems)
        text = f"{counted(tables, 'table')}, {counted(problems, 'problem')}"
        return f"{text}, {counted(len(self.warnings), 'warning')}" if self.warnings else text


def read_status(
    storage: Storage,
    run: Callable[[str], DataFrame],
    *,
    max_lag: float | None = None,
    max_backlog: int | None = None,
    expectations: Mapping[str, str] | None = None,
    rebuild: bool = False,
) -> LakeStatus:
    """Read the status of a lake; the errors are those of `Lake.status`.

    Args:
        storage: the lake's files.
        run: runs one query of the lake.
        max_lag: see `Lake.status`, as for the following.
        max_backlog: see there.
        expectations: see there.
        rebuild: see there.
    """
    if (max_lag is not None and max_lag < 0) or (max_backlog is not None and max_backlog < 0):
        raise UsageError("max_lag or max_backlog is less than 0.", hint="set both to 0 or more.")
    met = check_expectations(run, {} if expectations is None else expectations)
    tables = table_statuses(storage, rebuild=rebuild)
    has_limit = max_lag is not None or max_backlog is not None
    return LakeStatus(_table_entries(tables), storage, max_lag, max_backlog, met, has_limit)


def read_views(storage: Storage, tables: list[TableName]) -> list[ViewStatus]:
    """Return the state of the views among some tables; import the views' code only if there is one.

    Raises:
        ImportError: there is a view, and the extra `spark` is not installed.
    """
    marked = [
        name
        for name in tables
        if (snapshot := read_snapshot(storage, name.table_path)) is not None
        and VIEW_PROPERTY in snapshot.properties
    ]
    if not marked:
        return []
    from mirrorlake.views.definition import list_definitions, view_status

    return [view_status(storage, one) for one in list_definitions(storage, marked)]


def _table_entries(tables: tuple[TableStatus, ...]) -> Entries[TableStatus]:
    columns = ("table", "state", "rows", "last file", "backlog", "lag", "problem", "fix")
    # Without a problem or a fix, their two columns would be empty.
    end = None if any(one.shown_problem or one.fix for one in tables) else -2
    return Entries(
        tables,
        columns[:end],
        lambda one: _table_row(one)[:end],
        "No publisher feeds a table of this lake.",
    )


def _table_row(one: TableStatus) -> tuple[Any, ...]:
    facts = (Count(one.rows), one.last_file, one.backlog, one.lag)
    return (one.full_name, one.shown_state, *facts, one.shown_problem, one.fix)


def _view_row(one: ViewStatus) -> tuple[Any, ...]:
    lag = lag_text(one.lag_seconds)
    return (one.view, one.state, one.version, one.shown_sources, lag, one.reason or "")


def _source_row(one: SourceReport) -> tuple[Any, ...]:
    details = ", ".join(f"{name} {value}" for name, value in one.facts.items())
    problem = one.error or "; ".join(f"{t.table}: {t.error}" for t in one.tables if t.error)
    return (one.source, one.state, moment_text(one.at), len(one.tables), details, problem)


def _problems(found: list[Problem], empty: str) -> Entries[Problem]:
    return Entries(
        found, ("where", "problem", "fix"), lambda one: (one.where, one.message, one.fix), empty
    )
