"""The range of a batch's keys, as its files' footers tell it: what of a table can match at all."""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mirrorlake.delta.log_files import Action
from mirrorlake.landing import rows
from mirrorlake.mirror.properties import Target
from mirrorlake.spark.sql import literal, quote

_SUFFIX = {"byte": "Y", "short": "S", "integer": "", "long": "L"}
_TYPES = {**dict.fromkeys(_SUFFIX, int), "date": dt.date, "string": str}
# Texts without escapes, variables or letters of any other alphabet: no doubt how they compare.
_PLAIN = re.compile(r"[\w .:/@+-]{0,200}", re.ASCII)
_UNKNOWN: tuple[rows.Bounds, ...] = ((None, None),)
Bounds = Mapping[str, rows.Bounds]
"""The smallest and largest value of key columns."""


def key_bounds(
    files: Iterable[Mapping[str, Sequence[rows.Bounds]]], keys: tuple[str, ...], target: Target
) -> dict[str, rows.Bounds]:
    """The smallest and largest value of each key column whose bounds all footers tell.

    Args:
        files: the bounds of each of the batch's files, see `footer_bounds`.
        keys: the key columns in the table's spelling.
        target: the table's columns.

    Returns:
        Only columns whose values surely compare alike here, in the log and in Spark; often none.
    """
    known = [key for key in keys if target.columns[key] in _TYPES]
    told = list(files)
    found: dict[str, rows.Bounds] = {}
    for key in known:
        kind = target.columns[key]
        bounds = [pair for file in told for pair in file.get(key.lower(), _UNKNOWN)]
        if not bounds or not all(isinstance(end, _TYPES[kind]) for pair in bounds for end in pair):
            continue
        low, high = min(pair[0] for pair in bounds), max(pair[1] for pair in bounds)
        if all(_literal(end, kind) is not None for end in (low, high)):
            found[key] = low, high
    return found


def key_conditions(bounds: Bounds, target: Target, table: str | None = "t") -> list[str]:
    """What is true of a row of the table if a row of the batch can match it, as SQL.

    Args:
        bounds: what `key_bounds` found.
        target: the table's columns.
        table: what the table is called; None leaves that out.
    """
    of = f"{table}." if table else ""
    return [
        f"{of}{quote(key)} BETWEEN {_literal(low, target.columns[key])}"
        f" AND {_literal(high, target.columns[key])}"
        for key, (low, high) in bounds.items()
    ]


def may_match(add: Action, bounds: Bounds, names: Mapping[str, str]) -> bool:
    """Whether a file of the table may have rows within the bounds, by its statistics.

    Args:
        add: the file's `add`.
        bounds: what `key_bounds` found.
        names: what the files call each column.
    """
    stats = json.loads(add.get("stats") or "{}")
    for key, (low, high) in bounds.items():
        least = (stats.get("minValues") or {}).get(names[key])
        most = (stats.get("maxValues") or {}).get(names[key])
        if least is None or most is None:
            continue
        # The log has days as ISO texts; of long texts bounds that are wide enough.
        first, last = (str(end) if isinstance(end, dt.date) else end for end in (low, high))
        if type(least) is type(most) is type(first) and (most < first or least > last):
            return False
    return True


def _literal(value: Any, kind: str) -> str | None:
    """A bound as SQL of the column's own type, so that it is compared without a cast."""
    if kind in _SUFFIX:
        return f"{value}{_SUFFIX[kind]}"
    if kind == "date":
        return f"DATE'{value.isoformat()}'"
    return literal(value) if _PLAIN.fullmatch(value) else None
