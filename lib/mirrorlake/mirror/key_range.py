"""Between which keys a batch's changes lie, so that a MERGE need not look at the whole table.

Taken from the footers of the batch's files. A key between the bounds of all of them lies between
the same bounds in the table, so a condition on the table's column changes no result; but files of
the table that can hold none of these keys are skipped. That makes the cost one of the changes
where a table's files are in the order of its keys, and costs next to nothing elsewhere.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from mirrorlake.landing.rows import column_statistics
from mirrorlake.mirror.properties import Target
from mirrorlake.spark.sql import literal, quote
from mirrorlake.storage import Storage

_READERS = 8
_SUFFIX = {"byte": "Y", "short": "S", "integer": "", "long": "L"}
_TYPES = {**dict.fromkeys(_SUFFIX, int), "date": dt.date, "string": str}
# Texts without escapes, variables or letters of any other alphabet: no doubt how they compare.
_PLAIN = re.compile(r"[\w .:/@+-]{0,200}", re.ASCII)
_Bounds = tuple[Any, Any]


def key_conditions(
    storage: Storage, paths: Iterable[str], keys: tuple[str, ...], target: Target
) -> list[str]:
    """What is true of a row `t` of the table if one of the files' rows can match it.

    Args:
        storage: the lake's files.
        paths: the batch's files.
        keys: the key columns in the table's spelling.
        target: the table's columns.

    Returns:
        One condition for each key column whose bounds all footers tell; often none.
    """
    known = [key for key in keys if target.columns[key] in _TYPES]
    if not known:
        return []
    with ThreadPoolExecutor(_READERS) as pool:
        files = list(pool.map(lambda path: _read_bounds(storage, path, known), paths))
    conditions = []
    for key in known:
        kind = target.columns[key]
        bounds = [found for file in files for found in file[key]]
        if not bounds or not all(isinstance(end, _TYPES[kind]) for pair in bounds for end in pair):
            continue
        low = _literal(min(pair[0] for pair in bounds), kind)
        high = _literal(max(pair[1] for pair in bounds), kind)
        if low is not None and high is not None:
            conditions.append(f"t.{quote(key)} BETWEEN {low} AND {high}")
    return conditions


def _read_bounds(storage: Storage, path: str, keys: list[str]) -> dict[str, list[_Bounds]]:
    """Each row group's smallest and largest value; a None among them where it is not known."""
    found: dict[str, list[_Bounds]] = {key: [] for key in keys}
    try:
        with storage.open(path) as source, pq.ParquetFile(source) as parquet:
            for number in range(parquet.num_row_groups):
                group = parquet.metadata.row_group(number)
                if group.num_rows:
                    for key in keys:
                        found[key].append(_group_bounds(group, key))
    except (pa.ArrowException, OSError, ValueError, OverflowError):
        # A text file, a date beyond the calendar, or something that Spark will complain about.
        return {key: [(None, None)] for key in keys}
    return found


def _group_bounds(group: Any, key: str) -> _Bounds:
    statistics = column_statistics(group, key)
    if statistics is None or not statistics.has_min_max:
        return None, None
    return statistics.min, statistics.max


def _literal(value: Any, kind: str) -> str | None:
    """A bound as SQL of the column's own type, so that it is compared without a cast."""
    if kind in _SUFFIX:
        return f"{value}{_SUFFIX[kind]}"
    if kind == "date":
        return f"DATE'{value.isoformat()}'"
    return literal(value) if _PLAIN.fullmatch(value) else None
