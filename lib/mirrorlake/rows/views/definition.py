"""What a view is: its query and its sources, kept as a property of the Delta table behind it.

So a view is made by one commit, survives the loss of everything but its table, and is found by a
look into the tables' logs. Columns whose names begin with `__mirrorlake_` carry what the rules
need; queries through the lake don't see them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from mirrorlake.delta.snapshot import Snapshot, delta_tables, read_snapshot
from mirrorlake.errors import TableNotFoundError, UsageError
from mirrorlake.kept import check_format
from mirrorlake.mirror.properties import VIEW_PROPERTY
from mirrorlake.names import TableName
from mirrorlake.rows.views.query import HIDDEN
from mirrorlake.storage import Storage

FORMAT = 1


@dataclass(frozen=True)
class Definition:
    """A view.

    Attributes:
        name: its table.
        id: distinguishes it from another view of the same name.
        sql: its query.
        sources: the columns that each table had when the view was made; it sees no others.
    """

    name: TableName
    id: str
    sql: str
    sources: dict[TableName, tuple[str, ...]]

    @property
    def app_id(self) -> str:
        """What its commits are numbered under."""
        return f"mirrorlake-view-{self.id}"

    def as_property(self) -> str:
        """The table property's text."""
        sources = {str(name): list(columns) for name, columns in self.sources.items()}
        document = {"format": FORMAT, "id": self.id, "sql": self.sql, "sources": sources}
        return json.dumps(document, ensure_ascii=False)

    def __repr__(self) -> str:
        return f"{self.name}: {' '.join(self.sql.split())}"


def definition_of(name: TableName, snapshot: Snapshot | None) -> Definition | None:
    """The view that a table belongs to, or None.

    Raises:
        FormatError: it is of a newer format.
    """
    text = snapshot.properties.get(VIEW_PROPERTY) if snapshot else None
    if text is None:
        return None
    kept = check_format(json.loads(text), f"The view {name}", FORMAT)
    sources = {TableName.parse(table): tuple(cols) for table, cols in kept["sources"].items()}
    return Definition(name, kept["id"], kept["sql"], sources)


def read_definition(storage: Storage, name: TableName) -> Definition:
    """The view of a name.

    Raises:
        TableNotFoundError: there is no table of that name.
        UsageError: it is a table, not a view.
    """
    snapshot = read_snapshot(storage, name.table_path)
    if snapshot is None:
        raise TableNotFoundError(f"There is no view {name} in the lake.", hint="create it first.")
    found = definition_of(name, snapshot)
    if found is None:
        raise UsageError(f"{name} is a table, not a view.", hint="create a view of another name.")
    return found


def list_definitions(
    storage: Storage, tables: Iterable[TableName] | None = None
) -> list[Definition]:
    """The views of a lake, ordered by name.

    Args:
        storage: the lake's files.
        tables: look among these only.
    """
    found = [
        definition_of(name, read_snapshot(storage, name.table_path))
        for name in (delta_tables(storage) if tables is None else tables)
    ]
    return [definition for definition in found if definition is not None]


def hiding_columns(storage: Storage, name: TableName | None) -> list[str] | None:
    """The columns that a query sees of a view that hides some; None for any other table."""
    snapshot = None if name is None else read_snapshot(storage, name.table_path)
    if snapshot is None or VIEW_PROPERTY not in snapshot.properties:
        return None
    seen = visible_columns(snapshot)
    return None if len(seen) == len(snapshot.schema) else seen


def visible_columns(snapshot: Snapshot) -> list[str]:
    """A table's columns without those that a view hides."""
    return [name for name in snapshot.schema if not name.startswith(HIDDEN)]
