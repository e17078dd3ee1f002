"""The right answers of tasks that depend on the lake, and the mistakes in what students write.

A function of `ANSWERS` returns the right answer of a task. A function of `CHECKERS` returns the
name of a mistake, as in `course.yaml`, or an empty text for a right answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from datetime import datetime, timezone
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from mirrorlake import MaintenancePolicy, skus
from mirrorlake.names import PROCESSED, ZONE, file_number
from mirrorlake.results import TextTable

if TYPE_CHECKING:
    from mirrorlake.lake import Lake


_MARKER = "__rowMarker__"
_MARKERS = (0, 1, 2, 4)
_REDMOND, _BELLEVUE = "redmond", "bellevue"
_WASHER = {"item": "washer", "n": 75, "shelf": "1b"}
_SHOP = [(1, "bolt", 35), (4, "hook", 5), (3, "screw", 70), (5, "washer", 80)]
_MANY_FILES = 6000
_OTHER_ITEMS = [("nail", 7), ("nut", 1), ("screw", 2)]  # rows of lesson 13 without the washer
_VISITS_POLICY = {
    "apply": False,
    "tables": "visits",
    "reorg": False,
    "optimize": True,
    "vacuum": True,
    "retention_hours": 14 * 24,
    "min_files": 10,
    "target_mib": 256,
}


def named_rows(value: Any) -> tuple[list[str], list[Any]] | None:
    """Return the names of a table's columns, and its rows; `None` for other values.

    Tables are those of Spark, pandas, Arrow and mirrorlake, and lists of dicts or of Spark's rows.
    An index of pandas is a column if it has a name.
    """
    if isinstance(value, list):
        first = value[0] if value else None
        if isinstance(first, dict) and all(
            isinstance(row, dict) and row.keys() == first.keys() for row in value
        ):
            return [str(name) for name in first], [[row[name] for name in first] for row in value]
        names = getattr(first, "__fields__", None)
        if names and all(getattr(row, "__fields__", None) == names for row in value):
            return list(names), value
        return None
    if hasattr(type(value), "toLocalIterator"):  # an attribute of the value can be a column
        return list(value.columns), value.collect()
    if hasattr(type(value), "reset_index") and any(name is not None for name in value.index.names):
        value = value.reset_index(allow_duplicates=True)
    if hasattr(type(value), "itertuples"):
        return [str(name) for name in value.columns], list(value.itertuples(index=False))
    if isinstance(value, pa.Table):
        columns = [column.to_pylist() for column in value.columns]
        return value.column_names, list(zip(*columns, strict=True))
    return (list(value.columns), list(value.rows)) if isinstance(value, TextTable) else None


def next_number(lake: Lake) -> int:
    """Return the number of the next published file of `flights`."""
    names = (entry.name for entry in lake.storage.list(f"{ZONE}/flights").files)
    return max((number for name in names if (number := file_number(name))), default=0) + 1


def files_of_planes(lake: Lake) -> int:
    """Return the number of files that version 0 of the table `planes` added."""
    log = lake.storage.read(f"Tables/planes/_delta_log/{0:020}.json").decode()
    return sum("add" in json.loads(line) for line in log.splitlines())


def employee_moved(answer: Any) -> str:
    """Check whether the rows of a file move only E0001 to Bellevue.

    Returns:
        An empty text, or the mistake: `text`, `twice`, `still`, `others`, `unreadable`.

    Example:
        >>> employee_moved([{"__rowMarker__": 0, "EmployeeID": "E0001"}])
        'twice'
    """
    redmond = {"EmployeeLocation": _REDMOND}
    try:
        rows = list(answer)
        if any(isinstance(row[_MARKER], str) for row in rows):
            return "text"
        table = _applied(rows, "EmployeeID", dict.fromkeys(("E0001", "E0002", "E0003"), redmond))
    except (TypeError, KeyError, AttributeError):
        return "unreadable"
    places = {
        key: [str(row.get("EmployeeLocation")).casefold() for row in same]
        for key, same in table.items()
    }
    moved = places.pop("E0001")
    if len(moved) > 1:
        return "twice"
    if moved != [_BELLEVUE]:
        return "still"
    return "" if places == {"E0002": [_REDMOND], "E0003": [_REDMOND]} else "others"


def gates_published(answer: Any) -> str:
    """Check whether the files of the table `gates` open two gates, and leave B2 in terminal 3.

    Args:
        answer: the lake.

    Returns:
        An empty text, or the mistake: `missing`, `keys`, `closed`, `moved`, `final`,
        `unreadable`.
    """
    folder, rows = f"{ZONE}/gates", []
    try:
        # The mirror may have applied and moved files.
        for place in (f"{folder}/{PROCESSED}", folder):
            for entry in sorted(answer.storage.list(place).files, key=lambda file: file.name):
                if file_number(entry.name):
                    with answer.storage.open(f"{place}/{entry.name}") as file:
                        rows += pq.read_table(file).to_pylist()
        if not rows:
            return "missing"
        metadata = answer.storage.read_json(f"{folder}/_metadata.json") or {}
        if metadata.get("keyColumns") != ["gate"]:
            return "keys"
        table = _applied(({_MARKER: 0} | row for row in rows), "gate", {})
        left = {gate: [row.get("terminal") for row in same] for gate, same in table.items() if same}
    except (TypeError, KeyError, AttributeError):
        return "unreadable"
    if set(left) - {"B2"}:
        return "closed"
    if left not in ({"B2": [3]}, {"B2": ["3"]}):
        return "moved"
    published = {(row["gate"], str(row.get("terminal")).removesuffix(".0")) for row in rows}
    return "" if {("A1", "1"), ("B2", "2")} <= published else "final"


def gates_in_two_versions(answer: Any) -> str:
    """Check whether the versions 1 and 2 of a table each added one row, from one published file.

    Args:
        answer: the table's history.

    Returns:
        An empty text, or the mistake: `together`, `more`, `rows`, `unreadable`.
    """
    try:
        commits = [commit for commit in answer.commits if commit.version > 0]
        files = [commit.description.rpartition(" ")[2] for commit in reversed(commits)]
        inserted = [commit.rows.inserted for commit in commits]
    except (TypeError, AttributeError):
        return "unreadable"
    if len(commits) < 2:
        return "together"
    if files != ["1", "2"]:
        return "more"
    return "" if inserted == [1, 1] else "rows"


def visits_policy(answer: Any) -> str:
    """Check whether a policy is the one that task 07-3 asks for.

    Args:
        answer: the policy, or the result of `Lake.maintain` with it.

    Returns:
        An empty text, or the mistake: the name of a wrong attribute, or `unreadable`.
    """
    policy = getattr(answer, "policy", answer)
    if not isinstance(policy, MaintenancePolicy):
        return "unreadable"
    wrong = (name for name, value in _VISITS_POLICY.items() if getattr(policy, name) != value)
    return next(wrong, "")


def rows_sorted(answer: Any) -> str:
    """Check whether rows are sorted by origin, and by carrier within each origin.

    Args:
        answer: the rows, as an Arrow table.

    Returns:
        An empty text, or the mistake: `origin`, `carrier`, `unreadable`.
    """
    try:
        origins, carriers = (answer[name].to_pylist() for name in ("origin", "carrier"))
    except (TypeError, KeyError, AttributeError):
        return "unreadable"
    pairs = list(zip(origins, carriers, strict=True))
    if not pairs or _runs(origins) > len(set(origins)):
        return "origin"
    return "carrier" if _runs(pairs) > len(set(pairs)) else ""


def _runs(values: list[Any]) -> int:
    return 1 + sum(1 for one, other in pairwise(values) if one != other)


def weekly_policy(answer: Any) -> str:
    """Check whether a partitioning policy divides `time_hour` into weeks, also in existing files.

    Args:
        answer: the policy.

    Returns:
        An empty text, or the mistake: `kind`, `column`, `size`, `reference`, `existing`,
        `unreadable`.
    """
    try:
        document = answer.document()
        (key,) = document["PartitionKeys"]
        span = key["Properties"]
    except (TypeError, KeyError, ValueError, AttributeError):
        return "unreadable"
    if key["Kind"] != "UniformRange":
        return "kind"
    if key["ColumnName"] != "time_hour":
        return "column"
    if span["RangeSize"] != "7.00:00:00":
        return "size"
    if not span["Reference"].startswith("2013-01-01T00:00"):
        return "reference"
    today = datetime.now(timezone.utc).date().isoformat()  # policies have times in UTC
    return "" if document.get("EffectiveDateTime", today) < today else "existing"


def washer_renumbered(answer: Any) -> str:
    """Check whether the washer has the key 30 and still the row id 3.

    Args:
        answer: the rows with their row ids.

    Returns:
        An empty text, or the mistake: `still`, `new-id`, `others`, `unreadable`.
    """
    try:
        names, listed = named_rows(answer) or ([], [])
        rows = [dict(zip(names, row, strict=True)) for row in listed]
        washers = [(row["id"], row["_row_id"]) for row in rows if row["item"] == "washer"]
        others = sorted((row["item"], row["id"]) for row in rows if row["item"] != "washer")
    except (TypeError, KeyError, AttributeError):
        return "unreadable"
    if others != _OTHER_ITEMS or len(washers) != 1:
        return "others"
    ((key, row_id),) = washers
    if key != 30:
        return "still"
    return "" if row_id == 3 else "new-id"


def longest_by_carrier(answer: Any) -> str:
    """Check whether the view `worst` has a rule for the longest delay of each carrier.

    Args:
        answer: the explanation of the view.

    Returns:
        An empty text, or the mistake: `other`, `full`, `longest`, `unreadable`.
    """
    if mistake := _wrong_view(answer, "worst"):
        return mistake
    sql = answer.sql.casefold()
    return "" if all(word in sql for word in ("carrier", "max", "longest")) else "longest"


def totals_of_delays(answer: Any) -> str:
    """Check whether the view `totals` adds up the flights of the view `delays`, and has a rule.

    Returns:
        An empty text, or the mistake: `other`, `table`, `full`, `months`, `unreadable`.
    """
    mistake = _wrong_view(answer, "totals")
    if mistake in ("", "full") and [one.table for one in answer.sources] != ["delays"]:
        return "table"
    if mistake:
        return mistake
    sql = answer.sql.casefold()
    return "" if all(word in sql for word in ("airline", "sum", "flights")) else "months"


def _wrong_view(answer: Any, name: str) -> str:
    """Return the mistake if an answer is not the explanation of this view, with a rule."""
    try:
        view, method = answer.view, answer.method
    except AttributeError:
        return "unreadable"
    if view != name:
        return "other"
    return "full" if method == "full" else ""


def key_changed(answer: Any) -> str:
    """Check whether the rows of a file change the washer's key from 5 to 9 and nothing else.

    Returns:
        An empty text, or the mistake: `both`, `gone`, `still`, `lost`, `unreadable`.

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
    """Apply a file's changes and return the rows by key.

    Raises:
        KeyError: a row has no key or an unknown marker.
    """
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
    """Check whether the four rows of the invalid file are repaired.

    Returns:
        An empty text, or the mistake: `null-key`, `marker`, `upsert`, `fewer`, `other`, `lost`,
        `unreadable`.
    """
    try:
        rows = [dict(row) for row in answer]
        keys, markers = [row["id"] for row in rows], [row[_MARKER] for row in rows]
    except (TypeError, KeyError, ValueError):
        return "unreadable"
    if len(rows) < len(_SHOP):
        return "fewer"
    if any(key is None for key in keys):
        return "null-key"
    if any(marker not in _MARKERS for marker in markers):
        return "marker"
    if keys != [key for key, *_ in _SHOP]:
        return "other"
    if any(marker != 4 for marker in markers):
        return "upsert"
    return "" if [(row["id"], row.get("item"), row.get("n")) for row in rows] == _SHOP else "lost"


