"""Keep each table's state between cycles, and divide the tables among several mirrors (shards).

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
from typing import Any

from mirrorlake.errors import MirrorlakeError, UsageError, with_place
from mirrorlake.landing.metadata import SEQUENTIAL
from mirrorlake.mirror.options import side_by_side
from mirrorlake.names import MONITORING, STATE, ZONE, TableName, file_number, place_of
from mirrorlake.spark.sql import spark_message
from mirrorlake.storage.files import Entry, Storage
from mirrorlake.storage.kept import read_kept
from mirrorlake.storage.lease import PAUSE, busy, is_held, only_one

_WRITTEN = re.compile(r"(\d{1,4})/(\d{1,4})", re.ASCII)
_LOCK = f"{STATE}/mirror.lock"
_SHARD_LOCK, _LOCK_ENDING = "mirror-", ".lock"  # around a shard's label


@dataclass(frozen=True)
class Shard:
    """One of several equal shares of a lake's tables.

    Attributes:
        number: which one, from 1.
        count: how many there are.

    Raises:
        UsageError: there is no such share.

    Example:
        >>> [n for n in (1, 2, 3) if Shard(n, 3).has("Files/LandingZone/orders")]
        [2]
    """

    number: int
    count: int

    def __post_init__(self) -> None:
        if not 1 <= self.number <= self.count:
            raise UsageError(
                f"There is no shard {self}.", hint="the first of eight is 1/8, the last 8/8."
            )

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    @classmethod
    def parse(cls, text: str | None) -> Shard:
        """A shard as people write it: `2/8`; `ALL` where nothing is written.

        Raises:
            UsageError: it is written in another way, or there is no such shard.
        """
        if text is None:
            return ALL
        found = _WRITTEN.fullmatch(text)
        if found is None:
            raise UsageError(f"{text!r} is no shard.", hint="the second of eight is 2/8.")
        return cls(int(found[1]), int(found[2]))

    @property
    def label(self) -> str:
        """The shard as part of a file's name."""
        return f"{self.number}-of-{self.count}"

    @classmethod
    def of_label(cls, label: str) -> Shard | None:
        """The shard that a part of a file's name tells of; None if it tells of none."""
        with suppress(UsageError):
            return cls.parse(label.replace("-of-", "/"))
        return None

    def has(self, folder: str) -> bool:
        """Whether a table is in this shard, by its folder relative to the lake's root."""
        if self == ALL:
            return True
        digest = sha256(folder.encode(errors="surrogatepass")).digest()
        return int.from_bytes(digest[:8], "big") % self.count == self.number - 1


ALL = Shard(1, 1)
"""All tables: the share of a mirror that has none beside it."""


@contextmanager
def only_mirror(storage: Storage, patience: float | None, shard: Shard = ALL) -> Iterator[None]:
    """Waits until no other mirror works on the lake, then keeps others waiting.

    Args:
        storage: the lake's files.
        patience: how many seconds to wait; None does without the lease.
        shard: the mirror's share of the tables; mirrors of others may work meanwhile.

    Raises:
        BusyError: another mirror went on for too long; says which one.
    """
    if patience is None:
        yield
        return
    deadline = time.monotonic() + patience
    what, path = "mirror of this lake", _LOCK
    if shard != ALL:
        what, path = f"{what}'s shard {shard}", f"{STATE}/{_SHARD_LOCK}{shard.label}{_LOCK_ENDING}"
    while True:
        left = max(0.0, deadline - time.monotonic())
        with only_one(storage, path, left, what):
            if shard == ALL:
                _await_shards(storage, deadline)
            if shard == ALL or not is_held(storage, _LOCK):
                yield
                return
        # Not both wait for each other: the shard's mirror steps back.
        if time.monotonic() >= deadline:
            raise busy("mirror of this lake", "it has all tables")
        time.sleep(PAUSE)


def _await_shards(storage: Storage, deadline: float) -> None:
    """Waits until no mirror of a shard is at work; none begins while the lake's lease is held."""
    names = (entry.name for entry in storage.list(STATE).files)
    for name in (n for n in names if n.startswith(_SHARD_LOCK) and n.endswith(_LOCK_ENDING)):
        while is_held(storage, f"{STATE}/{name}"):
            if time.monotonic() >= deadline:
                shard = name[len(_SHARD_LOCK) : -len(_LOCK_ENDING)].replace("-of-", "/")
                raise busy("mirror of this lake", f"that of shard {shard}")
            time.sleep(PAUSE)


FORMAT = 2
TABLES = 64
"""How many tables a document has before there are twice as many documents."""
MOST = 64
"""How many documents a mirror has at most: what an idle cycle reads does not grow further."""
_WHOLE, _PART, _ENDING = "state.json", "state-", ".json"  # the latter two around a share's label
_LARGEST = 9999  # the largest number of shares that a name can tell
_NOW = datetime.max.replace(tzinfo=timezone.utc)
_REPLICATOR = f"{MONITORING}/replicator.json"
_NEVER = "0001-01-01T00:00:00"  # how the format's readers know "not yet"
_FILE = re.compile(r"(\d{20}\.\w+)")
_LONGEST = 500

