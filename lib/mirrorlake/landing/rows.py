"""Which rows of a readable file can be applied: their markers and their keys.

Only the marker column is always read, key columns where a footer's statistics can't rule out a
NULL. Memory stays at one row group of those columns.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from mirrorlake.errors import DataFileError
from mirrorlake.landing.metadata import MARKER_HINT, Marker, TableMetadata
from mirrorlake.names import METADATA

_MOST = 10_000
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
    """Collects a file's bad rows, up to a number that means that the file itself is bad.

    Attributes:
        ragged: the rows that a parser of text left out, since they have not all columns.
    """

    file: str
    found: list[Reject] = field(default_factory=list)
    ragged: list[int] = field(default_factory=list)

    def add(self, row: int, column: str | None, reason: str, content: Any) -> None:
        """Takes one row.

        Raises:
            DataFileError: there are too many.
        """
        if len(self.found) == _MOST:
            raise DataFileError(
                f"More than {_MOST} rows can't be applied; the first is this: {reason}",
                file=self.file,
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
    *,
    name: str,
    rejects: Rejects | None = None,
) -> Counter[Marker]:
    """How many rows ask for each operation; bad rows are collected, or refused with the file.

    Args:
        parquet: the open file.
        marker: the marker column as the file spells it, or None.
        keys: the key columns as the file spells them.
        metadata: what the table's folder declares.
        name: what to call the file in errors.
        rejects: collects bad rows; without it the first one is an error.

    Raises:
        DataFileError: a bad row, or rows that need keys in a table without any.
    """
    counts: Counter[Marker] = Counter()
    before = 0
    for group in range(parquet.num_row_groups):
        rows = parquet.metadata.row_group(group).num_rows
        markers = _read_markers(parquet, group, marker, metadata)
        faults = list(_faults(parquet, group, marker, markers, keys))
        for index, column, reason, hint in faults[: None if rejects else 1]:
            if rejects is None:
                row = before + index + 1
                raise DataFileError(reason, file=name, row=row, column=column, hint=hint)
            rejects.add(before + index + 1, column, reason, _row(parquet, group, index))
        good: Any = markers
        if faults and markers is not None:
            kept = pa.array(sorted(set(range(rows)) - {fault[0] for fault in faults}), pa.int64())
            good = markers.take(kept)
        if good is None:
            counts[metadata.default_marker] += rows - len({fault[0] for fault in faults})
        else:
            for entry in pc.value_counts(good).to_pylist():
                counts[Marker(entry["values"])] += entry["counts"]
        before += rows
    if not parquet.num_row_groups and marker is None:
        counts[metadata.default_marker] = 0
    _check_keys_declared(counts, metadata, name, marker)
    return counts


def _read_markers(
    parquet: pq.ParquetFile, group: int, marker: str | None, metadata: TableMetadata
) -> pa.ChunkedArray | None:
    if marker is None:
        return None
    values = parquet.read_row_group(group, columns=[marker]).column(marker)
    if metadata.upsert_by_default and values.null_count:
        values = pc.fill_null(values, pa.scalar(int(Marker.UPSERT), values.type))
    return values


def _faults(
    parquet: pq.ParquetFile,
    group: int,
    marker: str | None,
    markers: pa.ChunkedArray | None,
    keys: list[str],
) -> Iterator[tuple[int, str, str, str]]:
    """Position in the group, column, reason and hint of each bad row; a row's first fault."""
    seen: set[int] = set()
    if marker is not None and markers is not None:
        allowed = pa.array([int(value) for value in Marker], markers.type)
        unknown = pc.invert(pc.is_in(markers, value_set=allowed))
        for index in _positions(unknown):
            value = markers[index].as_py()
            found = "NULL" if value is None else value
            seen.add(index)
            yield index, marker, f"Unknown row marker {found}.", MARKER_HINT
    unsure = [key for key in keys if not _surely_not_null(parquet, group, key)]
    if not unsure:
        return
    rows = parquet.read_row_group(group, columns=unsure)
    for key in unsure:
        for index in _positions(pc.is_null(rows.column(key))):
            if index not in seen:
                seen.add(index)
                yield index, key, f"Key column {key!r} is NULL.", _KEY_HINT


def _positions(mask: pa.ChunkedArray) -> list[int]:
    """Where a mask is true; one more than are ever collected is enough to know."""
    found: list[int] = pc.indices_nonzero(mask).slice(0, _MOST + 1).to_pylist()
    return found


def _row(parquet: pq.ParquetFile, group: int, index: int) -> Any:
    try:
        return parquet.read_row_group(group).slice(index, 1).to_pylist()[0]
    except (pa.ArrowException, ValueError, OverflowError):
        return None  # a type that has no counterpart in Python


def _surely_not_null(parquet: pq.ParquetFile, group: int, key: str) -> bool:
    found = column_statistics(parquet.metadata.row_group(group), key)
    return found is not None and found.has_null_count and found.null_count == 0


def column_statistics(group: pq.RowGroupMetaData, column: str) -> pq.Statistics | None:
    """A row group's statistics of a column, found without regard to case; None if not known."""
    chunks = [group.column(index) for index in range(group.num_columns)]
    # A column `a.b` and a field `b` of a struct `a` have the same path.
    found = [chunk for chunk in chunks if chunk.path_in_schema.lower() == column.lower()]
    return found[0].statistics if len(found) == 1 else None


def _check_keys_declared(
    counts: Counter[Marker], metadata: TableMetadata, name: str, marker: str | None
) -> None:
    needing = [m.name.lower() for m in counts if m is not Marker.INSERT and counts[m]]
    if needing and not metadata.keys:
        raise DataFileError(
            f"{needing[0]} rows, but the table has no key columns.",
            file=name,
            column=marker,
            hint=f'declare them in {METADATA}, as {{"keyColumns": ["id"]}}.',
        )
