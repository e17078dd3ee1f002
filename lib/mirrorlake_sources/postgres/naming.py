"""What people call a database's tables and columns, and what those are called in the lake."""

from __future__ import annotations

from collections.abc import Collection

from mirrorlake.errors import UsageError
from mirrorlake.names import TableName


def as_landed(table: TableName) -> TableName:
    """A table's name in the lake: tables of `public` have no schema there."""
    return TableName(None, table.name) if table.schema == "public" else table


def reseeded(names: Collection[str]) -> list[TableName]:
    """Tables that a person named to be loaded again."""
    return [as_landed(TableName.parse(name)) for name in names]


def column_of(name: str) -> tuple[TableName, str]:
    """The table and the column of `table.column`.

    Raises:
        UsageError: it is none.
    """
    table, point, column = name.rpartition(".")
    if not point:
        raise UsageError(f"{name!r} is no column.", hint="write table.column.")
    return as_landed(TableName.parse(table)), column
