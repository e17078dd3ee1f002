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

from mirrorlake.errors import MetadataError, MirrorlakeError
from mirrorlake.landing.zone import footers_from_the_newest, published_tables
from mirrorlake.names import STATE, TableName, fingerprint
from mirrorlake.source_status import SourceReport, SourceTable
from mirrorlake.storage.files import Storage, to_json
from mirrorlake.storage.kept import read_kept

Publish = Callable[[pa.RecordBatchReader], None]


@dataclass(frozen=True)
class Batch:
    """What happened to one table between two positions.

    Attributes:
        table: which one.
        rows: the changes in their order, with `__rowMarker__`; None if there are none to publish.
        position: where the table stands with them.
        replaces: the table was emptied before these rows: its folder is replaced.
        problem: why the table can't go on; nothing of it is published any more.
        reseed: the table needs a new first load.
    """

    table: TableName
    rows: pa.RecordBatchReader | None
    position: Position
    replaces: bool = False
    problem: MirrorlakeError | None = None
    reseed: bool = False


@dataclass(frozen=True)
class Group:
    """Batches that end at the same point of the source.

    Attributes:
        batches: in the order in which they are to be published; empty when nothing happened.
        end: what `confirm` is told once all of them stand.
        appeared: tables that were not known before, with their keys: found before the batches.
    """

    batches: list[Batch] = field(default_factory=list)
    end: Any = None
    appeared: Mapping[TableName, tuple[str, ...]] = field(default_factory=dict)


class Source(Protocol):
    """A source of changes. It is entered before the first question and left after the last."""

    @property
    def name(self) -> str:
        """Which source this is: the same at each start, and another one for other data."""

    @property
    def keeps_changes(self) -> bool:
        """Whether a stopped table can go on later: its changes are still there then."""

    def __enter__(self) -> Source:
        """Connects, and checks all that can be checked."""

    def __exit__(self, *_error: object) -> None:
        """Lets go of everything."""

    def tables(self) -> Mapping[TableName, tuple[str, ...] | MirrorlakeError]:
        """Its tables, each with its key columns, or with what keeps it from being read."""

    def covers(self, table: TableName) -> bool:
        """Whether the source still has all changes since the table's last position."""

    def snapshot(self, table: TableName, publish: Publish, stop: Event) -> Position | None:
        """Hands a table's rows to `publish`, in parts, from several threads if it likes.

        Returns:
            The position after which the table's changes are still to come; None where the
            source has no rows but those that its changes bring, or `stop` was set.
        """

    def changes(
        self, since: MutableMapping[TableName, Position], stop: Event, *, once: bool
    ) -> Generator[Group, None, None]:
        """What happened since, in order, and each change in one batch only.

        Args:
            since: the tables to read, and where each stands. The engine moves them on, and
                takes out a table that is stopped.
            stop: ends the iterator soon after it is set, with what is whole by then.
            once: end with what there is now. Otherwise go on, with an empty group each second
                or so while nothing happens.
        """

    def confirm(self, end: Any) -> None:
        """All up to a group's end is published for good: the source may forget it."""

    def facts(self) -> dict[str, Any]:
        """How the source itself stands, for `status`: what JSON can hold."""


class ChangesOnly:
    """What a source answers that has nothing but changes, and keeps them by rules of its own."""

    def covers(self, table: TableName) -> bool:
        """Always: what is no longer there is found when it is read; nothing is loaded again."""
        return True

    def snapshot(self, table: TableName, publish: Publish, stop: Event) -> Position | None:
        """There are no rows but those that the changes bring."""
        return None

    def confirm(self, end: Any) -> None:
        """Nothing is forgotten on account of it."""


FORMAT = 1
DOCUMENT = "_source.json"
FOOTER = "mirrorlake.source"
HOME = f"{STATE}/sources"
_ASIDE = f"{HOME}/aside"
_GONE = f"{HOME}/replaced"
_READY = "ready"


@dataclass(frozen=True, order=True)
class Position:
    """A place in a source's changes.

    Attributes:
        order: compares positions of one source and table; a higher one is later.
        facts: what the source needs to go on from there, as JSON.
    """

    order: tuple[int, ...]
    facts: dict[str, Any] = field(default_factory=dict, compare=False)

    def footer(self, source: str) -> dict[str, str]:
        """What a file carries whose rows end here."""
        document = {"source": source, "order": list(self.order), "facts": self.facts}
        return {FOOTER: json.dumps(document, ensure_ascii=False)}


@dataclass(frozen=True)
class Standing:
    """How a table stands with its source.

    Attributes:
        position: up to where its files go.
        stopped: why nothing more is published into it, and the fix; None while all is well.
    """

    position: Position
    stopped: str | None = None


