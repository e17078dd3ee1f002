"""The form of cases for the linter: a rule, a zone that breaks only this rule, and the place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from helpers.zones import KEYED, Zone
from mirrorlake.names import file_name

FIRST, SECOND, THIRD = file_name(1), file_name(2), file_name(3)
BY_TIME = {"keyColumns": ["id"], "fileDetectionStrategy": "LastUpdateTimeFileDetection"}
TYPED = {
    "keyColumns": ["id"],
    "fileFormat": "CSV",
    "FileFormatTypeProperties": {"RowSeparator": "\n"},
    "SchemaDefinition": {
        "Columns": [
            {"Name": "id", "DataType": "Int32", "IsNullable": False},
            {"Name": "n", "DataType": "Int64"},
        ]
    },
}
CSV = "00000000000000000001.csv"
UUID = "0123456789abcdef0123456789abcdef"

Where = tuple[Any, Any, Any, Any]  # table, file, row, column
Break = Callable[[Zone], Any]


def at(file=None, row=None, column=None, table="t") -> Where:
    return (table, file, row, column)


def keyed(zone: Zone, *files: Any, metadata: Any = KEYED, **options: Any) -> None:
    """Write a table with keys, its files numbered from 1."""
    zone.metadata(metadata)
    for number, data in enumerate(files, start=1):
        zone.put(number, data, **options)


class Cases(list[tuple[str, Break, Where]]):
    """A list of cases: a rule, a function that breaks it in an empty zone, and the place."""

    def case(self, rule: str, where: Where) -> Callable[[Break], Break]:
        def add(make: Break) -> Break:
            self.append((rule, make, where))
            return make

        return add

    def add(self, rule: str, where: Where, *files: Any, **options: Any) -> None:
        self.append((rule, lambda zone: keyed(zone, *files, **options), where))


def text_file(data: str | bytes, zone: Zone) -> None:
    zone.metadata(TYPED)
    zone.write(f"t/{CSV}", data)
