"""Deletion vectors: which rows of a file are gone, and where that is written.

A vector is an array of 32-bit Roaring bitmaps in their portable serialisation, either in a file of
its own or, when tiny, in the log itself. Source: the Delta transaction log protocol, "Deletion
Vectors".
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mirrorlake.errors import DataFileError
from mirrorlake.storage.files import Storage

Positions = npt.NDArray[np.int64]
Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_B85 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_TO_B85 = str.maketrans(Z85, _B85)
_UUID_TEXT = 20
_MAGIC = 1_681_511_377


def vector_path(vector: dict[str, Any] | None) -> str | None:
    """The file that holds a deletion vector; None if there is none, or if it stands in the log.

    Example:
        >>> vector_path({"storageType": "u", "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^"})
        'ab/deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin'
    """
    if not vector or vector["storageType"] == "i":
        return None
    where = str(vector["pathOrInlineDv"])
    if vector["storageType"] == "p":
        return unquote(where)
    prefix, number = where[:-_UUID_TEXT], UUID(bytes=decode_z85(where[-_UUID_TEXT:]))
    return f"{prefix}/deletion_vector_{number}.bin".lstrip("/")


def vector_id(vector: dict[str, Any] | None) -> str:
    """What tells a file's deletion vectors apart; empty if there is none."""
    if not vector:
        return ""
    parts = (vector.get(part) for part in ("storageType", "pathOrInlineDv", "offset"))
    return "".join("" if part is None else str(part) for part in parts)


def deleted_positions(
    place: Callable[[str], tuple[Storage, str]], vector: dict[str, Any]
) -> Positions:
    """The positions of the rows that a vector takes, counted from 0 and ordered.

    Args:
        place: the storage that has a file of the table, and the file's path in it.
        vector: an `add`'s `deletionVector`.

    Raises:
        DataFileError: it is not a vector of the protocol.
    """
    size = vector["sizeInBytes"]
    path = vector_path(vector)
    if path is None:
        return parse_vector(decode_z85(vector["pathOrInlineDv"])[:size])
    storage, file = place(path)
    start = vector.get("offset", 1)
    data = storage.read_range(file, start, start + 4 + size)
    if struct.unpack_from(">i", data)[0] != size:
        raise DataFileError("A deletion vector is not as long as the log says.", file=path)
    return parse_vector(data[4:])


def without_deleted(
    rows: pa.Table, place: Callable[[str], tuple[Storage, str]], vector: dict[str, Any] | None
) -> pa.Table:
    """All rows of a data file but those that its vector takes.

    Args:
        rows: of the whole file, in its order.
        place: see `deleted_positions`.
        vector: its `add`'s `deletionVector`; None if it has none.
    """
    if not vector:
        return rows
    keep = np.ones(rows.num_rows, bool)
    keep[deleted_positions(place, vector)] = False
    return rows.filter(pa.array(keep))


def parse_vector(data: bytes) -> Positions:
    """The positions in a serialised array of bitmaps."""
    from pyroaring import BitMap64  # only who reads vectors needs it

    magic = int.from_bytes(data[:4], "little", signed=True)
    if magic != _MAGIC:
        raise DataFileError(f"A deletion vector starts with {magic}, not {_MAGIC}.")
    try:
        return np.asarray(BitMap64.deserialize(data[4:]).to_array(), np.int64)
    except ValueError as error:
        raise DataFileError(f"A deletion vector is broken: {error}.") from error


def decode_z85(text: str) -> bytes:
    """The bytes of a text in ZeroMQ's form of base 85."""
    return base64.b85decode(text.translate(_TO_B85))
