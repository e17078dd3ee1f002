"""Updates that leave some columns as they are in the table: an extension of ours to the format.

A list of column names in `__unchanged__` says which values of an update are not the row's. Other
mirrors would take them for NULL, so only a publisher that is asked to writes it.
"""

from __future__ import annotations

from collections.abc import Collection

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from mirrorlake.errors import DataFileError
from mirrorlake.landing.metadata import UNCHANGED, Marker

TYPE = pa.list_(pa.string())
_HINT = "only updates (marker 1) of a table with keys can leave columns that are no keys."


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
                raise DataFileError(text, row=before + place, column=UNCHANGED, hint=_HINT)
            found.update(names)
        before += batch.num_rows
    return tuple(sorted(found))
