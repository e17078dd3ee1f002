"""Deletion vectors: which rows of a file are gone. Source: the Delta protocol's format of them.

A vector is an array of 32-bit Roaring bitmaps in their portable serialisation, either in a file of
its own or, when tiny, in the log itself.
"""

from __future__ import annotations

import base64
import struct
from typing import Any
from uuid import UUID

import numpy as np
import numpy.typing as npt

from mirrorlake.errors import DataFileError
from mirrorlake.layout.footers import Storages

Positions = npt.NDArray[np.int64]
_MAGIC = 1_681_511_377
_RUNS, _NO_RUNS = 12_347, 12_346
_ARRAY_MOST = 4_096
_OFFSETS_FROM = 4
_Z85 = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_B85 = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_TO_B85 = bytes.maketrans(_Z85, _B85)
_UUID_TEXT = 20


def deleted_positions(stores: Storages, vector: dict[str, Any]) -> Positions:
    """The positions of the rows that a vector takes, counted from 0 and ordered.

    Args:
        stores: where the table's files lie.
        vector: an `add`'s `deletionVector`.

    Raises:
        DataFileError: it is not a vector of the protocol.
    """
    kind, text = vector["storageType"], vector["pathOrInlineDv"]
    if kind == "i":
        return parse_vector(_z85(text)[: vector["sizeInBytes"]])
    path = text
    if kind == "u":
        prefix, name = text[:-_UUID_TEXT], UUID(bytes=_z85(text[-_UUID_TEXT:]))
        path = f"{prefix}{'/' if prefix else ''}deletion_vector_{name}.bin"
    start = vector.get("offset", 1)
    end = start + 4 + vector["sizeInBytes"]
    storage, place = stores.place(path)
    data = storage.read_range(place, start, end)
    if struct.unpack_from(">i", data)[0] != vector["sizeInBytes"]:
        raise DataFileError("A deletion vector is not as long as the log says.", file=path)
    return parse_vector(data[4:])


def parse_vector(data: bytes) -> Positions:
    """The positions in a serialised array of bitmaps."""
    magic, bitmaps = struct.unpack_from("<iq", data)
    if magic != _MAGIC:
        raise DataFileError(f"A deletion vector starts with {magic}, not {_MAGIC}.")
    at = 12
    found = [np.empty(0, np.int64)]
    for _ in range(bitmaps):
        (high,) = struct.unpack_from("<I", data, at)
        positions, at = _bitmap(data, at + 4)
        found.append(positions + (high << 32))
    return np.concatenate(found)


def _bitmap(data: bytes, at: int) -> tuple[Positions, int]:
    (cookie,) = struct.unpack_from("<I", data, at)
    at += 4
    has_runs = cookie & 0xFFFF == _RUNS
    flags = np.zeros(0, np.uint8)
    if has_runs:
        size = (cookie >> 16) + 1
        packed = np.frombuffer(data, np.uint8, (size + 7) // 8, at)
        flags, at = np.unpackbits(packed, bitorder="little"), at + len(packed)
    elif cookie == _NO_RUNS:
        (size,) = struct.unpack_from("<I", data, at)
        at += 4
    else:
        raise DataFileError(f"A deletion vector has a bitmap of unknown kind {cookie}.")
    heads = np.frombuffer(data, "<u2", 2 * size, at).astype(np.int64).reshape(-1, 2)
    at += 4 * size
    if not has_runs or size >= _OFFSETS_FROM:
        at += 4 * size  # the containers follow each other, so nothing need be looked up
    found = [np.empty(0, np.int64)]
    for index, (key, below) in enumerate(heads):
        is_run = has_runs and bool(flags[index])
        low, at = _container(data, at, int(below) + 1, is_run=is_run)
        found.append(low + (int(key) << 16))
    return np.concatenate(found), at


def _container(data: bytes, at: int, count: int, *, is_run: bool) -> tuple[Positions, int]:
    if is_run:
        (runs,) = struct.unpack_from("<H", data, at)
        pairs = np.frombuffer(data, "<u2", 2 * runs, at + 2).astype(np.int64).reshape(-1, 2)
        spans = [np.arange(start, start + more + 1) for start, more in pairs]
        return np.concatenate([np.empty(0, np.int64), *spans]), at + 2 + 4 * runs
    if count <= _ARRAY_MOST:
        return np.frombuffer(data, "<u2", count, at).astype(np.int64), at + 2 * count
    bits = np.unpackbits(np.frombuffer(data, np.uint8, 8_192, at), bitorder="little")
    return np.flatnonzero(bits).astype(np.int64), at + 8_192


def _z85(text: str) -> bytes:
    return base64.b85decode(text.encode().translate(_TO_B85))