def read_standing(storage: Storage, table: TableName, source: str) -> Standing | None:
    """How far a source is in a table; None if the table's first load is still to come.

    Raises:
        MetadataError: another source, or a publisher of its own, fills the folder.
    """
    path = f"{table.folder}/{DOCUMENT}"
    try:
        document = read_kept(storage, path, FORMAT)
    except (ValueError, TypeError) as error:
        raise MetadataError(
            f"{DOCUMENT} of {table} is broken.",
            file=DOCUMENT,
            hint="delete the table's folder; it is loaded again.",
        ) from error
    if document is None:
        if any(not name.startswith("_") for name in _files(storage, table)):
            raise MetadataError(
                f"The folder of {table} holds files of another publisher.",
                hint="choose another lake, or delete the folder.",
            )
        return None
    if document["source"] != source:
        raise MetadataError(
            f"{table} is filled by the source {document['source']}, not by {source}.",
            file=DOCUMENT,
            hint="name that source, or delete the table's folder; it is loaded again.",
        )
    position = Position(tuple(document["order"]), document["facts"])
    for footer in footers_from_the_newest(storage, table):
        carried = footer.get(FOOTER.encode())
        if carried is None:
            continue  # a replayed file, say
        found = json.loads(carried)
        if found["source"] == source:
            newest = Position(tuple(found["order"]), found["facts"])
            position = max(position, newest)
        break
    return Standing(position, document.get("stopped"))


def write_standing(
    storage: Storage, table: TableName, source: str, position: Position, stopped: str | None = None
) -> None:
    """Leaves in the folder where the table began, or why it is stopped."""
    storage.write(f"{table.folder}/{DOCUMENT}", standing_document(source, position, stopped))


def standing_document(source: str, position: Position, stopped: str | None = None) -> bytes:
    """The content of `_source.json`."""
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
    """A table's next folder, made aside.

    Args:
        storage: the lake's files.
        source: who fills it.
        table: whose folder.
    """

    def __init__(self, storage: Storage, source: str, table: TableName) -> None:
        self._storage = storage
        self._source = source
        self.table = table
        self._place = f"{_ASIDE}/{fingerprint(source)}/{fingerprint(table.place)}"
        self.discard()
        self.storage = Storage(storage.path(self._place))

    def discard(self) -> None:
        """Gives up what was made."""
        self._storage.delete(f"{self._place}/{_READY}")
        self._storage.delete_folder(self._place)

    def take_its_place(self, position: Position) -> None:
        """Moves it in, complete up to a position.

        Args:
            position: where the table begins.
        """
        folder = self.table.folder
        document = standing_document(self._source, position)
        self.storage.write(f"{folder}/{DOCUMENT}", document)
        make_durable(self.storage, [f"{folder}/{DOCUMENT}"])
        # From here on the new folder is complete: whoever finds it without the old one moves it in.
        self._storage.write(f"{self._place}/{_READY}", self.table.place.encode())
        _swap(self._storage, self.table, self._place)


def mend_folders(storage: Storage, source: str) -> None:
    """Ends what a kill has left between two moves, and clears away what was never complete."""
    base = f"{_ASIDE}/{fingerprint(source)}"
    for name in storage.list(base).folders:
        place = f"{base}/{name}"
        inner = Storage(storage.path(place))
        ready = storage.list(place).file(_READY) is not None
        for table in published_tables(inner):
            # While the old folder is there, the source does it all again from its position.
            if ready and not _exists(storage, table):
                _swap(storage, table, place)
        storage.delete_folder(place)
    storage.delete_folder(_GONE)


def make_durable(storage: Storage, paths: Iterable[str]) -> None:
    """Waits until files and their names are on the disk; an object store has them already."""
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
    storage.move_folder(f"{place}/{table.folder}", table.folder)
    make_durable(storage, [f"{table.folder}/{DOCUMENT}"])
    storage.delete(f"{place}/{_READY}")
    storage.delete_folder(place)
    storage.delete_folder(gone)


def _exists(storage: Storage, table: TableName) -> bool:
    found = storage.list(table.folder)
    return bool(found.files or found.folders)


def sync(path: str | Path) -> None:
    """Waits until a file, or the names in a folder, are on the disk."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return  # a mirror has moved it on
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


_REPORT_FORMAT = 1


def write_report(storage: Storage, report: SourceReport) -> None:
    """Leaves how a source stands now."""
    report.at = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
    name = fingerprint(report.source)
    storage.write_json(f"{HOME}/{name}.json", {"format": _REPORT_FORMAT} | report.as_dict())


def read_reports(storage: Storage) -> list[SourceReport]:
    """How all sources of a lake stood when they last said so.

    Raises:
        FormatError: a document is of a newer format.
    """
    found = []
    for entry in storage.list(HOME).files:
        document = read_kept(storage, f"{HOME}/{entry.name}", _REPORT_FORMAT)
        if document is not None and entry.name.endswith(".json"):
            tables = [SourceTable(**table) for table in document.pop("tables")]
            document.pop("format")
            found.append(SourceReport(tables=tables, **document))
    return found
