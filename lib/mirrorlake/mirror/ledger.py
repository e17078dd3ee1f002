"""The ledger: which file was applied when, as what, in which version. Plans and commits are it.

Nothing else is written down, so that it can't disagree with what happened.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from mirrorlake.delta.commits import versions
from mirrorlake.landing.identity import read_identity
from mirrorlake.mirror.commit_metadata import read_note
from mirrorlake.mirror.plan import find_plan
from mirrorlake.names import TableName, file_number
from mirrorlake.storage import Storage
from mirrorlake.text_table import TextTable, html_table


@dataclass(frozen=True)
class LedgerEntry:
    """One file of a table's folder.

    Attributes:
        rows: rows by operation.
        rejected: rows that were left out.
        skipped: why nothing of the file was applied; None if it was.
        version: the Delta version that holds it; None if it is only planned, or if the table's
            log no longer reaches back to it.
        published: when it was published, ISO-8601 UTC; None if it never came.
        applied: when it was applied, ISO-8601 UTC; None as for `version`.
        lag_seconds: from the one to the other.
    """

    number: int
    file: str
    bytes: int
    sha256: str
    rows: dict[str, int]
    rejected: int
    skipped: str | None
    version: int | None
    published: str | None
    applied: str | None
    lag_seconds: float | None


@dataclass(frozen=True)
class Ledger:
    """A table's files in the order of their numbers."""

    table: str
    entries: tuple[LedgerEntry, ...]

    def __repr__(self) -> str:
        return f"{self.table}: {len(self.entries)} files planned or applied"

    def document(self) -> dict[str, Any]:
        """Columns and rows, as `--json` prints them."""
        columns = list(LedgerEntry.__dataclass_fields__)
        rows = [{name: getattr(e, name) for name in columns} for e in self.entries]
        return {"columns": columns, "rows": rows}

    def _repr_html_(self) -> str:
        columns = ("number", "file", "rows", "rejected", "skipped", "version", "lag_seconds")
        rows = tuple(
            tuple(
                ", ".join(f"{n} {op}" for op, n in e.rows.items())
                if name == "rows"
                else getattr(e, name)
                for name in columns
            )
            for e in self.entries
        )
        return html_table(TextTable(columns, rows))


def read_ledger(storage: Storage, table: TableName) -> Ledger:
    """The ledger of the folder's present life; costs its plans and the commits in the log."""
    identity = read_identity(storage, table)
    if identity is None:
        return Ledger(str(table), ())
    notes = {}
    for version in versions(storage, table.table_path):
        note = read_note(storage, table, version)
        if note.get("incarnation") == identity.incarnation and "last" in note:
            notes[note["last"]] = note
    entries: list[LedgerEntry] = []
    for entry in storage.list(identity.plans).files:
        first = file_number(entry.name)
        plan = None if first is None else find_plan(storage, identity, first)
        if plan is None:
            continue
        note = notes.get(plan.last, {})
        for file in plan.files:
            entries.append(
                LedgerEntry(
                    plan.numbers[file.name],
                    file.name,
                    file.size,
                    file.sha256,
                    file.rows,
                    file.rejected,
                    file.skipped,
                    note.get("version"),
                    file.published,
                    note.get("committed"),
                    _lag(file.published, note.get("committed")),
                )
            )
    return Ledger(str(table), tuple(entries))


def _lag(published: str | None, applied: str | None) -> float | None:
    if published is None or applied is None:
        return None
    seconds = datetime.fromisoformat(applied) - datetime.fromisoformat(published)
    return max(0.0, round(seconds.total_seconds(), 3))
