"""Keep each table's state between cycles, divide tables among mirrors, hold the mirror's lease.

The state documents are a cache: their content can be rebuilt from the landing zone and the Delta
logs. Up to 64 tables are stored in `Files/_mirrorlake/state.json`. More tables are stored in
`state-3-of-8.json` and so on, one document per `Shard`; a save writes only documents that have
changed. The mirror of a shard has its own documents, which divide that shard further, so two
mirrors never write the same file.

Documents can overlap after the number of documents or shards has changed, or after a mirror was
killed. The newest document that can contain a table has its state.

`Files/Monitoring/` has the same facts in the format of Fabric's monitoring files.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from hashlib import sha256
from math import gcd
from threading import Event
from typing import Any

from mirrorlake.errors import MirrorlakeError, UsageError, with_place
from mirrorlake.landing.metadata import SEQUENTIAL
from mirrorlake.names import MONITORING, STATE, ZONE, TableName, file_number, place_of
from mirrorlake.spark.sql import spark_message
from mirrorlake.storage.files import Entry, Storage, map_concurrently
from mirrorlake.storage.kept import read_kept
from mirrorlake.storage.lease import PAUSE, Lease, busy, is_held, only_one

_WRITTEN = re.compile(r"(\d{1,4})/(\d{1,4})", re.ASCII)
_LOCK = f"{STATE}/mirror.lock"
_SHARD_LOCK, _LOCK_ENDING = "mirror-", ".lock"  # before and after the label of a shard


@dataclass(frozen=True)
class Shard:
    """One of several equal parts of a lake's tables.

    Several mirrors can work on one lake, each on its own shard. The shard of a table depends only
    on its name and on the number of shards, so all processes on all machines agree about it.

    Attributes:
        number: the number of the shard, from 1.
        count: the number of shards.

    Raises:
        UsageError: The number is not between 1 and the count.

    Example:
        >>> [n for n in (1, 2, 3) if Shard(n, 3).has("Files/LandingZone/orders")]
        [2]
    """

    number: int
    count: int

    def __post_init__(self) -> None:
        if not 1 <= self.number <= self.count:
            raise UsageError(
                f"There is no shard {self}.", hint="eight shards are numbered from 1/8 to 8/8."
            )

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    @classmethod
    def parse(cls, text: str | None) -> Shard:
        """Parse a shard such as `2/8`; `None` is `ALL`.

        Raises:
            UsageError: The text has another form, or there is no such shard.
        """
        if text is None:
            return ALL
        found = _WRITTEN.fullmatch(text)
        if found is None:
            raise UsageError(f"{text!r} is not a shard.", hint="write the second of eight as 2/8.")
        return cls(int(found[1]), int(found[2]))

    @property
    def label(self) -> str:
        """The shard as part of a file name."""
        return f"{self.number}-of-{self.count}"

    @classmethod
    def of_label(cls, label: str) -> Shard | None:
        """Parse the label of a shard; return `None` if the text is not one."""
        with suppress(UsageError):
            return cls.parse(label.replace("-of-", "/"))
        return None

    def has(self, folder: str) -> bool:
        """Return whether a table is in this shard, by its folder relative to the lake's root."""
        if self == ALL:
            return True
        digest = sha256(folder.encode(errors="surrogatepass")).digest()
        return int.from_bytes(digest[:8], "big") % self.count == self.number - 1


ALL = Shard(1, 1)
"""The shard with all tables."""


@contextmanager
def mirror_lease(
    storage: Storage, patience: float | None, shard: Shard = ALL, stop: Event | None = None
) -> Iterator[Lease | None]:
    """Hold the lease of the mirror of a lake, or of one shard, and yield it.

    Mirrors of different shards run concurrently; each has its own lease. None starts while a mirror
    holds the lease of the whole lake, and that mirror waits until no lease of a shard is held.
    Without a lease, plans and commits are still correct, and two mirrors only repeat some work.
    Operations, and deleted or renamed folders, need mirrors that take a lease.

    Args:
        storage: the lake's files.
        patience: how long to wait for another mirror, in seconds; `None` takes no lease.
        shard: the mirror's shard; by default all tables.
        stop: once it is set, do not wait any longer.

    Raises:
        BusyError: Another mirror still holds the lease after `patience` seconds, or `stop` is set.
    """
    if patience is None:
        yield None
        return
    deadline, stop = time.monotonic() + patience, stop or Event()
    what, path = "mirror of this lake", _LOCK
    if shard != ALL:
        what, path = f"{what}'s shard {shard}", f"{STATE}/{_SHARD_LOCK}{shard.label}{_LOCK_ENDING}"
    while True:
        left = max(0.0, deadline - time.monotonic())
        with only_one(storage, path, left, what, stop) as lease:
            if shard == ALL:
                _await_shards(storage, deadline, stop)
            if shard == ALL or not is_held(storage, _LOCK):
                yield lease
                return
        # The mirror of a shard releases its lease, so that the two do not wait for each other.
        if stop.is_set() or time.monotonic() >= deadline:
            raise busy("mirror of this lake", "it has all tables")
        stop.wait(PAUSE)


