"""List the data files of a table's folder in the landing zone, with their rows."""

from __future__ import annotations

from typing import Any

from mirrorlake.landing.check import inspect_file
from mirrorlake.landing.metadata import Marker, read_metadata
from mirrorlake.landing.zone import list_folder
from mirrorlake.names import as_table
from mirrorlake.results import Count, TextTable


def show_files(lake: Any, table: str) -> TextTable:
    """Return one row per data file in the table's folder: name, rows, row marker and size.

    Args:
        lake: the `Lake`; this package may not import its class.
        table: the table's name.

    Raises:
        DataFileError: a file can't be read.
    """
    storage, name = lake.storage, as_table(table)
    metadata = read_metadata(storage, name)
    rows = []
    for _, entry in sorted(list_folder(storage, name).numbered.items()):
        facts = inspect_file(storage, f"{name.folder}/{entry.name}", metadata)
        marker = "several" if facts.marker else "none: initial load"
        if facts.marker and len(facts.rows) == 1:
            kind = next(iter(facts.rows))
            marker = f"{int(kind)}: {Marker(kind).name.lower()}"
        rows.append((entry.name, Count(facts.row_count), marker, f"{entry.size / 1024:,.0f} KiB"))
    return TextTable(("file", "rows", "marker", "size"), tuple(rows))
