"""Finds a lake's tables by name, without listing all of them."""

from __future__ import annotations

from mirrorlake.delta.log_files import has_log, is_dropped
from mirrorlake.names import TABLES, TableName
from mirrorlake.storage import Storage

_LOG = "_delta_log"


class Catalog:
    """The names of a lake's tables, looked up for one query; each folder is listed at most once.

    Args:
        storage: the lake's files.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._listed: dict[str, tuple[str, ...]] = {}

    def find(self, name: TableName) -> TableName | None:
        """The lake's own spelling of a table's name: exact, else the only one but for case."""
        if self._is_table(name):
            return name
        alike = [table for table in self._alike(name) if self._is_table(table)]
        return alike[0] if len(alike) == 1 else None

    def _alike(self, name: TableName) -> list[TableName]:
        if name.schema is None:
            return [TableName(None, one) for one in self._spellings(TABLES, name.name)]
        return [
            TableName(schema, one)
            for schema in self._spellings(TABLES, name.schema)
            for one in self._spellings(f"{TABLES}/{schema}", name.name)
        ]

    def _spellings(self, folder: str, wanted: str) -> list[str]:
        return [one for one in self._folders(folder) if one.lower() == wanted.lower()]

    def _is_table(self, name: TableName) -> bool:
        # What lies in a table's own folder is no table.
        outer = () if name.schema is None else self._folders(f"{TABLES}/{name.schema}")
        path = name.table_path
        return (
            (_LOG not in outer and _LOG in self._folders(path))
            and has_log(self._storage, path)
            and not is_dropped(self._storage, path)
        )

    def _folders(self, folder: str) -> tuple[str, ...]:
        if folder not in self._listed:
            self._listed[folder] = self._storage.list(folder).folders
        return self._listed[folder]
