"""Which rows of a readable file can be applied: their markers and their keys.

Only the marker column is always read, key columns where a footer's statistics can't rule out a
NULL. Memory stays at one row group of those columns.

Updates may leave some columns as they are in the table: an extension of ours to the format. A list
of column names in `__unchanged__` says which values of an update are not the row's. Other mirrors
would take them for NULL, so only a publisher that is asked to writes it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pt

from mirrorlake.errors import DataFileError
from mirrorlake.landing.metadata import MARKER_HINT, UNCHANGED, Marker, TableMetadata
from mirrorlake.names import METADATA

MOST_REJECTS = 10_000
Bounds = tuple[Any, Any]
"""The smallest and the largest value of a column; None and None where they are not known."""
UNCHANGED_TYPE = pa.list_(pa.string())
_LEAVES_HINT = "only updates (marker 1) of a table with keys can leave columns that are no keys."
_KEY_HINT = "a row without its key can't be found again; fill it in."


@dataclass(frozen=True)
class Reject:
    """One row that can't be applied.

    Attributes:
        row: its position in the file, counted from 1.
        column: the column at fault, if it is one.
        content: the row as JSON, as far as it can be read.
    """

    row: int
    column: str | None
    reason: str
    content: str


@dataclass
class Rejects:
    """A file's bad rows: collected, up to a number that means that the file itself is bad.

    Attributes:
        most: that number; with 0 the first bad row is an error.
        ragged: the rows that a parser of text left out, since they have not all columns.
    """

    most: int = 0
    found: list[Reject] = field(default_factory=list)
    ragged: list[int] = field(default_factory=list)

    def add(self, row: int, column: str | None, reason: str, hint: str, content: Any) -> None:
        """Takes one row.

        Raises:
            DataFileError: none is to be left out, or there are too many.
        """
        if not self.most:
            raise DataFileError(reason, row=row, column=column, hint=hint)
        if len(self.found) == self.most:
            raise DataFileError(
                f"More than {self.most} rows can't be applied; the first is this: {reason}",
                row=self.found[0].row,
                column=self.found[0].column,
                hint="upload a sound file under the same name.",
            )
        text = json.dumps(content, default=str, ensure_ascii=False)
        self.found.append(Reject(row, column, reason, text))


def count_rows(
    parquet: pq.ParquetFile,
    marker: str | None,
    keys: list[str],
    metadata: TableMetadata,
    rejects: Rejects,
) -> Counter[Marker]:
    """How many rows ask for each operation, without the bad ones.

    Args:
        parquet: the open file.
        marker: the marker column as the file spells it, or None.
        keys: the key columns as the file spells them.
        metadata: what the table's folder declares.
        rejects: collects bad rows, or refuses the first.

    Raises:
        DataFileError: a bad row, or rows that need keys in a table without any.
    """
    counts: Counter[Marker] = Counter()
    before = 0
    for group in range(parquet.num_row_groups):
        rows = parquet.metadata.row_group(group).num_rows
        markers = read_markers(parquet, group, marker, metadata)
        bad: set[int] = set()
        for rule, column, mask in row_faults(parquet, group, marker, markers, keys):
            # One more than are ever collected is enough to know.
            for index in pc.indices_nonzero(mask).slice(0, MOST_REJECTS + 1).to_pylist():
                if index in bad:
                    continue
                bad.add(index)
                reason = f"{describe_fault(rule, column, markers, index)}."
                hint = MARKER_HINT if column == marker else _KEY_HINT
                content = _row(parquet, group, index) if rejects.most else None
                rejects.add(before + index + 1, column, reason, hint, content)
        good: Any = markers
        if bad and markers is not None:
            good = markers.take(pa.array(sorted(set(range(rows)) - bad), pa.int64()))
        if good is None:
            counts[metadata.default_marker] += rows - len(bad)
        else:
            for entry in pc.value_counts(good).to_pylist():
                counts[Marker(entry["values"])] += entry["counts"]
        before += rows
    if not parquet.num_row_groups and marker is None:
        counts[metadata.default_marker] = 0
    needing = [m.name.lower() for m in counts if m is not Marker.INSERT and counts[m]]
    if needing and not metadata.keys:
        raise DataFileError(
            f"{needing[0]} rows, but the table has no key columns.",
            column=marker,
            hint=f'declare them in {METADATA}, as {{"keyColumns": ["id"]}}.',
        )
    return counts


def read_markers(
    parquet: pq.ParquetFile, group: int, marker: str | None, metadata: TableMetadata
) -> pa.ChunkedArray | None:
    """A row group's markers, with what stands for a NULL; None if the file has none."""
    if marker is None:
        return None
    # One column needs no threads: those that begin as a process ends can abort it (Arrow's #34314).
    values = parquet.read_row_group(group, columns=[marker], use_threads=False).column(marker)
    if metadata.upsert_by_default and values.null_count:
        values = pc.fill_null(values, pa.scalar(int(Marker.UPSERT), values.type))
    return values


