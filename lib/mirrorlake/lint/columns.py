"""What the files of a table, in their order, do to its columns: changed types, missing columns.

What concerns one file after the other is reported where it begins, not for every file.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pyarrow as pa
import pyarrow.types as pt

from mirrorlake.landing.metadata import MARKER, Marker, TableMetadata
from mirrorlake.landing.type_rules import VOID, Stored
from mirrorlake.landing.types import fits, widened
from mirrorlake.lint.files import FileLint
from mirrorlake.lint.rules import LintFinding, finding
from mirrorlake.names import METADATA


class ColumnWatch:
    """Looks at a table's files one after the other.

    Args:
        table: how findings name it.
        mirrored: the columns of the mirrored table with their types; none if there is no table.
        metadata: what the folder declares.
    """

    def __init__(self, table: str, mirrored: dict[str, str], metadata: TableMetadata) -> None:
        self._finding = partial(finding, table=table)
        self._mirrored = {name.lower() for name in mirrored}
        self._kinds = {name.lower(): kind for name, kind in mirrored.items()}
        self._had = dict.fromkeys(self._mirrored)  # in order, as a set has none
        self._declared = metadata.table_columns
        self._reported: dict[str, str] = {}
        self._lacking: set[str] = set()
        self._cut: set[str] = set()
        self._marker_reported = False

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
        yield from self._nanoseconds(linted.schema, report)
        for name, column in linted.columns.items():
            yield from self._type(name, column.table, report)
        yield from self._missing(linted, report)
        self._had |= dict.fromkeys(name.lower() for name in linted.columns)

    def _marker(self, schema: pa.Schema, report: partial[LintFinding]) -> Iterator[LintFinding]:
        places = [i for i, name in enumerate(schema.names) if name.lower() == MARKER.lower()]
        early = bool(places) and places[-1] != len(schema) - 1
        if early and not self._marker_reported:
            text = f"{MARKER} is column {places[-1] + 1} of {len(schema)}."
            yield report("marker-not-last", text, column=schema.names[places[-1]])
        self._marker_reported = early

    def _nanoseconds(
        self, schema: pa.Schema, report: partial[LintFinding]
    ) -> Iterator[LintFinding]:
        for column in schema:
            if _is_cut(column.type) and column.name.lower() not in self._cut:
                self._cut.add(column.name.lower())
                text = f"Column {column.name!r} is stored in nanoseconds, and cut to microseconds."
                yield report("type-nanoseconds", text, column=column.name)

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

    def _missing(self, linted: FileLint, report: partial[LintFinding]) -> Iterator[LintFinding]:
        facts = linted.facts
        if facts is None or linted.columns is None:
            return
        if facts.rows.total() == facts.rows[Marker.DELETE]:
            return  # deletes need no more than the key
        there = {name.lower() for name in linted.columns}
        lacking = [name for name in self._had if name not in there]
        for name in lacking:
            if name not in self._lacking:
                text = f"Column {name!r} is missing; it is NULL in the file's rows."
                yield report("column-missing", text, column=name)
        self._lacking = set(lacking)


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
