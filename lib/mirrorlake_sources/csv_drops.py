"""CSV files that are dropped into a folder, `TABLE/anything.csv`: the example of a source.

Files may grow and may arrive twice. Each has its header; all values land as text, or as the types
that are given for them.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from itertools import islice
from pathlib import Path

import pyarrow as pa

from mirrorlake.errors import DataFileError, InvalidNameError
from mirrorlake.landing.casts import UNFIT
from mirrorlake.landing.metadata import MARKER, Marker
from mirrorlake.landing.types import arrow_of
from mirrorlake.names import TableName
from mirrorlake_sources.folder_source import FolderSource
from mirrorlake_sources.growing import Line, lines, starts, with_done
from mirrorlake_sources.position import Position
from mirrorlake_sources.source import Batch, Group

_ROWS = 50_000


class CsvDrops(FolderSource):
    """A folder of CSV files, a folder a table.

    Args:
        folder: where the tables' folders are.
        keys: the key columns of tables that have some: their rows are upserts, by key. Rows of
            other tables are inserts.
        types: of columns that are no text, as `{"orders": {"n": "long"}}`, in Delta's words.
        pause: seconds between two looks, without `once`.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        keys: Mapping[str, Sequence[str]] | None = None,
        types: Mapping[str, Mapping[str, str]] | None = None,
        pause: float = 1.0,
    ) -> None:
        super().__init__(folder, "csv", (".csv",), pause=pause)
        self._keys = {name: tuple(columns) for name, columns in (keys or {}).items()}
        self._types = types or {}

    def pieces(self, path: Path, since: MutableMapping[TableName, Position]) -> Iterator[Group]:
        """The new rows of a file, at most some ten thousand at a time."""
        label = self.label(path)
        name, slash, _ = label.partition("/")
        if not slash:
            return
        try:
            table = TableName(None, name)
        except InvalidNameError as error:
            raise DataFileError(error.message, file=label, hint=error.hint) from error
        keys = self._keys.get(name, ())
        found = lines(path)
        header = next(found, None)
        if header is None:
            return
        if table not in since:
            yield Group(appeared={table: keys})
        if table not in since:
            return  # it is stopped
        start = starts(self.folder, path, {table: since[table]})[table]
        columns = _cells(header, label)
        fresh = (line for line in found if line.end > start)
        while chunk := list(islice(fresh, _ROWS)):
            position = with_done(since[table], label, chunk[-1])
            try:
                rows = self._rows(name, columns, chunk, bool(keys), label)
            except DataFileError as error:
                yield Group([Batch(table, None, position, problem=error)])
                return
            yield Group([Batch(table, rows, position)])

    def _rows(
        self, table: str, columns: list[str], chunk: list[Line], keyed: bool, label: str
    ) -> pa.RecordBatchReader:
        cells = []
        for line in chunk:
            row = _cells(line, label)
            if len(row) != len(columns):
                raise DataFileError(
                    f"The line has {len(row)} values for {len(columns)} columns.",
                    file=label,
                    row=line.number,
                )
            cells.append([value or None for value in row])
        types = self._types.get(table, {})
        arrays = []
        for place, column in enumerate(columns):
            texts = pa.array([row[place] for row in cells], pa.string())
            try:
                arrays.append(texts.cast(arrow_of(types.get(column, "string"))))
            except UNFIT as error:
                raise DataFileError(str(error), file=label, column=column) from error
        marker = Marker.UPSERT if keyed else Marker.INSERT
        arrays.append(pa.repeat(pa.scalar(int(marker), pa.int32()), len(cells)))
        made = pa.RecordBatch.from_arrays(arrays, names=[*columns, MARKER])
        return pa.RecordBatchReader.from_batches(made.schema, [made])


def _cells(line: Line, label: str) -> list[str]:
    """The values of a line; one whose quotes span lines is refused, so that a byte is a place."""
    try:
        (row,) = csv.reader([line.text.decode()], strict=True)
    except (csv.Error, ValueError) as error:
        raise DataFileError(f"No line of CSV: {error}.", file=label, row=line.number) from error
    return row
