"""Publishes changes of one table as numbered Parquet files. Needs no Spark.

A batch is written under a hidden name, checked, and then takes the next number by a rename that
never overwrites: any number of writers lose nothing, and one that dies blocks none.
"""

from __future__ import annotations

import logging
import os
import uuid
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
from mirrorlake.errors import SchemaError, UsageError
from mirrorlake.landing.casts import cast_batch, stage, target_schema, wanted_schema
from mirrorlake.landing.check import FileFacts, SeenKeys, file_hash, footer_columns, inspect_file
from mirrorlake.landing.manifest import Manifest, make_manifest, write_manifest
from mirrorlake.landing.metadata import (
    MARKER,
    Marker,
    declare_keys,
    has_files,
    read_identity,
    read_own_snapshot,
)
from mirrorlake.landing.sources import open_source
from mirrorlake.landing.type_rules import VOID
from mirrorlake.landing.types import column_type, fits, parse_type, united, way_out
from mirrorlake.landing.zone import BATCH, TOKEN, TokenIndex, last_number, list_folder, take_number
from mirrorlake.results import Count, Result, TextTable
from mirrorlake.storage.files import Storage, to_json
from mirrorlake.storage.paths import lake_path

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Partner:
    """Who publishes into a zone, for its `_partnerEvents.json`."""

    name: str = "mirrorlake"
    source_type: str = "Python"
    source_version: str = ""

    def document(self) -> dict[str, Any]:
        """The file's content, with the format's field names."""
        source = {"sourceType": self.source_type, "sourceVersion": self.source_version}
        return {
            "partnerName": self.name,
            "sourceInfo": source | {"additionalInformation": {}},
        }


