"""The status of the databases, streams and folders that feed a lake, as they last reported it.

A package that runs sources registers a reader under the entry point group
`mirrorlake.source_status`: a function that takes the lake's `Storage` and returns `SourceReport`
objects.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from mirrorlake.errors import CheckError
from mirrorlake.registry import registered
from mirrorlake.results import Result, TextTable, counted
from mirrorlake.storage.files import Storage


@dataclass
class SourceTable:
    """One table of a source.

    Attributes:
        state: Running, Stopped (see `error`) or Waiting (its first load is not complete).
        rows: rows and changes published since the source started.
        files: the number of files that hold them.
        error: why the table is stopped, or None.
    """

    table: str
    state: str = "Waiting"
    rows: int = 0
    files: int = 0
    error: str | None = None


@dataclass
class SourceReport(Result):
    """The status of one source: its tables, and details such as its lag.

    Attributes:
        source: its name.
        state: Running, Stopped, or Ended after `--once`.
        at: when the source reported this, ISO-8601 UTC.
        tables: its tables.
        facts: details; for PostgreSQL slot, wal_status, lag_bytes and others.
        error: why the source is stopped, or None.
    """

    source: str
    state: str = "Running"
    at: str = ""
    tables: list[SourceTable] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    error: str | None = None

    @property
    def failed(self) -> bool:
        """Whether the source or one of its tables is stopped."""
        return self.error is not None or any(one.error for one in self.tables)

    @property
    def problems(self) -> list[tuple[str, str]]:
        """The source and tables that are stopped, each with the reason."""
        found = [(self.source, self.error)] + [(one.table, one.error) for one in self.tables]
        return [(where, problem) for where, problem in found if problem]

    def check(self) -> None:
        """Raise an error if the source or one of its tables is stopped.

        Raises:
            CheckError: with the first problem.
        """
        for where, problem in self.problems:
            raise CheckError(f"{where} is stopped: {problem}")

    def as_dict(self) -> dict[str, Any]:
        """Return the document that `--json` prints."""
        return asdict(self)

    def shown(self) -> TextTable:
        """Return one row for the source and one per table; a column for problems if there are."""
        facts = ", ".join(f"{name} {value}" for name, value in self.facts.items())
        lines: list[tuple[Any, ...]] = [(self.source, self.state, None, None, facts, self.error)]
        lines += [(t.table, t.state, t.rows, t.files, None, t.error) for t in self.tables]
        columns = ("source, tables", "state", "rows", "files", "details", "problem")
        end = None if self.failed else -1
        return TextTable(columns[:end], tuple(line[:end] for line in lines))

    def __repr__(self) -> str:
        rows = sum(one.rows for one in self.tables)
        stopped = [one.table for one in self.tables if one.error]
        tables = counted(len(self.tables), "table")
        published = "1 row or change" if rows == 1 else f"{rows:,} rows and changes"
        text = f"{self.source}: {published} of {tables} published"
        return f"{text}; stopped: {', '.join(stopped)}" if stopped else text


def source_reports(storage: Storage) -> list[SourceReport]:
    """Return the last reported state of each source of a lake.

    Raises:
        FormatError: a report has a newer format.
    """
    readers = registered("mirrorlake.source_status").values()
    return [report for read in readers for report in read(storage)]
