"""Parse Parquet footers: Thrift's compact protocol, row groups, column chunks, schemas, bounds.

The files of a table are alike: most have the same fields in the same order. So one step reads the
same value of all footers at once, as numpy arrays. Footers that differ are read separately until
the end of the struct, and where only a few are left they are read one by one.

A bound is the least or greatest value of a column chunk, as text for people and as bytes that sort
alike. A table's files may hold one column in several types (widened, or timestamps in other units);
the bytes compare all the same. Sources: the compact protocol's specification, and parquet.thrift.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "FLOAT": 4, "DOUBLE": 8}
_UNITS = {"milliseconds": "ms", "microseconds": "us", "nanoseconds": "ns"}
_MICROS = {"milliseconds": (1_000, 1), "microseconds": (1, 1), "nanoseconds": (1, 1_000)}
_TEXTS = ("String", "Enum", "JSON")
_SIGN = np.uint64(1 << 63)
_DECIMAL_BYTES = 16
Path = tuple[int, ...]
At = TypeVar("At", int, Ints)  # the offset of one struct, or of many in step
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)
_SKIPPED = {_TRUE: 0, _FALSE: 0, _BYTE: 1, _DOUBLE: 8}  # lengths of unused fields
_FEW = 12
_LONG = 15
_SHIFT = 56
_SCHEMA, _GROUPS, _CHUNKS = (2,), (4,), (1,)  # of parquet.thrift


@dataclass(frozen=True)
class LeafType:
    """The type of a leaf column's values.

    Attributes:
        physical: Parquet's physical type.
        logical: Parquet's logical type as JSON: its name as `Type`, and its parameters.
        shown: the logical type as text.
    """

    physical: str
    logical: str
    shown: str = ""

    @property
    def parameters(self) -> dict[str, Any]:
        """The logical type's name, as `Type`, and its parameters."""
        found: dict[str, Any] = json.loads(self.logical)
        return found

    @property
    def signed(self) -> bool:
        """Whether the statistics of old writers, which assumed signed values, can be trusted."""
        return self.physical in _WIDTHS and bool(self.parameters.get("isSigned", True))


def cut(data: Bytes, starts: Ints, lengths: Ints) -> pa.BinaryArray:
    """Return pieces of a buffer as binary values; NULL where a length is negative."""
    sizes = np.maximum(lengths, 0)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    places = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], sizes)
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data[places])]
    pieces = pa.BinaryArray.from_buffers(pa.binary(), len(starts), buffers)
    return spread(pieces, lengths >= 0) if (lengths < 0).any() else pieces


def spread(values: pa.Array, there: Bools) -> pa.Array:
    """Return the values at the positions where `there` is true, and NULL elsewhere.

    Args:
        values: as many values as positions, or as many as true positions.
        there: one flag per position.
    """
    places = np.arange(len(there)) if len(values) == len(there) else np.cumsum(there) - 1
    return values.take(pa.array(np.maximum(places, 0), mask=~there))


def read_bounds(
    data: Bytes, starts: Ints, lengths: Ints, leaf: LeafType
) -> tuple[pa.StringArray, pa.BinaryArray]:
    """Return texts and sort keys of a leaf's minimum or maximum values.

    Args:
        data: the footers.
        starts: the offset of each value in the footers.
        lengths: the length of each value in bytes; negative without a value.
        leaf: the type of the values.

    Returns:
        Texts and keys; both are NULL without a value, or if its type has no order here.
    """
    width = _WIDTHS.get(leaf.physical)
    there = lengths >= 0 if width is None else lengths == width
    starts, lengths = starts[there], lengths[there]
    texts, keys = _no_order(len(starts))
    if len(starts) and width is not None:
        raw = np.ascontiguousarray(data[starts[:, None] + np.arange(width)])
        texts, keys = _numbers(raw, leaf)
    elif len(starts) and leaf.physical in ("BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY"):
        texts, keys = _bytes(data, starts, lengths, leaf.parameters)
    return spread(texts, there), spread(keys, there)