@dataclass(frozen=True)
class Published(Result):
    """One batch as it now lies in the zone.

    Attributes:
        file: its name; None if there was nothing to publish, or after a dry run.
        rows: how many rows it has.
        bytes: its size.
        repeated: the batch's token was published before; nothing was written now.
        warning: why the table may have rows twice; None if it can't.
        columns: the file's columns with their types, as Delta names them.
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
            return f"{self.table}: {self.rows:,} rows would be published: a dry run"
        if self.file is None:
            return f"{self.table}: no rows, nothing published"
        return f"{self.table}: {self.file}, {self.rows:,} rows, {self.bytes:,} bytes"

    def shown(self) -> TextTable:
        """The same facts as a table."""
        return TextTable.of([self], ("table", "file", "rows", "bytes"))


class Publisher:
    """Publishes batches of one table, in order.

    Args:
        storage: the lake's files.
        table: which table.
        keys: the key columns. May be left out where `_metadata.json` has them, or for a table
            that only grows. They are declared with the first accepted batch, and stay from then on.
        partner: who publishes.
        footer: what the footers of the published files carry besides, such as a source's position.
        dry_run: check every batch against the zone and the table, and publish nothing: neither
            keys nor files are written.
        types: the types of columns, as `{"price": "decimal(18,2)"}` or as an Arrow schema. Values
            are converted to them where nothing is lost, text included. Other columns take the
            table's type, or the one of the rows.
        widen: publish values that an existing column can't hold in a wider type, where a mirror
            with `widen` can widen the column without loss. A mirror without it stops the table.

    Raises:
        UsageError: a declared type that no column can have.
        MetadataError: the table has other keys, or the file that declares them is broken.
    """

    def __init__(
        self,
        storage: Storage,
        table: names.TableName,
        *,
        keys: Sequence[str] = (),
        partner: Partner | None = None,
        footer: Mapping[str, str] | None = None,
        dry_run: bool = False,
        types: Mapping[str, str] | pa.Schema | None = None,
        widen: bool = False,
    ) -> None:
        if isinstance(keys, str):  # a text is a sequence of texts, too
            raise UsageError("keys is a text.", hint=f"write keys=[{keys!r}].")
        self._storage = storage
        self.table = table
        self._dry_run = dry_run
        self._widen = widen
        if isinstance(types, pa.Schema):
            types = {column.name: column_type(column.type).table for column in types}
        self._declared = {
            name.lower(): parse_type(kind, column=name) for name, kind in (types or {}).items()
        }
        if not dry_run:
            storage.check_conditions()
        self._metadata = declare_keys(storage, table, tuple(keys), dry_run=True)
        self._undeclared = () if dry_run else tuple(keys)
        self._footer = dict(footer or {})
        self._tokens = TokenIndex(storage, table)
        self._has_rows: bool | None = None
        self._seen = SeenKeys()
        self._warned = False
        self._looked: int | None = None  # the last file when the columns were read
        if not dry_run:
            events = f"{names.ZONE}/{names.PARTNER_EVENTS}"
            storage.create(events, to_json((partner or Partner()).document()))

    @property
    def keys(self) -> tuple[str, ...]:
        """The table's key columns."""
        return self._metadata.keys

    def insert(
        self, rows: Any, *, token: str | None = None, footer: Mapping[str, str] | None = None
    ) -> Published:
        """Rows to add, without checking for existing keys (marker 0).

        Args:
            rows: as for `write`.
            token: as for `write`.
            footer: as for `write`.
        """
        return self._publish(rows, Marker.INSERT, token, footer)

    def update(
        self, rows: Any, *, token: str | None = None, footer: Mapping[str, str] | None = None
    ) -> Published:
        """Rows to replace whole, by key; added where the key is missing (marker 1).

        Args:
            rows: as for `write`.
            token: as for `write`.
            footer: as for `write`.
        """
        return self._publish(rows, Marker.UPDATE, token, footer)

    def delete(
        self, rows: Any, *, token: str | None = None, footer: Mapping[str, str] | None = None
    ) -> Published:
        """Keys to remove; further columns are ignored, missing keys too (marker 2).

        Args:
            rows: as for `write`.
            token: as for `write`.
            footer: as for `write`.
        """
        return self._publish(rows, Marker.DELETE, token, footer)

    def upsert(
        self, rows: Any, *, token: str | None = None, footer: Mapping[str, str] | None = None
    ) -> Published:
        """Rows to replace whole, by key, or else to add (marker 4).

        Args:
            rows: as for `write`.
            token: as for `write`.
            footer: as for `write`.
        """
        return self._publish(rows, Marker.UPSERT, token, footer)

    def write(
        self, rows: Any, *, token: str | None = None, footer: Mapping[str, str] | None = None
    ) -> Published:
        """Rows that carry their own `__rowMarker__`; without that column, an initial load.

        Rows without markers are inserted as they are. If the table has keys and may have those of
        the rows already, that is logged as a warning: `upsert` replaces such rows.

        Args:
            rows: see `open_source` for all that holds rows; the same for the other verbs.
            token: the caller's own name of this batch. Where a kept file of the table carries
                it, nothing is written, and the result names that file as `repeated`.
            footer: what this file's footer carries besides, such as the source's position.

        Raises:
            MirrorlakeError: the batch is not sound; nothing of it is visible then.

        Example:
            >>> from tempfile import mkdtemp
            >>> publisher = Publisher(Storage(mkdtemp()), names.TableName(None, "t"), keys=["id"])
            >>> publisher.write([{"id": 1}], token="day 1").repeated
            False
            >>> publisher.write([{"id": 1}], token="day 1")
            t: published before as 00000000000000000001.parquet
        """
        return self._publish(rows, None, token, footer)

    def load(
        self, rows: Any, *, token: str | None = None, footer: Mapping[str, str] | None = None
    ) -> Published:
        """Publish a part of one load: as `write`, but without its warning.

        The caller knows that rows without markers have no keys in common with rows of the table.

        Args:
            rows: as for `write`.
            token: as for `write`.
            footer: as for `write`.
        """
        return self._publish(rows, None, token, footer, warn=False)

    def publish(self, rows: Any, marker: str = "", *, token: str | None = None) -> Published:
        """Rows with a marker that a parameter names: `insert`, `update`, `delete` or `upsert`.

        Args:
            rows: as for `write`.
            marker: the change of every row; empty as `write`.
            token: as for `write`.

        Raises:
            UsageError: there is no such marker.
            MirrorlakeError: as `write`.
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
        """Leaves a manifest of all rows that the source has now, for `reconcile`.

        Args:
            rows: as for `write`, without markers; they are held in memory.
            ranges: into how many ranges of keys they are summed up, at most.

        Raises:
            MirrorlakeError: the rows can't be read, or don't fit the table.
        """
        reader = self._open(rows)
        batches = []
        if reader is not None:
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
    ) -> Published:
        if token is not None and (found := self._tokens.find(token)):
            return self._repeated(found)
        reader = self._open(rows)
        if reader is None:
            return Published(str(self.table), None, 0, 0)
        label = os.path.basename(rows) if isinstance(rows, (str, os.PathLike)) else "the batch"
        batch = uuid.uuid4().hex
        footer = self._footer | dict(footer or {})
        carried = {key.encode(): value.encode() for key, value in footer.items()}
        if token is not None:
            carried[TOKEN] = token.encode()
        # Two batches of the same rows must still be told apart, see `take_number`.
        carried[BATCH] = batch.encode()
        staged = f"{self.table.folder}/_{batch}.parquet"
        with ExitStack() as opened:
            storage = self._storage
            name: str | None = None
            if self._dry_run:
                storage = Storage(opened.enter_context(TemporaryDirectory()))
            try:
                stage(storage, reader, staged, self._shape(reader.schema, marker), carried, marker)
                facts = inspect_file(storage, staged, self._metadata, name=label)
                warning = self._warn(facts, label) if warn else None
                if self._undeclared:  # before the file, so that no file is without its keys
                    declare_keys(storage, self.table, self._undeclared)
                    self._undeclared = ()
                if not self._dry_run:
                    name = take_number(storage, self.table, staged, batch, self._tokens, token)
            except BaseException as error:
                storage.delete(staged)
                # Only a value has a row; other errors have hints of their own.
                if isinstance(error, SchemaError) and error.row and error.column and not error.hint:
                    error.hint = self._way_out(error.column, reader.schema)
                raise
            if token is not None and name is None and (found := self._tokens.find(token)):
                storage.delete(staged)  # another writer of the same batch was quicker
                return self._repeated(found)
        columns = {column: kind.table for column, kind in facts.columns.items()}
        _unite(self.known_columns, columns)
        return Published(
            str(self.table), name, facts.row_count, facts.size, warning=warning, columns=columns
        )

    def _warn(self, facts: FileFacts, label: str) -> str | None:
        """Warn of rows without markers whose keys the table may have already."""
        unmarked = facts.row_count and not facts.marker and not self._metadata.upsert_by_default
        if not self.keys or not unmarked:
            return None
        if self._has_rows is None:
            self._has_rows = has_files(self._storage, self.table)
        # Several files may be one initial load: their keys differ.
        if not self._seen.add(facts.bounds) and not self._has_rows:
            return None
        warning = (
            f"{self.table} has keys, but the rows of {label} have no marker: they are inserted, "
            "even where the table has their keys already."
        )
        if not self._warned:
            hint = "pass marker='upsert' to replace such rows, 'insert' if all keys are new."
            _log.warning("%s Hint: %s", warning, hint)
            self._warned = True
        return warning

    def _shape(self, found: pa.Schema, marker: Marker | None) -> pa.Schema:
        """The file's columns, but for a marker that all rows share."""
        has_marker = any(name.lower() == MARKER.lower() for name in found.names)
        if marker is not None and has_marker:
            raise UsageError(
                f"The rows carry {MARKER} themselves.", hint="publish them with write()."
            )
        there = {name.lower() for name in found.names} | self.known_columns.keys()
        if marker is not Marker.DELETE and (missing := self._declared.keys() - there):
            raise UsageError(
                f"types has {min(missing)!r}, which is no column of the rows.",
                column=min(missing),
                hint="write the column's name as the rows have it.",
            )
        if marker is Marker.DELETE and self.keys:
            wanted = {key.lower() for key in self.keys}
            found = pa.schema([column for column in found if column.name.lower() in wanted])
            if not found.names:
                raise SchemaError("None of the key columns is in the rows.", column=self.keys[0])
        return self._target(found)

    def _open(self, rows: Any) -> pa.RecordBatchReader | None:
        if isinstance(rows, (str, os.PathLike)):
            self._look_again()  # text is read in the types that the columns have now
        return open_source(rows, self.known_columns, self._declared, widen=self._widen)

    def _target(self, found: pa.Schema) -> pa.Schema:
        """Return the schema to publish in; a column may have been widened since the last look."""
        wanted = wanted_schema(found, self._declared)
        for column in wanted:
            known = self.known_columns.get(column.name.lower())
            if known is not None and not fits(column_type(column.type).table, known):
                self._look_again()
                break
        return target_schema(wanted, self.known_columns, self._declared, widen=self._widen)

    def _way_out(self, column: str, found: pa.Schema) -> str:
        """Return a hint for a column with a value that its type can't hold."""
        known = self.known_columns.get(column.lower())
        if known is None or column.lower() in self._declared:
            return f"declare a type that holds all values: types={{{column!r}: …}} (--types)."
        return way_out(column, column_type(found.field(column).type).table, known)

    def _look_again(self) -> None:
        """Read the table's columns again; others may have published or widened some."""
        known = vars(self).pop("known_columns", {})
        _unite(self.known_columns, known)

    def _repeated(self, path: str) -> Published:
        with self._storage.open(path) as source:
            size = source.seek(0, os.SEEK_END)
            rows = pq.read_metadata(source).num_rows
        columns = {n: kind.table for n, kind in footer_columns(self._storage, path).items()}
        name = path.rpartition("/")[2]
        return Published(str(self.table), name, rows, size, repeated=True, columns=columns)

    @cached_property
    def known_columns(self) -> dict[str, str]:
        """The table's columns so far, lower case: mirrored ones, then those still in the zone."""
        found: dict[str, str] = {}
        identity = read_identity(self._storage, self.table)
        snapshot = read_own_snapshot(self._storage, identity) if identity else None
        # A table that another incarnation of this folder left behind says nothing about this one.
        if snapshot and identity and identity.app_id in snapshot.txns:
            kinds = {name: kind for name, kind in snapshot.schema.items() if isinstance(kind, str)}
            _unite(found, kinds)
        numbered = list_folder(self._storage, self.table).numbered
        numbers = sorted(numbered)
        looked, self._looked = self._looked, max(numbers, default=0)
        later = () if looked is None else (number for number in numbers if number > looked)
        for number in sorted({*numbers[:1], *numbers[-1:], *later}):
            path = f"{self.table.folder}/{numbered[number].name}"
            columns = footer_columns(self._storage, path)
            _unite(found, {name: column.table for name, column in columns.items()})
        return found


