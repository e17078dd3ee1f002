"""The mirror's slow, obvious reference: a table as a list of rows, changes applied one by one."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from mirrorlake.landing.markers import Marker

Row = dict[str, Any]
Change = tuple[Marker, Row]


@dataclass
class TableModel:
    """What a mirrored table must look like: for each key its rows, in no particular order."""

    keys: tuple[str, ...]
    rows: dict[tuple[Any, ...], list[Row]] = field(default_factory=dict)

    def apply(self, marker: Marker, row: Row) -> None:
        """One published row."""
        found = self.rows.setdefault(tuple(row[key] for key in self.keys), [])
        if marker is Marker.DELETE:
            found.clear()
        elif marker is Marker.INSERT or not found:
            found.append(row)
        else:
            found[:] = [row] * len(found)

    def apply_all(self, changes: list[Change]) -> None:
        """Changes in their order."""
        for marker, row in changes:
            self.apply(marker, row)

    def bag(self, columns: list[str]) -> Counter[tuple[Any, ...]]:
        """The rows without their order; absent columns are NULL."""
        return Counter(
            tuple(row.get(column) for column in columns)
            for rows in self.rows.values()
            for row in rows
        )
