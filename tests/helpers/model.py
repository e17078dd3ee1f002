"""The mirror's slow reference: a table as a list of rows, changed one by one."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from helpers.markers import UNCHANGED, Marker

Row = dict[str, Any]
Change = tuple[Marker, Row]


@dataclass
class TableModel:
    """The expected rows of a mirrored table, by key and without order."""

    keys: tuple[str, ...]
    rows: dict[tuple[Any, ...], list[Row]] = field(default_factory=dict)

    def apply(self, marker: Marker | int, row: Row) -> None:
        """Apply one published row; values that an update leaves unchanged stay as they were."""
        marker = Marker(marker)
        names = row.get(UNCHANGED) or ()
        row = {name: value for name, value in row.items() if name != UNCHANGED}
        found = self.rows.setdefault(tuple(row[key] for key in self.keys), [])
        if marker is Marker.DELETE:
            found.clear()
        elif marker is Marker.INSERT or not found:
            assert not names, "it leaves to the table what that does not have"
            found.append(row)
        else:
            found[:] = [row | {name: one[name] for name in names} for one in found]

    def apply_all(self, changes: list[Change]) -> None:
        """Apply changes in their order."""
        for marker, row in changes:
            self.apply(marker, row)

    def bag(self, columns: list[str]) -> Counter[tuple[Any, ...]]:
        """Return the rows without their order; missing columns are NULL."""
        return Counter(
            tuple(row.get(column) for column in columns)
            for rows in self.rows.values()
            for row in rows
        )


@dataclass
class PublishedFile:
    """A published file: its columns in order with their types, and its changes."""

    columns: dict[str, str]
    changes: list[Change]


@dataclass
class FolderModel:
    """A table's folder, and the expected table after each cycle.

    Attributes:
        files: the files in the folder, by number; the last applied file stays.
        columns: the table's columns in lower case and in order, with their types.
        table: the rows; None if no table exists.
        error: the number of the file and the column that stop the table.
        life: the incarnation in the folder's identity; None before its first cycle.
    """

    keys: tuple[str, ...]
    files: dict[int, PublishedFile] = field(default_factory=dict)
    last: int = 0
    columns: dict[str, str] = field(default_factory=dict)
    table: TableModel | None = None
    error: tuple[int, str] | None = None
    life: int | None = None

    @property
    def waiting_for(self) -> int | None:
        """The missing number that blocks later files."""
        missing = self.last + 1
        while missing in self.files:
            missing += 1
        return missing if any(number > missing for number in self.files) else None

    def mirror(self, *, widen: bool) -> None:
        """Apply one cycle."""
        self.error = None
        before = dict(self.columns)
        while self.error is None and self.last + 1 in self.files:
            self._apply(self.last + 1, before, widen=widen)
        self.files = {number: f for number, f in self.files.items() if number >= self.last}

    def _apply(self, number: int, before: dict[str, str], *, widen: bool) -> None:
        file = self.files[number]
        columns = dict(self.columns)
        for column, kind in file.columns.items():
            name = column.lower()
            known = columns.setdefault(name, kind)
            if kind == known or (kind, known) == ("int", "long"):
                continue
            if (known, kind) != ("int", "long") or (name in before and not widen):
                self.error = (number, column)
                return
            columns[name] = kind
        self.columns, self.last = columns, number
        self.table = self.table or TableModel(self.keys)
        self.table.apply_all(
            [(m, {name.lower(): v for name, v in row.items()}) for m, row in file.changes]
        )
