"""Writes a batch as the Parquet file that a publisher then gives its number."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from mirrorlake.landing.casts import cast_batch
from mirrorlake.landing.metadata import MARKER, Marker
from mirrorlake.storage import Storage

_LOOKED_AT = 10_000  # rows, of the first batch
_FEW = 0.5  # distinct values a row: with more, a dictionary costs time and saves nothing


def stage(
    storage: Storage,
    reader: pa.RecordBatchReader,
    path: str,
    schema: pa.Schema,
    carried: Mapping[bytes, bytes],
    marker: Marker | None,
) -> None:
    """Writes rows with the format's types.

    Args:
        storage: where.
        reader: the rows.
        path: the file.
        schema: its columns.
        carried: what its footer carries.
        marker: what all rows are; None if they say it themselves.

    Raises:
        SchemaError: a value that its column's type can't hold, with its row.
    """
    whole = schema
    if marker is not None:
        # The format's newer documents want the marker last.
        whole = schema.append(pa.field(MARKER, pa.int32()))
    whole = whole.with_metadata(carried)

    before = 0

    def ready(batch: pa.RecordBatch) -> pa.RecordBatch:
        nonlocal before
        rows = cast_batch(batch, schema, before)
        before += rows.num_rows
        if marker is None:
            return rows
        column = pa.repeat(pa.scalar(int(marker), pa.int32()), rows.num_rows)
        return pa.RecordBatch.from_arrays([*rows.columns, column], schema=whole)

    batches = map(ready, reader)
    first = next(batches, None)
    options = {"compression": "zstd", "use_dictionary": _repeating(first)}
    with storage.open_writer(path) as sink, pq.ParquetWriter(sink, whole, **options) as writer:
        for rows in chain([] if first is None else [first], batches):
            writer.write_batch(rows)


def _repeating(first: pa.RecordBatch | None) -> list[str] | bool:
    """The columns that gain from a dictionary; True where that can't be told."""
    if first is None or first.num_rows < _LOOKED_AT:
        return True
    if any(pa.types.is_nested(column.type) for column in first.schema):
        return True  # what counts in them are leaves
    rows = first.slice(0, _LOOKED_AT)
    return [
        name
        for name, values in zip(rows.schema.names, rows.columns, strict=True)
        if pc.count_distinct(values).as_py() < _FEW * _LOOKED_AT
    ]
