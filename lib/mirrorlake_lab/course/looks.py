"""What checks look at: the lake, or an answer that is more than one value.

A truth takes the lake and gives the right answer. A look takes the answer and names the mistake,
as `course.yaml` lists them; an empty name says that it is right.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from mirrorlake.layout.guardrails import skus
from mirrorlake.names import ZONE, file_number

if TYPE_CHECKING:
    from mirrorlake.lake import Lake

_MARKER = "__rowMarker__"
_MARKERS = (0, 1, 2, 4)
_REDMOND, _BELLEVUE = "redmond", "bellevue"
_WASHER = {"item": "washer", "n": 75, "shelf": "1b"}
_SHOP_KEYS = [1, 4, 3, 5]
_MANY_FILES = 6000


def next_number(lake: Lake) -> int:
    """The number of the file that `flights` gets next."""
    names = (entry.name for entry in lake.storage.list(f"{ZONE}/flights").files)
    return max((number for name in names if (number := file_number(name))), default=0) + 1


def files_of_planes(lake: Lake) -> int:
    """How many files the table `planes` arrived in."""
    log = lake.storage.read(f"Tables/planes/_delta_log/{0:020}.json").decode()
    return sum("add" in json.loads(line) for line in log.splitlines())


def employee_moved(answer: Any) -> str:
    """Whether rows of a file move E0001 to Bellevue, and nobody else.

    Returns:
        Nothing, or `twice`, `still`, `others`, `unreadable`.

    Example:
        >>> employee_moved([{"__rowMarker__": 0, "EmployeeID": "E0001"}])
        'twice'
    """
    redmond = {"EmployeeLocation": _REDMOND}
    try:
        table = _applied(answer, "EmployeeID", dict.fromkeys(("E0001", "E0002", "E0003"), redmond))
    except (TypeError, KeyError, AttributeError):
        return "unreadable"
    places = {
        key: [str(row.get("EmployeeLocation")).casefold() for row in rows]
        for key, rows in table.items()
    }
    moved = places.pop("E0001")
    if len(moved) > 1:
        return "twice"
    if moved != [_BELLEVUE]:
        return "still"
    return "" if places == {"E0002": [_REDMOND], "E0003": [_REDMOND]} else "others"


def key_changed(answer: Any) -> str:
    """Whether rows of a file give the washer the key 9 in place of 5, and keep what it has.

    Returns:
        Nothing, or `both`, `gone`, `still`, `lost`, `unreadable`.

    Example:
        >>> key_changed([{"__rowMarker__": 2, "id": 5}])
        'gone'
    """
    try:
        table = _applied(answer, "id", {5: _WASHER})
    except (TypeError, KeyError, AttributeError):
        return "unreadable"
    old, new = table.pop(5), table.pop(9, [])
    if not new:
        return "still" if old else "gone"
    if old or len(new) > 1:
        return "both"
    values = {
        name: value.casefold() if isinstance(value, str) else value
        for name, value in new[0].items()
        if name not in ("id", _MARKER)
    }
    return "" if values == _WASHER and not any(table.values()) else "lost"


def _applied(
    changes: Iterable[dict[str, Any]], key: str, before: dict[Any, dict[str, Any]]
) -> dict[Any, list[dict[str, Any]]]:
    """The rows of each key after a file's changes; an unknown marker or no key is a KeyError."""
    table = {name: [row] for name, row in before.items()}
    for row in changes:
        marker, name = row[_MARKER], row[key]
        if marker not in _MARKERS or name is None:
            raise KeyError(_MARKER)
        if marker == 0:
            table.setdefault(name, []).append(row)
        else:
            table[name] = [] if marker == 2 else [row]
    return table


def rows_repaired(answer: Any) -> str:
    """Whether the four rows of the bad file are as they should have been published.

    Returns:
        Nothing, or `null-key`, `marker`, `fewer`, `other`, `unreadable`.
    """
    try:
        rows = [(row["id"], row[_MARKER]) for row in answer]
    except (TypeError, KeyError):
        return "unreadable"
    if len(rows) < len(_SHOP_KEYS):
        return "fewer"
    if any(key is None for key, _ in rows):
        return "null-key"
    if any(marker not in _MARKERS for _, marker in rows):
        return "marker"
    return "" if [key for key, _ in rows] == _SHOP_KEYS else "other"


def smallest_sku(answer: Any) -> str:
    """Whether a capacity is the smallest F that allows 6,000 files of a table.

    Returns:
        Nothing, or `too-small`, `too-large`, `unknown`.
    """
    capacities = {name: sku for name, sku in skus().items() if name.startswith("F")}
    name = str(answer).strip().upper()
    if name not in capacities:
        return "unknown"
    if capacities[name].files < _MANY_FILES:
        return "too-small"
    fitting = (sku for sku in capacities.values() if sku.files >= _MANY_FILES)
    return "" if min(fitting, key=lambda sku: sku.memory_gb).name == name else "too-large"


TRUTHS: dict[str, Callable[[Lake], Any]] = {
    "files_of_planes": files_of_planes,
    "next_number": next_number,
}
LOOKS: dict[str, Callable[[Any], str]] = {
    "employee_moved": employee_moved,
    "key_changed": key_changed,
    "rows_repaired": rows_repaired,
    "smallest_sku": smallest_sku,
}
