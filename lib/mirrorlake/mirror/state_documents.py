"""The documents that the tables' states lie in: one for a few tables, several for many.

Up to 64 tables are in `state.json`. More are in `state-3-of-8.json` and so on, each with the tables
of one share, see `shards`; a save writes those that have changed. The mirror of a shard has
documents of its own, which are shares of its share, so that no two mirrors write one file.

Documents may overlap: where one goes over from few tables to many, or to shards and back, and where
a mirror was killed meanwhile. A table's state is in the newest of those that could have it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timezone
from math import gcd
from typing import Any

from mirrorlake.kept import read_kept
from mirrorlake.mirror.shards import ALL, Shard
from mirrorlake.names import STATE
from mirrorlake.storage import Entry, Storage, to_json

FORMAT = 2
TABLES = 64
"""How many tables a document has before there are twice as many documents."""
MOST = 64
"""How many documents a mirror has at most: what an idle cycle reads does not grow further."""
_WHOLE, _PART, _ENDING = "state.json", "state-", ".json"  # the latter two around a share's label
_LARGEST = 9999  # the largest number of shares that a name can tell
_READERS = 16
_NOW = datetime.max.replace(tzinfo=timezone.utc)

States = dict[str, dict[str, Any]]
"""A table's state as JSON has it, by the table's folder."""


@dataclass(frozen=True)
class _Document:
    """One document.

    Attributes:
        part: the share whose tables it has.
        entry: its file as it was read; None for one that was just written.
        states: what it holds; None if it is broken, of an older format, or not read.
    """

    part: Shard
    entry: Entry | None
    states: States | None = None


class StateDocuments:
    """The documents of one lake, as one mirror reads and writes them.

    It remembers what it has read: a store's file with the same tag is not read again.

    Args:
        storage: the lake's files.
        shard: the mirror's own share.
        is_sound: whether a table's state can be read at all; else its document counts as broken.
    """

    def __init__(
        self,
        storage: Storage,
        shard: Shard,
        is_sound: Callable[[dict[str, Any]], bool],
    ) -> None:
        self._storage = storage
        self._own = shard
        self._is_sound = is_sound
        self._known: dict[str, _Document] | None = None

    def load(self, *, some: bool = False) -> States | None:
        """The states of all tables; None if this mirror's are in no document.

        Args:
            some: whether they are wanted if only some of this mirror's tables have one, too.

        Raises:
            FormatError: a document is of a newer format. They could be made again, but a newer
                mirror may keep more in other files, too; so it is left to people to overwrite them.
        """
        self._known = self._look(self._known or {})
        found = [document for document in self._known.values() if document.states is not None]
        if not (found and some) and not _covers({document.part for document in found}, self._own):
            return None
        states: States = {}
        for document in sorted(found, key=_age):
            kept = {f: s for f, s in states.items() if not document.part.has(f)}
            states = kept | (document.states or {})
        return states

    def save(self, states: States) -> None:
        """Writes the documents of this mirror's tables that have changed since they were read.

        Args:
            states: of all tables; those of other shards stay where they are.
        """
        if self._known is None:
            found = self._storage.list(STATE).files
            self._known = {e.name: _Document(p, e) for e in found if (p := _part(e.name))}
        own = {folder: state for folder, state in sorted(states.items()) if self._own.has(folder)}
        parts = self._parts(len(own))
        names = {_name(part) for part in parts}
        others = {name: d for name, d in self._known.items() if name not in names}
        for part in parts:
            name = _name(part)
            mine = {folder: state for folder, state in own.items() if part.has(folder)}
            before = self._known.get(name)
            if before and before.states == mine and not _is_outdone(before, others.values()):
                continue
            self._storage.write(f"{STATE}/{name}", to_json({"format": FORMAT, "tables": mine}))
            self._known[name] = _Document(part, None, mine)
        # Only now: what a kill leaves of both is read by its age.
        inside = [name for name, document in others.items() if _is_inside(document.part, self._own)]
        self._storage.delete_files(f"{STATE}/{name}" for name in inside)
        for name in inside:
            del self._known[name]

    def _parts(self, tables: int) -> list[Shard]:
        """The shares of this mirror's documents: as many as before, unless that is far off."""
        most = min(MOST, _LARGEST // self._own.count)
        wanted = 1
        while wanted * 2 <= most and tables > wanted * TABLES:
            wanted *= 2
        there = {document.part for document in (self._known or {}).values()}
        fewer = _split(self._own, wanted * 2)
        return fewer if there.issuperset(fewer) else _split(self._own, wanted)

    def _look(self, before: dict[str, _Document]) -> dict[str, _Document]:
        """Lists the documents and reads those that are not known."""
        found = {e.name: (e, p) for e in self._storage.list(STATE).files if (p := _part(e.name))}
        same = {
            name: before[name]
            for name, (entry, _) in found.items()
            if entry.etag and name in before and before[name].entry == entry
        }
        new = [one for name, one in found.items() if name not in same]
        if self._storage.local is not None or len(new) < 2:
            read = [self._load(*one) for one in new]
        else:
            with ThreadPoolExecutor(_READERS) as pool:
                read = list(pool.map(lambda one: self._load(*one), new))
        return same | {_name(document.part): document for document in read}

    def _load(self, entry: Entry, part: Shard) -> _Document:
        path, hint = f"{STATE}/{entry.name}", "make it again with status --rebuild"
        try:
            document = read_kept(self._storage, path, FORMAT, hint=hint)
            if document is not None and document["format"] == FORMAT:
                states: States = document["tables"]
                if all(self._is_sound(state) for state in states.values()):
                    return _Document(part, entry, states)
        except (ValueError, TypeError, KeyError, AttributeError):
            pass  # broken: it is a cache, and can be made again
        return _Document(part, entry)


def _name(part: Shard) -> str:
    return _WHOLE if part == ALL else f"{_PART}{part.label}{_ENDING}"


def _part(name: str) -> Shard | None:
    """The share whose tables are in a document; None if the file is none of them."""
    if name == _WHOLE:
        return ALL
    part = Shard.of_label(name.removeprefix(_PART).removesuffix(_ENDING))
    return part if part and part != ALL and name == _name(part) else None


def _age(document: _Document) -> tuple[datetime, bool]:
    """In which order documents count: a store's times are of whole seconds."""
    when = document.entry.modified if document.entry else _NOW
    return when, document.part.count > 1


def _is_outdone(document: _Document, others: Iterable[_Document]) -> bool:
    """Whether a newer document has some of its tables."""
    meeting = (other for other in others if _meet(other.part, document.part))
    return any(_age(other) > _age(document) for other in meeting)


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
