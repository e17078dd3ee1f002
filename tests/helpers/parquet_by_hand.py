"""Write a Parquet file byte by byte, for types that no installed library can write.

The file has one row group and one page per column, PLAIN and uncompressed, with optional columns,
as the format's specification defines it (parquet.thrift in Thrift's compact protocol). Values are
what the page stores: numbers and bytes, None for NULL.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PHYSICAL = {
    "BOOLEAN": 0,
    "INT32": 1,
    "INT64": 2,
    "INT96": 3,
    "FLOAT": 4,
    "DOUBLE": 5,
    "BYTE_ARRAY": 6,
    "FIXED": 7,
}
_PACK = {"INT32": "<i", "INT64": "<q", "FLOAT": "<f", "DOUBLE": "<d"}

Encoded = tuple[int, bytes]  # Thrift's code for a type, and the value's bytes


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def integer(value: int) -> Encoded:
    """Return an i32 or i64; readers do not depend on its width."""
    return 5, _varint(value << 1 if value >= 0 else (-value << 1) - 1)


def long(value: int) -> Encoded:
    return 6, integer(value)[1]


def byte(value: int) -> Encoded:
    return 3, bytes([value])


def boolean(value: bool) -> Encoded:
    return (1 if value else 2), b""


def text(value: str) -> Encoded:
    data = value.encode()
    return 8, _varint(len(data)) + data


def group(fields: dict[int, Encoded]) -> Encoded:
    """Return a Thrift struct (or a union: a struct with one field) by field numbers."""
    out, last = bytearray(), 0
    for number, (code, data) in sorted(fields.items()):
        if number - last < 16:
            out.append((number - last) << 4 | code)
        else:
            out += bytes([code]) + integer(number)[1]
        out += data
        last = number
    return 12, bytes([*out, 0])


def listed(items: Sequence[Encoded]) -> Encoded:
    code = items[0][0]
    head = bytes([len(items) << 4 | code]) if len(items) < 15 else (
        bytes([15 << 4 | code]) + _varint(len(items))
    )  # fmt: skip
    return 9, head + b"".join(data for _, data in items)


EMPTY = group({})


def logical(number: int, fields: dict[int, Encoded] | None = None) -> Encoded:
    """Return a member of parquet.thrift's union LogicalType."""
    return group({number: group(fields or {})})


def clock(number: int, unit: str, *, utc: bool) -> Encoded:
    """Return TIME (7) or TIMESTAMP (8)."""
    units = {"millis": 1, "micros": 2, "nanos": 3}
    return logical(number, {1: boolean(utc), 2: group({units[unit]: EMPTY})})


@dataclass(frozen=True)
class Leaf:
    """One column: the content of its SchemaElement, and its values.

    Attributes:
        converted: the old annotation, the number of a ConvertedType.
        logical: the new annotation; a file may have either, both or neither.
    """

    name: str
    physical: str
    values: Sequence[Any]
    length: int | None = None
    converted: int | None = None
    logical: Encoded | None = None
    precision: int | None = None
    scale: int | None = None


def write_parquet(path: Path, leaves: Sequence[Leaf]) -> None:
    """Write the file; all leaves must have the same number of values."""
    rows = len(leaves[0].values)
    out, chunks = bytearray(b"PAR1"), []
    for leaf in leaves:
        offset = len(out)
        page = _levels(leaf.values) + _plain(leaf)
        header = {1: integer(rows), 2: integer(0), 3: integer(3), 4: integer(3)}
        sizes = {1: integer(0), 2: integer(len(page)), 3: integer(len(page)), 5: group(header)}
        out += group(sizes)[1] + page
        facts = {
            1: integer(PHYSICAL[leaf.physical]),
            2: listed([integer(0), integer(3)]),
            3: listed([text(leaf.name)]),
            4: integer(0),
            5: long(rows),
            6: long(len(out) - offset),
            7: long(len(out) - offset),
            9: long(offset),
        }
        chunks.append(group({2: long(offset), 3: group(facts)}))
    root = group({4: text("schema"), 5: integer(len(leaves))})
    row_group = group({1: listed(chunks), 2: long(len(out) - 4), 3: long(rows)})
    footer = group(
        {
            1: integer(1),
            2: listed([root, *map(_element, leaves)]),
            3: long(rows),
            4: listed([row_group]),
            6: text("by hand"),
        }
    )[1]
    path.write_bytes(bytes(out) + footer + struct.pack("<i", len(footer)) + b"PAR1")


def _element(leaf: Leaf) -> Encoded:
    numbers = {2: leaf.length, 6: leaf.converted, 7: leaf.scale, 8: leaf.precision}
    fields = {number: integer(value) for number, value in numbers.items() if value is not None}
    fields |= {1: integer(PHYSICAL[leaf.physical]), 3: integer(1), 4: text(leaf.name)}
    if leaf.logical is not None:
        fields[10] = leaf.logical
    return group(fields)


def _levels(values: Sequence[Any]) -> bytes:
    """Return which values are not NULL: one bit-packed run of definition levels."""
    data = _bits([value is not None for value in values])
    run = _varint(len(data) << 1 | 1) + data
    return struct.pack("<i", len(run)) + run


def _bits(flags: Sequence[bool]) -> bytes:
    packed = sum(1 << index for index, flag in enumerate(flags) if flag)
    return packed.to_bytes((len(flags) + 7) // 8, "little")


def _plain(leaf: Leaf) -> bytes:
    there = [value for value in leaf.values if value is not None]
    if leaf.physical == "BOOLEAN":
        return _bits(there)
    if leaf.physical in _PACK:
        return b"".join(struct.pack(_PACK[leaf.physical], value) for value in there)
    if leaf.physical == "BYTE_ARRAY":
        return b"".join(struct.pack("<i", len(value)) + value for value in there)
    return b"".join(there)
