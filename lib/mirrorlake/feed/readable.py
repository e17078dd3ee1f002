"""Changes of single rows in words: `n: 40 → 35` instead of an old row and a new one.

Only rows that were fetched come here; columns and texts are cut, so that a row of 500 columns still
fits a page.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import groupby
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from mirrorlake.feed.schema import RESERVED
from mirrorlake.results import TextTable
from mirrorlake.spark.sql import quote

Row = Mapping[str, Any]
COLUMNS = ("version", "made (UTC)", "change", "what")
_KIND, _VERSION, _MOMENT = RESERVED
_MOST_COLUMNS = 8
_MOST_LETTERS = 40
_OLD, _NEW = "update_preimage", "update_postimage"


def tell_changes(rows: Iterable[Row], *, keys: Sequence[str] = ()) -> TextTable:
    """One line for each change of a row.

    Args:
        rows: changes as a feed has them, ordered by version; one key's or one row's.
        keys: columns that say which row it is; they come first.

    Returns:
        Version, time, `insert`, `update`, `delete` (or another kind, as it is), and the values: of
        an update only those that changed, old and new.

    Example:
        >>> old = {"id": 1, "n": 4, "_change_type": "update_preimage", "_commit_version": 2}
        >>> new = old | {"n": 5, "_change_type": "update_postimage"}
        >>> tell_changes([old, new], keys=["id"]).rows
        ((2, '', 'update', 'id 1: n 4 → 5'),)
    """
    lines: list[tuple[Any, ...]] = []
    for version, some in groupby(rows, key=lambda row: row[_VERSION]):
        group = list(some)
        old = [row for row in group if row[_KIND] == _OLD]
        new = [row for row in group if row[_KIND] == _NEW]
        paired = len(old) == len(new) == 1
        for row in group:
            if row[_KIND] == _OLD and paired:
                continue
            before = old[0] if paired and row[_KIND] == _NEW else None
            kind = "update" if before is not None else str(row[_KIND])
            lines.append((version, moment_text(row.get(_MOMENT)), kind, _what(row, before, keys)))
    return TextTable(COLUMNS, tuple(lines))


def _what(row: Row, before: Row | None, keys: Sequence[str]) -> str:
    names = [name for name in row if not name.startswith("_") and name not in keys]
    which = ", ".join(f"{name} {short(row[name])}" for name in keys if name in row)
    if before is None:
        parts = [f"{name} {short(row[name])}" for name in names]
    else:
        parts = [
            f"{name} {short(before[name])} → {short(row[name])}"
            for name in [*keys, *names]
            if name in row and before.get(name) != row[name]
        ]
    more = len(parts) - _MOST_COLUMNS
    text = ", ".join(parts[:_MOST_COLUMNS]) + (f" and {more} more columns" if more > 0 else "")
    return ": ".join(part for part in (which, text or "as it was") if part)


def as_texts(rows: DataFrame) -> DataFrame:
    """The same rows with moments as text: Python would turn them into its own time zone."""
    return rows.select(
        *[
            F.col(quote(name)).cast("string").alias(name)
            if kind.startswith("timestamp")
            else F.col(quote(name))
            for name, kind in rows.dtypes
        ]
    )


def short(value: Any) -> str:
    """A value as people read it, cut where it is long.

    Example:
        >>> short(None), short("a" * 50)[-3:]
        ('NULL', 'aa…')
    """
    if value is None:
        return "NULL"
    text = str(value)
    return text if len(text) <= _MOST_LETTERS else text[: _MOST_LETTERS - 1] + "…"


def moment_text(moment: Any) -> str:
    """A moment to the second; empty for none.

    Example:
        >>> moment_text("2024-05-01 10:00:00.125")
        '2024-05-01 10:00:00'
    """
    if isinstance(moment, datetime):
        return f"{moment:%Y-%m-%d %H:%M:%S}"
    return str(moment or "").partition(".")[0]
