"""Lint data files."""

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
    storage: Storage, table: TableName, entry: Entry, metadata: TableMetadata, *, keyed: bool
) -> FileLint:
    """Reads one data file.

    Args:
        storage: where it lies.
        table: its table.
        entry: the file as listed.
        metadata: what the folder declares.
        keyed: whether there is a `_metadata.json`.
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
        return FileLint(name)  # a mirror has applied and moved it since the listing
    except OSError as error:
        return FileLint(name, findings=(report("file-unreadable", f"Not readable: {error}."),))


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
        facts = inspect_file(storage, path, metadata, name=name)
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
                    findings.append(found)  # what is found before it breaks off is kept
    except _UNREADABLE:
        pass  # the check has said so
    if refused is not None and not findings:
        findings.append(report("file-unreadable", refused.message, column=refused.column))
    if facts is not None and facts.row_count == 0:
        findings.append(report("file-without-rows", "The file has no rows."))
    return FileLint(name, schema, columns.data if columns else None, facts, tuple(findings))


def _explain(
    parquet: pq.ParquetFile,
    columns: Columns,
    metadata: TableMetadata,
    keyed: bool,
    report: partial[LintFinding],
) -> Iterator[LintFinding]:
    """All that is wrong with a file that the check has refused."""
    for rule, error in columns.faults:
        hint = f" {error.hint.capitalize()}" if rule == "marker-type" else ""
        yield report(rule, f"{error.message}{hint}", column=error.column)
    rules = {rule for rule, _ in columns.faults}
    if "column-twice" in rules:
        return  # its columns can't be asked for by name
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
        yield report(undeclared, "upsert rows, but the table has no keys.")
    bad: dict[tuple[str, str], _Rows] = {}
    needing = _Rows()
    before = 0
    for group in range(parquet.num_row_groups):
        markers = read_markers(parquet, group, marker, metadata)
        for rule, column, mask in row_faults(parquet, group, marker, markers, keys):
            rows = bad.setdefault((rule, column), _Rows())
            if rows.add(mask, before) and not rows.says:
                first = rows.row - before - 1
                rows.says = describe_fault(rule, column, markers, first)
        if markers is not None and not metadata.keys:
            with_key = [int(value) for value in Marker if value is not Marker.INSERT]
            needing.add(pc.is_in(markers, value_set=pa.array(with_key, markers.type)), before)
        before += parquet.metadata.row_group(group).num_rows
    for (rule, column), rows in bad.items():
        if rows.count:
            yield report(rule, f"{rows.says}{rows}.", row=rows.row, column=column)
    if needing.count:
        text = f"Updates, deletes or upserts, but the table has no keys{needing}."
        yield report(undeclared, text, row=needing.row, column=marker)


@dataclass
class _Rows:
    """How many rows of a file are of a kind, and which is the first of them, counted from 1."""

    count: int = 0
    row: int = 0
    says: str = ""  # what is wrong with the first

    def add(self, flags: pa.ChunkedArray, before: int) -> bool:
        """Counts the flagged rows of the group after `before` rows; whether there are any."""
        more = pc.sum(flags).as_py() or 0
        if more and not self.count:
            self.row = before + pc.index(flags, True).as_py() + 1
        self.count += more
        return bool(more)

    def __str__(self) -> str:
        return "" if self.count == 1 else f", in {self.count:,} rows"


class ColumnWatch:
    """Looks at a table's files one after the other.

    Args:
        table: how findings name it.
        mirrored: the columns of the mirrored table with their types; none if there is no table.
        metadata: what the folder declares.
        applied: whether the mirrored table has files already.
    """

    def __init__(
        self, table: str, mirrored: dict[str, str], metadata: TableMetadata, *, applied: bool
    ) -> None:
        self._finding = partial(finding, table=table)
        self._kinds = {name.lower(): kind for name, kind in mirrored.items()}
        self._mirrored = set(self._kinds)
        self._had = dict.fromkeys(self._kinds)  # in order, as a set has none
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
        """Compares the declaration with the mirrored table."""
        for name, kind in self._declared.items():
            known = self._kinds.setdefault(name.lower(), kind)
            if not (fits(kind, known) or fits(known, kind)):
                text = f"Column {name!r} is declared as {kind}, but the table has {known}."
                yield self._finding("type-misfit", text, file=METADATA, column=name)

    def follow(self, linted: FileLint) -> Iterator[LintFinding]:
        """Compares the next file with what came before."""
        if linted.schema is None or linted.columns is None:
            return
        report = partial(self._finding, file=linted.name)
        yield from self._marker(linted.schema, report)
        if self._inserts_by_key and linted.facts and linted.facts.row_count:
            yield from self._keys(linted.facts, report)
        for column in linted.schema:
            if _is_cut(column.type) and column.name.lower() not in self._cut:
                self._cut.add(column.name.lower())
                text = f"Column {column.name!r} is stored in nanoseconds, and cut to microseconds."
                yield report("type-nanoseconds", text, column=column.name)
        for name, kind in linted.columns.items():
            yield from self._type(name, kind.table, report)
        there = dict.fromkeys(name.lower() for name in linted.columns)
        # Deletes need no more than the key.
        if linted.facts and linted.facts.rows.total() != linted.facts.rows[Marker.DELETE]:
            lacking = [name for name in self._had if name not in there]
            for name in lacking:
                if name not in self._lacking:
                    text = f"Column {name!r} is missing; it is NULL in the file's rows."
                    yield report("column-missing", text, column=name)
            self._lacking = set(lacking)
        self._had |= there

    def _marker(self, schema: pa.Schema, report: partial[LintFinding]) -> Iterator[LintFinding]:
        places = [i for i, name in enumerate(schema.names) if name.lower() == MARKER.lower()]
        early = bool(places) and places[-1] != len(schema) - 1
        if early and not self._marker_reported:
            text = f"{MARKER} is column {places[-1] + 1} of {len(schema)}."
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
            text = f"Column {name!r} is {kind}, but was {known} so far."
            yield report("type-widened", text, column=name)
        elif self._reported.get(lower) != kind:
            self._reported[lower] = kind
            mirrored = lower in self._mirrored
            had = f"the table has {known}" if mirrored else f"was {known} so far"
            text = f"Column {name!r} is {kind}, but {had}."
            rule = "type-misfit" if mirrored else "type-changed"
            fix = ""
            if widened(known, kind) is not None:
                fix = f"Publish the values as {known}, or mirror with --widen."
            yield report(rule, text, column=name, fix=fix)


def _is_cut(arrow: pa.DataType) -> bool:
    """Whether values of a type lose what is below a microsecond, at any depth."""
    if isinstance(arrow, Stored):
        return arrow.what == "INT96"
    if isinstance(arrow, pa.BaseExtensionType):
        return _is_cut(arrow.storage_type)
    if pt.is_dictionary(arrow):
        return _is_cut(arrow.value_type)
    if pt.is_nested(arrow):
        return any(_is_cut(arrow.field(index).type) for index in range(arrow.num_fields))
    return bool(pt.is_timestamp(arrow) or pt.is_duration(arrow)) and arrow.unit == "ns"
