"""pgoutput's messages, version 1 of its protocol: whole transactions, values as text."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from struct import Struct
from typing import Any

UNCHANGED: Any = type("Unchanged", (), {"__repr__": lambda _: "UNCHANGED"})()
"""Stands for a large value that an update left alone, and that the server does not send."""

Values = tuple[Any, ...]  # unlike a list of bytes, no work for the garbage collector
_SHORT, _INT = Struct(">h"), Struct(">i")
_BEGIN = Struct(">qqi")
_COMMIT = Struct(">bqqq")
_EPOCH = datetime(2000, 1, 1, tzinfo=timezone.utc)
_TEXT, _NULL = b"tn"
_NEW = ord("N")


@dataclass(frozen=True)
class Begin:
    """A transaction begins; `lsn` is where its commit lies."""

    lsn: int


@dataclass(frozen=True)
class Commit:
    """A transaction is whole; `end` is where the next one may begin."""

    lsn: int
    end: int
    at: datetime


@dataclass(frozen=True)
class Relation:
    """A table's columns from now on: name, type and modifier of each."""

    relid: int
    schema: str
    name: str
    columns: tuple[tuple[str, int, int], ...]


@dataclass(frozen=True)
class Truncate:
    """Tables are emptied."""

    relids: tuple[int, ...]


Message = Begin | Commit | Relation | Truncate


def read_message(data: bytes) -> Message | None:
    """A message that is no row; None for those that say nothing of tables."""
    kind = data[:1]
    if kind == b"B":
        return Begin(_BEGIN.unpack_from(data, 1)[0])
    if kind == b"C":
        _, lsn, end, at = _COMMIT.unpack_from(data, 1)
        return Commit(lsn, end, _EPOCH + timedelta(microseconds=at))
    if kind == b"R":
        return _relation(data)
    if kind == b"T":
        (count,) = _INT.unpack_from(data, 1)
        return Truncate(tuple(_oid(data, 6 + 4 * index) for index in range(count)))
    return None


def read_change(data: bytes) -> tuple[int, Values | None, Values | None]:
    """A row's change: the table's oid, the row before as far as it is told, and after.

    Values are bytes, None for NULL, or `UNCHANGED`.
    """
    relid = int.from_bytes(data[1:5], "big")
    old = new = None
    position = 5
    while position < len(data):
        is_new = data[position] == _NEW
        values, position = _tuple(data, position + 1)
        if is_new:
            new = values
        else:
            old = values
    return relid, old, new


def _tuple(data: bytes, position: int) -> tuple[Values, int]:
    count = data[position] << 8 | data[position + 1]
    position += 2
    values: list[Any] = []
    add, size_at = values.append, _INT.unpack_from
    for _ in range(count):
        kind = data[position]
        if kind == _TEXT:
            start = position + 5
            position = start + size_at(data, position + 1)[0]
            add(data[start:position])
        else:
            add(None if kind == _NULL else UNCHANGED)
            position += 1
    return tuple(values), position


def _relation(data: bytes) -> Relation:
    relid = _oid(data, 1)
    schema, position = _text(data, 5)
    name, position = _text(data, position)
    (count,) = _SHORT.unpack_from(data, position + 1)
    position += 3
    columns = []
    for _ in range(count):
        column, position = _text(data, position + 1)
        columns.append((column, _oid(data, position), _INT.unpack_from(data, position + 4)[0]))
        position += 8
    return Relation(relid, schema or "pg_catalog", name, tuple(columns))


def _text(data: bytes, position: int) -> tuple[str, int]:
    end = data.index(b"\0", position)
    return data[position:end].decode(), end + 1


def _oid(data: bytes, position: int) -> int:
    return int.from_bytes(data[position : position + 4], "big")
