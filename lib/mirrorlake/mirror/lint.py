"""Lint a landing zone: run all rules, and compare each folder with what the mirror has applied.

The rules themselves are in `landing/`: `lint_rules.yaml`, `lint_folders.py` and `lint_files.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import partial

from mirrorlake.delta.snapshot import Snapshot, read_snapshot
from mirrorlake.errors import FormatError, MetadataError
from mirrorlake.landing.lint_files import ColumnWatch, lint_file
from mirrorlake.landing.lint_folders import (
    NOTHING,
    lint_folder_names,
    lint_metadata,
    lint_names,
    lint_root,
    lint_sequence,
    lint_times,
)
from mirrorlake.landing.lint_rules import ERROR, LintFinding, LintReport, finding
from mirrorlake.landing.metadata import (
    BY_TIME,
    Identity,
    TableMetadata,
    check_keys_kept,
    read_identity,
    read_own_snapshot,
)
from mirrorlake.landing.zone import Folder, find_tables, no_folder
from mirrorlake.mirror.next_batch import (
    correction_hint,
    is_as_planned,
    is_refilled,
    number_files,
    plan_of,
)
from mirrorlake.mirror.options import (
    declared_keys,
    is_mirrored,
    is_stale_incarnation,
    or_skip,
    read_settings,
)
from mirrorlake.names import IDENTITY, METADATA, SCHEMA_SUFFIX, ZONE, TableName, file_number
from mirrorlake.storage.files import Entry, Storage

_READERS = 8
_AT_ONCE = 64  # the files in memory at once

FileListener = Callable[[TableName, int, int], None]  # the table, the files read, their number


def lint_zone(
    storage: Storage,
    only: TableName | None = None,
    *,
    on_file: FileListener = lambda _table, _done, _total: None,
) -> LintReport:
    """Check a landing zone by all rules; nothing is written.

    Args:
        storage: the lake's files.
        only: a single table; the default is the whole zone.
        on_file: called after each data file with the table, the files read and their number.

    Raises:
        TableNotFoundError: the single table has no folder in the zone.
    """
    if only is not None and storage.list(only.folder) == NOTHING:
        outer, _, name = only.folder.rpartition("/")
        if name not in storage.list(outer).folders:  # a local folder may be empty
            raise no_folder(storage, only)
    now = datetime.now(timezone.utc)
    zone = storage.list(ZONE)
    schemas = [f for f in zone.folders if f.endswith(SCHEMA_SUFFIX) and not f.startswith("_")]
    tables = list(find_tables(storage, folders=zone.folders))
    findings = [] if only else list(lint_root(storage, zone, schemas))
    findings += [
        found
        for found in lint_folder_names(schemas, tables)
        if only is None or found.table == str(only)
    ]
    # A folder that can't be a table is not checked further.
    good = [t for t in tables if isinstance(t, TableName) and only in (None, t)]
    files = 0
    for table in good:
        lint = TableLint(storage, table, now, on_file)
        try:
            for found in lint.run():
                findings.append(found)
        except (FormatError, OSError, ValueError) as error:  # other tables are still checked
            text = f"The folder is not readable: {error}."
            findings.append(finding("folder-unreadable", text, table=str(table)))
        files += lint.files
    return LintReport(tuple(findings), len(good), files)


@dataclass(frozen=True)
class _Mirrored:
    """What the mirror has made of a folder; the defaults if it has not seen the folder."""

    identity: Identity
    snapshot: Snapshot | None = None
    last: int = 0


@dataclass
class TableLint:
    """The rules on one table.

    Attributes:
        storage: the lake's files.
        table: the table.
        now: the time that ages of files refer to.
        on_file: called after each data file that was read.
        files: the number of data files that were read.
    """

    storage: Storage
    table: TableName
    now: datetime
    on_file: FileListener
    files: int = 0

    def run(self) -> Iterator[LintFinding]:
        """Yield all findings, those of the folder before those of its files.

        Raises:
            OSError: the folder can't be read.
            ValueError: the log of its Delta table is invalid.
        """
        report = partial(finding, table=str(self.table))
        listing = self.storage.list(self.table.folder)
        if listing == NOTHING:
            yield report("folder-empty", "The folder is empty.")
            return
        found, metadata = lint_metadata(self.storage, self.table, listing)
        yield from found
        try:
            mirrored = self._find_mirrored(metadata)
        except (MetadataError, FormatError) as error:
            yield report("folder-identity", error.message, file=IDENTITY)
            return
        if mirrored is None:
            text = f"A table {self.table} exists that the mirror did not create."
            yield report("folder-taken", text)
            mirrored = _Mirrored(Identity(self.table, ""))
        if metadata is None:
            return  # without these declarations, files can't be checked
        if mirrored.snapshot is not None:
            try:
                old = declared_keys(mirrored.snapshot.properties)
                check_keys_kept(self.table, old, metadata.keys)
            except MetadataError as error:
                yield report("key-changed", error.message, file=METADATA)
        found, folder = lint_names(self.table, listing, metadata.strategy, self.now)
        yield from found
        last, identity = mirrored.last, mirrored.identity
        if metadata.strategy == BY_TIME:
            folder = number_files(self.storage, identity, metadata, listing, last)
        settings = read_settings(self.storage, self.table)
        skips = settings.skips(self.storage, identity, folder.behind(last))
        skipped = {
            number
            for number, entry in folder.numbered.items()
            if number > last and (number in skips or entry.name in skips)
        }
        for number in sorted(skipped):
            text = "An operator has skipped the file, so the mirror will not apply it."
            yield report("file-skipped", text, file=folder.numbered[number].name)
        left = {n: entry for n, entry in folder.numbered.items() if n not in skipped}
        waiting = {entry.name for entry in folder.behind(last)}
        complete = partial(self._complete_fix, metadata, waiting, last)
        if metadata.strategy == BY_TIME:
            yield from map(complete, lint_times(replace(folder, numbered=left), last))
        else:
            yield from map(complete, lint_sequence(folder, last, settings.skipped(identity)))
            yield from _lint_applied(self.storage, identity, folder, last)
        visible = [e for e in listing.files if not e.name.startswith(("_", "."))]
        if not visible and not last and not metadata.columns:
            yield report("folder-empty", "The folder has no data file.")
        files = self._lint_files(replace(folder, numbered=left), mirrored, metadata)
        yield from map(complete, files)

    def _complete_fix(
        self, metadata: TableMetadata, waiting: set[str], last: int, found: LintFinding
    ) -> LintFinding:
        """Add to the fix of an error at a waiting file the command that skips the file."""
        if found.severity != ERROR or found.file is None or found.rule == "column-untyped":
            return found
        file: int | str
        fix = found.fix
        if metadata.strategy == BY_TIME:
            file = found.file
            is_waiting = file in waiting
            if found.rule != "file-late":
                fix = correction_hint(self.storage, metadata, fix)
        else:
            file = file_number(found.file) or 0  # a missing file can be skipped, too
            is_waiting = file > last
        return replace(found, fix=or_skip(fix, self.table, file)) if is_waiting else found

    def _find_mirrored(self, metadata: TableMetadata | None) -> _Mirrored | None:
        """Return the Delta table of this folder, or None if another table has its name."""
        identity = read_identity(self.storage, self.table)
        snapshot = read_snapshot(self.storage, self.table.table_path)
        if snapshot is not None and not is_mirrored(snapshot.properties):
            return None
        if identity is None:
            return _Mirrored(Identity(self.table, ""))
        is_to_move = snapshot is None
        snapshot = snapshot or read_own_snapshot(self.storage, identity)
        if snapshot is None or is_stale_incarnation(snapshot, identity):
            return _Mirrored(identity)
        last = snapshot.txns.get(identity.app_id, 0)
        if is_to_move and metadata and is_refilled(self.storage, identity, metadata, last):
            return _Mirrored(identity)
        return _Mirrored(identity, snapshot, last)

    def _lint_files(
        self, folder: Folder, mirrored: _Mirrored, metadata: TableMetadata
    ) -> Iterator[LintFinding]:
        schema = mirrored.snapshot.schema if mirrored.snapshot else {}
        columns = {name: kind for name, kind in schema.items() if isinstance(kind, str)}
        watch = ColumnWatch(str(self.table), columns, metadata, applied=mirrored.last > 0)
        yield from watch.begin()
        keyed = folder.listing.file(METADATA) is not None
        lint = partial(lint_file, self.storage, self.table, metadata=metadata, keyed=keyed)
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
                    self.on_file(self.table, self.files, len(pending))
        # A key that no file contains is an error of the declaration, otherwise of the files.
        report = partial(finding, table=str(self.table))
        seen = watch.seen
        unknown = {key.lower(): key for key in metadata.keys if key.lower() not in seen}
        for key in unknown.values() if seen else ():
            text = f"No file contains the key column {key!r}."
            yield report("key-unknown", text, file=METADATA, column=key)
        for found in without_key:
            if found.column is None or found.column.lower() not in unknown:
                yield found
        if readable and not watch.typed:
            text = "All columns contain only NULLs, so no column has a type."
            yield report("column-untyped", text, file=readable.name)


def _lint_applied(
    storage: Storage, identity: Identity, folder: Folder, last: int
) -> Iterator[LintFinding]:
    """Check that files with applied numbers have the content that was applied.

    An interrupted mirror leaves files that its next cycle moves; the plans contain their hashes.
    """
    plan = None
    for number, entry in sorted(folder.numbered.items()):
        if number > last:
            return
        if plan is None or not plan.first <= number <= plan.last:
            plan = plan_of(storage, identity, number)
        if plan is None and number == last:
            return  # the last applied file stays in its folder, and its plan is lost
        try:
            same = is_as_planned(storage, identity, plan, entry)
        except FileNotFoundError:
            continue  # moved since the listing
        if not same:
            text = f"Number {number} was applied with other content; this file is never applied."
            yield finding("number-reused", text, table=str(folder.table), file=entry.name)
