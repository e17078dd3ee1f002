"""Check whether a published file is valid, for publisher, linter and mirror. Needs no Spark.

Delimited text is converted to Parquet first, so that one check and one reader serve both formats.
Footers decide most questions. Of the rows, only the marker column is always read, and a key column
only if the statistics of a footer do not exclude NULL. At most one row group of them is in memory.

Updates can keep some columns as they are in the table. This is mirrorlake's extension of the
format: in each update, the column `__unchanged__` lists the names of these columns. Other mirrors
would set them to NULL, so a publisher writes the column only on request.
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
from mirrorlake.names import METADATA, is_reserved
from mirrorlake.results import counted
from mirrorlake.storage.files import Storage

SMALL = 2**20
"""The largest size in bytes of a file that is read at once, so that its hash costs nothing."""
MOST_REJECTS = 10_000  # the most bad rows of a file that are left out
_MOST_KEYS = 1_000_000  # the most rows whose keys are compared; all of them are in memory
_PLAIN = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}  # Arrow can't take views
UNCHANGED_TYPE = pa.list_(pa.string())
Bounds = tuple[Any, Any]
"""The smallest and the largest value of a column; (None, None) if they are not known."""
_NAMELESS_HINT = "name the column; in a text file, look for an extra separator in the first row."
KEY_HINT = f"every row needs the columns that {METADATA} declares as keyColumns."
_NULL_KEY_HINT = "fill in the key; a row without it could never be found again."
_CODEC_HINT = "publish it uncompressed, or compressed with Snappy, GZIP, ZSTD or LZ4."
# Spark has no decoder for these codecs; the first row that it reads would fail.
_NO_DECODER = {"BROTLI": "Brotli", "LZO": "LZO"}
_LEAVES_HINT = (
    "only updates (marker 1) of a table with keys can keep columns other than its keys."
    " List only columns that the rows have; their values can be NULL."
)


@dataclass(frozen=True)
class FileFacts:
    """The facts about one valid data file.

    Attributes:
        name: the name of the file.
        size: the size in bytes.
        columns: the data columns in the file's order, without the marker.
        marker: the marker column's name as written, or None.
        rows: the number of rows by operation.
        marker_read: the type that Spark's reader uses for the marker.
        number: the file's place in the table's sequence.
        source: the Parquet file to read the rows from, relative to the storage's root.
        rejects: the rows that are left out because they can't be applied.
        skipped: why no row of the file is applied; None if the file is applied.
        left_out: the positions in `source`, from 0, of the rows that are left out and in it.
        unchanged: the columns that some update of the file keeps as they are in the table.
        sha256: the hash of the file's bytes; None if not all of them were read.
        bounds: the smallest and largest values of the keys from footers, by lower-case name.
        repeated_key: the first row of a key that rows without a marker repeat, and a sentence that
            names the key and two of its rows; None if there is none, or keys were not compared.
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
    repeated_key: tuple[int, str] | None = None

    @property
    def row_count(self) -> int:
        """The number of rows of all operations."""
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
    compare_keys: bool = False,
) -> FileFacts:
    """Check one file and return the facts about it.

    Args:
        storage: where the file is stored.
        path: the path of the file, relative to the storage's root.
        metadata: the declarations of the table's folder.
        name: the file's name in errors; the default is its own name.
        number: the file's place in the table's sequence.
        staged: the path for the Parquet file of delimited text, relative to the root; by default
            that file is temporary.
        skip_rows: whether bad rows are left out and reported, instead of an error.
        compare_keys: whether to look for a key that rows without a marker repeat; files with more
            than 1,000,000 rows are not searched.

    Raises:
        DataFileError: the file can't be read, or a marker or key is invalid; the error names the
            row.
        SchemaError: a column has a type that can't be mirrored.
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
        facts = _inspect_parquet(published, metadata, name or own, rejects, compare_keys)
    found = tuple(rejects.found)
    left_out = tuple(reject.row - 1 for reject in found[in_text:])
    if in_text and left_out:  # the text's bad rows are missing in its Parquet file
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
    """Return the facts about a file that is skipped; the file need not exist."""
    try:
        with storage.open(path) as source:
            size = source.seek(0, 2)
    except FileNotFoundError:
        size = 0
    name = path.rpartition("/")[2]
    return FileFacts(name, size, {}, None, number=number, skipped=reason)


def is_text(name: str, text: TextFormat) -> bool:
    """Return whether a data file is delimited text, by its file extension; otherwise it is Parquet.

    Raises:
        DataFileError: the extension is unknown.
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
        f"The file extension .{parts[-1]} is unknown.",
        file=name,
        hint=f"publish .parquet or .csv, or declare it as fileExtension in {METADATA}.",
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
    """Write the rows of delimited text to a Parquet file; raise errors as `read_text`.

    Args:
        storage: where the text is stored.
        path: the path of the text.
        metadata: the declarations of the table's folder.
        target: where the Parquet file is written.
        staged: the path of the Parquet file.
        name: the text's name in errors.
        data: the bytes of the text, if they were read already.
        rejects: see `read_text`.
    """
    with ExitStack() as opened:

        def open_text() -> IO[bytes]:
            return opened.enter_context(storage.open(path) if data is None else io.BytesIO(data))

        reader = read_text(open_text, metadata, name=name, rejects=rejects)
        with target.open_writer(staged) as sink, pq.ParquetWriter(sink, reader.schema) as writer:
            for batch in reader:
                writer.write_batch(batch)