def _await_shards(storage: Storage, deadline: float, stop: Event) -> None:
    """Wait until no lease of a shard is held; none is taken while that of the lake is held."""
    names = (entry.name for entry in storage.list(STATE).files)
    for name in (n for n in names if n.startswith(_SHARD_LOCK) and n.endswith(_LOCK_ENDING)):
        while is_held(storage, f"{STATE}/{name}"):
            if stop.is_set() or time.monotonic() >= deadline:
                shard = name[len(_SHARD_LOCK) : -len(_LOCK_ENDING)].replace("-of-", "/")
                raise busy("mirror of this lake", f"that of shard {shard}")
            stop.wait(PAUSE)


FORMAT = 2
TABLES = 64
"""The number of tables in one document at which the number of documents doubles."""
MOST = 64
"""The largest number of documents of one mirror, which limits what an idle cycle reads."""
_WHOLE, _PART, _ENDING = "state.json", "state-", ".json"  # the latter two enclose a shard's label
_LARGEST = 9999  # the largest number of shards in a file name
_NOW = datetime.max.replace(tzinfo=timezone.utc)
_REPLICATOR = f"{MONITORING}/replicator.json"
_NEVER = "0001-01-01T00:00:00"  # the format's value for "not yet"
_FILE = re.compile(r"(\d{20}\.\w+)")
_LONGEST = 500

INITIALIZED = "Initialized"
REPLICATING = "Replicating"
FAILED = "Failed"
RUNNING = "Running"
STOPPED = "Stopped"


@dataclass(frozen=True)
class TableState:
    """The state of a table after its last cycle.

    Attributes:
        seen: when the folder's identity file was written; it changes if the folder is recreated.
        declared: when the folder's metadata file was written.
        strategy: how the folder's files are ordered.
        tail: the signature of the last applied file at its last comparison; None if it was missing
            or had other content. An earlier version stored it only for files without numbers.
        rows: the number of operations applied so far, with any marker.
        bytes: the total size of the files applied so far.
        synced: the time of the last commit, ISO-8601 UTC.
        latency: seconds from the publication of the last applied file to its commit.
        compacted: the version of the last compaction.
        swept: the time of the last sweep of applied files, ISO-8601 UTC.
        error: message, file, row and column of the table's error; None without an error.
    """

    schema: str | None
    name: str
    state: str = INITIALIZED
    incarnation: str | None = None
    seen: str | None = None
    declared: str | None = None
    strategy: str = SEQUENTIAL
    tail: str | None = None
    last_file: int = 0
    version: int | None = None
    rows: int = 0
    bytes: int = 0
    synced: str | None = None
    latency: float | None = None
    compacted: int = 0
    swept: str | None = None
    error: dict[str, Any] | None = None

    @property
    def table(self) -> TableName:
        """The table's name."""
        return TableName(self.schema, self.name)

    @property
    def folder(self) -> str:
        """The folder in the landing zone, also for an invalid table name."""
        return f"{ZONE}/{place_of(self.schema, self.name)}"

    def as_asked(self, paused: str | None) -> TableState:
        """Return this state, with `Stopped` if the table is paused, and without it otherwise.

        Args:
            paused: when an operator paused the table; None if it is not paused.
        """
        if paused is not None:
            return replace(self, state=STOPPED)
        if self.state == STOPPED:
            return replace(self, state=REPLICATING if self.last_file else INITIALIZED)
        return self


def file_signature(entry: Entry) -> str:
    """Return a text that changes with a file's name, size, modification time or ETag."""
    return f"{entry.name} {entry.size} {entry.state}"


def failed(state: TableState, error: BaseException) -> TableState:
    """Return the state of a table that an error has stopped."""
    if isinstance(error, MirrorlakeError):
        details = error.as_dict()
    else:
        text = spark_message(error)
        match = _FILE.search(text)
        file = match[1] if match and file_number(match[1]) is not None else None
        details = {"message": text[:_LONGEST], "file": file, "row": None, "column": None}
    return replace(state, state=FAILED, error=details)


