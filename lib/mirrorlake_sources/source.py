"""The interface of a source, and the state that a source keeps in the lake.

A source implements `Source` and passes `tests/servers/sources/test_conformance.py`. `engine` is
responsible for first loads, exactly-once publishing, stopped tables and restarts.

The footer of each data file contains the position of its last row. `_source.json` in the table's
folder contains the position at which the table began. A source continues after the highest position
found, so the state can't contradict the files.

A first load and a TRUNCATE replace the table's folder. The new folder is written aside, as a small
lake of its own; then the old folder is moved away and the new one takes its place. If the process
is killed between the two moves, the next start completes them.

`Files/_mirrorlake/sources/` contains the last report of each source, for `status`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Generator, Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from threading import Event
from typing import Any, Protocol

import pyarrow as pa

from mirrorlake.errors import BusyError, MetadataError, MirrorlakeError
from mirrorlake.landing.zone import footers_from_the_newest, published_tables
from mirrorlake.names import STATE, TableName, fingerprint
from mirrorlake.source_status import SourceReport, SourceTable
from mirrorlake.storage.files import Storage, to_json
from mirrorlake.storage.kept import read_kept

Publish = Callable[[pa.RecordBatchReader], None]


@dataclass(frozen=True)
class Batch:
    """The changes of one table between two positions.

    Attributes:
        table: the table.
        rows: the changes in order, with `__rowMarker__`; None if there are no rows to publish.
        position: the table's position after these rows.
        replaces: whether the table was emptied before these rows, so that its folder is replaced.
        problem: the reason why the table stops; nothing of the table is published any more.
        reseed: whether the table needs a new first load.
        origin: the files of the rows, for warnings; empty if they are not from files.
    """

    table: TableName
    rows: pa.RecordBatchReader | None
    position: Position
    replaces: bool = False
    problem: MirrorlakeError | None = None
    reseed: bool = False
    origin: str = ""


@dataclass(frozen=True)
class Group:
    """Batches that end at the same point of the source.

    Attributes:
        batches: in the order in which they are published; empty if there are no changes.
        end: passed to `confirm` once all batches are durable.
        appeared: new tables with their key columns; they are loaded before the batches.
    """

    batches: list[Batch] = field(default_factory=list)
    end: Any = None
    appeared: Mapping[TableName, tuple[str, ...]] = field(default_factory=dict)


class Source(Protocol):
    """A source of changes, used as a context manager."""

    @property
    def name(self) -> str:
        """The source's name: constant over restarts, and different for other data."""

    @property
    def keeps_changes(self) -> bool:
        """Whether the source keeps the changes of a stopped table until it continues."""

    def __enter__(self) -> Source:
        """Connect, and check everything that can be checked."""

    def __exit__(self, *_error: object) -> None:
        """Release all resources."""

    def tables(self) -> Mapping[TableName, tuple[str, ...] | MirrorlakeError]:
        """Return the tables, each with its key columns or the reason why it can't be read."""

    def covers(self, table: TableName) -> bool:
        """Return whether the source still has all changes since the table's last position."""

    def snapshot(self, table: TableName, publish: Publish, stop: Event) -> Position | None:
        """Pass a table's rows to `publish`, in parts; several threads may call it.

        Returns:
            The position after which the table's changes begin; None if the source has no rows other
            than
            its changes, or `stop` was set.
        """

    def changes(
        self, since: MutableMapping[TableName, Position], stop: Event, *, once: bool
    ) -> Generator[Group, None, None]:
        """Yield the changes in order, each change in exactly one batch.

        Args:
            since: the tables to read with their positions. The engine updates the positions and
                removes
                stopped tables.
            stop: ends the iterator soon after it is set, after complete groups.
            once: end with the changes that exist now. Otherwise continue, with an empty group about
                every
                second while nothing changes.
        """

    def confirm(self, end: Any) -> None:
        """Release the changes up to a group's end: all its files are durable."""

    def facts(self) -> dict[str, Any]:
        """Return the state of the source itself for `status`, as JSON values."""


