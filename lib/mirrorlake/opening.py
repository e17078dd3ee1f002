"""Names that notebooks still import; each is a method now. Remove it with its last import."""

from __future__ import annotations

from mirrorlake.lake import Lake
from mirrorlake.names import TableName

open_lake = Lake.open


def choose_tables(lake: Lake, names: str = "") -> list[TableName]:
    """Return `lake.tables(names)`."""
    return lake.tables(names)


def find_table(lake: Lake, wanted: str) -> TableName:
    """Return `lake.table(wanted).name`."""
    return lake.table(wanted).name


def find_published(lake: Lake, wanted: str) -> TableName:
    """Return `lake.operations.find(wanted)`."""
    return lake.operations.find(wanted)
