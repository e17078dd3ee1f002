"""Reading a lake's tables in tests."""

from __future__ import annotations

from collections import Counter
from typing import Any

from mirrorlake import Lake


def bag(lake: Lake, table: str, columns: list[str]) -> Counter[tuple[Any, ...]]:
    """The table's rows without their order."""
    rows = lake.table(table).read().select(*[f"`{c}`" for c in columns]).collect()
    return Counter(tuple(row) for row in rows)