def _inspect_parquet(
    source: IO[bytes],
    metadata: TableMetadata,
    name: str,
    rejects: Rejects,
    compare_keys: bool,
) -> FileFacts:
    try:
        with pq.ParquetFile(source) as parquet:
            if (unreadable := codec_fault(parquet)) is not None:
                raise unreadable
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
            inserted = compare_keys and marker is None and not metadata.upsert_by_default
            repeated = _repeated_key(parquet, keys) if inserted and keys else None
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataFileError(
            f"The file is not a readable Parquet file: {first_line(error).rstrip('.')}.",
            hint="upload it again under the same name.",
        ) from error
    marker_read = column_type(schema.field(marker).type).read if marker else "integer"
    return FileFacts(
        name,
        0,
        columns.data,
        marker,
        rows,
        marker_read,
        unchanged=unchanged,
        bounds=bounds,
        repeated_key=repeated,
    )


def _repeated_key(parquet: pq.ParquetFile, keys: list[str]) -> tuple[int, str] | None:
    """Return the first row of the first repeated key and a sentence about it, or None."""
    if parquet.metadata.num_rows > _MOST_KEYS:
        return None
    rows = (
        parquet.read(columns=keys, use_threads=len(keys) > 1)
        .select(keys)
        .rename_columns([f"key {key}" for key in keys])
    )
    rows = rows.append_column("row", pa.array(range(1, len(rows) + 1), pa.int64()))
    for place, (name, kind) in enumerate(zip(rows.schema.names, rows.schema.types, strict=True)):
        if kind in _PLAIN:
            rows = rows.set_column(place, name, rows.column(place).cast(_PLAIN[kind]))
    names = rows.column_names[:-1]
    try:
        groups = rows.group_by(names).aggregate([("row", "min"), ("row", "max")])
    except pa.ArrowException:  # Arrow can't compare values of this type
        return None
    groups = groups.filter(pc.less(groups["row_min"], groups["row_max"])).sort_by("row_min")
    if not len(groups):
        return None
    first = groups.slice(0, 1)
    try:
        values = [str(first[of][0]) for of in names]
    except (ValueError, OverflowError):  # invalid UTF-8, or a date after the year 9999
        values = ["…"] * len(names)
    key = ", ".join(f"{name}={value[:100]}" for name, value in zip(keys, values, strict=True))
    more = len(groups) - 1
    verb = "is" if more == 1 else "are"
    tail = f", and {counted(more, 'more key')} {verb} repeated" if more else ""
    row, other = (first[of][0].as_py() for of in ("row_min", "row_max"))
    return row, f"Rows {row:,} and {other:,} have the same key ({key}){tail}."


def codec_fault(parquet: pq.ParquetFile) -> DataFileError | None:
    """Return an error if a file's footer names a codec that Spark can't decompress."""
    for group in map(parquet.metadata.row_group, range(parquet.num_row_groups)):
        for chunk in map(group.column, range(group.num_columns)):
            if chunk.compression in _NO_DECODER:
                text = f"The file is compressed with {_NO_DECODER[chunk.compression]}."
                return DataFileError(text, column=chunk.path_in_schema, hint=_CODEC_HINT)
    return None


def footer_columns(storage: Storage, path: str) -> dict[str, ColumnType]:
    """Return the data columns of a Parquet file from its footer; none if the file is invalid.

    The mirror reports an invalid file of the zone, not the next publisher.
    """
    try:
        with storage.open(path) as source, pq.ParquetFile(source) as parquet:
            columns = read_columns(published_schema(parquet))
    except (pa.ArrowException, OSError):
        return {}
    return {} if columns.faults else columns.data


@dataclass(frozen=True)
class Columns:
    """The columns of a file, and all errors in them.

    Attributes:
        data: the valid data columns in the file's order, without the marker.
        marker: the marker column's name as written, or None.
        faults: the errors, each with the id of the linter's rule; the mirror stops at the first.
    """

    data: dict[str, ColumnType]
    marker: str | None
    faults: list[tuple[str, MirrorlakeError]]


