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
_BITS = {"byte": 8, "short": 16, "integer": 32, "long": 64}
_STEPS = 16  # of a table's keys, about
_TYPES = {**dict.fromkeys(_SUFFIX, int), "date": dt.date, "string": str}
# Texts without escapes, variables or letters of any other alphabet: no doubt how they compare.
_PLAIN = re.compile(r"[\w .:/@+-]{0,200}", re.ASCII)
_UNKNOWN: tuple[rows.Bounds, ...] = ((None, None),)
Bounds = Mapping[str, rows.Bounds]
"""The smallest and largest value of key columns."""
Limits = tuple[Mapping[str, Any], Mapping[str, Any]]
"""The smallest, and the largest values of columns, as a file's statistics tell them."""


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


def file_limits(add: Action) -> Limits:
    """What the statistics in a file's `add` tell; nothing where there are none."""
    stats = json.loads(add.get("stats") or "{}")
    return stats.get("minValues") or {}, stats.get("maxValues") or {}


def may_match(limits: Limits, bounds: Bounds, names: Mapping[str, str]) -> bool:
    """Whether a file of the table may have rows within the bounds, by its statistics.

    Args:
        limits: of the file.
        bounds: what `key_bounds` found.
        names: what the files call each column.
    """
    least_of, most_of = limits
    for key, (low, high) in bounds.items():
        least, most = least_of.get(names[key]), most_of.get(names[key])
        if least is None or most is None:
            continue
        # The log has days as ISO texts; of long texts bounds that are wide enough.
        first, last = (str(end) if isinstance(end, dt.date) else end for end in (low, high))
        if type(least) is type(most) is type(first) and (most < first or least > last):
            return False
    return True


def wide_bounds(
    bounds: Bounds, limits: Sequence[Limits], names: Mapping[str, str], target: Target
) -> dict[str, rows.Bounds]:
    """Bounds that are the same for many batches: whole numbers lie at multiples of a large one.

    Spark compiles a query's code for each number in a filter; of these there are few.

    Args:
        bounds: what `key_bounds` found.
        limits: of the table's files.
        names: what the files call each column.
        target: the table's columns.
    """
    found = dict(bounds)
    whole = {key: bits for key in bounds if (bits := _BITS.get(target.columns[key]))}
    for key, bits in whole.items():
        low, high = bounds[key]
        told = (known.get(names[key]) for pair in limits for known in pair)
        ends = [end for end in told if isinstance(end, int)]
        if not ends:
            continue
        step = 1 << ((max(ends) - min(ends)) // _STEPS).bit_length()
        if high - low < step:
            continue  # few rows are read, and fewer by bounds of their own
        most = (1 << (bits - 1)) - 1
        found[key] = max(low - low % step, ~most), min(high - high % step + step - 1, most)
    return found


def _literal(value: Any, kind: str) -> str | None:
    """A bound as SQL of the column's own type, so that it is compared without a cast."""
    if kind in _SUFFIX:
        return f"{value}{_SUFFIX[kind]}"
    if kind == "date":
        return f"DATE'{value.isoformat()}'"
    return literal(value) if _PLAIN.fullmatch(value) else None
