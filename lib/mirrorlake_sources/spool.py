"""Changes of one table until they are published: in memory first, then in a file of Arrow batches.

So a transaction of any size takes bounded memory.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from typing import IO, Any

import pyarrow as pa

from mirrorlake.landing.metadata import MARKER

Convert = Callable[[list[Any], list[int], bool], pa.RecordBatch]
_MARKER = pa.field(MARKER, pa.int32())
MOST_ROWS = 50_000
MOST_BYTES = 32 << 20


class Spool:
    """Rows with their markers, in order.

    Args:
        schema: of the rows, without the marker.
        convert: turns rows and markers into a batch of that schema with the marker last; is told
            whether there are gaps.

    Attributes:
        gaps: a row has values that are still to be looked up.
    """

    def __init__(self, schema: pa.Schema, convert: Convert) -> None:
        self.schema = schema.append(_MARKER)
        self._convert = convert
        self._rows: list[tuple[Any, ...]] = []
        self._markers: list[int] = []
        self._bytes = 0
        self._file: IO[bytes] | None = None
        self._writer: Any = None
        self.gaps = False

    def add(self, row: tuple[Any, ...], marker: int, size: int) -> None:
        """Takes one row of about `size` bytes."""
        self._rows.append(row)
        self._markers.append(marker)
        self._bytes += size
        if len(self._rows) >= MOST_ROWS or self._bytes >= MOST_BYTES:
            self._spill()

    def _spill(self) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="mirrorlake-")  # noqa: SIM115  # see close
            self._writer = pa.ipc.new_stream(self._file, self.schema)
        self._writer.write_batch(self._drain())

    def _drain(self) -> pa.RecordBatch:
        batch = self._convert(self._rows, self._markers, self.gaps)
        self._rows, self._markers, self._bytes, self.gaps = [], [], 0, False
        return batch

    def reader(self) -> pa.RecordBatchReader:
        """All rows, once; then the spool is closed."""
        return pa.RecordBatchReader.from_batches(self.schema, self._batches())

    def _batches(self) -> Iterator[pa.RecordBatch]:
        try:
            if self._file is not None:
                self._writer.close()
                self._file.seek(0)
                yield from pa.ipc.open_stream(self._file)
            if self._rows:
                yield self._drain()
        finally:
            self.close()

    def close(self) -> None:
        """Lets go of the file and the rows."""
        if self._file is not None:
            self._file.close()
            self._file = None
        self._rows, self._markers = [], []


def marked(arrays: list[pa.Array], markers: list[int], names: list[str]) -> pa.RecordBatch:
    """Columns and markers as a batch of a spool's schema."""
    columns = [*arrays, pa.array(markers, _MARKER.type)]
    return pa.RecordBatch.from_arrays(columns, names=[*names, _MARKER.name])
