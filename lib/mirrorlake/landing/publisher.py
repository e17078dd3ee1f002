"""Publish changes of one table as numbered Parquet files. Needs no Spark.

A batch is written under a hidden name, checked, and then renamed to the next number without ever
overwriting a file. So any number of writers can publish at once, and a writer that fails blocks no
other.
"""

from __future__ import annotations

import logging
import os
import re
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from glob import glob
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from mirrorlake import names
from mirrorlake.errors import (
    DataFileError,
    InvalidNameError,
    SchemaError,
    UsageError,
    in_file,
)
from mirrorlake.landing.casts import cast_batch, stage, target_schema, wanted_schema
from mirrorlake.landing.check import (
    KEY_HINT,
    FileFacts,
    SeenKeys,
    file_hash,
    footer_columns,
    inspect_file,
)
from mirrorlake.landing.manifest import Manifest, make_manifest, write_manifest
from mirrorlake.landing.metadata import (
    MARKER,
    Marker,
    declare_keys,
    has_files,
    read_identity,
    read_own_snapshot,
)
from mirrorlake.landing.sources import CSV_HINT, is_csv, open_source
from mirrorlake.landing.type_rules import VOID
from mirrorlake.landing.types import (
    column_type,
    fits,
    misfit_hint,
    parse_type,
    types_argument,
    united,
    values_hint,
)
from mirrorlake.landing.zone import BATCH, TOKEN, TokenIndex, last_number, list_folder, take_number
from mirrorlake.results import Count, Result, TextTable, counted
from mirrorlake.storage.files import Storage, map_concurrently, to_json
from mirrorlake.storage.paths import ON_WINDOWS

_log = logging.getLogger(__name__)
_MOST_NAMES = 5  # the number of missing columns that a warning lists


@dataclass(frozen=True)
class Partner:
    """The application that publishes into a zone, for the zone's `_partnerEvents.json`."""

    name: str = "mirrorlake"
    source_type: str = "Python"
    source_version: str = ""

    def document(self) -> dict[str, Any]:
        """Return the content of `_partnerEvents.json`, with the field names of the format."""
        source = {"sourceType": self.source_type, "sourceVersion": self.source_version}
        return {
            "partnerName": self.name,
            "sourceInfo": source | {"additionalInformation": {}},
        }