class ChangesOnly:
    """Default answers of a source that has only changes, and whose retention is not ours."""

    def covers(self, table: TableName) -> bool:
        """Return True: missing changes are found when they are read."""
        return True

    def snapshot(self, table: TableName, publish: Publish, stop: Event) -> Position | None:
        """Return None: all rows come with the changes."""
        return None

    def confirm(self, end: Any) -> None:
        """Do nothing."""


FORMAT = 1
DOCUMENT = "_source.json"
FOOTER = "mirrorlake.source"
HOME = f"{STATE}/sources"
FROM_THE_START = (
    "delete the table's folder in the landing zone: then all data that the source still has is"
    " published again."
)
_ASIDE = f"{HOME}/aside"
_GONE = f"{HOME}/replaced"
_READY = "ready"


@dataclass(frozen=True, order=True)
class Position:
    """A position in the changes of a source.

    Attributes:
        order: compares positions of one source and table; a higher one is later.
        facts: JSON values that the source needs to continue from there.
    """

    order: tuple[int, ...]
    facts: dict[str, Any] = field(default_factory=dict, compare=False)

    def footer(self, source: str) -> dict[str, str]:
        """Return the footer entry of a file whose last row is at this position."""
        document = {"source": source, "order": list(self.order), "facts": self.facts}
        return {FOOTER: json.dumps(document, ensure_ascii=False)}


@dataclass(frozen=True)
class Progress:
    """The state of a table within its source.

    Attributes:
        begin: the position after which the changes in the table's folder begin.
        position: the position of the last published row.
        stopped: why the table is stopped, and the fix; None if it is not.
    """

    begin: Position
    position: Position
    stopped: str | None = None


def read_progress(storage: Storage, table: TableName, source: str) -> Progress | None:
    """Return the state of a table within a source; None before its first load.

    Raises:
        MetadataError: another source or publisher publishes the table.
    """
    path = f"{table.folder}/{DOCUMENT}"
    try:
        document = read_kept(storage, path, FORMAT)
        has_files = document is None and any(
            not name.startswith("_") for name in _files(storage, table)
        )
        if has_files:  # another process of this source may have written it since
            document = read_kept(storage, path, FORMAT)
    except (ValueError, TypeError) as error:
        raise MetadataError(
            f"{DOCUMENT} of {table} is invalid.",
            file=DOCUMENT,
            hint=f"restore the file from a copy, or {FROM_THE_START}",
        ) from error
    if document is None:
        if has_files:
            raise MetadataError(
                f"The folder of {table} has files of another publisher.",
                hint=f"{_other_place(table, source)}.",
            )
        return None
    if document["source"] != source:
        raise MetadataError(
            f"{table} is published by the source {document['source']}, not by {source}.",
            file=DOCUMENT,
            hint=f"use that source, or {_other_place(table, source)}.",
        )
    begin = position = Position(tuple(document["order"]), document["facts"])
    for footer in footers_from_the_newest(storage, table):
        found = position_in(footer, source)
        if found is not None:
            position = max(position, found)
        if FOOTER.encode() in footer:
            break  # others are replayed files
    return Progress(begin, position, document.get("stopped"))


def _other_place(table: TableName, source: str) -> str:
    """Return how a source publishes the rows of a table elsewhere, so that none is lost."""
    if source.startswith("csv:"):
        return f"rename the folder {table.name!r} of the CSV files, which names the table"
    return "publish into another lake"


def position_in(footer: Mapping[bytes, bytes], source: str) -> Position | None:
    """Return the position at the end of a source's file; None if its footer has none."""
    found = json.loads(footer.get(FOOTER.encode(), b"{}"))
    if found.get("source") != source:
        return None
    return Position(tuple(found["order"]), found["facts"])


def write_progress(
    storage: Storage, table: TableName, source: str, position: Position, stopped: str | None = None
) -> None:
    """Write the table's first position, or the reason why it is stopped, into its folder."""
    storage.write(f"{table.folder}/{DOCUMENT}", progress_document(source, position, stopped))


def progress_document(source: str, position: Position, stopped: str | None = None) -> bytes:
    """Return the content of `_source.json`."""
    return to_json(
        {
            "format": FORMAT,
            "source": source,
            "order": list(position.order),
            "facts": position.facts,
            "stopped": stopped,
        }
    )