@dataclass(frozen=True)
class _Document:
    """The state document of one shard.

    Attributes:
        entry: the file as it was read; None if it was just written, or not read.
        states: the states in it; None if it is corrupt, of an older format, or not read.
    """

    entry: Entry | None
    states: dict[str, TableState] | None = None


class StateDocuments:
    """The state documents of a lake, as one mirror reads and writes them.

    Documents are cached: a file of an object store with an unchanged ETag is not read again.

    Args:
        storage: the lake's files.
        shard: the mirror's own shard.
    """

    def __init__(self, storage: Storage, shard: Shard = ALL) -> None:
        self._storage = storage
        self.shard = shard
        self._known: dict[Shard, _Document] | None = None

    def load(self, *, some: bool = False) -> dict[str, TableState] | None:
        """Return the states of all tables by folder.

        Args:
            some: return the states also if documents for some of this mirror's tables are missing.

        Returns:
            The states; `None` if documents for tables of this mirror are missing.

        Raises:
            FormatError: A document has a newer format. It is not overwritten: a newer mirror may
                store more in other files, too.
        """
        self._known = self._look(self._known or {})
        found = [(part, d) for part, d in self._known.items() if d.states is not None]
        if not (found and some) and not _covers({part for part, _ in found}, self.shard):
            return None
        states: dict[str, TableState] = {}
        read: list[Shard] = []
        for part, document in sorted(found, key=_age):
            if any(_meet(part, other) for other in read):  # documents usually don't overlap
                states = {f: s for f, s in states.items() if not part.has(f)}
            states |= document.states or {}
            read.append(part)
        return states

    def save(self, states: dict[str, TableState], replicator: str = RUNNING) -> None:
        """Write the documents that have changed since they were read, and the monitoring files.

        Args:
            states: the states of all tables, by folder; those of other shards are not written.
            replicator: the state of the whole mirror.
        """
        self._write(states)
        if self.shard != ALL:
            states = self.load() or states  # other mirrors may have saved newer states
        write_monitoring(self._storage, states, replicator)

    def _write(self, states: dict[str, TableState]) -> None:
        if self._known is None:
            self._known = {part: _Document(None) for part in self._list()}
        own = {folder: state for folder, state in sorted(states.items()) if self.shard.has(folder)}
        parts = self._parts(len(own), self._known)
        others = {part: document for part, document in self._known.items() if part not in parts}
        for part in parts:
            mine = {folder: state for folder, state in own.items() if part.has(folder)}
            before = self._known.get(part)
            if before and before.states == mine and not _is_superseded(part, before, others):
                continue
            tables = {folder: asdict(state) for folder, state in mine.items()}
            document = {"format": FORMAT, "tables": tables}
            self._storage.write_json(f"{STATE}/{_name(part)}", document)
            self._known[part] = _Document(None, mine)
        # Delete old documents last: if both are left after a kill, the newer one counts.
        inside = [part for part in others if _is_inside(part, self.shard)]
        self._storage.delete_files(f"{STATE}/{_name(part)}" for part in inside)
        for part in inside:
            del self._known[part]

    def _parts(self, tables: int, there: Collection[Shard]) -> list[Shard]:
        """Return the shards of this mirror's documents; keep their number unless it is far off."""
        most = min(MOST, _LARGEST // self.shard.count)
        wanted = 1
        while wanted * 2 <= most and tables > wanted * TABLES:
            wanted *= 2
        fewer = _split(self.shard, wanted * 2)
        return fewer if set(there).issuperset(fewer) else _split(self.shard, wanted)

    def _list(self) -> dict[Shard, Entry]:
        """List the documents, by shard."""
        entries = self._storage.list(STATE).files
        return {part: entry for entry in entries if (part := _part(entry.name))}

    def _look(self, before: dict[Shard, _Document]) -> dict[Shard, _Document]:
        """List the documents and read those that are not cached."""
        found = self._list()
        same = {
            part: before[part]
            for part, entry in found.items()
            if entry.etag and part in before and before[part].entry == entry
        }
        new = {part: entry for part, entry in found.items() if part not in same}
        read = map_concurrently(self._storage, self._read, new.values())
        return same | dict(zip(new, read, strict=True))

    def _read(self, entry: Entry) -> _Document:
        path, hint = f"{STATE}/{entry.name}", "rebuild it with status(rebuild=True)"
        states = None
        # A corrupt document is ignored: it is a cache and can be rebuilt.
        with suppress(ValueError, TypeError, KeyError, AttributeError):
            document = read_kept(self._storage, path, FORMAT, hint=hint)
            if document is not None and document["format"] == FORMAT:
                states = {f: TableState(**state) for f, state in document["tables"].items()}
        return _Document(entry, states)


def _name(part: Shard) -> str:
    return _WHOLE if part == ALL else f"{_PART}{part.label}{_ENDING}"


def _part(name: str) -> Shard | None:
    """Return the shard of a document, or `None` for any other file."""
    if name == _WHOLE:
        return ALL
    part = Shard.of_label(name.removeprefix(_PART).removesuffix(_ENDING))
    return part if part and part != ALL and name == _name(part) else None


def _age(one: tuple[Shard, _Document]) -> tuple[datetime, bool]:
    """Return the sort key of a document's age; an object store has times in whole seconds."""
    part, document = one
    when = document.entry.modified if document.entry else _NOW
    return when, part.count > 1


def _is_superseded(part: Shard, document: _Document, others: dict[Shard, _Document]) -> bool:
    """Return whether a newer document has some of the same tables."""
    meeting = (other for other in others.items() if _meet(other[0], part))
    return any(_age(other) > _age((part, document)) for other in meeting)


def _split(part: Shard, count: int) -> list[Shard]:
    """Split a shard into equal shards."""
    numbers = range(part.number, part.count * count + 1, part.count)
    return [Shard(number, part.count * count) for number in numbers]


def _covers(parts: set[Shard], own: Shard) -> bool:
    """Return whether documents of equal size cover all tables of a shard."""
    if any(_is_inside(own, part) for part in parts):
        return True
    sizes = [(w, p.count // w.count) for w in (own, ALL) for p in parts if _is_inside(p, w)]
    return any(parts.issuperset(_split(whole, count)) for whole, count in set(sizes))


def _is_inside(part: Shard, whole: Shard) -> bool:
    """Return whether a shard contains all tables of another."""
    return part.count % whole.count == 0 and (part.number - whole.number) % whole.count == 0


def _meet(one: Shard, other: Shard) -> bool:
    """Return whether two shards can have tables in common."""
    return (one.number - other.number) % gcd(one.count, other.count) == 0


def load_states(storage: Storage) -> dict[str, TableState] | None:
    """Return the saved states by folder; `None` if none exist, or only of an older format.

    Raises:
        FormatError: A document has a newer format.
    """
    return StateDocuments(storage).load(some=True)


def is_running(storage: Storage) -> bool:
    """Return whether monitoring files exist with the status `Running`."""
    try:
        return bool(storage.read_json(_REPLICATOR) == _replicator(RUNNING))
    except ValueError:
        return False


def save_states(storage: Storage, states: dict[str, TableState]) -> None:
    """Save the states of all tables, by folder; see `StateDocuments.save`."""
    StateDocuments(storage).save(states)


def write_monitoring(storage: Storage, states: dict[str, TableState], replicator: str) -> None:
    """Write only the monitoring files; see `StateDocuments.save`."""
    entries = [_monitoring(state) for _, state in sorted(states.items())]
    storage.write_json(f"{MONITORING}/tables.json", {"tables": entries})
    storage.write_json(_REPLICATOR, _replicator(replicator))


def _replicator(status: str) -> dict[str, str]:
    return {"status": status, "errorCode": "", "errorMessage": ""}


def _monitoring(state: TableState) -> dict[str, Any]:
    """Return a table's entry in `tables.json`, whose field names differ from those of the REST API.

    Clients expect `""` as the name of a missing schema.
    """
    return {
        "id": _id(state.incarnation),
        "status": state.state,
        "errorCode": "TableFailed" if state.error else "",
        "errorMessage": with_place(state.error["message"], state.error) if state.error else "",
        "normalizedTableName": f"{state.schema}.{state.name}" if state.schema else state.name,
        "sourceTableName": state.name,
        "sourceSchemaName": state.schema or "",
        "sourceObjectType": "Table",
        "metrics": {
            "processedRowCount": state.rows,
            "processedByte": state.bytes,
            "lastSourceCommitTimeUtc": _NEVER,
            "lastSyncTimeUtc": state.synced or _NEVER,
        },
    }


def _id(incarnation: str | None) -> str:
    try:
        return str(uuid.UUID(incarnation or ""))
    except ValueError:
        return str(uuid.UUID(int=0))  # no mirror has processed the folder yet
