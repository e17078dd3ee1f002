"""Large values that an update left alone, read by key: they may be newer than the change.

That converges: the newer change comes later in the stream and carries the same value. A row that is
gone by now has its delete still to come.
"""

from __future__ import annotations

from typing import Any

from mirrorlake_sources.postgres.catalog import Connection
from mirrorlake_sources.postgres.connect import ident, quoted
from mirrorlake_sources.postgres.gather import Shape
from mirrorlake_sources.postgres.messages import UNCHANGED, Values

_ROWS = 500


def look_up(connection: Connection, shape: Shape, rows: list[Values]) -> list[Values | None]:
    """Fills the values that are `UNCHANGED`.

    Args:
        connection: for queries.
        shape: the rows' table.
        rows: with at least one such value each.

    Returns:
        The rows in their order, each filled, or None where the table has no such row any more.
    """
    found: dict[tuple[Any, ...], list[Any]] = {}
    for start in range(0, len(rows), _ROWS):
        found |= _read(connection, shape, rows[start : start + _ROWS])
    filled: list[Values | None] = []
    for row in rows:
        now = found.get(tuple(row[key] for key in shape.keys))
        filled.append(
            None
            if now is None
            else tuple(
                n if value is UNCHANGED else value for value, n in zip(row, now, strict=True)
            )
        )
    return filled


def _read(
    connection: Connection, shape: Shape, rows: list[Values]
) -> dict[tuple[Any, ...], list[Any]]:
    known = {column.name for column in shape.table.columns}
    columns = [
        _printed(column.name) if column.name in known else "NULL" for column in shape.columns
    ]
    keys = [shape.columns[key].name for key in shape.keys]
    wanted = {tuple(row[key] for key in shape.keys) for row in rows}
    # Each key is a literal of no type yet, so that the server reads it as the column's.
    places = " OR ".join(
        "("
        + " AND ".join(f"{ident(n)} = {quoted(v.decode())}" for n, v in zip(keys, key, strict=True))
        + ")"
        for key in wanted
    )
    query = f"SELECT {', '.join(columns)} FROM {shape.table.quoted} WHERE {places}"
    found = {}
    for row in connection.execute(query).fetchall():
        values = [None if value is None else value.encode() for value in row]
        found[tuple(values[key] for key in shape.keys)] = values
    return found


def _printed(name: str) -> str:
    """A column as the stream prints it."""
    return f"CASE WHEN {ident(name)} IS DISTINCT FROM NULL THEN concat({ident(name)}) END"