def read_columns(schema: pa.Schema, keys: tuple[str, ...] = ()) -> Columns:
    """Return the columns of a file with their types in the table.

    Args:
        schema: the published schema.
        keys: the columns that the file must contain.
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
                text = f"{MARKER} has the type {column.type}."
                error = DataFileError(text, column=name, hint=MARKER_HINT)
                faults.append(("marker-type", error))
        elif is_unchanged(column):
            continue
        elif is_reserved(name):
            text = f"The column name {name!r} is reserved."
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
            faults.append(("key-missing", DataFileError(text, column=key, hint=KEY_HINT)))
    return Columns(data, marker, faults)


def file_hash(storage: Storage, path: str) -> str:
    """Return the SHA-256 of a file, read in chunks."""
    digest = hashlib.sha256()
    for chunk in storage.chunks(path):
        digest.update(chunk)
    return digest.hexdigest()


def count_rows(
    parquet: pq.ParquetFile,
    marker: str | None,
    keys: list[str],
    metadata: TableMetadata,
    rejects: Rejects,
) -> Counter[Marker]:
    """Return the number of rows by operation, without the bad rows.

    Args:
        parquet: the open file.
        marker: the marker column as the file spells it, or None.
        keys: the key columns as the file spells them.
        metadata: the declarations of the table's folder.
        rejects: collects bad rows, or raises an error at the first.

    Raises:
        DataFileError: a row is bad, or rows need keys in a table without keys.
    """
    counts: Counter[Marker] = Counter()
    before = 0
    for group in range(parquet.num_row_groups):
        rows = parquet.metadata.row_group(group).num_rows
        markers = read_markers(parquet, group, marker, metadata)
        bad: set[int] = set()
        for rule, column, mask in row_faults(parquet, group, marker, markers, keys):
            # One more than the limit is enough to exceed it.
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
            f"The file has {needing[0]} rows, but the table has no key columns.",
            column=marker,
            hint=f'pass them as keys (--keys), or declare "keyColumns": ["id"] in {METADATA}.',
        )
    return counts


def read_markers(
    parquet: pq.ParquetFile, group: int, marker: str | None, metadata: TableMetadata
) -> pa.ChunkedArray | None:
    """Return a row group's markers, with the default for NULL; None if the file has no markers."""
    if marker is None:
        return None
    # One column needs no threads; threads that start while a process exits can abort it.
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
    """Yield the kinds of errors in a row group: linter rule, column and mask of the rows."""
    if marker is not None and markers is not None:
        allowed = pa.array([int(value) for value in Marker], markers.type)
        yield "marker-value", marker, pc.invert(pc.is_in(markers, value_set=allowed))
    statistics = {key: column_statistics(parquet.metadata.row_group(group), key) for key in keys}
    # The footer may show that no value is NULL.
    unsure = [key for key, s in statistics.items() if not s or not s.has_null_count or s.null_count]
    if not unsure:
        return
    rows = parquet.read_row_group(group, columns=unsure, use_threads=len(unsure) > 1)
    for key in unsure:
        yield "key-null", key, pc.is_null(rows.column(key))


def describe_fault(rule: str, column: str, markers: pa.ChunkedArray | None, index: int) -> str:
    """Return a description of one row's error, without a final period."""
    if rule == "key-null" or markers is None:
        return f"Key column {column!r} is NULL"
    value = markers[index].as_py()
    return f"Unknown row marker {'NULL' if value is None else value}"


def _row(parquet: pq.ParquetFile, group: int, index: int) -> Any:
    try:
        return parquet.read_row_group(group).slice(index, 1).to_pylist()[0]
    except (pa.ArrowException, ValueError, OverflowError):
        return None  # a type without a counterpart in Python


def footer_bounds(parquet: pq.ParquetFile, columns: list[str]) -> dict[str, list[Bounds]]:
    """Return the smallest and largest value of each non-empty row group, by lower-case column.

    Args:
        parquet: the open file; only its footer is read.
        columns: the columns.

    Returns:
        For each row group a pair; (None, None) if the footer has no statistics.
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
        """Add a file with rows, and return whether it may contain keys of the files before it.

        Args:
            bounds: the bounds of the file's keys, see `footer_bounds`.
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
            except TypeError:  # a range is unknown, or the types differ
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
    """Return a row group's statistics of a column, found without regard to case, or None."""
    chunks = [group.column(index) for index in range(group.num_columns)]
    # A column `a.b` and the field `b` of a struct `a` have the same path.
    found = [chunk for chunk in chunks if chunk.path_in_schema.lower() == column.lower()]
    return found[0].statistics if len(found) == 1 else None


def is_unchanged(column: pa.Field) -> bool:
    """Return whether a column is `__unchanged__`; with another type it is an ordinary column."""
    kind = column.type
    if column.name != UNCHANGED or not (pt.is_list(kind) or pt.is_large_list(kind)):
        return False
    # Lists that are all empty have no type.
    kinds = (pt.is_string, pt.is_large_string, pt.is_string_view, pt.is_null)
    return any(one(kind.value_type) for one in kinds)


def unchanged_names(
    file: pq.ParquetFile, marker: str | None, columns: Collection[str], keys: Collection[str]
) -> tuple[str, ...]:
    """Return the columns that updates of a file keep as they are in the table.

    Args:
        file: the published file.
        marker: its marker column.
        columns: its data columns.
        keys: the data columns that are keys.

    Raises:
        DataFileError: a row other than an update lists columns, or a listed column can't be kept.
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
                text = f"The row keeps {min(bad or names)!r} unchanged."
                raise DataFileError(text, row=before + place, column=UNCHANGED, hint=_LEAVES_HINT)
            found.update(names)
        before += batch.num_rows
    return tuple(sorted(found))
