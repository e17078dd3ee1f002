"""Is this published file sound? Read without Spark, and by everybody: publisher, linter, mirror.

Delimited text is written as Parquet first, so that one check and one reader serve both.

Footers answer most of it; which rows can be applied is in `rows.py`.
"""

from __future__ import annotations

import hashlib
import io
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from tempfile import TemporaryDirectory
from typing import IO, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pt

from mirrorlake.errors import DataFileError, MirrorlakeError, SchemaError, first_line, in_file
from mirrorlake.landing.metadata import (
    MARKER,
    MARKER_HINT,
    UNCHANGED,
    Marker,
    TableMetadata,
    TextFormat,
)
from mirrorlake.landing.text import COMPRESSED, Reject, Rejects, original_rows, read_text
from mirrorlake.landing.types import ColumnType, column_type, published_schema
from mirrorlake.names import METADATA
from mirrorlake.storage.files import Storage

SMALL = 2**20
"""A file of at most so many bytes is read once and whole; it then costs nothing to hash it."""
_NAMELESS_HINT = "name it; in a text file, look for a separator too many in the first row."
_KEY_HINT = f"every row needs the columns that {METADATA} names as keyColumns."
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
        unchanged: the columns that some update of it leaves as they are in the table.
        skipped: why nothing of the file is applied; None if it is.
        sha256: of its bytes, where all of them were read; else None.
        bounds: what its footers tell of its keys, by key in lower case.
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
    unchanged: tuple[str, ...] = ()
    sha256: str | None = None
    bounds: dict[str, list[Bounds]] = field(default_factory=dict)

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
    source = path
    rejects = Rejects(MOST_REJECTS if skip_rows else 0)
    in_text = 0
    with ExitStack() as opened:
        opened.enter_context(in_file(name or own))
        published = opened.enter_context(storage.open(path))
        size = published.seek(0, io.SEEK_END)
        if size == 0:
            hint = "upload it again under the same name."
            raise DataFileError("The file has zero bytes.", hint=hint)
        published.seek(0)
        data = published.read() if size <= SMALL else None
        sha256 = None if data is None else hashlib.sha256(data).hexdigest()
        if data is not None:
            published = io.BytesIO(data)
        if is_text(own, metadata.text):
            source, where = staged or own, storage
            if staged is None:
                where = Storage(opened.enter_context(TemporaryDirectory()))
            convert_text(storage, path, metadata, where, source, name or own, data, rejects)
            in_text = len(rejects.found)
            published = opened.enter_context(where.open(source))
        facts = _inspect_parquet(published, metadata, name or own, rejects)
    found = tuple(rejects.found)
    left_out = tuple(reject.row - 1 for reject in found[in_text:])
    if in_text and left_out:  # the text's bad rows are not in its Parquet any more
        gone = [reject.row for reject in found[:in_text]]
        before = sorted(left_out)
        rows = dict(zip(before, original_rows((n + 1 for n in before), gone), strict=True))
        later = (replace(reject, row=rows[reject.row - 1]) for reject in found[in_text:])
        found = (*found[:in_text], *later)
    return replace(
        facts,
        size=size,
        number=number,
        source=source,
        rejects=found,
        left_out=left_out,
        sha256=sha256,
    )


def skipped_file(storage: Storage, path: str, number: int, reason: MirrorlakeError) -> FileFacts:
    """The facts of a file that is passed over; it need not be there."""
    try:
        with storage.open(path) as source:
            size = source.seek(0, 2)
    except FileNotFoundError:
        size = 0
    name = path.rpartition("/")[2]
    return FileFacts(name, size, {}, None, number=number, skipped=reason)


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
    data: bytes | None = None,
    rejects: Rejects | None = None,
) -> None:
    """Writes delimited text as Parquet, its rows in their order; raises as `read_text`.

    Args:
        storage: where the text lies.
        path: the file.
        metadata: what the table's folder declares.
        target: where the Parquet file goes.
        staged: its path there.
        name: what to call the text in errors.
        data: the file's bytes, where they are read already.
        rejects: as for `read_text`.
    """
    with ExitStack() as opened:

        def open_text() -> IO[bytes]:
            return opened.enter_context(storage.open(path) if data is None else io.BytesIO(data))

        reader = read_text(open_text, metadata, name=name, rejects=rejects)
        with target.open_writer(staged) as sink, pq.ParquetWriter(sink, reader.schema) as writer:
            for batch in reader:
                writer.write_batch(batch)