@dataclass(frozen=True)
class Published(Result):
    """The result of publishing one batch.

    Attributes:
        table: the name of the table.
        file: the name of the new file; None if there were no rows, or after a dry run.
        rows: the number of rows.
        bytes: the size of the file in bytes.
        repeated: whether a batch with the same token was published before; nothing was written now.
        warning: why the batch may not do what is intended: the table may get rows twice, an update
            or upsert adds or lacks a column, or a CSV file is not UTF-8; otherwise None.
        columns: the columns of the file with their types, as Delta names them.
    """

    table: str
    file: str | None
    rows: int
    bytes: int
    repeated: bool = False
    warning: str | None = None
    columns: dict[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        if self.repeated:
            return f"{self.table}: published before as {self.file}"
        if self.file is None and self.rows:
            return f"{self.table}: {self._rows} would be published: a dry run"
        if self.file is None:
            return f"{self.table}: no rows, nothing published"
        return f"{self.table}: {self.file}, {self._rows}, {self.bytes:,} bytes"

    @property
    def _rows(self) -> str:
        return f"{self.rows:,} row{'s' * (self.rows != 1)}"

    def shown(self) -> TextTable:
        """Return the result as a table with one row."""
        return TextTable.of([self], ("table", "file", "rows", "bytes"))


class Publisher:
    """Publishes batches of one table, in order.

    Args:
        storage: The lake's files.
        table: The table to publish.
        keys: The names of the key columns, as a list or as one text such as `"id, day"`. Leave them
            out if `_metadata.json` declares them, or if rows are only inserted. The publisher
            declares them with the first accepted batch; they can't be changed afterwards.
        partner: The publishing application; the default is mirrorlake itself.
        footer: Metadata for the footer of each published file, such as the position in a source.
        dry_run: Check each batch against the zone and the table, and write neither files nor keys.
        types: The types of columns, as `{"price": "decimal(18,2)"}` or as an Arrow schema. Values,
            including text, are converted if nothing is lost. Other columns get the type of the
            table's column, or else the type of the rows.
        widen: Publish values that do not fit an existing column in a wider type, if Delta can widen
            the column without loss. Mirror such a table with `widen=True`; otherwise it stops.
        safe_names: Publish new columns under names that need no column mapping in Delta:
            `unit price` becomes `unit_price`. Columns and keys that the table already has keep
            their names: also without this option, `unit price` is published as `unit_price` if the
            table has only the latter.

    Raises:
        UsageError: A declared type does not exist.
        InvalidNameError: Windows, on which the publisher runs, can't store the table's folder.
        MetadataError: The table has other keys, or its `_metadata.json` is invalid.
    """

    def __init__(
        self,
        storage: Storage,
        table: names.TableName,
        *,
        keys: str | Sequence[str] = (),
        partner: Partner | None = None,
        footer: Mapping[str, str] | None = None,
        dry_run: bool = False,
        types: Mapping[str, str] | pa.Schema | None = None,
        widen: bool = False,
        safe_names: bool = False,
    ) -> None:
        if ON_WINDOWS and storage.local is not None and not table.fits_windows:
            raise InvalidNameError(
                f"Windows can't store folders with the name {str(table)!r}.",
                hint="choose another name for the table.",
            )
        self._storage = storage
        self.table = table
        self._dry_run = dry_run
        self._widen = widen
        self._safe_names = safe_names
        self._spelled: dict[str, str] = {}  # the known columns' names, by lower-case name
        self._columns_read_at: int | None = None  # the last number when the columns were read
        self._columns_are_current = False  # whether they were read for the current batch
        self._tokens = TokenIndex(storage, table)
        named = tuple(names.split_names(keys))
        if isinstance(types, pa.Schema):
            types = {column.name: column_type(column.type).table for column in types}
        declared = {name: parse_type(kind, column=name) for name, kind in (types or {}).items()}
        if any(names.safe_column(name) != name for name in (*named, *declared)):
            self._metadata = declare_keys(storage, table, (), dry_run=True)
            named = tuple(self._published_names(named))
        published = self._published_names(list(declared))
        lower = [name.lower() for name in published]
        self._declared = dict(zip(lower, declared.values(), strict=True))
        if not dry_run:
            storage.check_conditions()
        self._metadata = declare_keys(storage, table, named, dry_run=True)
        self._given = named
        self._undeclared = () if dry_run else named
        self._footer = dict(footer or {})
        self._unused: str | None = None  # a token that no file had when it was looked up
        self._has_rows: bool | None = None
        self._seen = SeenKeys()
        self._warned = False
        self._lacking: tuple[str, ...] = ()  # the columns that the last update or upsert lacked
        if not dry_run:
            events = f"{names.ZONE}/{names.PARTNER_EVENTS}"
            storage.create(events, to_json((partner or Partner()).document()))

    @property
    def keys(self) -> tuple[str, ...]:
        """The names of the table's key columns."""
        return self._metadata.keys

    def insert(
        self, rows: Any, *, token: str | None = None, footer: Mapping[str, str] | None = None
    ) -> Published:
        """Publish rows to insert without a check for existing keys (row marker 0).

        Args:
            rows: See `write`.
            token: See `write`.
            footer: See `write`.
        """
        return self._publish(rows, Marker.INSERT, token, footer)

    def update(
        self, rows: Any, *, token: str | None = None, footer: Mapping[str, str] | None = None
    ) -> Published:
        """Publish rows that replace the rows with their keys; new keys are added (row marker 1).

        Args:
            rows: See `write`.
            token: See `write`.
            footer: See `write`.
        """
        return self._publish(rows, Marker.UPDATE, token, footer)

    def delete(
        self, rows: Any, *, token: str | None = None, footer: Mapping[str, str] | None = None
    ) -> Published:
        """Publish keys to delete; other columns and unknown keys are ignored (row marker 2).

        Args:
            rows: See `write`. If the table has one key column, a list of its values is enough; with
                several, a list of tuples in the order of `keys`.
            token: See `write`.
            footer: See `write`.
        """
        if isinstance(rows, (list, tuple, set, range)):
            kinds = (dict, pa.RecordBatch, pa.Table)
            rows = [row if isinstance(row, kinds) else self._key_row(row) for row in rows]
        return self._publish(rows, Marker.DELETE, token, footer)

    def _key_row(self, value: Any) -> dict[str, Any]:
        """Return the row with this key: one value, or a tuple if there are several key columns."""
        values = value if len(self.keys) > 1 and isinstance(value, tuple) else (value,)
        if not self.keys:
            raise UsageError(
                f"{self.table} has no keys, so no row can be deleted by its key.",
                hint="pass the names of the key columns as keys.",
            )
        if len(values) != len(self.keys):
            raise UsageError(
                f"{value!r} is not a key of {self.table}.",
                hint=f"pass tuples or dicts with the key columns {', '.join(self.keys)}.",
            )
        return dict(zip(self.keys, values, strict=True))

    def upsert(
        self, rows: Any, *, token: str | None = None, footer: Mapping[str, str] | None = None
    ) -> Published:
        """Publish rows that replace the rows with their keys, or are added (row marker 4).

        Args:
            rows: See `write`.
            token: See `write`.
            footer: See `write`.
        """
        return self._publish(rows, Marker.UPSERT, token, footer)

    def write(
        self,
        rows: Any,
        *,
        token: str | None = None,
        footer: Mapping[str, str] | None = None,
        origin: str = "",
    ) -> Published:
        """Publish rows with a column `__rowMarker__`, or without it as an initial load.

        Rows without markers are inserted. If the table has keys and may contain those of the rows,
        a warning is logged, because `upsert` would replace the existing rows.
        A warning is also logged if updates or upserts among the rows lack columns of the table.
        These columns become NULL.

        Args:
            rows: Dicts, a data frame, Arrow data, or the path of a Parquet or CSV file; see
                `open_source`. The other methods accept the same.
            token: A name of this batch that makes publishing idempotent. If the table still keeps a
                file with this token, nothing is written, and the result is that file, as
                `repeated`.
            footer: Metadata for the footer of this file, such as the position in a source.
            origin: The name of the rows in warnings about their columns; by default the name of
                their file.

        Returns:
            The new file with its rows, size and columns.

        Raises:
            MirrorlakeError: The batch is invalid; no part of it becomes visible.

        Example:
            >>> from tempfile import mkdtemp
            >>> publisher = Publisher(Storage(mkdtemp()), names.TableName(None, "t"), keys=["id"])
            >>> publisher.write([{"id": 1}], token="day 1").repeated
            False
            >>> publisher.write([{"id": 1}], token="day 1")
            t: published before as 00000000000000000001.parquet
        """
        return self._publish(rows, None, token, footer, origin=origin)

    def load(
        self, rows: Any, *, token: str | None = None, footer: Mapping[str, str] | None = None
    ) -> Published:
        """Publish one part of an initial load: like `write`, but without the warning.

        The caller guarantees that rows without markers have keys that the table does not contain.

        Args:
            rows: See `write`.
            token: See `write`.
            footer: See `write`.
        """
        return self._publish(rows, None, token, footer, warn=False)

    def token_of(self, file: Path, *, is_only: bool = True) -> str:
        """Return a token for a file: that of its last published state if the content is the same.

        A file whose content changed back to an earlier state has a new token.

        Args:
            file: the file.
            is_only: False if other files have this name; then its earlier states are not known.
        """
        token = f"{file.name} {file_hash(Storage(file.parent), file.name)}"
        if not is_only:
            return token
        if (newest := self._tokens.newest(file.name)) is not None:
            number, last = newest
            if last.startswith(token):
                return last
            token = f"{token} after {number}"
        self._unused = token
        return token

    def publish(self, rows: Any, marker: str = "", *, token: str | None = None) -> Published:
        """Publish rows with a marker given by name, for parameters and command line options.

        Args:
            rows: See `write`.
            marker: `insert`, `update`, `delete` or `upsert`; the default is empty, which is
                `write`.
            token: See `write`.

        Raises:
            UsageError: The marker does not exist.
            MirrorlakeError: See `write`.
        """
        if not marker:
            return self.write(rows, token=token)
        known = {kind.name.lower(): kind for kind in Marker}
        if marker not in known:
            raise UsageError(
                f"There is no marker {marker!r}.", hint=f"choose one of {', '.join(known)}."
            )
        return self._publish(rows, known[marker], token, None)

    def files(self) -> TextTable:
        """Return the table's data files in the landing zone, with their rows and marker.

        Files that the mirror has applied and moved away are not included.

        Raises:
            DataFileError: one of the files can't be read.

        Example:
            >>> import tempfile
            >>> from mirrorlake import Lake
            >>> publisher = Lake(tempfile.mkdtemp()).publisher("stock", keys=["id"])
            >>> _ = publisher.upsert([{"id": 1}, {"id": 2}])
            >>> publisher.files().rows[0][:3]
            ('00000000000000000001.parquet', 2, '4: upsert')
        """
        rows = []
        for _, entry in sorted(list_folder(self._storage, self.table).numbered.items()):
            path = f"{self.table.folder}/{entry.name}"
            facts = inspect_file(self._storage, path, self._metadata)
            marker = "several" if facts.marker else "none: initial load"
            if facts.marker and len(facts.rows) == 1:
                kind = next(iter(facts.rows))
                marker = f"{int(kind)}: {Marker(kind).name.lower()}"
            size = f"{entry.size / 1024:,.0f} KiB"
            rows.append((entry.name, Count(facts.row_count), marker, size))
        return TextTable(("file", "rows", "marker", "size"), tuple(rows))

    def manifest(self, rows: Any, *, ranges: int = 64) -> Manifest:
        """Write a manifest of all rows that the source has now, for `reconcile`.

        Args:
            rows: All rows, without markers; they are held in memory. See `write`.
            ranges: The largest number of key ranges with a checksum of their own.

        Raises:
            MirrorlakeError: The rows can't be read, or do not fit the table.
        """
        opened = self._open(rows)
        batches = []
        if opened is not None:
            reader = self._renamed(opened)
            target = self._target(reader.schema)
            batches = [cast_batch(batch, target, 0) for batch in reader]
        spelled = {name.lower(): name for name in (batches[0].schema.names if batches else ())}
        key = spelled.get(self.keys[0].lower()) if self.keys else None
        after = last_number(self._storage, self.table)
        made = make_manifest(batches, key, after=after, ranges=ranges)
        write_manifest(self._storage, self.table, made)
        return made

    def _publish(
        self,
        rows: Any,
        marker: Marker | None,
        token: str | None,
        footer: Mapping[str, str] | None,
        *,
        warn: bool = True,
        origin: str = "",
    ) -> Published:
        # A token that `token_of` has just looked up is not searched again here. `take_number`
        # searches for it in any case, in the files that were published meanwhile as well.
        unused, self._unused = self._unused, None
        if token not in (None, unused) and (found := self._tokens.find(token)):
            return self._repeated(found)
        self._columns_are_current = "known_columns" not in vars(self)
        found_rows = self._open(rows)
        if found_rows is None:
            return Published(str(self.table), None, 0, 0)
        label = os.path.basename(rows) if isinstance(rows, (str, os.PathLike)) else "the batch"
        if not self.known_columns.keys() >= {one.lower() for one in found_rows.schema.names}:
            check_separator(label, found_rows.schema.names)
        reader = self._renamed(found_rows)
        batch = uuid.uuid4().hex
        footer = self._footer | dict(footer or {})
        carried = {key.encode(): value.encode() for key, value in footer.items()}
        if token is not None:
            carried[TOKEN] = token.encode()
        # Distinguishes batches with the same rows; see `take_number`.
        carried[BATCH] = batch.encode()
        staged = f"{self.table.folder}/_{batch}.parquet"
        with ExitStack() as opened:
            storage = self._storage
            name: str | None = None
            if self._dry_run:
                storage = Storage(opened.enter_context(TemporaryDirectory()))
            try:
                stage(storage, reader, staged, self._shape(reader.schema, marker), carried, marker)
                facts = inspect_file(storage, staged, self._metadata, name=label, compare_keys=warn)
                warning = self._warn(facts, label) if warn else None
                replaced = facts.rows[Marker.UPDATE] + facts.rows[Marker.UPSERT]
                if marker in (Marker.UPDATE, Marker.UPSERT) or (warn and replaced):
                    warning = self._warn_of_columns(facts, marker, origin or label)
                if is_csv(label):
                    known = self.known_columns.keys() | self._declared.keys()
                    raw = [one.name for one in reader.schema if pa.types.is_binary(one.type)]
                    if new := [repr(one) for one in raw if one.lower() not in known]:
                        warning = f"{label} is not UTF-8; the type of {', '.join(new)} is binary."
                        _log.warning("%s Hint: %s", warning, CSV_HINT)
                if self._undeclared:  # before the file, so that its keys are always declared
                    declare_keys(storage, self.table, self._undeclared)
                    self._undeclared = ()
                if not self._dry_run:
                    name = take_number(storage, self.table, staged, batch, self._tokens, token)
            except BaseException as error:
                storage.delete(staged)
                # Only errors of single values have a row; other errors have their own hints.
                if isinstance(error, SchemaError) and error.row and error.column and not error.hint:
                    error.hint = self._misfit_hint(error.column, reader.schema)
                if (
                    isinstance(error, DataFileError)
                    and error.hint == KEY_HINT
                    and error.column in self._given
                ):
                    error.hint = "name columns of the rows in keys (--keys)."
                raise
            if token is not None and name is None and (found := self._tokens.find(token)):
                storage.delete(staged)  # another writer published the same batch first
                return self._repeated(found)
        columns = {column: kind.table for column, kind in facts.columns.items()}
        self._unite(self.known_columns, columns)
        if name is not None and names.file_number(name) == (self._columns_read_at or 0) + 1:
            self._columns_read_at = names.file_number(name)  # its columns are known, too
        return Published(
            str(self.table), name, facts.row_count, facts.size, warning=warning, columns=columns
        )

    def _warn(self, facts: FileFacts, label: str) -> str | None:
        """Log and return a warning if rows without markers repeat keys, or may have the table's."""
        unmarked = facts.row_count and not facts.marker and not self._metadata.upsert_by_default
        if not self.keys or not unmarked:
            return None
        if self._has_rows is None:
            self._has_rows = has_files(self._storage, self.table)
        # An initial load may consist of several files with different keys.
        may_repeat = self._seen.add(facts.bounds) or self._has_rows
        if facts.repeated_key is not None:
            _, repeated = facts.repeated_key
            warning = (
                f"{label}: {repeated} Rows without a marker are all inserted into {self.table}."
            )
            hint = (
                "publish one row per key, or pass marker='upsert' (--marker upsert): then the last"
                " row of a key replaces the others."
            )
            _log.warning("%s Hint: %s", warning, hint)
            return warning
        if not may_repeat:
            return None
        warning = (
            f"{self.table} has keys, but the rows of {label} have no marker. They are inserted "
            "even if the table contains their keys."
        )
        if not self._warned:
            hint = (
                "pass marker='upsert' (--marker upsert) to replace such rows, or 'insert' if all"
                " keys are new."
            )
            _log.warning(f"{warning} Hint: {hint}")
            self._warned = True
        return warning

    def _warn_of_columns(self, facts: FileFacts, marker: Marker | None, label: str) -> str | None:
        """Log and return a warning if an update or upsert lacks columns, or adds some.

        Columns that rows with their own markers add are reported only if others are missing:
        sources publish such rows when their tables get new columns.
        """
        known = self.known_columns
        meant = known.keys() | self._declared.keys()
        typed = [name for name, kind in facts.columns.items() if kind.table != VOID]
        new = [repr(name) for name in typed if known and name.lower() not in meant]
        there = {name.lower() for name in facts.columns}
        missing = (name for name in known if name not in there) if facts.row_count else ()
        lacking = tuple(self._spelled[name] for name in missing)
        warnings, hint = [], ""
        if new and (marker is not None or lacking):
            noun = "column" if len(new) == 1 else "columns"
            adds = "The rows add" if marker is None else f"The {marker.name.lower()} adds"
            warnings.append(f"{adds} the {noun} {', '.join(new)} to {self.table}.")
            rest = "." if lacking else "; a column that the rows lack becomes NULL in them."
            hint = f" Hint: check the spelling{rest}"
        if lacking:
            listed = ", ".join(map(repr, lacking[:_MOST_NAMES]))
            if more := lacking[_MOST_NAMES:]:
                listed += f" and {counted(len(more), 'more column')}"
            several = len(lacking) > 1
            warnings.append(
                f"Column{'s' * several} {listed} {'are' if several else 'is'} missing;"
                f" {'they become' if several else 'it becomes'} NULL in the rows of"
                f" {label} for {self.table}."
                " Send all columns of the table to keep the values."
            )
        if not warnings:
            return None
        warning = " ".join(warnings)
        if hint or lacking != self._lacking:  # log a repeated warning once
            _log.warning("%s%s", warning, hint)
        self._lacking = lacking
        return warning

    def _shape(self, found: pa.Schema, marker: Marker | None) -> pa.Schema:
        """Return the columns of the file, without a marker that all rows share."""
        has_marker = any(name.lower() == MARKER.lower() for name in found.names)
        if marker is not None and has_marker:
            raise UsageError(f"The rows have a column {MARKER}.", hint="publish them with write().")
        there = {name.lower() for name in found.names} | self.known_columns.keys()
        if marker is not Marker.DELETE and (missing := self._declared.keys() - there):
            raise UsageError(
                f"types contains {min(missing)!r}, which is not a column of the rows.",
                column=min(missing),
                hint="use the name of a column of the rows.",
            )
        if marker is Marker.DELETE and self.keys:
            wanted = {key.lower() for key in self.keys}
            found = pa.schema([column for column in found if column.name.lower() in wanted])
            if not found.names:
                raise SchemaError(
                    "The rows contain no key column.",
                    column=self.keys[0],
                    hint=f"every row needs the key: {', '.join(self.keys)}.",
                )
        return self._target(found)

    def _open(self, rows: Any) -> pa.RecordBatchReader | None:
        if isinstance(rows, (str, os.PathLike)):
            self._reread_columns()  # the current types of the columns determine how text is read
        return open_source(
            rows,
            self.known_columns,
            self._declared,
            widen=self._widen,
            keys=self.keys,
            rename=self._published_names,
        )

    def _published_names(self, columns: Sequence[str]) -> list[str]:
        """Return the names under which columns of the rows are published; see `safe_names`.

        A table that was begun with safe names keeps them, also without the option.
        """
        return [self._published_name(column, columns) for column in columns]

    def _published_name(self, column: str, columns: Sequence[str]) -> str:
        safe = names.safe_column(column)
        if safe == column or column.lower() in self._own:
            return column
        if "known_columns" in vars(self) and not self._columns_are_current:
            self._reread_columns()  # another publisher may have begun the table
        own = self._own
        if column.lower() in own:
            return column
        # If the rows have both names, the safe one is another column.
        is_begun = safe.lower() in own.difference(one.lower() for one in columns)
        return safe if self._safe_names or is_begun else column

    @property
    def _own(self) -> set[str]:
        """The lower-case names of the known columns and of the keys."""
        return {*self.known_columns, *(key.lower() for key in self.keys)}

    def _renamed(self, reader: pa.RecordBatchReader) -> pa.RecordBatchReader:
        found = reader.schema
        renamed: dict[str, str] = {}  # the columns of the rows, by their published names
        published = self._published_names(found.names)
        for safe, name in zip(published, found.names, strict=True):
            other = renamed.setdefault(safe, name)
            if other != name:
                raise SchemaError(
                    f"{safe!r} is the safe name of two columns, {other!r} and {name!r}.",
                    column=name,
                    hint="rename one of the columns.",
                )
        if list(renamed) == found.names or len(renamed) < len(found.names):
            return reader
        pairs = zip(found, renamed, strict=True)
        schema = pa.schema([column.with_name(name) for column, name in pairs])
        batches = (batch.rename_columns(list(renamed)) for batch in reader)
        return pa.RecordBatchReader.from_batches(schema, batches)

    def _target(self, found: pa.Schema) -> pa.Schema:
        """Return the schema of the file; read the columns again if one is new or does not fit."""
        wanted = wanted_schema(found, self._declared)
        for column in () if self._columns_are_current else wanted:
            known = self.known_columns.get(column.name.lower())
            if (
                not pa.types.is_null(column.type)
                if known is None
                else not fits(column_type(column.type).table, known)
            ):
                self._reread_columns()
                break
        return target_schema(wanted, self.known_columns, self._declared, widen=self._widen)

    def _misfit_hint(self, column: str, found: pa.Schema) -> str:
        """Return a hint for a column with a value that does not fit its type."""
        if (declared := self._declared.get(column.lower())) is not None:
            return values_hint([declared])
        known = self.known_columns.get(column.lower())
        if known is None:
            return f"declare a type that can hold all values: {types_argument(column, '…')}."
        return misfit_hint(column, column_type(found.field(column).type).table, known)

    def _reread_columns(self) -> None:
        """Read the table's columns again, because other writers may have added or widened some."""
        known = vars(self).pop("known_columns", {})
        self._unite(self.known_columns, known)
        self._columns_are_current = True

    def _repeated(self, path: str) -> Published:
        with self._storage.open(path) as source:
            size = source.seek(0, os.SEEK_END)
            rows = pq.read_metadata(source).num_rows
        columns = {n: kind.table for n, kind in footer_columns(self._storage, path).items()}
        name = path.rpartition("/")[2]
        return Published(str(self.table), name, rows, size, repeated=True, columns=columns)

    @cached_property
    def known_columns(self) -> dict[str, str]:
        """The types of the known columns by lower-case name.

        These are the columns of the mirrored table, then those of the files that are not mirrored.
        """
        found: dict[str, str] = {}
        applied = 0
        read_at = self._columns_read_at
        is_read = self._tokens.is_last(read_at)
        numbered = {} if is_read else list_folder(self._storage, self.table).numbered
        identity = read_identity(self._storage, self.table)
        snapshot = read_own_snapshot(self._storage, identity) if identity else None
        # Ignore the table of another incarnation of this folder.
        if snapshot and identity and identity.app_id in snapshot.txns:
            kinds = {name: kind for name, kind in snapshot.schema.items() if isinstance(kind, str)}
            self._unite(found, kinds)
            applied = snapshot.txns[identity.app_id]
        if not is_read:
            self._columns_read_at = max(numbered, default=0)
        later = sorted(number for number in numbered if number > max(applied, read_at or 0))
        for columns in map_concurrently(
            self._storage,
            lambda path: footer_columns(self._storage, path),
            [f"{self.table.folder}/{numbered[number].name}" for number in later],
        ):
            self._unite(found, {name: column.table for name, column in columns.items()})
        return found

    def _unite(self, known: dict[str, str], columns: Mapping[str, str]) -> None:
        """Add the columns of a file to the known ones; a wider type widens its column."""
        for name, kind in columns.items():
            if kind != VOID:
                lower = name.lower()
                self._spelled.setdefault(lower, name)
                known[lower] = united(known.get(lower), kind)


def check_separator(file: str, columns: list[str]) -> None:
    """Refuse a file whose only column's name contains a semicolon, tab or vertical bar.

    Args:
        file: the name of the file; only CSV files have separators.
        columns: the names of the columns in the file.

    Raises:
        DataFileError: commas do not separate the file's values.
    """
    if is_csv(file) and len(columns) == 1 and re.search(r"[;\t|]", columns[0]):
        raise DataFileError(
            f"The file has only one column, {columns[0]!r}; commas must separate its values.",
            file=file,
            hint=CSV_HINT,
        )


_PUBLISHABLE = (".parquet", ".csv", ".csv.gz")


def find_sources(source: str) -> list[Path]:
    """Return the files of a source, ordered by name.

    Args:
        source: A file, a folder (its Parquet and CSV files, without subfolders), or a glob such as
            `exports/*.csv`. A relative path starts from the current folder.

    Raises:
        UsageError: No such file exists.

    Example:
        >>> find_sources("lakes/sample/Files/incoming")  # doctest: +SKIP
        [PosixPath('/home/me/lakes/sample/Files/incoming/stock.csv')]
    """
    if not isinstance(source, str) or not source.strip():
        raise UsageError("The source is empty.", hint="pass a file, a folder or a glob.")
    path = Path(source).expanduser().absolute()
    if path.is_file():
        return [path]
    found = list(path.iterdir()) if path.is_dir() else [Path(name) for name in glob(str(path))]
    files = sorted(
        file
        for file in found
        if file.is_file()
        and file.name.lower().endswith(_PUBLISHABLE)
        and not file.name.startswith(("_", "."))
    )
    if not files:
        raise UsageError(
            f"There is no file to publish at {path}.",
            hint=f"check the path; a folder or pattern finds only {', '.join(_PUBLISHABLE)} files.",
        )
    return files


@dataclass(frozen=True)
class PublishedFiles(Result):
    """The result of publishing several files, or of checking them in a dry run.

    Attributes:
        table: the name of the table.
        sources: the names of the source files.
        batches: the results, in the same order.
        dry_run: whether the files were only checked.
    """

    table: str
    sources: tuple[str, ...]
    batches: tuple[Published, ...]
    dry_run: bool = False

    @property
    def count(self) -> int:
        """The number of new files in the landing zone."""
        return sum(batch.file is not None and not batch.repeated for batch in self.batches)

    @property
    def rows(self) -> int:
        """The number of rows in the new files; in a dry run, in the files to publish."""
        return sum(batch.rows for batch in self.batches if not batch.repeated)

    def shown(self) -> TextTable:
        """Return one row per file."""
        rows = tuple(
            (source, batch.rows, batch.file, self._outcome(batch))
            for source, batch in zip(self.sources, self.batches, strict=True)
        )
        return TextTable(("file", "rows", "in the landing zone", "result"), rows)

    def _outcome(self, batch: Published) -> str:
        if batch.repeated:
            return "published before"
        if not batch.rows:
            return "no rows"
        return self._verb

    def __repr__(self) -> str:
        skipped = sum(batch.repeated for batch in self.batches)
        files, parts = len(self.sources) - skipped, []
        if files or not skipped:
            parts.append(f"{counted(self.rows, 'row')} of {counted(files, 'file')} {self._verb}")
        if skipped:
            parts.append(f"{counted(skipped, 'file')} skipped (published before)")
        return f"{self.table}: {', '.join(parts)}"

    @property
    def _verb(self) -> str:
        return "would be published" if self.dry_run else "published"


def given_files(source: Any) -> list[Path] | None:
    """Return the files of a source, or None if it consists of rows; see `Lake.publish`.

    Raises:
        UsageError: one of the files does not exist.
    """
    if isinstance(source, (str, os.PathLike)):
        return find_sources(os.fspath(source))
    if isinstance(source, (list, tuple)) and isinstance(next(iter(source), ""), (str, os.PathLike)):
        files = [Path(file) for file in source]
        for file in files:
            if not file.is_file():
                raise UsageError(f"There is no file {file}.", hint="check the path.")
        return files
    return None


def take_over(publisher: Publisher, earlier: Publisher) -> None:
    """Let a publisher use what an earlier one of its table has read, if it is still valid.

    The earlier publisher must not be used any more.
    """
    publisher._tokens = earlier._tokens
    if not earlier._tokens.is_last(earlier._columns_read_at):
        return
    publisher._has_rows = True
    # Otherwise, the columns of the mirrored table count, too.
    if read_identity(publisher._storage, publisher.table) is None:
        publisher._spelled = earlier._spelled
        publisher._columns_read_at = earlier._columns_read_at
        publisher.known_columns = earlier.known_columns


def publish_files(
    publisher: Publisher, files: Sequence[Path], marker: str, *, dry_run: bool
) -> PublishedFiles:
    """Publish files in order; for arguments and errors see `Lake.publish`."""
    batches, by_name = [], Counter(file.name for file in files)
    for file in files:
        token = publisher.token_of(file, is_only=by_name[file.name] == 1)
        with in_file(file.name):
            batches.append(publisher.publish(file, marker, token=token))
    sources = tuple(file.name for file in files)
    return PublishedFiles(str(publisher.table), sources, tuple(batches), dry_run)
