"""The changed cells and columns among shown changes of two versions, without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mirrorlake.names import CHANGE_COLUMNS
from mirrorlake.results import TextTable

_KIND = CHANGE_COLUMNS[0]
_BEFORE, _AFTER = "update_preimage", "update_postimage"
_WIDE = 8


def changed_cells(page: TextTable, keys: Sequence[str]) -> list[tuple[int, int]]:
    """Return the row and column of each cell that an update changed; none without keys.

    Args:
        page: changes in the order of their keys, each preimage directly before its postimage.
        keys: the columns that pair rows.
    """
    if not keys or _KIND not in page.columns:
        return []
    kind = page.columns.index(_KIND)
    places = [page.columns.index(key) for key in _spelled(page, keys)]

    def same(old: tuple[Any, ...], new: tuple[Any, ...]) -> bool:
        return all(old[place] == new[place] for place in places)

    found = []
    for y, (old, new) in enumerate(zip(page.rows, page.rows[1:], strict=False)):
        if old[kind] == _BEFORE and new[kind] == _AFTER and same(old, new):
            differ = [x for x in range(len(old)) if x != kind and old[x] != new[x]]
            found += [(y + side, x) for x in differ for side in (0, 1)]
    return found


def narrow_changes(page: TextTable, keys: Sequence[str]) -> TextTable:
    """Return the keys, the columns that an update changed, and the kind of each change.

    A page of at most 8 columns, or without updates, is returned as it is.

    Args:
        page: see `changed_cells`.
        keys: the columns that pair rows.
    """
    changed = {page.columns[x] for _, x in changed_cells(page, keys)}
    if len(page.columns) <= _WIDE or not changed:
        return page
    first = _spelled(page, keys)
    rest = [name for name in page.columns if name in changed and name not in first]
    return page.select(*first, *rest, _KIND)


def _spelled(page: TextTable, keys: Sequence[str]) -> list[str]:
    """Return the keys as the page spells them."""
    there = {name.lower(): name for name in page.columns}
    return [there[key.lower()] for key in keys]
