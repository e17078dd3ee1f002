"""Reads Thrift's compact protocol, as far as a Parquet footer needs it.

pyarrow does not show a chunk's encoding statistics, the only proof of how many of its pages fell
back from the dictionary. Source: the compact protocol's specification, and parquet.thrift.
"""

from __future__ import annotations

import struct
from typing import Any

_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)
_ROW_GROUPS, _COLUMNS, _META, _ENCODING_STATS = 4, 1, 3, 13
_PAGE_TYPE, _ENCODING, _COUNT = 1, 2, 3
_DATA_PAGES = (0, 3)
_DICTIONARY = (2, 8)


def encoding_stats(footer: bytes) -> list[list[tuple[int, int] | None]]:
    """For each row group and column chunk: data pages by dictionary, and data pages without.

    Args:
        footer: a Parquet file's serialised `FileMetaData`.

    Returns:
        None in place of a pair where the writer kept no encoding statistics.
    """
    metadata, _ = _read_struct(memoryview(footer), 0)
    return [
        [_pages(chunk.get(_META, {}).get(_ENCODING_STATS)) for chunk in group[_COLUMNS]]
        for group in metadata.get(_ROW_GROUPS, [])
    ]


def _pages(stats: list[dict[int, int]] | None) -> tuple[int, int] | None:
    if not stats:
        return None
    pages = [entry for entry in stats if entry[_PAGE_TYPE] in _DATA_PAGES]
    by_dictionary = sum(e[_COUNT] for e in pages if e[_ENCODING] in _DICTIONARY)
    return by_dictionary, sum(entry[_COUNT] for entry in pages) - by_dictionary


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _integer(data: memoryview, at: int) -> tuple[int, int]:
    value, at = _varint(data, at)
    return (value >> 1) ^ -(value & 1), at


def _read_struct(data: memoryview, at: int) -> tuple[dict[int, Any], int]:
    fields: dict[int, Any] = {}
    number = 0
    while head := data[at]:
        at += 1
        if head >> 4:
            number += head >> 4
        else:
            number, at = _integer(data, at)
        kind = head & 0x0F
        if kind in (_TRUE, _FALSE):
            fields[number] = kind == _TRUE
        else:
            fields[number], at = _read_value(data, at, kind)
    return fields, at + 1


def _read_value(data: memoryview, at: int, kind: int) -> tuple[Any, int]:
    if kind in (_I16, _I32, _I64):
        return _integer(data, at)
    if kind == _BINARY:
        length, at = _varint(data, at)
        return data[at : at + length], at + length
    if kind == _STRUCT:
        return _read_struct(data, at)
    if kind in (_LIST, _SET):
        return _read_list(data, at)
    if kind == _DOUBLE:
        return struct.unpack_from("<d", data, at)[0], at + 8
    if kind == _MAP:
        return _read_map(data, at)
    return data[at], at + 1  # a byte, or a boolean within a list


def _read_list(data: memoryview, at: int) -> tuple[list[Any], int]:
    head = data[at]
    at += 1
    size, kind = head >> 4, head & 0x0F
    if size == 15:
        size, at = _varint(data, at)
    values = []
    for _ in range(size):
        value, at = _read_value(data, at, kind)
        values.append(value)
    return values, at


def _read_map(data: memoryview, at: int) -> tuple[dict[Any, Any], int]:
    size, at = _varint(data, at)
    if size == 0:
        return {}, at
    kinds = data[at]
    at += 1
    values = {}
    for _ in range(size):
        key, at = _read_value(data, at, kinds >> 4)
        value, at = _read_value(data, at, kinds & 0x0F)
        values[bytes(key) if isinstance(key, memoryview) else key] = value
    return values, at
