"""What the tools' parameters ask of a mirror: one cycle, or an operator's action by its name.

A cycle is shown with what was applied, what waits and what stopped. An action says first what it
would do; with `apply` it does it. `ledger` and `quarantine` only look.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mirrorlake.errors import CheckError, UsageError, with_place
from mirrorlake.landing.zone import published_tables
from mirrorlake.mirror.options import SKIP_FILE, SKIP_ROW, STOP, MirrorOptions, make_options
from mirrorlake.names import TableName, as_table
from mirrorlake.results import Outcome, Result, TextTable
from mirrorlake.storage.files import storage_errors

if TYPE_CHECKING:
    from mirrorlake.lake import Lake
    from mirrorlake.mirror.status import TableStatus

LOOKS: Final = ("ledger", "quarantine")
ACTIONS: Final = (*LOOKS, "pause", "resume", "skip", "replay", "reseed", "undrop")


@dataclass(frozen=True)
class CycleLine:
    """One table of a cycle.

    Attributes:
        table: its name.
        state: as `status` has it.
        files: how many were applied, or would be.
        rows: how many rows they have.
        waiting: files that are left.
        waiting_for: the number of the missing file that blocks later ones, or None.
        error: what stopped the table, with file, row and column; or None.
    """

    table: str
    state: str
    files: int
    rows: int
    waiting: int
    waiting_for: int | None
    error: dict[str, Any] | None

    @classmethod
    def of(cls, status: TableStatus, files: int, rows: int) -> CycleLine:
        """A table as it is reported, and what was applied of it, or would be."""
        return cls(
            status.full_name,
            status.state,
            files,
            rows,
            status.backlog_files,
            status.waiting_for,
            status.error,
        )

    @property
    def problem(self) -> str:
        """What is wrong, in a sentence; empty if nothing is."""
        if self.error:
            return with_place(self.error["message"], self.error)
        return f"file {self.waiting_for} is missing" if self.waiting_for else ""


@dataclass(frozen=True)
class Cycle(Result):
    """A cycle: one entry per table, ordered by name.

    Attributes:
        dry_run: whether nothing was applied.
        dropped: tables that were dropped, or would be, because their folders are gone.
        note: what there is to say where no table was looked at.
    """

    tables: tuple[CycleLine, ...]
    dry_run: bool = False
    dropped: tuple[str, ...] = ()
    note: str = ""

    @property
    def failed(self) -> tuple[CycleLine, ...]:
        """The tables that an error stopped."""
        return tuple(line for line in self.tables if line.error)

    @property
    def files(self) -> int:
        """The files of all tables that were applied, or would be."""
        return sum(line.files for line in self.tables)

    @property
    def rows(self) -> int:
        """Their rows."""
        return sum(line.rows for line in self.tables)

    def shown(self) -> TextTable:
        """One row per table; if there is none, why."""
        if not self.tables:
            return TextTable(("note",), ((self.note or "No table was looked at.",),))
        columns = ("table", "state", "files", "rows", "waiting", "problem")
        return TextTable.of(self.tables, columns)

    def check(self) -> None:
        """Ends a run with an error if a table has one.

        Raises:
            CheckError: with the first table's error.
        """
        if self.failed:
            others = f", and {len(self.failed) - 1} more" if len(self.failed) > 1 else ""
            raise CheckError(
                f"{self.failed[0].table} stopped{others}: {self.failed[0].problem}",
                hint="repair the file, or set on_error; the other tables went on.",
            )

    def __repr__(self) -> str:
        verb = "would be applied" if self.dry_run else "applied"
        stopped = f", {len(self.failed)} tables stopped" if self.failed else ""
        return f"{self.files} files with {self.rows:,} rows {verb}{stopped}"


def run_cycle(
    lake: Lake,
    table: str | TableName | None = None,
    *,
    vorder: bool = False,
    dry_run: bool = False,
    **settings: Any,
) -> Cycle:
    """Runs one cycle of the mirror, or says what it would do.

    Args:
        lake: the lake.
        table: only this one; by default all. A table that no publisher feeds is left alone.
        vorder: as for `Lake.mirror`.
        dry_run: only say it; no Spark is needed.
        **settings: fields of `MirrorOptions`.

    Raises:
        UsageError: there is no such setting, or it has no such value.

    Example:
        >>> run_cycle(lake, on_error="skip-row")  # doctest: +SKIP
        3 files with 1,024 rows applied
    """
    options = make_options(None, settings)
    if options.on_error not in (STOP, SKIP_ROW, SKIP_FILE):
        raise UsageError(
            f"on_error can't be {options.on_error!r}.",
            hint=f"choose one of {STOP}, {SKIP_ROW}, {SKIP_FILE}.",
        )
    if options.batch_files < 1 or options.batch_bytes < 1:
        raise UsageError("A batch has at least one file.", hint="set the bounds to 1 or more.")
    only = as_table(table) if table else None
    fed = published_tables(lake.storage)
    if only is not None and only not in fed:
        return Cycle((), dry_run, note=f"No publisher feeds {only}: there is nothing to mirror.")
    if not fed and not lake.status().tables:
        return Cycle((), dry_run, note="Nothing was ever published into this lake.")
    if dry_run:
        return _preview(lake, only, options)
    before = {line.full_name: line for line in lake.status().tables}
    with storage_errors(lake.storage.root):
        report = lake.mirror(only, options=options, vorder=vorder)
    lines = tuple(_applied(line, before.get(line.full_name)) for line in report.tables)
    return Cycle(lines, dropped=report.dropped)


def _preview(lake: Lake, only: TableName | None, options: MirrorOptions) -> Cycle:
    plan = lake.preview(only, options=options)
    lines = (CycleLine.of(one.status, len(one.files), one.rows) for one in plan.tables)
    # Nothing was applied: the backlog has these files, too.
    waiting = tuple(replace(line, waiting=line.waiting - line.files) for line in lines)
    return Cycle(waiting, True, plan.dropped)


def _applied(after: TableStatus, before: TableStatus | None) -> CycleLine:
    is_same = before is not None and after.last_file >= before.last_file
    files, rows = (before.last_file, before.rows) if before and is_same else (0, 0)
    return CycleLine.of(after, after.last_file - files, max(0, after.rows - rows))


def operate(
    lake: Lake,
    table: str | TableName,
    action: str,
    *,
    first: int = 0,
    last: int = 0,
    files: Sequence[Path] = (),
    apply: bool = False,
) -> Outcome:
    """Does what an operator asks for, or says what that would be.

    Args:
        lake: the lake.
        table: which table, in the lake's own spelling.
        action: one of `ACTIONS`.
        first: the number of the file to skip, or the first to replay; 0 for none.
        last: the last file to replay; 0 for the last that was applied.
        files: a new initial load, for `reseed`; none for the files that were applied.
        apply: do it; otherwise it is only said.

    Raises:
        UsageError: there is no such action, a number is missing, or no publisher feeds the table.
        MirrorlakeError: what the action itself raises; see `Operations`.

    Example:
        >>> operate(lake, "orders", "skip", first=17)  # doctest: +SKIP
        skip orders: file 17 is passed over. Nothing was changed: a dry run.
    """
    if action not in ACTIONS:
        raise UsageError(
            f"There is no action {action!r}.", hint=f"choose one of {', '.join(ACTIONS)}."
        )
    name, operations = as_table(table), lake.operations
    if action in LOOKS:
        return Outcome(action, str(name), "only looks; nothing is changed", applied=True)
    with storage_errors(lake.storage.root):
        if action == "undrop":
            return operations.undrop(name, dry_run=not apply)
        if name not in published_tables(lake.storage):
            raise UsageError(
                f"No publisher feeds {name}: it has no folder in the landing zone.",
                hint=f"{action} is for tables that a mirror fills.",
            )
        if action in ("skip", "replay") and first < 1:
            raise UsageError(
                f"{action} needs the number of a file.", hint="set the parameter first; from 1 on."
            )
        if action == "skip":
            return operations.skip(name, first, apply=apply)
        if action == "replay":
            return operations.replay(name, first, last or None, dry_run=not apply)
        if action == "reseed":
            return operations.reseed(name, files, apply=apply)
        verb = operations.pause if action == "pause" else operations.resume
        return verb(name, dry_run=not apply)
