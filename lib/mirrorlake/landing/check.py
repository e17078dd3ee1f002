"""Is this published file sound? Read without Spark, and by everybody: publisher, linter, mirror.

Delimited text is written as Parquet first, so that one check and one reader serve both.

Footers answer most of it; which rows can be applied is in `rows.py`.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from mirrorlake.errors import DataFileError, MirrorlakeError, SchemaError, first_line
from mirrorlake.landing.compression import COMPRESSED
from mirrorlake.landing.metadata import MARKER, MARKER_HINT, Marker, TableMetadata
from mirrorlake.landing.rows import Reject, Rejects, count_rows
from mirrorlake.landing.text import original_rows, read_text
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
        rejects: the rows that are left out because they can't be applied.
        left_out: their positions in `source`, from 0, as far as they are in it.
        skipped: why nothing of the file is applied; None if it is.
    """

    name: str
    size: int
    columns: dict[str, ColumnType]
    marker: str | None
    rows: Counter[Marker] = field(default_factory=Counter)
    marker_read: str = "integer"
    number: int = 0
    source: str = ""
    rejects: tuple[Reject, ...] = ()
    skipped: MirrorlakeError | None = None
    left_out: tuple[int, ...] = ()

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
    skip_rows: bool = False,
) -> FileFacts:
    """Checks one file.

    Args:
        storage: where it lies.
        path: the file, relative to the storage's root.
        metadata: what the table's folder declares.
        name: what to call the file in errors; by default its own name.
        number: its place in the table's sequence.
        staged: where delimited text is left as Parquet, relative to the root; by default nowhere.
        skip_rows: whether bad rows are left out and reported, instead of refused with the file.

    Raises:
        DataFileError: it can't be read, or a marker or key in it is wrong; says where.
        SchemaError: a column of a type that can't be mirrored.
    """
    own = path.rpartition("/")[2]
    name = name or own
    size = _size(storage, path, name)
    where, source = storage, path
    rejects = Rejects(name) if skip_rows else None
    in_text = 0
    with ExitStack() as opened:
        if is_text(own, metadata.text):
            source = staged or own
            if staged is None:
                where = Storage(opened.enter_context(TemporaryDirectory()))
            convert_text(storage, path, metadata, where, source, name, rejects)
            in_text = len(rejects.found) if rejects else 0
        facts = _inspect_parquet(where, source, metadata, name, rejects)
    found = tuple(rejects.found) if rejects else ()
    left_out = tuple(reject.row - 1 for reject in found[in_text:])
    if in_text and left_out:  # the text's bad rows are not in its Parquet any more
        gone = [reject.row for reject in found[:in_text]]
        before = sorted(left_out)
        rows = dict(zip(before, original_rows((n + 1 for n in before), gone), strict=True))
        later = (replace(reject, row=rows[reject.row - 1]) for reject in found[in_text:])
        found = (*found[:in_text], *later)
    return replace(facts, size=size, number=number, source=source, rejects=found, left_out=left_out)


def skipped_file(storage: Storage, path: str, number: int, reason: MirrorlakeError) -> FileFacts:
    """The facts of a file that is passed over; it need not be there."""
    try:
        with storage.open(path) as source:
            size = source.seek(0, 2)
    except FileNotFoundError:
        size = 0
    name = path.rpartition("/")[2]
    return FileFacts(name, size, {}, None, number=number, skipped=reason)


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


def convert_text(
    storage: Storage,
    path: str,
    metadata: TableMetadata,
    target: Storage,
    staged: str,
    name: str,
    rejects: Rejects | None = None,
) -> None:
    """Writes delimited text as Parquet, its rows in their order; raises as `read_text`."""
    with ExitStack() as opened:
        reader = read_text(
            lambda: opened.enter_context(storage.open(path)), metadata, name=name, rejects=rejects
        )
        sink = opened.enter_context(target.open_writer(staged))
        with pq.ParquetWriter(sink, reader.schema) as writer:
            for batch in reader:
                writer.write_batch(batch)


def _inspect_parquet(
    storage: Storage, path: str, metadata: TableMetadata, name: str, rejects: Rejects | None
) -> FileFacts:
    with storage.open(path) as source:
        try:
            with pq.ParquetFile(source) as parquet:
                return _inspect(parquet, metadata, name, rejects)
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise DataFileError(
                f"Not a readable Parquet file: {first_line(error).rstrip('.')}.",
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
            raise DataFileError(
                f"Not readable: {first_line(error).rstrip('.')}.", file=name
            ) from error


def _inspect(
    parquet: pq.ParquetFile, metadata: TableMetadata, name: str, rejects: Rejects | None
) -> FileFacts:
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
    rows = count_rows(parquet, marker, keys, metadata, name=name, rejects=rejects)
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


def file_hash(storage: Storage, path: str) -> str:
    """The file's SHA-256, read in pieces."""
    digest = hashlib.sha256()
    with storage.open(path) as source:
        while chunk := source.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
