"""The leaves of a schema: names, types, and bounds as texts for people and bytes that sort alike.

A bound is the least or greatest value of a column chunk. A table's files may hold one column in
several types (widened, or moments in other units): the bytes compare all the same. Source:
parquet.thrift on how statistics encode their values.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mirrorlake.delta.snapshot import physical_name

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "FLOAT": 4, "DOUBLE": 8}
_UNITS = {"milliseconds": "ms", "microseconds": "us", "nanoseconds": "ns"}
_MICROS = {"milliseconds": (1_000, 1), "microseconds": (1, 1), "nanoseconds": (1, 1_000)}
_TEXTS = ("String", "Enum", "JSON")
_SIGN = np.uint64(1 << 63)
_DECIMAL_BYTES = 16


@dataclass(frozen=True)
class LeafType:
    """What a leaf's values are.

    Attributes:
        physical: Parquet's type.
        logical: Parquet's logical type as JSON: its name as `Type`, and its parameters.
        shown: the same as people read it.
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
        """Whether the statistics of old writers, which knew one order only, can be trusted."""
        return self.physical in _WIDTHS and bool(self.parameters.get("isSigned", True))


def cut(data: Bytes, starts: Ints, lengths: Ints) -> pa.BinaryArray:
    """Pieces of a buffer as values; NULL where a length is negative."""
    sizes = np.maximum(lengths, 0)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    places = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], sizes)
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data[places])]
    pieces = pa.BinaryArray.from_buffers(pa.binary(), len(starts), buffers)
    return spread(pieces, lengths >= 0) if (lengths < 0).any() else pieces


def spread(values: pa.Array, there: Bools) -> pa.Array:
    """The values where something is there, NULL elsewhere.

    Args:
        values: as many as there are places, or as many as are there.
        there: by place.
    """
    places = np.arange(len(there)) if len(values) == len(there) else np.cumsum(there) - 1
    return values.take(pa.array(np.maximum(places, 0), mask=~there))


def read_bounds(
    data: Bytes, starts: Ints, lengths: Ints, leaf: LeafType
) -> tuple[pa.StringArray, pa.BinaryArray]:
    """Texts and sort keys of a leaf's least or greatest values.

    Args:
        data: the footers.
        starts: where each value starts in them.
        lengths: its bytes; negative where there is none.
        leaf: what the values are.

    Returns:
        Both are NULL where there is no value, or one that has no order here.
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
        # The last byte of each in one column; what is left of the first is its sign.
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
    """From the unscaled numbers, the lower half first."""
    kind = pa.decimal128(38, logical["scale"])
    buffer = pa.py_buffer(np.ascontiguousarray(halves, "<u8"))
    shown = pa.Array.from_buffers(kind, len(halves), [None, buffer]).cast(pa.string())
    upwards = np.stack([halves[:, 1] ^ _SIGN, halves[:, 0]], 1)
    return shown, _fixed(np.ascontiguousarray(upwards, ">u8").view(np.uint8))


def _big_endian(values: npt.NDArray[np.uint64]) -> pa.Array:
    return _fixed(values.astype(">u8").view(np.uint8).reshape(-1, 8))


def _fixed(rows: Bytes) -> pa.Array:
    """Rows of equally many bytes as values."""
    count, width = rows.shape
    buffers = [None, pa.py_buffer(np.ascontiguousarray(rows))]
    return pa.Array.from_buffers(pa.binary(width), count, buffers).cast(pa.binary())


def _no_order(count: int) -> tuple[pa.Array, pa.Array]:
    return pa.nulls(count, pa.string()), pa.nulls(count, pa.binary())


@dataclass(frozen=True)
class Leaf:
    """One leaf of a schema.

    Attributes:
        physical: the path in the Parquet schema, joined by dots.
        name: the same with the names of the table.
        kind: Spark's type.
        parts: the way to it through structs, by the table's names; empty within lists and maps.
    """

    physical: str
    name: str
    kind: str
    parts: tuple[str, ...]


def leaves(metadata: dict[str, Any]) -> list[Leaf]:
    """The leaves of a Delta table's schema, in its order.

    Args:
        metadata: the log's `metaData`.
    """
    schema = json.loads(metadata["schemaString"])
    return list(_walk(schema, [], [], nested=False))


def _walk(kind: Any, physical: list[str], names: list[str], *, nested: bool) -> Iterator[Leaf]:
    if isinstance(kind, str):
        parts = () if nested else tuple(names)
        yield Leaf(".".join(physical), ".".join(names), kind, parts)
    elif kind["type"] == "struct":
        for field in kind["fields"]:
            inside = physical_name(field)
            yield from _walk(
                field["type"], [*physical, inside], [*names, field["name"]], nested=nested
            )
    elif kind["type"] == "array":
        steps = ["list", "element"]
        yield from _walk(kind["elementType"], physical + steps, names + steps, nested=True)
    elif kind["type"] == "map":
        for side in ("key", "value"):
            steps = ["key_value", side]
            yield from _walk(kind[f"{side}Type"], physical + steps, names + steps, nested=True)