def _numbers(raw: Bytes, leaf: LeafType) -> tuple[pa.Array, pa.Array]:
    logical = leaf.parameters
    kind, unit = logical.get("Type"), logical.get("timeUnit", "")
    if leaf.physical == "BOOLEAN":
        return pa.array(np.where(raw[:, 0], "True", "False")), _fixed(raw)
    if leaf.physical in ("FLOAT", "DOUBLE"):
        floats = raw.view("<f4" if leaf.physical == "FLOAT" else "<f8").ravel()
        bits = floats.astype("<f8").view(np.uint64)
        return pa.array(floats).cast(pa.string()), _big_endian(
            np.where(bits >= _SIGN, ~bits, bits ^ _SIGN)
        )
    code = f"{'i' if leaf.signed else 'u'}{raw.shape[1]}"
    native = raw.view(f"<{code}").ravel()
    if not leaf.signed:
        return pa.array(native).cast(pa.string()), _big_endian(native.astype(np.uint64))
    values = native.astype(np.int64)
    if kind == "Decimal":
        halves = np.stack([values.view(np.uint64), (values >> 63).view(np.uint64)], 1)
        return _decimals(halves, logical)
    shown = pa.array(values)
    if kind == "Date":
        shown = pa.array(values.astype(np.int32)).cast(pa.date32())
    elif kind == "Timestamp":
        zone = "UTC" if logical["isAdjustedToUTC"] else None
        shown = shown.cast(pa.timestamp(_UNITS[unit], zone))
    elif kind == "Time":
        shown = pa.array(native).cast((pa.time32 if len(raw[0]) == 4 else pa.time64)(_UNITS[unit]))
    times, parts = _MICROS.get(unit, (1, 1))
    biased = (values * times // parts).view(np.uint64) ^ _SIGN
    return shown.cast(pa.string()), _big_endian(biased)


def _bytes(
    data: Bytes, starts: Ints, lengths: Ints, logical: Mapping[str, Any]
) -> tuple[pa.Array, pa.Array]:
    kind = logical.get("Type")
    if kind == "Float16":
        return _no_order(len(starts))
    if kind == "Decimal":
        if lengths.max() > _DECIMAL_BYTES:
            return _no_order(len(starts))
        # Values are aligned at their last byte and filled with their sign on the left.
        places = (starts + lengths)[:, None] - _DECIMAL_BYTES + np.arange(_DECIMAL_BYTES)
        sign = np.where(data[starts] >= 0x80, 0xFF, 0).astype(np.uint8)
        wide = np.where(places >= starts[:, None], data[np.maximum(places, 0)], sign[:, None])
        halves = np.ascontiguousarray(wide).view(">u8").astype(np.uint64)
        return _decimals(halves[:, ::-1], logical)
    raw = cut(data, starts, lengths)
    if kind in _TEXTS:
        texts = [value.decode(errors="replace") for value in raw.to_pylist()]
    else:
        texts = [str(value) for value in raw.to_pylist()]
    return pa.array(texts, pa.string()), raw


def _decimals(
    halves: npt.NDArray[np.uint64], logical: Mapping[str, Any]
) -> tuple[pa.Array, pa.Array]:
    """Return texts and sort keys of unscaled numbers, given as halves, the lower one first."""
    kind = pa.decimal128(38, logical["scale"])
    buffer = pa.py_buffer(np.ascontiguousarray(halves, "<u8"))
    shown = pa.Array.from_buffers(kind, len(halves), [None, buffer]).cast(pa.string())
    upwards = np.stack([halves[:, 1] ^ _SIGN, halves[:, 0]], 1)
    return shown, _fixed(np.ascontiguousarray(upwards, ">u8").view(np.uint8))


def _big_endian(values: npt.NDArray[np.uint64]) -> pa.Array:
    return _fixed(values.astype(">u8").view(np.uint8).reshape(-1, 8))


def _fixed(rows: Bytes) -> pa.Array:
    """Return rows of equally many bytes as binary values."""
    count, width = rows.shape
    buffers = [None, pa.py_buffer(np.ascontiguousarray(rows))]
    return pa.Array.from_buffers(pa.binary(width), count, buffers).cast(pa.binary())


def _no_order(count: int) -> tuple[pa.Array, pa.Array]:
    return pa.nulls(count, pa.string()), pa.nulls(count, pa.binary())


class MalformedError(ValueError):
    """The input is not Thrift's compact protocol, or is truncated."""


class Level:
    """All structs at one place of the document, with their fields as arrays.

    A field is identified by its path. A struct within a struct is not a level of its own; a list
    is. Structs are numbered in the order in which they are read; `sort` restores the order of the
    files.

    Attributes:
        count: the number of structs.
        below: the lists in them, by field.
        owners: the position of each struct's parent, after sorting.
    """

    def __init__(self) -> None:
        self.count = 0
        self.below: dict[Path, Level] = {}
        self.owners = self._order = np.empty(0, np.int64)
        self._owners: list[Ints] = []
        self._fields: dict[Path, list[tuple[Ints | int, Ints | int]]] = {}

    def add(self, owners: Ints) -> Ints:
        """Add structs, each to the list of its owner, and return their numbers."""
        self._owners.append(owners)
        self.count += len(owners)
        return np.arange(self.count - len(owners), self.count)

    def put(self, field: Path, which: Ints | int, values: Ints | int) -> None:
        """Store one field of one struct or of several."""
        self._fields.setdefault(field, []).append((which, values))

    def sort(self, places: Ints) -> None:
        """Order the structs by their parents' positions; called once all structs are read."""
        owners = places[np.concatenate([np.empty(0, np.int64), *self._owners])]
        self._order = np.argsort(owners, kind="stable")
        self.owners = owners[self._order]

    def values(self, field: Path) -> Ints:
        """Return a field of all structs; -1 if it is missing."""
        found = np.full(self.count, -1, np.int64)
        for which, values in self._fields.get(field, ()):
            found[which] = values
        ordered: Ints = found[self._order]
        return ordered

    def spans(self, field: Path) -> tuple[Ints, Ints]:
        """Return the offset and the length in bytes of a text or list; -1 if it is missing."""
        return self.values((*field, -1)), self.values((*field, -2))

    def list_of(self, field: Path) -> Level:
        """Return the sorted level of a list; an empty one if no struct has it."""
        found = self.below.get(field, Level())
        found.sort(np.argsort(self._order))
        return found


class Footers:
    """Serialised structs in one buffer, which are read in step.

    Args:
        data: the buffer.
        starts: the offset at which each struct begins.
        ends: the offset at which each struct ends.
    """

    def __init__(self, data: bytes, starts: Ints, ends: Ints) -> None:
        self._bytes = data
        self._data = np.frombuffer(data, np.uint8)
        self._starts, self._ends = starts, ends

    def read(self) -> Level:
        """Read the structs.

        Raises:
            MalformedError: a struct is malformed.
        """
        top = Level()
        which = top.add(np.zeros(len(self._starts), np.int64))
        try:
            ends = self._struct(self._starts, top, (), which)
        except (IndexError, RecursionError) as error:
            raise MalformedError("its footer ends too early") from error
        if (ends != self._ends).any():
            raise MalformedError("its footer is not as long as it says")
        top.sort(np.zeros(1, np.int64))
        return top

    def _struct(self, start: At, level: Level, path: Path, which: At) -> At:
        if isinstance(start, int):
            return self._one_struct(start, level, path, which)
        if len(start) <= _FEW:
            pairs = zip(start.tolist(), which.tolist(), strict=True)
            return np.array([self._one_struct(a, level, path, w) for a, w in pairs], np.int64)
        at, number = start.copy(), np.zeros(len(start), np.int64)
        alive = np.arange(len(start))
        while len(alive):
            heads = self._data[at[alive]].astype(np.int64)
            at[alive] += 1
            if not heads.all():
                alive, heads = alive[heads != 0], heads[heads != 0]
            for head, some in _groups(heads, alive):
                if head >> 4:
                    number[some] += head >> 4
                else:
                    number[some], at[some] = self._integers(at[some])
                for field, rows in _groups(number[some], some):
                    inside = (*path, field)
                    at[rows] = self._value(head & 15, at[rows], level, inside, which[rows])
        return at

    def _value(self, kind: int, at: At, level: Level, path: Path, which: At) -> At:
        if kind == _STRUCT:
            return self._struct(at, level, path, which)
        if kind in (_LIST, _SET):
            return self._list(at, level, path, which)
        if kind in (_I16, _I32, _I64):
            values, at = self._integers(at)
            level.put(path, which, values)
            return at
        if kind == _BINARY:
            lengths, at = self._varints(at)
            self._check_sizes(at, lengths)
            level.put((*path, -1), which, at)
            level.put((*path, -2), which, lengths)
            return at + lengths
        if kind not in _SKIPPED:
            raise MalformedError(f"its footer has a value of the unexpected kind {kind}")
        return at + _SKIPPED[kind]

    def _list(self, at: At, level: Level, path: Path, which: At) -> At:
        if isinstance(at, int):
            return self._one_list(at, level, path, which)
        start, heads = at, self._data[at].astype(np.int64)
        at = at + 1
        sizes = heads >> 4
        if (long := np.flatnonzero(sizes == _LONG)).size:
            sizes[long], at[long] = self._varints(at[long])
        self._check_sizes(at, sizes)
        inner = level.below.setdefault(path, Level())
        items = inner.add(np.repeat(which, sizes))
        firsts = np.cumsum(sizes) - sizes + (inner.count - len(items))
        for number in range(int(sizes.max(initial=0))):
            live = np.flatnonzero(sizes > number)
            for kind, rows in _groups(heads[live] & 15, live):
                shift = kind in (_TRUE, _FALSE)  # a boolean in a list has a byte of its own
                at[rows] = shift + self._value(kind, at[rows], inner, (), firsts[rows] + number)
        level.put((*path, -1), which, start)
        level.put((*path, -2), which, at - start)
        return at

    def _check_sizes(self, at: At, sizes: At) -> None:
        if isinstance(at, int):
            return  # reading beyond the end raises IndexError
        end = self._ends[np.searchsorted(self._starts, at, "right") - 1]
        if ((sizes < 0) | (sizes > end - at)).any():
            raise MalformedError("a value in its footer is longer than the footer")

    def _varints(self, at: At) -> tuple[At, At]:
        if isinstance(at, int):
            return self._one_varint(at)
        found = self._data[at].astype(np.uint64)
        at = at + 1
        more = np.flatnonzero(found >= 0x80)
        found &= np.uint64(0x7F)
        shift = 7
        while more.size:
            following = self._data[at[more]].astype(np.uint64)
            found[more] |= (following & np.uint64(0x7F)) << np.uint64(shift)
            at[more] += 1
            more = more[following >= 0x80]
            shift = _next(shift)
        return found.view(np.int64), at

    def _integers(self, at: At) -> tuple[At, At]:
        found, at = self._varints(at)
        if isinstance(found, int):
            return (found >> 1) ^ -(found & 1), at
        bits = found.view(np.uint64)
        return (bits >> np.uint64(1)).view(np.int64) ^ -(found & 1), at

    def _one_struct(self, at: int, level: Level, path: Path, which: int) -> int:
        number = 0
        while head := self._bytes[at]:
            at += 1
            if head >> 4:
                number += head >> 4
            else:
                number, at = self._integers(at)
            at = self._value(head & 15, at, level, (*path, number), which)
        return at + 1

    def _one_list(self, at: int, level: Level, path: Path, which: int) -> int:
        start, head = at, self._bytes[at]
        at += 1
        size, kind = head >> 4, head & 15
        if size == _LONG:
            size, at = self._one_varint(at)
        if size > len(self._bytes) - at:
            raise MalformedError("a list in its footer is longer than the footer")
        inner = level.below.setdefault(path, Level())
        first = inner.count
        inner.add(np.full(size, which))
        for item in range(first, first + size):
            at = self._value(kind, at, inner, (), item) + (kind in (_TRUE, _FALSE))
        level.put((*path, -1), which, start)
        level.put((*path, -2), which, at - start)
        return at

    def _one_varint(self, at: int) -> tuple[int, int]:
        value = shift = 0
        while True:
            byte = self._bytes[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, at
            shift = _next(shift)


def _groups(keys: Ints, rows: Ints) -> Iterator[tuple[int, Ints]]:
    """Yield the rows of each distinct key; usually there is one key."""
    if not len(keys):
        return
    if (keys == keys[0]).all():
        yield int(keys[0]), rows
        return
    for key in np.unique(keys):
        yield int(key), rows[keys == key]


def _next(shift: int) -> int:
    if shift > _SHIFT:
        raise MalformedError("its footer has a number of more than 64 bits")
    return shift + 7


class Parsed:
    """Footers that were read in step, with row groups and chunks in the files' order.

    Attributes:
        files: the numbers of the files.
        file_of: each row group's file, as a position within `files`.
        group_of: each chunk's row group.
        file_of_chunk: each chunk's file.
        per_file: the position of each file's first row group, and the end of the last.
        per_group: the position of each row group's first chunk, and the end of the last.
        number: each chunk's position in its row group.
        leaves: paths and types of all schemas; pyarrow reads each distinct schema once.
        leaf: each chunk's position in `leaves`.
    """

    def __init__(self, files: Sequence[int], tails: Sequence[bytes]) -> None:
        text = b"".join(tail[:-8] for tail in tails)
        lengths = np.array([len(tail) - 8 for tail in tails], np.int64)
        ends = np.cumsum(lengths)
        self.files = files
        self.data = np.frombuffer(text, np.uint8)
        self.top = top = Footers(text, ends - lengths, ends).read()
        self.leaves, first_leaf, width = _schemas(top, text, tails)
        self.groups = groups = top.list_of(_GROUPS)
        self.chunks = groups.list_of(_CHUNKS)
        self.file_of, self.group_of = groups.owners, self.chunks.owners
        self.per_file = _offsets(self.file_of, top.count)
        self.per_group = _offsets(self.group_of, groups.count)
        self.number = np.arange(self.chunks.count) - self.per_group[self.group_of]
        self.file_of_chunk = self.file_of[self.group_of]
        if (self.number >= width[self.file_of_chunk]).any():
            raise MalformedError("a row group has more columns than the schema")
        self.leaf = first_leaf[self.file_of_chunk] + self.number


def parse_footers(tails: Sequence[bytes | str]) -> tuple[list[Parsed], dict[int, str]]:
    """Parse footers in step.

    Args:
        tails: each file's serialised footer with the 8 bytes after it, or the problem with the
            file.

    Returns:
        The parsed footers, and the problem of each other file by its number.
    """
    good = {number: tail for number, tail in enumerate(tails) if isinstance(tail, bytes)}
    problems = {number: tail for number, tail in enumerate(tails) if isinstance(tail, str)}
    parsed = [Parsed([], [])]  # empty, but with all the types
    waiting = [list(good)] if good else []
    while waiting:
        files = waiting.pop()
        try:
            parsed.append(Parsed(files, [good[number] for number in files]))
        except (MalformedError, pa.ArrowException) as error:
            # At least one footer is malformed: bisect to find it.
            if len(files) == 1:
                problems[files[0]] = f"unreadable: {error}"
            else:
                half = len(files) // 2
                waiting += [files[half:], files[:half]]
    return parsed, problems


def _schemas(
    top: Level, text: bytes, tails: Sequence[bytes]
) -> tuple[list[tuple[str, LeafType]], Ints, Ints]:  # fmt: skip
    """Return the leaves of all schemas, and each file's first leaf and number of leaves."""
    leaves: list[tuple[str, LeafType]] = []
    known: dict[bytes, tuple[int, int]] = {}
    found: list[tuple[int, int]] = []
    starts, lengths = top.spans(_SCHEMA)
    for tail, start, length in zip(tails, starts.tolist(), lengths.tolist(), strict=True):
        schema = text[start : start + length]
        if schema not in known:
            more = _leaves(tail)
            known[schema] = (len(leaves), len(more))
            leaves += more
        found.append(known[schema])
    pairs = np.array(found, np.int64).reshape(-1, 2)
    return leaves, pairs[:, 0], pairs[:, 1]


def _leaves(tail: bytes) -> list[tuple[str, LeafType]]:
    try:
        schema = pq.read_metadata(pa.BufferReader(tail)).schema
        columns = [schema.column(i) for i in range(len(schema))]
        logical = [column.logical_type for column in columns]
        return [
            (column.path, LeafType(column.physical_type, kind.to_json(), str(kind)))
            for column, kind in zip(columns, logical, strict=True)
        ]
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:  # a corrupt column name
        raise MalformedError(str(error)) from error


def _offsets(owner_of: Ints, count: int) -> Ints:
    return np.searchsorted(owner_of, np.arange(count + 1))
