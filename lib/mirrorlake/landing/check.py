"""Is this published file sound? Read without Spark, and by everybody: publisher, linter, mirror.

Delimited text is written as Parquet first, so that one check and one reader serve both.

Footers answer most of it; the marker column is always read, key columns only where a footer's
statistics can't rule out a NULL. Memory stays at one row group of those columns.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pt

from mirrorlake.errors import DataFileError, SchemaError
from mirrorlake.landing.compression import COMPRESSED
from mirrorlake.landing.markers import MARKER, MARKER_HINT, Marker
from mirrorlake.landing.metadata import TableMetadata
from mirrorlake.landing.text import read_text
from mirrorlake.landing.text_format import TextFormat
from mirrorlake.landing.types import ColumnType, column_type, published_schema
from mirrorlake.names import METADATA
from mirrorlake.storage import Storage

_CHUNK = 1 << 20
# Spark's hidden column of every file, the mirror's own, and those of the change feed.
_RESERVED = (
    "_metadata",
    "__mirrorlake_",
    "_change_type",
    "_commit_version",
    "_commit_timestamp",
)


@dataclass(frozen=True)
class FileFacts:
    """What is known of one sound data file.

    Attributes:
        number: its place in the table's sequence.
        source: the Parquet file to read its rows from, relative to the storage's root.
        columns: the data columns in the file's order; the marker is not among them.
        marker: the marker column's name as written, or None.
        marker_read: the type Spark's reader is asked for it.
        rows: how many rows ask for each operation.
    """

    name: str
    size: int
    columns: dict[str, ColumnType]
    marker: str | None
    rows: Counter[Marker] = field(default_factory=Counter)
    marker_read: str = "integer"
    number: int = 0
    source: str = ""

    @property
    def row_count(self) -> int:
        """All rows of the file."""
        return sum(self.rows.values())


def inspect_file(
    storage: Storage,
    path: str,
    metadata: TableMetadata,
    *,
    name: str | None = None,
    number: int = 0,
    staged: str | None = None,
) -> FileFacts:
    """Checks one file.

    Args:
        storage: where it lies.
        path: the file, relative to the storage's root.
        metadata: what the table's folder declares.
        name: what to call the file in errors; by default its own name.
        number: its place in the table's sequence.
        staged: where delimited text may be written as Parquet, relative to the root.

    Raises:
        DataFileError: it can't be read, or a marker or key in it is wrong; says where.
        SchemaError: a column of a type that can't be mirrored.
    """
    own = path.rpartition("/")[2]
    name = name or own
    size = _size(storage, path, name)
    source = path
    if is_text(own, metadata.text):
        source = staged or f"{path}.parquet"
        _convert(storage, path, metadata, source, name)
    facts = _inspect_parquet(storage, source, metadata, name)
    return replace(facts, size=size, number=number, source=source)


def _size(storage: Storage, path: str, name: str) -> int:
    with storage.open(path) as source:
        size = source.seek(0, 2)
    if size == 0:
        raise DataFileError(
            "The file has zero bytes.", file=name, hint="upload it again under the same name."
        )
    return size


def is_text(name: str, text: TextFormat) -> bool:
    """Whether a data file is delimited text, by the ending of its name; if not, it is Parquet.

    Raises:
        DataFileError: the ending is neither's.
    """
    parts = name.lower().split(".")[1:]
    if len(parts) > 1 and parts[-1] in COMPRESSED:
        del parts[-1]
    if not parts:
        return text.declared
    if parts[-1] in text.extensions:
        return True
    if parts[-1] == "parquet":
        return False
    raise DataFileError(
        f"Nothing says how to read files ending in .{parts[-1]}.",
        file=name,
        hint=f"publish .parquet or .csv, or name the ending as fileExtension in {METADATA}.",
    )


def _convert(storage: Storage, path: str, metadata: TableMetadata, staged: str, name: str) -> None:
    """Writes delimited text as Parquet, its rows in their order."""
    with ExitStack() as opened:
        reader = read_text(lambda: opened.enter_context(storage.open(path)), metadata, name=name)
        target = opened.enter_context(storage.open_writer(staged))
        with pq.ParquetWriter(target, reader.schema) as writer:
            for batch in reader:
                writer.write_batch(batch)


def _inspect_parquet(storage: Storage, path: str, metadata: TableMetadata, name: str) -> FileFacts:
    with storage.open(path) as source:
        try:
            with pq.ParquetFile(source) as parquet:
                return _inspect(parquet, metadata, name)
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise DataFileError(
                f"Not a readable Parquet file: {_first_line(error)}.",
                file=name,
                hint="upload it again under the same name.",
            ) from error


def footer_columns(storage: Storage, path: str) -> dict[str, ColumnType]:
    """The data columns of one Parquet file, from its footer alone; raises as `inspect_file`."""
    name = path.rpartition("/")[2]
    with storage.open(path) as source:
        try:
            with pq.ParquetFile(source) as parquet:
                return read_columns(published_schema(parquet), name)[0]
        except (pa.ArrowException, OSError) as error:
            raise DataFileError(f"Not readable: {_first_line(error)}.", file=name) from error


def _inspect(parquet: pq.ParquetFile, metadata: TableMetadata, name: str) -> FileFacts:
    schema = published_schema(parquet)
    columns, marker = read_columns(schema, name)
    by_lower = {column.lower(): column for column in columns}
    keys = []
    for key in metadata.keys:
        if key.lower() not in by_lower:
            raise DataFileError(
                f"Key column {key!r} is missing.",
                file=name,
                column=key,
                hint=f"every row needs the columns that {METADATA} names as keyColumns.",
            )
        keys.append(by_lower[key.lower()])
    rows = _count_markers(parquet, marker, metadata, name)
    _check_keys(parquet, keys, name)
    marker_read = column_type(schema.field(marker).type).read if marker else "integer"
    return FileFacts(name, 0, columns, marker, rows, marker_read)


def read_columns(schema: pa.Schema, name: str) -> tuple[dict[str, ColumnType], str | None]:
    """The data columns with their types, and the marker column's name if there is one.

    Raises:
        DataFileError: the marker column is not of whole numbers.
        SchemaError: two columns of one name, or a type that can't be mirrored.
    """
    columns: dict[str, ColumnType] = {}
    marker: str | None = None
    seen: set[str] = set()
    for place, column in enumerate(schema, start=1):
        if not column.name:
            raise SchemaError(
                f"Column {place} has no name.",
                file=name,
                hint="name it; in a text file, look for a separator too many in the first row.",
            )
        if column.name.lower() in seen:
            raise SchemaError(
                f"Column {column.name!r} occurs twice (names differ at most by case).",
                file=name,
                column=column.name,
            )
        seen.add(column.name.lower())
        if column.name.lower() == MARKER.lower():
            marker = column.name
            if not pt.is_integer(column.type):
                raise DataFileError(
                    f"{MARKER} is of type {column.type}.",
                    file=name,
                    column=column.name,
                    hint=MARKER_HINT,
                )
            continue
        if column.name.lower().startswith(_RESERVED):
            raise SchemaError(
                f"The column name {column.name!r} is taken by the engine.",
                file=name,
                column=column.name,
                hint="rename the column.",
            )
        try:
            columns[column.name] = column_type(column.type)
        except SchemaError as error:
            raise SchemaError(
                error.message, file=name, column=column.name, hint=error.hint
            ) from error
    if not columns:
        raise SchemaError("The file has no data column.", file=name)
    return columns, marker


def _count_markers(
    parquet: pq.ParquetFile, marker: str | None, metadata: TableMetadata, name: str
) -> Counter[Marker]:
    default = metadata.default_marker
    counts: Counter[Marker] = Counter()
    if marker is None:
        counts[default] = parquet.metadata.num_rows
        _check_keys_declared(counts, metadata, name, None)
        return counts
    allowed = {int(value) for value in Marker}
    before = 0
    for group in range(parquet.num_row_groups):
        values = parquet.read_row_group(group, columns=[marker]).column(marker)
        for entry in pc.value_counts(values).to_pylist():
            value, count = entry["values"], entry["counts"]
            if value is None and metadata.upsert_by_default:
                value = int(Marker.UPSERT)
            if value not in allowed:
                row = pc.index(values, value).as_py() if value is not None else _first_null(values)
                found = "NULL" if value is None else value
                raise DataFileError(
                    f"Unknown row marker {found}.",
                    file=name,
                    row=before + row + 1,
                    column=marker,
                    hint=MARKER_HINT,
                )
            counts[Marker(value)] += count
        _check_keys_declared(counts, metadata, name, marker)
        before += len(values)
    return counts


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


def _check_keys(parquet: pq.ParquetFile, keys: list[str], name: str) -> None:
    before = 0
    for group in range(parquet.num_row_groups):
        unsure = [key for key in keys if not _surely_not_null(parquet, group, key)]
        if unsure:
            rows = parquet.read_row_group(group, columns=unsure)
            for key in unsure:
                if rows.column(key).null_count:
                    raise DataFileError(
                        f"Key column {key!r} is NULL.",
                        file=name,
                        row=before + _first_null(rows.column(key)) + 1,
                        column=key,
                        hint="a row without its key can't be found again; fill it in.",
                    )
        before += parquet.metadata.row_group(group).num_rows


def _surely_not_null(parquet: pq.ParquetFile, group: int, key: str) -> bool:
    facts = parquet.metadata.row_group(group)
    chunks = [facts.column(index) for index in range(facts.num_columns)]
    # A column `a.b` and a field `b` of a struct `a` have the same path.
    found = [chunk.statistics for chunk in chunks if chunk.path_in_schema == key]
    return (
        len(found) == 1
        and found[0] is not None
        and found[0].has_null_count
        and found[0].null_count == 0
    )


def _first_null(values: pa.ChunkedArray) -> int:
    index: int = pc.index(pc.is_null(values), True).as_py()
    return index


def file_hash(storage: Storage, path: str) -> str:
    """The file's SHA-256, read in pieces."""
    digest = hashlib.sha256()
    with storage.open(path) as source:
        while chunk := source.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
