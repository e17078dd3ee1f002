"""A shop's lake with one fault in each of its three tables, which the last lesson repairs.

- `orders`: a row of the second file has no key, so the mirror stops the table.
- `stock`: the third file is missing, so the fourth one waits.
- `prices`: rows were deleted by hand, and a later file was applied.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from mirrorlake.names import ZONE

if TYPE_CHECKING:
    from mirrorlake.lake import Lake

_KEYS: Final = {"orders": "id", "stock": "item", "prices": "item"}
_LOADED: Final[dict[str, list[dict[str, Any]]]] = {
    "orders": [
        {"id": key, "item": item, "n": n}
        for key, item, n in ((1, "bolt", 4), (2, "nut", 10), (3, "hook", 1))
    ],
    "stock": [
        {"item": item, "n": n}
        for item, n in (("bolt", 40), ("nut", 25), ("screw", 60), ("hook", 5))
    ],
    "prices": [
        {"item": item, "cents": cents}
        for item, cents in (("bolt", 125), ("nut", 40), ("screw", 80), ("hook", 350))
    ],
}


def damage_lake(lake: Lake) -> dict[str, list[dict[str, Any]]]:
    """Publish the tables of a shop, mirror them, and damage each of them.

    Args:
        lake: an empty lake.

    Returns:
        The rows that the shop's applications have now, by table.

    Example:
        >>> damage_lake(lake)["prices"][0]  # doctest: +SKIP
        {'item': 'bolt', 'cents': 130}
    """
    shop = {table: lake.publisher(table, keys=[key]) for table, key in _KEYS.items()}
    for table, rows in _LOADED.items():
        shop[table].write(rows)
    lake.mirror()
    lake.sql("DELETE FROM prices WHERE item IN ('nut', 'screw')")
    bolt = {"item": "bolt", "cents": 130}
    shop["prices"].upsert([bolt])
    screw, hook = {"item": "screw", "n": 40}, {"item": "hook", "n": 3}
    shop["stock"].upsert([screw])
    ordered = [{"id": 4, "item": "screw", "n": 20}, {"id": 5, "item": "hook", "n": 2}]
    _write(lake, "orders", 2, [ordered[0], ordered[1] | {"id": None}])
    _write(lake, "stock", 4, [hook])
    orders, stock, prices = _LOADED.values()
    return {
        "orders": [*orders, *ordered],
        "stock": [*stock[:2], screw, hook],
        "prices": [bolt, *prices[1:]],
    }


def _write(lake: Lake, table: str, number: int, rows: list[dict[str, Any]]) -> None:
    """Write upserts to a file of the landing zone, as a program without checks does."""
    marked = pa.Table.from_pylist([row | {"__rowMarker__": 4} for row in rows])
    with lake.storage.open_writer(f"{ZONE}/{table}/{number:020}.parquet") as file:
        pq.write_table(marked, file)