def _unite(known: dict[str, str], columns: Mapping[str, str]) -> None:
    """Add a file's columns to those that are known; a wider type widens its column."""
    for name, kind in columns.items():
        if kind != VOID:
            known[name.lower()] = united(known.get(name.lower()), kind)


_PUBLISHABLE = (".parquet", ".csv", ".csv.gz")


def find_sources(source: str) -> list[Path]:
    """Return the files that `source` names, in the order of their names.

    Args:
        source: a file, a folder (its Parquet and CSV files, without subfolders), or a glob such as
            `exports/*.csv`; a relative path starts from `MIRRORLAKE_HOME`, or from the project.

    Raises:
        UsageError: there are no such files.

    Example:
        >>> find_sources("lakes/sample/Files/incoming")  # doctest: +SKIP
        [PosixPath('/home/me/lakes/sample/Files/incoming/stock.csv')]
    """
    if not isinstance(source, str) or not source.strip():
        raise UsageError("The source is empty.", hint="give a file, a folder or a glob.")
    path = Path(lake_path(source))
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
            hint=f"a folder's or glob's files have to end with {', '.join(_PUBLISHABLE)}.",
        )
    return files


@dataclass(frozen=True)
class PublishedFiles(Result):
    """Files that were published, or only checked.

    Attributes:
        table: the table's name.
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
        """The number of rows in the new files, or that they would have."""
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
        return "would be published" if self.dry_run else "published"

    def __repr__(self) -> str:
        rows, files = self.rows, len(self.sources)
        verb = "would be published" if self.dry_run else "published"
        return (
            f"{self.table}: {rows:,} row{'s' * (rows != 1)} of"
            f" {files} file{'s' * (files != 1)} {verb}"
        )


def publish_files(
    publisher: Publisher, files: Sequence[Path], marker: str, *, dry_run: bool
) -> PublishedFiles:
    """Publish files in order; arguments and errors are those of `Lake.publish`."""
    batches = []
    for file in files:
        token = f"{file.name} {file_hash(Storage(file.parent), file.name)}"
        batches.append(publisher.publish(file, marker, token=token))
    sources = tuple(file.name for file in files)
    return PublishedFiles(str(publisher.table), sources, tuple(batches), dry_run)