def row_faults(
    parquet: pq.ParquetFile,
    group: int,
    marker: str | None,
    markers: pa.ChunkedArray | None,
    keys: list[str],
) -> Iterator[tuple[str, str, pa.ChunkedArray]]:
    """What can be wrong with rows: the linter's rule, the column, and which rows of the group."""
    if marker is not None and markers is not None:
        allowed = pa.array([int(value) for value in Marker], markers.type)
        yield "marker-value", marker, pc.invert(pc.is_in(markers, value_set=allowed))
    statistics = {key: column_statistics(parquet.metadata.row_group(group), key) for key in keys}
    # The footer may tell that there is no NULL.
    unsure = [key for key, s in statistics.items() if not s or not s.has_null_count or s.null_count]
    if not unsure:
        return
    rows = parquet.read_row_group(group, columns=unsure, use_threads=len(unsure) > 1)
    for key in unsure:
        yield "key-null", key, pc.is_null(rows.column(key))


def describe_fault(rule: str, column: str, markers: pa.ChunkedArray | None, index: int) -> str:
    """What is wrong with one row of a group, as a sentence without its end."""
    if rule == "key-null" or markers is None:
        return f"Key column {column!r} is NULL"
    value = markers[index].as_py()
    return f"Unknown row marker {'NULL' if value is None else value}"


def _row(parquet: pq.ParquetFile, group: int, index: int) -> Any:
    try:
        return parquet.read_row_group(group).slice(index, 1).to_pylist()[0]
    except (pa.ArrowException, ValueError, OverflowError):
        return None  # a type that has no counterpart in Python


def footer_bounds(parquet: pq.ParquetFile, columns: list[str]) -> dict[str, list[Bounds]]:
    """The smallest and largest value of each row group that has rows, by column in lower case.

    Args:
        parquet: the open file; only its footer counts.
        columns: which columns.

    Returns:
        A pair of None where the footer does not tell.
    """
    found: dict[str, list[Bounds]] = {}
    for column in columns:
        groups = (parquet.metadata.row_group(n) for n in range(parquet.num_row_groups))
        found[column.lower()] = [_bounds(group, column) for group in groups if group.num_rows]
    return found


class SeenKeys:
    """The range of each key column over the files that were added."""

    def __init__(self) -> None:
        self._ranges: dict[str, Bounds] = {}

    def add(self, bounds: dict[str, list[Bounds]]) -> bool:
        """Add a file with rows, and return whether it may have keys of the files before it.

        Args:
            bounds: of its keys, see `footer_bounds`.
        """
        shared = bool(self._ranges)
        for key, groups in bounds.items():
            seen = self._ranges.get(key)
            low: Any
            high: Any
            try:
                low, high = min(low for low, _ in groups), max(high for _, high in groups)
                if seen is not None:
                    shared = shared and low <= seen[1] and seen[0] <= high
                    low, high = min(low, seen[0]), max(high, seen[1])
            except TypeError:  # a range is not known, or they have two types
                low = high = None
            self._ranges[key] = low, high
        return shared


def _bounds(group: pq.RowGroupMetaData, column: str) -> Bounds:
    try:
        known = column_statistics(group, column)
        return (known.min, known.max) if known and known.has_min_max else (None, None)
    except (pa.ArrowException, ValueError, OverflowError):  # a date beyond the calendar
        return None, None


def column_statistics(group: pq.RowGroupMetaData, column: str) -> pq.Statistics | None:
    """A row group's statistics of a column, found without regard to case; None if not known."""
    chunks = [group.column(index) for index in range(group.num_columns)]
    # A column `a.b` and a field `b` of a struct `a` have the same path.
    found = [chunk for chunk in chunks if chunk.path_in_schema.lower() == column.lower()]
    return found[0].statistics if len(found) == 1 else None


def is_unchanged(column: pa.Field) -> bool:
    """Whether a file's column is this one; of another type it is anybody's data."""
    kind = column.type
    is_list = pt.is_list(kind) or pt.is_large_list(kind)
    return bool(column.name == UNCHANGED and is_list and pt.is_string(kind.value_type))


def unchanged_names(
    file: pq.ParquetFile, marker: str | None, columns: Collection[str], keys: Collection[str]
) -> tuple[str, ...]:
    """The columns that a file's updates leave as they are.

    Args:
        file: what was published.
        marker: its marker column.
        columns: its data columns.
        keys: those of them that are keys.

    Raises:
        DataFileError: a row that is no update names columns, or names some that can't be left.
    """
    if not any(is_unchanged(column) for column in file.schema_arrow):
        return ()
    found: set[str] = set()
    before = 0
    read = [UNCHANGED, *([marker] if marker else [])]
    for batch in file.iter_batches(columns=read):
        markers = batch.column(marker).to_pylist() if marker else [None] * batch.num_rows
        for place, names in enumerate(batch.column(UNCHANGED).to_pylist(), start=1):
            if not names:
                continue
            bad = set(names) - set(columns) | set(names) & set(keys)
            if bad or not keys or markers[place - 1] != Marker.UPDATE:
                text = f"The row leaves {min(bad or names)!r} unchanged."
                raise DataFileError(text, row=before + place, column=UNCHANGED, hint=_LEAVES_HINT)
            found.update(names)
        before += batch.num_rows
    return tuple(sorted(found))
