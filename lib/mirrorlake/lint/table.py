"""One table's folder from end to end: its declaration, names and files, and the mirrored table."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from mirrorlake.delta.snapshot import Snapshot, read_snapshot
from mirrorlake.errors import FormatError, MetadataError
from mirrorlake.landing.metadata import (
    BY_TIME,
    Identity,
    TableMetadata,
    check_keys_kept,
    is_in_folder,
    read_identity,
)
from mirrorlake.landing.zone import Folder
from mirrorlake.lint.columns import ColumnWatch
from mirrorlake.lint.files import lint_file
from mirrorlake.lint.folder import (
    lint_applied,
    lint_metadata,
    lint_names,
    lint_sequence,
    lint_times,
)
from mirrorlake.lint.rules import LintFinding, finding
from mirrorlake.mirror.plan import number_files
from mirrorlake.mirror.properties import KEYS_PROPERTY, is_stale_incarnation
from mirrorlake.names import IDENTITY, METADATA, TableName
from mirrorlake.storage import Entry, Listing, Storage

_READERS = 8
_AT_ONCE = 64  # files, so that what is known of them stays small

FileListener = Callable[[TableName, int, int], None]  # the table, files read so far, files to read


@dataclass(frozen=True)
class _Mirrored:
    """What a mirror has made of the folder so far; nothing if none has seen it."""

    identity: Identity
    snapshot: Snapshot | None = None
    last: int = 0

    @property
    def columns(self) -> dict[str, str]:
        schema = self.snapshot.schema if self.snapshot else {}
        return {name: kind for name, kind in schema.items() if isinstance(kind, str)}


class TableLint:
    """The rules on one table.

    Args:
        storage: the lake's files.
        table: which table.
        now: tells how old a file is.
        on_file: is called after every data file that was read.

    Attributes:
        files: how many data files were read.
    """

    def __init__(
        self, storage: Storage, table: TableName, now: datetime, on_file: FileListener
    ) -> None:
        self._storage = storage
        self._table = table
        self._now = now
        self._on_file = on_file
        self._finding = partial(finding, table=str(table))
        self._listing = Listing((), ())
        self.files = 0

    def run(self) -> Iterator[LintFinding]:
        """All findings, the folder's before its files'.

        Raises:
            OSError: the folder can't be read.
            ValueError: the log of its Delta table is broken.
        """
        self._listing = self._storage.list(self._table.folder)
        if not self._listing.files and not self._listing.folders:
            yield self._finding("folder-empty", "The folder is empty.")
            return
        found, metadata = lint_metadata(
            self._storage, str(self._table), self._table.folder, self._listing
        )
        yield from found
        try:
            mirrored = self._find_mirrored()
        except (MetadataError, FormatError) as error:
            yield self._finding("folder-identity", error.message, file=IDENTITY)
            return
        if mirrored is None:
            text = f"There is already a table {self._table} that the mirror did not make."
            yield self._finding("folder-taken", text)
            mirrored = _Mirrored(Identity(self._table, ""))
        if metadata is None:
            return  # which files count, and what they need, is not known
        yield from self._lint_keys(mirrored, metadata)
        found, folder = lint_names(self._table, self._listing, metadata.strategy, self._now)
        yield from found
        if metadata.strategy == BY_TIME:
            folder = number_files(
                self._storage, mirrored.identity, metadata, self._listing, mirrored.last
            )
            yield from lint_times(folder, mirrored.last)
        else:
            yield from lint_sequence(folder, mirrored.last)
            yield from lint_applied(self._storage, mirrored.identity, folder, mirrored.last)
        visible = [e for e in self._listing.files if not e.name.startswith(("_", "."))]
        if not visible and not mirrored.last and not metadata.columns:
            yield self._finding("folder-empty", "The folder has no data file.")
        yield from self._lint_files(folder, mirrored, metadata)

    def _find_mirrored(self) -> _Mirrored | None:
        """The Delta table that was made of this folder; None if another one is in its place."""
        identity = read_identity(self._storage, self._table)
        snapshot = read_snapshot(self._storage, self._table.table_path)
        if snapshot is not None and KEYS_PROPERTY not in snapshot.properties:
            return None
        if identity is None:
            return _Mirrored(Identity(self._table, ""))
        if snapshot is None and identity.origin:
            # Renamed since the last cycle: the table is still where the folder was.
            with suppress(MetadataError, FormatError):
                if is_in_folder(self._storage, identity.origin, identity):
                    return _Mirrored(identity)  # no, copied
            snapshot = read_snapshot(self._storage, identity.origin.table_path)
        if snapshot is None or is_stale_incarnation(snapshot, identity):
            return _Mirrored(identity)
        return _Mirrored(identity, snapshot, snapshot.txns.get(identity.app_id, 0))

    def _lint_keys(self, mirrored: _Mirrored, metadata: TableMetadata) -> Iterator[LintFinding]:
        if mirrored.snapshot is None:
            return
        old = tuple(json.loads(mirrored.snapshot.properties[KEYS_PROPERTY]))
        try:
            check_keys_kept(self._table, old, metadata.keys)
        except MetadataError as error:
            yield self._finding("key-changed", error.message, file=METADATA)

    def _lint_files(
        self, folder: Folder, mirrored: _Mirrored, metadata: TableMetadata
    ) -> Iterator[LintFinding]:
        watch = ColumnWatch(str(self._table), mirrored.columns, metadata)
        yield from watch.begin()
        lint = partial(
            lint_file,
            self._storage,
            str(self._table),
            self._table.folder,
            metadata=metadata,
            keyed=self._listing.file(METADATA) is not None,
        )
        pending = [folder.numbered[n] for n in sorted(folder.numbered) if n > mirrored.last]
        without_key: list[LintFinding] = []
        readable: Entry | None = None
        with ThreadPoolExecutor(_READERS) as pool:
            for start in range(0, len(pending), _AT_ONCE):
                entries = pending[start : start + _AT_ONCE]
                for entry, linted in zip(entries, pool.map(lint, entries), strict=True):
                    for found in linted.findings:
                        if found.rule == "key-missing":
                            without_key.append(found)
                        else:
                            yield found
                    yield from watch.follow(linted)
                    readable = entry if linted.columns else readable
                    self.files += 1
                    self._on_file(self._table, self.files, len(pending))
        yield from self._missing_keys(metadata, watch.seen, without_key)
        if readable and not watch.typed:
            text = "All columns have only NULLs so far, so that none has a type."
            yield self._finding("column-untyped", text, file=readable.name)

    def _missing_keys(
        self, metadata: TableMetadata, seen: set[str], without_key: list[LintFinding]
    ) -> Iterator[LintFinding]:
        """A key that no file has is the declaration's fault, else it is the files'."""
        unknown = {key.lower(): key for key in metadata.keys if key.lower() not in seen}
        for key in unknown.values() if seen else ():
            text = f"No file has the key column {key!r}."
            yield self._finding("key-unknown", text, file=METADATA, column=key)
        for found in without_key:
            if found.column is None or found.column.lower() not in unknown:
                yield found