INITIALIZED = "Initialized"
REPLICATING = "Replicating"
FAILED = "Failed"
RUNNING = "Running"
STOPPED = "Stopped"


@dataclass(frozen=True)
class TableState:
    """One table as it was after the last cycle that looked at it.

    Attributes:
        seen: when the folder's identity file was written; tells a recreated folder.
        declared: when its metadata file was written.
        strategy: how its files are ordered.
        tail: the last applied file's signature when it was compared last; None if it was missing,
            or had other content. An earlier version kept it only for files without numbers.
        rows: operations applied so far, all markers counted.
        bytes: sizes of the files applied so far.
        synced: when the last commit was made, ISO-8601 UTC.
        latency: seconds from the last applied file's publication to its commit.
        compacted: the version after which small files were put together last.
        swept: when applied files were looked through last, ISO-8601 UTC.
        error: message, file, row, column; or None when well.
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
        """Which table this is."""
        return TableName(self.schema, self.name)

    @property
    def folder(self) -> str:
        """The table's folder in the landing zone, also of a name that no table can have."""
        return f"{ZONE}/{place_of(self.schema, self.name)}"


def file_signature(entry: Entry) -> str:
    """Return a text that changes with a file's name, size, time or tag."""
    return f"{entry.name} {entry.size} {entry.state}"


def failed(state: TableState, error: BaseException) -> TableState:
    """The same table, stopped by an error: its message, with file, row and column."""
    if isinstance(error, MirrorlakeError):
        told = error.as_dict()
    else:
        text = spark_message(error)
        named = _FILE.search(text)
        file = named[1] if named and file_number(named[1]) is not None else None
        told = {"message": text[:_LONGEST], "file": file, "row": None, "column": None}
    return replace(state, state=FAILED, error=told)


@dataclass(frozen=True)
class _Document:
    """The document of one share's tables.

    Attributes:
        entry: its file as it was read; None for one that was just written, or not read at all.
        states: what it holds; None if it is broken, of an older format, or not read.
    """

    entry: Entry | None
    states: dict[str, TableState] | None = None


