"""Lint data files: each file by itself, and the columns of a table's files in their order.

The mirror's own check decides: a file that `inspect_file` accepts has no error. A file that it
refuses is read again for all its problems, since the check stops at the first. Text files are
converted outside of the lake, which the linter never changes. At most one row group of the marker
and the keys is in memory. A problem between files is reported at its first file only.
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

from mirrorlake.errors import DataFileError, MirrorlakeError
from mirrorlake.landing.check import (
    Columns,
    FileFacts,
    SeenKeys,
    codec_fault,
    convert_text,
    describe_fault,
    inspect_file,
    is_text,
    read_columns,
    read_markers,
    row_faults,
)
from mirrorlake.landing.lint_rules import LintFinding, finding
from mirrorlake.landing.metadata import MARKER, Marker, TableMetadata
from mirrorlake.landing.type_rules import VOID, Stored
from mirrorlake.landing.types import ColumnType, fits, published_schema, widened
from mirrorlake.names import METADATA, TableName
from mirrorlake.storage.files import Entry, Storage

_UNREADABLE = (pa.ArrowException, OSError, UnicodeDecodeError)


@dataclass(frozen=True)
class FileLint:
    """The result of reading one data file.

    Attributes:
        name: the name of the file.
        schema: the columns as published, if they can be read.
        columns: the data columns that can be mirrored.
        facts: the facts about the file, if it is valid.
        findings: the problems.
    """

    name: str
    schema: pa.Schema | None = None
    columns: dict[str, ColumnType] | None = None
    facts: FileFacts | None = None
    findings: tuple[LintFinding, ...] = ()


def lint_file(
    storage: Storage, table: TableName, entry: Entry, metadata: TableMetadata, *, keyed: bool
) -> FileLint:
    """Check one data file.

    Args:
        storage: the lake's files.
        table: the table.
        entry: the file as it was listed.
        metadata: the declarations of the table's folder.
        keyed: whether the folder has a `_metadata.json`.
    """
    name, path = entry.name, f"{table.folder}/{entry.name}"
    report = partial(finding, table=str(table), file=name)
    if entry.size == 0:
        return FileLint(name, findings=(report("file-zero-bytes", "The file has zero bytes."),))
    try:
        text = is_text(name, metadata.text)
    except DataFileError as error:
        return FileLint(name, findings=(report("file-ending", error.message),))
    lint = partial(_lint_parquet, name=name, metadata=metadata, keyed=keyed, report=report)
    try:
        if not text:
            return lint(storage, path)
        with TemporaryDirectory() as place:
            try:
                convert_text(storage, path, metadata, Storage(place), "rows.parquet", name)
            except MirrorlakeError as error:
                if error.column is None:
                    rule = "text-unreadable"
                else:
                    is_marker = error.column.lower() == MARKER.lower()
                    rule = "marker-value" if is_marker else "text-value"
                found = report(rule, error.message, row=error.row, column=error.column)
                return FileLint(name, findings=(found,))
            return lint(Storage(place), "rows.parquet")
    except FileNotFoundError:
        return FileLint(name)  # the mirror has applied and moved it since the listing
    except OSError as error:
        return FileLint(
            name, findings=(report("file-unreadable", f"The file is not readable: {error}."),)
        )


def _lint_parquet(
    storage: Storage,
    path: str,
    *,
    name: str,
    metadata: TableMetadata,
    keyed: bool,
    report: partial[LintFinding],
) -> FileLint:
    facts: FileFacts | None = None
    refused: MirrorlakeError | None = None
    try:
        facts = inspect_file(storage, path, metadata, name=name, compare_keys=True)
    except MirrorlakeError as error:
        refused = error
    findings: list[LintFinding] = []
    schema = columns = None
    try:
        with storage.open(path) as source, pq.ParquetFile(source) as parquet:
            schema = published_schema(parquet)
            columns = read_columns(schema, metadata.keys)
            if refused is not None:
                for found in _explain(parquet, columns, metadata, keyed, report):
                    findings.append(found)  # keeps what is found before an error
    except _UNREADABLE:
        pass  # the check has reported this error
    if refused is not None and not findings:
        findings.append(report("file-unreadable", refused.message, column=refused.column))
    if facts is not None and facts.row_count == 0:
        findings.append(report("file-without-rows", "The file has no rows."))
    if facts is not None and facts.repeated_key is not None:
        row, text = facts.repeated_key
        findings.append(report("key-twice-in-file", text, row=row))
    return FileLint(name, schema, columns.data if columns else None, facts, tuple(findings))


def _explain(
    parquet: pq.ParquetFile,
    columns: Columns,
    metadata: TableMetadata,
    keyed: bool,
    report: partial[LintFinding],
) -> Iterator[LintFinding]:
    """Yield all problems of a file that the check has refused."""
    if (unreadable := codec_fault(parquet)) is not None:
        yield report("file-codec", unreadable.message, column=unreadable.column)
    for rule, error in columns.faults:
        hint = f" {error.hint.capitalize()}" if rule == "marker-type" else ""
        yield report(rule, f"{error.message}{hint}", column=error.column)
    rules = {rule for rule, _ in columns.faults}
    if "column-twice" in rules:
        return  # its columns can't be read by name
    marker = None if "marker-type" in rules else columns.marker
    wanted = {key.lower() for key in metadata.keys}
    keys = [name for name in columns.data if name.lower() in wanted]
    undeclared = "key-undeclared" if keyed else "metadata-missing"
    if (
        not columns.marker
        and metadata.upsert_by_default
        and not metadata.keys
        and parquet.metadata.num_rows
    ):
        yield report(undeclared, "The file has upsert rows, but the table has no keys.")
    bad: dict[tuple[str, str], _Rows] = {}
    needing = _Rows()
    before = 0
    for group in range(parquet.num_row_groups):
        markers = read_markers(parquet, group, marker, metadata)
        for rule, column, mask in row_faults(parquet, group, marker, markers, keys):
            rows = bad.setdefault((rule, column), _Rows())
            if rows.add(mask, before) and not rows.message:
                first = rows.row - before - 1
                rows.message = describe_fault(rule, column, markers, first)
        if markers is not None and not metadata.keys:
            with_key = [int(value) for value in Marker if value is not Marker.INSERT]
            needing.add(pc.is_in(markers, value_set=pa.array(with_key, markers.type)), before)
        before += parquet.metadata.row_group(group).num_rows
    for (rule, column), rows in bad.items():
        if rows.count:
            yield report(rule, f"{rows.message}{rows}.", row=rows.row, column=column)
    if needing.count:
        text = f"The file has updates, deletes or upserts, but the table has no keys{needing}."
        yield report(undeclared, text, row=needing.row, column=marker)


@dataclass
class _Rows:
    """The number of rows of a file with one problem, and the first of them, counted from 1."""

    count: int = 0
    row: int = 0
    message: str = ""  # the description of the first row's problem

    def add(self, flags: pa.ChunkedArray, before: int) -> bool:
        """Count the flagged rows of the group after `before` rows; return whether there are any."""
        more = pc.sum(flags).as_py() or 0
        if more and not self.count:
            self.row = before + pc.index(flags, True).as_py() + 1
        self.count += more
        return bool(more)

    def __str__(self) -> str:
        return "" if self.count == 1 else f", in {self.count:,} rows"


class ColumnWatch:
    """Compares the columns of a table's files, one file after the other.

    Args:
        table: the name of the table in findings.
        mirrored: the columns of the mirrored table with their types; empty without a table.
        metadata: the declarations of the table's folder.
        applied: whether files of the table were applied.
    """

    def __init__(
        self, table: str, mirrored: dict[str, str], metadata: TableMetadata, *, applied: bool
    ) -> None:
        self._finding = partial(finding, table=table)
        self._kinds = {name.lower(): kind for name, kind in mirrored.items()}
        self._mirrored = set(self._kinds)
        self._had = dict.fromkeys(self._kinds)  # an ordered set
        self._declared = metadata.table_columns
        self._reported: dict[str, str] = {}
        self._lacking: set[str] = set()
        self._cut: set[str] = set()
        self._marker_reported = False
        self._inserts_by_key = bool(metadata.keys) and not metadata.upsert_by_default
        self._applied = applied
        self._seen_keys = SeenKeys()
        self._repeated = False

    @property
    def seen(self) -> set[str]:
        """All columns of the table, its declaration and its files, in lower case."""
        return set(self._had) | {name.lower() for name in self._declared}

    @property
    def typed(self) -> bool:
        """Whether any column has a type."""
        return bool(self._kinds)

    def begin(self) -> Iterator[LintFinding]:
        """Compare the declared columns with the mirrored table."""
        for name, kind in self._declared.items():
            known = self._kinds.setdefault(name.lower(), kind)
            if not (fits(kind, known) or fits(known, kind)):
                text = f"Column {name!r} is declared as {kind}, but the table has {known}."
                yield self._finding("type-misfit", text, file=METADATA, column=name)

    def follow(self, linted: FileLint) -> Iterator[LintFinding]:
        """Compare the next file with the table and with earlier files."""
        if linted.schema is None or linted.columns is None:
            return
        report = partial(self._finding, file=linted.name)
        yield from self._marker(linted.schema, report)
        if self._inserts_by_key and linted.facts and linted.facts.row_count:
            yield from self._keys(linted.facts, report)
        for column in linted.schema:
            if _is_truncated(column.type) and column.name.lower() not in self._cut:
                self._cut.add(column.name.lower())
                text = (
                    f"Column {column.name!r} has nanoseconds, which are truncated to microseconds."
                )
                yield report("type-nanoseconds", text, column=column.name)
        for name, kind in linted.columns.items():
            yield from self._type(name, kind.table, report)
        there = dict.fromkeys(name.lower() for name in linted.columns)
        # Deletes need only the keys.
        if linted.facts and linted.facts.rows.total() != linted.facts.rows[Marker.DELETE]:
            lacking = [name for name in self._had if name not in there]
            for name in lacking:
                if name not in self._lacking:
                    text = f"Column {name!r} is missing; it becomes NULL in the file's rows."
                    yield report("column-missing", text, column=name)
            self._lacking = set(lacking)
        self._had |= there

    def _marker(self, schema: pa.Schema, report: partial[LintFinding]) -> Iterator[LintFinding]:
        places = [i for i, name in enumerate(schema.names) if name.lower() == MARKER.lower()]
        early = bool(places) and places[-1] != len(schema) - 1
        if early and not self._marker_reported:
            text = f"{MARKER} is column {places[-1] + 1} of {len(schema)} instead of the last one."
            yield report("marker-not-last", text, column=schema.names[places[-1]])
        self._marker_reported = early

    def _keys(self, facts: FileFacts, report: partial[LintFinding]) -> Iterator[LintFinding]:
        seen = self._seen_keys.add(facts.bounds) or self._applied
        repeated = seen and facts.marker is None
        if repeated and not self._repeated:
            where = "the table" if self._applied else "an earlier file"
            yield report("key-repeated", f"Rows without a marker may have keys of {where}.")
        self._repeated = repeated

    def _type(self, name: str, kind: str, report: partial[LintFinding]) -> Iterator[LintFinding]:
        lower = name.lower()
        if kind == VOID:
            return
        known = self._kinds.setdefault(lower, kind)
        if fits(kind, known):
            self._reported.pop(lower, None)
            return
        if lower not in self._mirrored and fits(known, kind):
            self._kinds[lower] = kind
            text = f"Column {name!r} is {kind}, but was {known} in earlier files."
            yield report("type-widened", text, column=name)
        elif self._reported.get(lower) != kind:
            self._reported[lower] = kind
            mirrored = lower in self._mirrored
            had = f"the table has {known}" if mirrored else f"was {known} in earlier files"
            text = f"Column {name!r} is {kind}, but {had}."
            rule = "type-misfit" if mirrored else "type-changed"
            fix = ""
            if widened(known, kind) is not None:
                fix = f"Publish the values as {known}, or mirror with widen=True (--widen)."
            yield report(rule, text, column=name, fix=fix)


def _is_truncated(arrow: pa.DataType) -> bool:
    """Return whether values of a type are truncated to microseconds, at any depth."""
    if isinstance(arrow, Stored):
        return arrow.what == "INT96"
    if isinstance(arrow, pa.BaseExtensionType):
        return _is_truncated(arrow.storage_type)
    if pt.is_dictionary(arrow):
        return _is_truncated(arrow.value_type)
    if pt.is_nested(arrow):
        return any(_is_truncated(arrow.field(index).type) for index in range(arrow.num_fields))
    return bool(pt.is_timestamp(arrow) or pt.is_duration(arrow)) and arrow.unit == "ns"