def _files(storage: Storage, table: TableName) -> list[str]:
    return [entry.name for entry in storage.list(table.folder).files]


class NewFolder:
    """A new folder for a table, written aside and moved into place.

    Args:
        storage: the lake's storage.
        source: the source's name.
        table: the table.
    """

    def __init__(self, storage: Storage, source: str, table: TableName) -> None:
        self._storage = storage
        self._source = source
        self.table = table
        self._place = f"{_ASIDE}/{fingerprint(source)}/{fingerprint(table.place)}"
        self.discard()
        self.storage = Storage(storage.path(self._place))

    def discard(self) -> None:
        """Delete the new folder."""
        self._storage.delete(f"{self._place}/{_READY}")
        self._storage.delete_folder(self._place)

    def move_into_place(self, position: Position) -> None:
        """Replace the table's folder by the new one.

        Args:
            position: the position at which the table begins.
        """
        folder = self.table.folder
        document = progress_document(self._source, position)
        self.storage.write(f"{folder}/{DOCUMENT}", document)
        make_durable(self.storage, [f"{folder}/{DOCUMENT}"])
        # From here on the new folder is complete, and a restart can move it in.
        self._storage.write(f"{self._place}/{_READY}", self.table.place.encode())
        _swap(self._storage, self.table, self._place)


def recover_folders(storage: Storage, source: str) -> None:
    """Complete a replacement that a kill interrupted, and delete incomplete new folders."""
    base = f"{_ASIDE}/{fingerprint(source)}"
    for name in storage.list(base).folders:
        place = f"{base}/{name}"
        inner = Storage(storage.path(place))
        ready = storage.list(place).file(_READY) is not None
        for table in published_tables(inner):
            # On a disk, the source repeats the work from its position if the old folder exists. In
            # an object store, the existing files can be a part of the new folder.
            if ready and (storage.local is None or not _exists(storage, table)):
                _swap(storage, table, place)
        storage.delete_folder(place)
    storage.delete_folder(_GONE)


def make_durable(storage: Storage, paths: Iterable[str]) -> None:
    """Wait until files and their names are on disk; an object store needs no wait."""
    if storage.local is None:
        return
    folders = set()
    for path in paths:
        full = storage.local / path
        folders |= {full.parent, full.parent.parent}
        sync(full)
    for folder in folders:
        sync(folder)


def _swap(storage: Storage, table: TableName, place: str) -> None:
    gone = f"{_GONE}/{fingerprint(place)}"
    storage.delete_folder(gone)
    storage.move_folder(table.folder, gone)

    def done() -> None:
        storage.delete(f"{place}/{_READY}")

    if not storage.move_folder(f"{place}/{table.folder}", table.folder, done):
        raise BusyError(
            f"The folder of {table} was written to while it was replaced.",
            hint="run the source again; it completes the replacement.",
        )
    make_durable(storage, [f"{table.folder}/{DOCUMENT}"])
    done()
    storage.delete_folder(place)
    storage.delete_folder(gone)


def _exists(storage: Storage, table: TableName) -> bool:
    found = storage.list(table.folder)
    return bool(found.files or found.folders)


def sync(path: str | Path) -> None:
    """Wait until a file, or the names in a folder, are on disk."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return  # the mirror has moved the file
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


_REPORT_FORMAT = 1


def write_report(storage: Storage, report: SourceReport) -> None:
    """Write the current state of a source."""
    report.at = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
    name = fingerprint(report.source)
    storage.write_json(f"{HOME}/{name}.json", {"format": _REPORT_FORMAT} | report.as_dict())


def read_reports(storage: Storage) -> list[SourceReport]:
    """Return the last reported state of each source of a lake.

    Args:
        storage: the lake's storage.

    Raises:
        FormatError: a report has a newer format.

    Example:
        >>> [one.state for one in read_reports(lake.storage)]  # doctest: +SKIP
        ['Ended']
    """
    found = []
    for entry in storage.list(HOME).files:
        document = read_kept(storage, f"{HOME}/{entry.name}", _REPORT_FORMAT)
        if document is not None and entry.name.endswith(".json"):
            tables = [SourceTable(**table) for table in document.pop("tables")]
            document.pop("format")
            found.append(SourceReport(tables=tables, **document))
    return found