class StateDocuments:
    """The documents of one lake, as one mirror reads and writes them.

    It remembers what it has read: a store's file with the same tag is not read again.

    Args:
        storage: the lake's files.
        shard: the mirror's own share.
    """

    def __init__(self, storage: Storage, shard: Shard = ALL) -> None:
        self._storage = storage
        self.shard = shard
        self._known: dict[Shard, _Document] | None = None

    def load(self, *, some: bool = False) -> dict[str, TableState] | None:
        """The states of all tables by their folders; None if this mirror's are in no document.

        Args:
            some: whether they are wanted if only some of this mirror's tables have one, too.

        Raises:
            FormatError: a document is of a newer format. They could be made again, but a newer
                mirror may keep more in other files, too; so it is left to people to overwrite them.
        """
        self._known = self._look(self._known or {})
        found = [(part, d) for part, d in self._known.items() if d.states is not None]
        if not (found and some) and not _covers({part for part, _ in found}, self.shard):
            return None
        states: dict[str, TableState] = {}
        read: list[Shard] = []
        for part, document in sorted(found, key=_age):
            if any(_meet(part, other) for other in read):  # most often all are of one size
                states = {f: s for f, s in states.items() if not part.has(f)}
            states |= document.states or {}
            read.append(part)
        return states

    def save(self, states: dict[str, TableState], replicator: str = RUNNING) -> None:
        """Writes the documents that have changed since they were read, and the monitoring files.

        Args:
            states: of all tables, by their folders; those of other shards stay where they are.
            replicator: the state of the whole mirror.
        """
        self._write(states)
        if self.shard != ALL:
            states = self.load() or states  # the others may have gone on
        tell_states(self._storage, states, replicator)

    def _write(self, states: dict[str, TableState]) -> None:
        if self._known is None:
            self._known = {part: _Document(None) for part in self._list()}
        own = {folder: state for folder, state in sorted(states.items()) if self.shard.has(folder)}
        parts = self._parts(len(own), self._known)
        others = {part: document for part, document in self._known.items() if part not in parts}
        for part in parts:
            mine = {folder: state for folder, state in own.items() if part.has(folder)}
            before = self._known.get(part)
            if before and before.states == mine and not _is_outdone(part, before, others):
                continue
            tables = {folder: asdict(state) for folder, state in mine.items()}
            document = {"format": FORMAT, "tables": tables}
            self._storage.write_json(f"{STATE}/{_name(part)}", document)
            self._known[part] = _Document(None, mine)
        # Only now: what a kill leaves of both is read by its age.
        inside = [part for part in others if _is_inside(part, self.shard)]
        self._storage.delete_files(f"{STATE}/{_name(part)}" for part in inside)
        for part in inside:
            del self._known[part]

    def _parts(self, tables: int, there: Collection[Shard]) -> list[Shard]:
        """The shares of this mirror's documents: as many as before, unless that is far off."""
        most = min(MOST, _LARGEST // self.shard.count)
        wanted = 1
        while wanted * 2 <= most and tables > wanted * TABLES:
            wanted *= 2
        fewer = _split(self.shard, wanted * 2)
        return fewer if set(there).issuperset(fewer) else _split(self.shard, wanted)

    def _list(self) -> dict[Shard, Entry]:
        """The documents that are there, by their shares."""
        entries = self._storage.list(STATE).files
        return {part: entry for entry in entries if (part := _part(entry.name))}

    def _look(self, before: dict[Shard, _Document]) -> dict[Shard, _Document]:
        """Lists the documents and reads those that are not known."""
        found = self._list()
        same = {
            part: before[part]
            for part, entry in found.items()
            if entry.etag and part in before and before[part].entry == entry
        }
        new = {part: entry for part, entry in found.items() if part not in same}
        read = side_by_side(self._storage, self._read, new.values())
        return same | dict(zip(new, read, strict=True))

    def _read(self, entry: Entry) -> _Document:
        path, hint = f"{STATE}/{entry.name}", "rebuild it with status(rebuild=True)"
        states = None
        # One that is broken counts as none: it is a cache, and can be made again.
        with suppress(ValueError, TypeError, KeyError, AttributeError):
            document = read_kept(self._storage, path, FORMAT, hint=hint)
            if document is not None and document["format"] == FORMAT:
                states = {f: TableState(**state) for f, state in document["tables"].items()}
        return _Document(entry, states)


def _name(part: Shard) -> str:
    return _WHOLE if part == ALL else f"{_PART}{part.label}{_ENDING}"


def _part(name: str) -> Shard | None:
    """The share whose tables are in a document; None if the file is none of them."""
    if name == _WHOLE:
        return ALL
    part = Shard.of_label(name.removeprefix(_PART).removesuffix(_ENDING))
    return part if part and part != ALL and name == _name(part) else None


def _age(one: tuple[Shard, _Document]) -> tuple[datetime, bool]:
    """In which order documents count: a store's times are of whole seconds."""
    part, document = one
    when = document.entry.modified if document.entry else _NOW
    return when, part.count > 1


def _is_outdone(part: Shard, document: _Document, others: dict[Shard, _Document]) -> bool:
    """Whether a newer document has some of its tables."""
    meeting = (other for other in others.items() if _meet(other[0], part))
    return any(_age(other) > _age((part, document)) for other in meeting)


def _split(part: Shard, count: int) -> list[Shard]:
    """A share, in so many equal ones."""
    numbers = range(part.number, part.count * count + 1, part.count)
    return [Shard(number, part.count * count) for number in numbers]


def _covers(parts: set[Shard], own: Shard) -> bool:
    """Whether all tables of a share have a document, by shares of one size."""
    if any(_is_inside(own, part) for part in parts):
        return True
    sizes = [(w, p.count // w.count) for w in (own, ALL) for p in parts if _is_inside(p, w)]
    return any(parts.issuperset(_split(whole, count)) for whole, count in set(sizes))


def _is_inside(part: Shard, whole: Shard) -> bool:
    """Whether all tables of one share are in another."""
    return part.count % whole.count == 0 and (part.number - whole.number) % whole.count == 0


def _meet(one: Shard, other: Shard) -> bool:
    """Whether tables may be in both."""
    return (one.number - other.number) % gcd(one.count, other.count) == 0


def load_states(storage: Storage) -> dict[str, TableState] | None:
    """The kept states by the table's folder; None if there are none, or only of an older format.

    Raises:
        FormatError: they are of a newer format.
    """
    return StateDocuments(storage).load(some=True)


def is_told_running(storage: Storage) -> bool:
    """Whether the monitoring files are there, and say that the mirror is running."""
    try:
        return bool(storage.read_json(_REPLICATOR) == _replicator(RUNNING))
    except ValueError:
        return False


def save_states(storage: Storage, states: dict[str, TableState]) -> None:
    """Writes the states of all tables, by their folders; see `StateDocuments.save`."""
    StateDocuments(storage).save(states)


def tell_states(storage: Storage, states: dict[str, TableState], replicator: str) -> None:
    """Writes the monitoring files, and no more; see `StateDocuments.save`."""
    entries = [_monitoring(state) for _, state in sorted(states.items())]
    storage.write_json(f"{MONITORING}/tables.json", {"tables": entries})
    storage.write_json(_REPLICATOR, _replicator(replicator))


def _replicator(status: str) -> dict[str, str]:
    return {"status": status, "errorCode": "", "errorMessage": ""}


def _monitoring(state: TableState) -> dict[str, Any]:
    """A table's entry of `tables.json`, whose field names differ from those of the REST API.

    Clients compare the schema's name with `""` where there is none.
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
        return str(uuid.UUID(int=0))  # the mirror has not seen the folder yet