def _inspect_parquet(
    source: IO[bytes], metadata: TableMetadata, name: str, rejects: Rejects
) -> FileFacts:
    try:
        with pq.ParquetFile(source) as parquet:
            schema = published_schema(parquet)
            columns = read_columns(schema, metadata.keys)
            for _rule, error in columns.faults:
                raise error
            spelled = {column.lower(): column for column in columns.data}
            keys = [spelled[key.lower()] for key in metadata.keys]
            marker = columns.marker
            rows = count_rows(parquet, marker, keys, metadata, rejects)
            unchanged = unchanged_names(parquet, marker, columns.data, keys)
            bounds = footer_bounds(parquet, keys)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataFileError(
            f"Not a readable Parquet file: {first_line(error).rstrip('.')}.",
            hint="upload it again under the same name.",
        ) from error
    marker_read = column_type(schema.field(marker).type).read if marker else "integer"
    return FileFacts(
        name, 0, columns.data, marker, rows, marker_read, unchanged=unchanged, bounds=bounds
    )


def footer_columns(storage: Storage, path: str) -> dict[str, ColumnType]:
    """The data columns of one Parquet file, from its footer alone; none if it is not sound.

    What is wrong with a file in the zone is the mirror's to report, not the next publisher's.
    """
    try:
        with storage.open(path) as source, pq.ParquetFile(source) as parquet:
            columns = read_columns(published_schema(parquet))
    except (pa.ArrowException, OSError):
        return {}
    return {} if columns.faults else columns.data


@dataclass(frozen=True)
class Columns:
    """A file's columns, and all that is wrong with them.

    Attributes:
        data: the sound data columns in the file's order; the marker is not among them.
        marker: the marker column's name as written, or None.
        faults: what is wrong, each with the id of the linter's rule; the mirror stops at the first.
    """

    data: dict[str, ColumnType]
    marker: str | None
    faults: list[tuple[str, MirrorlakeError]]


def read_columns(schema: pa.Schema, keys: tuple[str, ...] = ()) -> Columns:
    """What a file's columns become.

    Args:
        schema: as published.
        keys: the columns that the file has to have.
    """
    data: dict[str, ColumnType] = {}
    faults: list[tuple[str, MirrorlakeError]] = []
    marker: str | None = None
    seen: set[str] = set()
    for place, column in enumerate(schema, start=1):
        name, lower = column.name, column.name.lower()
        if lower in seen:
            text = f"Column {name!r} occurs twice (names differ at most by case)."
            faults.append(("column-twice", SchemaError(text, column=name)))
            continue
        seen.add(lower)
        if not name:
            text, hint = f"Column {place} has no name.", _NAMELESS_HINT
            faults.append(("column-reserved", SchemaError(text, hint=hint)))
        elif lower == MARKER.lower():
            marker = name
            if not pt.is_integer(column.type):
                text = f"{MARKER} is of type {column.type}."
                error = DataFileError(text, column=name, hint=MARKER_HINT)
                faults.append(("marker-type", error))
        elif is_unchanged(column):
            continue
        elif lower.startswith(_RESERVED):
            text = f"The column name {name!r} is taken by the engine."
            taken = SchemaError(text, column=name, hint="rename the column.")
            faults.append(("column-reserved", taken))
        else:
            try:
                data[name] = column_type(column.type)
            except SchemaError as misfit:
                misfit.column = name
                faults.append(("type-unsupported", misfit))
    others = seen - {MARKER.lower()}
    if not others:
        faults.append(("file-without-columns", SchemaError("The file has no data column.")))
    for key in keys:
        if key.lower() not in others:
            text = f"Key column {key!r} is missing."
            faults.append(("key-missing", DataFileError(text, column=key, hint=_KEY_HINT)))
    return Columns(data, marker, faults)


def file_hash(storage: Storage, path: str) -> str:
    """The file's SHA-256, read in pieces."""
    digest = hashlib.sha256()
    for chunk in storage.chunks(path):
        digest.update(chunk)
    return digest.hexdigest()


MOST_REJECTS = 10_000
Bounds = tuple[Any, Any]
"""The smallest and the largest value of a column; None and None where they are not known."""
UNCHANGED_TYPE = pa.list_(pa.string())
_LEAVES_HINT = "only updates (marker 1) of a table with keys can leave columns that are no keys."
_NULL_KEY_HINT = "a row without its key can't be found again; fill it in."


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
                hint = MARKER_HINT if column == marker else _NULL_KEY_HINT
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