def smallest_sku(answer: Any) -> str:
    """Check whether a capacity is the smallest F capacity that allows 6,000 files per table.

    Returns:
        An empty text, or the mistake: `too-small`, `too-large`, `unknown`.
    """
    capacities = {name: sku for name, sku in skus().items() if name.startswith("F")}
    name = str(answer).strip().upper()
    if name not in capacities:
        return "unknown"
    if capacities[name].files < _MANY_FILES:
        return "too-small"
    fitting = (sku for sku in capacities.values() if sku.files >= _MANY_FILES)
    return "" if min(fitting, key=lambda sku: sku.memory_gb).name == name else "too-large"


ANSWERS: dict[str, Callable[[Lake], Any]] = {
    "files_of_planes": files_of_planes,
    "next_number": next_number,
}
CHECKERS: dict[str, Callable[[Any], str]] = {
    "employee_moved": employee_moved,
    "gates_in_two_versions": gates_in_two_versions,
    "gates_published": gates_published,
    "key_changed": key_changed,
    "longest_by_carrier": longest_by_carrier,
    "rows_repaired": rows_repaired,
    "rows_sorted": rows_sorted,
    "smallest_sku": smallest_sku,
    "totals_of_delays": totals_of_delays,
    "visits_policy": visits_policy,
    "washer_renumbered": washer_renumbered,
    "weekly_policy": weekly_policy,
}
