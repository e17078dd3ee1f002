"""What is wrong with one data file: the mirror's own check decides, then every problem is reported.

A file that `inspect_file` takes has no error. One that it refuses is read again for everything that
is wrong, since the check stops at the first. Text files are converted outside the lake, which is
not written to. Memory stays at one row group of the marker and the keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pt

from mirrorlake.errors import DataFileError, MirrorlakeError, SchemaError
from mirrorlake.landing.check import FileFacts, convert_text, inspect_file, is_text, read_columns
from mirrorlake.landing.metadata import MARKER, MARKER_HINT, Marker, TableMetadata
from mirrorlake.landing.types import ColumnType, column_type, published_schema
from mirrorlake.lint.rules import LintFinding, finding
from mirrorlake.storage import Entry, Storage

_UNREADABLE = (pa.ArrowException, OSError, UnicodeDecodeError)


@dataclass(frozen=True)
class FileLint:
    """What reading one data file has shown.

    Attributes:
        schema: its columns as published, if they can be read.
        columns: the data columns that can be mirrored.
        facts: all there is to know, of a sound file.
        findings: what is wrong.
    """

    name: str
    schema: pa.Schema | None = None
    columns: dict[str, ColumnType] | None = None
    facts: FileFacts | None = None
    findings: tuple[LintFinding, ...] = ()


def lint_file(
    storage: Storage, table: str, folder: str, entry: Entry, metadata: TableMetadata, *, keyed: bool
) -> FileLint:
    """Reads one data file.

    Args:
        storage: where it lies.
        table: its table, as findings name it.
        folder: its folder, relative to the storage's root.
        entry: the file as listed.
        metadata: what the folder declares.
        keyed: whether there is a `_metadata.json`.
    """
    name, path = entry.name, f"{folder}/{entry.name}"
    report = partial(finding, table=table, file=name)
    if entry.size == 0:
        return FileLint(name, findings=(report("file-zero-bytes", "The file has zero bytes."),))
    try:
        text = is_text(name, metadata.text)
    except DataFileError as error:
        return FileLint(name, findings=(report("file-ending", error.message),))
    lint = partial(_lint_parquet, name=name, metadata=metadata, table=table, keyed=keyed)
    try:
        if not text:
            return lint(storage, path)
        with TemporaryDirectory() as place:
            try:
                convert_text(storage, path, metadata, Storage(place), "rows.parquet", name)
            except MirrorlakeError as error:
                found = report(_text_rule(error), error.message, row=error.row, column=error.column)
                return FileLint(name, findings=(found,))
            return lint(Storage(place), "rows.parquet")
    except FileNotFoundError:
        return FileLint(name)  # a mirror has applied and moved it since the listing
    except OSError as error:
        return FileLint(name, findings=(report("file-unreadable", f"Not readable: {error}."),))


def _text_rule(error: MirrorlakeError) -> str:
    if error.column is None:
        return "text-unreadable"
    return "marker-value" if error.column.lower() == MARKER.lower() else "text-value"


def _lint_parquet(
    storage: Storage, path: str, *, name: str, metadata: TableMetadata, table: str, keyed: bool
) -> FileLint:
    report = partial(finding, table=table, file=name)
    facts: FileFacts | None = None
    refused: MirrorlakeError | None = None
    try:
        facts = inspect_file(storage, path, metadata, name=name)
    except MirrorlakeError as error:
        refused = error
    findings: list[LintFinding] = []
    schema = None
    try:
        with storage.open(path) as source, pq.ParquetFile(source) as parquet:
            schema = published_schema(parquet)
            if refused is not None:
                for rule, message, row, column in _explain(parquet, schema, metadata, keyed):
                    findings.append(report(rule, message, row=row, column=column))
    except _UNREADABLE:
        pass  # the check has said so
    if refused is not None and not findings:
        findings.append(report("file-unreadable", refused.message, column=refused.column))
    if facts is not None and facts.row_count == 0:
        findings.append(report("file-without-rows", "The file has no rows."))
    columns = None if schema is None else dict(_sound(schema))
    return FileLint(name, schema, columns, facts, tuple(findings))


_Problem = tuple[str, str, "int | None", "str | None"]  # rule, message, row, column


def _sound(schema: pa.Schema) -> Iterator[tuple[str, ColumnType]]:
    for column in schema:
        if column.name.lower() != MARKER.lower():
            try:
                yield column.name, column_type(column.type)
            except SchemaError:
                continue  # it is a finding already


def _explain(
    parquet: pq.ParquetFile, schema: pa.Schema, metadata: TableMetadata, keyed: bool
) -> Iterator[_Problem]:
    """All that is wrong with a file that the check has refused."""
    first: dict[str, pa.Field] = {}
    for column in schema:
        if column.name.lower() in first:
            text = f"Column {column.name!r} occurs twice (names differ at most by case)."
            yield "column-twice", text, None, column.name
            continue
        first[column.name.lower()] = column
        yield from _explain_column(column)
    marker = first.pop(MARKER.lower(), None)
    if not first:
        yield "file-without-columns", "The file has no data column.", None, None
    for key in metadata.keys:
        if key.lower() not in first:
            yield "key-missing", f"Key column {key!r} is missing.", None, key
    twice = len(first) + (marker is not None) < len(schema)
    if twice:
        return  # its columns can't be asked for by name
    if marker is None or pt.is_integer(marker.type):
        yield from _explain_markers(parquet, marker and marker.name, metadata, keyed)
    names = [first[key.lower()].name for key in metadata.keys if key.lower() in first]
    yield from _explain_keys(parquet, names)


def _explain_column(column: pa.Field) -> Iterator[_Problem]:
    if column.name.lower() == MARKER.lower():
        if not pt.is_integer(column.type):
            text = f"{MARKER} is of type {column.type}. {MARKER_HINT.capitalize()}"
            yield "marker-type", text, None, column.name
        return
    try:
        column_type(column.type)
    except SchemaError as error:
        yield "type-unsupported", error.message, None, column.name
        return
    try:
        read_columns(pa.schema([column]), "")
    except SchemaError as error:
        yield "column-reserved", error.message, None, column.name


def _explain_markers(
    parquet: pq.ParquetFile, marker: str | None, metadata: TableMetadata, keyed: bool
) -> Iterator[_Problem]:
    rule = "key-undeclared" if keyed else "metadata-missing"
    default = metadata.default_marker
    if marker is None:
        if default is not Marker.INSERT and not metadata.keys and parquet.metadata.num_rows:
            yield rule, f"{default.name.lower()} rows, but the table has no keys.", None, None
        return
    unknown, needing = _Rows(), _Rows()
    example = None
    for group in range(parquet.num_row_groups):
        values = parquet.read_row_group(group, columns=[marker]).column(marker)
        allowed = pa.array([int(value) for value in Marker], values.type)
        bad = pc.invert(pc.is_in(values, allowed))
        needs = pc.and_(pc.invert(bad), pc.not_equal(values, int(Marker.INSERT)))
        if metadata.upsert_by_default:
            needs = pc.if_else(pc.is_null(values), True, needs)
            bad = pc.and_(bad, pc.is_valid(values))
        if unknown.add(bad) and example is None:
            example = values[unknown.row - unknown.before - 1].as_py()
            example = "NULL" if example is None else example
        needing.add(pc.fill_null(needs, False))
        unknown.before += len(values)
        needing.before += len(values)
    if unknown.count:
        yield "marker-value", f"Unknown row marker {example}{unknown}.", unknown.row, marker
    if needing.count and not metadata.keys:
        text = f"Updates, deletes or upserts, but the table has no keys{needing}."
        yield rule, text, needing.row, marker


def _explain_keys(parquet: pq.ParquetFile, keys: list[str]) -> Iterator[_Problem]:
    found = {key: _Rows() for key in keys}
    for group in range(parquet.num_row_groups if keys else 0):
        rows = parquet.read_row_group(group, columns=keys)
        for key, nulls in found.items():
            nulls.add(pc.is_null(rows.column(key)))
            nulls.before += rows.num_rows
    for key, nulls in found.items():
        if nulls.count:
            yield "key-null", f"Key column {key!r} is NULL{nulls}.", nulls.row, key


class _Rows:
    """How many rows of a file are of a kind, and which is the first of them, counted from 1."""

    def __init__(self) -> None:
        self.before = 0
        self.count = 0
        self.row = 0

    def add(self, flags: pa.ChunkedArray) -> bool:
        """Counts the flagged rows of the next group; whether there are any."""
        more = pc.sum(flags).as_py() or 0
        if more and not self.count:
            self.row = self.before + pc.index(flags, True).as_py() + 1
        self.count += more
        return bool(more)

    def __str__(self) -> str:
        return "" if self.count == 1 else f", in {self.count:,} rows"
