"""The state of the sources that feed a lake, as the packages that run them report it.

A package registers a reader under the entry point group `mirrorlake.source_status`: a function
that takes the lake's `Storage` and returns `SourceReport` objects.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from mirrorlake.errors import CheckError
from mirrorlake.registry import registered
from mirrorlake.results import Result, TextTable
from mirrorlake.storage.files import Storage


@dataclass
class SourceTable:
    """One table of a source.

    Attributes:
        state: Running, Stopped (see `error`) or Waiting (its first load is not complete).
        rows: rows and changes published since the source was started.
        files: how many files they are in.
    """

    table: str
    state: str = "Waiting"
    rows: int = 0
    files: int = 0
    error: str | None = None


@dataclass
class SourceReport(Result):
    """One source: its tables, and what it says of itself, such as its lag.

    Attributes:
        source: its name.
        state: Running, Stopped, or Ended after `--once`.
        at: when this was written, ISO-8601 UTC.
        facts: the source's own: for PostgreSQL slot, wal_status, lag_bytes and the rest.
        error: why it is stopped.
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
        """What is stopped, the source itself first, and why."""
        found = [(self.source, self.error)] + [(one.table, one.error) for one in self.tables]
        return [(where, problem) for where, problem in found if problem]

    def check(self) -> None:
        """Ends a run with an error if the source or a table of it is stopped.

        Raises:
            CheckError: with the first problem, and what helps.
        """
        for where, problem in self.problems:
            raise CheckError(f"{where} is stopped: {problem}")

    def as_dict(self) -> dict[str, Any]:
        """The document that `--json` prints."""
        return asdict(self)

    def shown(self) -> TextTable:
        """A line a table, and one for the source."""
        facts = ", ".join(f"{name} {value}" for name, value in self.facts.items())
        lines: list[tuple[Any, ...]] = [(self.source, self.state, None, None, self.error or facts)]
        lines += [(one.table, one.state, one.rows, one.files, one.error) for one in self.tables]
        return TextTable(("source, tables", "state", "rows", "files", "problem"), tuple(lines))

    def __repr__(self) -> str:
        rows = sum(one.rows for one in self.tables)
        stopped = [one.table for one in self.tables if one.error]
        text = f"{self.source}: {rows:,} rows and changes of {len(self.tables)} tables published"
        return f"{text}; stopped: {', '.join(stopped)}" if stopped else text


def source_reports(storage: Storage) -> list[SourceReport]:
    """Return the last reported state of each source of a lake.

    Raises:
        FormatError: a report has a newer format.
    """
    readers = registered("mirrorlake.source_status").values()
    return [report for read in readers for report in read(storage)]
