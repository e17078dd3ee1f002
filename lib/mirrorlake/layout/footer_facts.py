"""What Parquet footers prove, for many files at once: columns of facts, not objects a file.

Field numbers are parquet.thrift's. A leaf's name and type come from the schema, which pyarrow reads
once for all files that have the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from mirrorlake.layout.bounds import LeafType, cut, read_bounds, spread
from mirrorlake.layout.thrift import Footers, Ints, Level, MalformedError

MICROSOFT_ENABLED = "com.microsoft.parquet.vorder.enabled"
MICROSOFT_LEVEL = "com.microsoft.parquet.vorder.level"
OPEN_KEY = "org.mirrorlake.vorder"
"""This project's own footer key; its value is the sort key that was chosen, as JSON."""

_SCHEMA, _ROWS, _GROUPS, _KEYS, _WRITER = (2,), (3,), (4,), (5,), (6,)
_CHUNKS, _GROUP_ROWS = (1,), (3,)
_ENCODINGS, _CODEC, _VALUES, _UNCOMPRESSED, _COMPRESSED = ((3, n) for n in (2, 4, 5, 6, 7))
_DATA_PAGE, _DICT_PAGE, _PAGES = (3, 9), (3, 11), (3, 13)
_OLD_MAX, _OLD_MIN, _NULLS, _MAX, _MIN = ((3, 12, n) for n in (1, 2, 3, 5, 6))
_CODECS = ("UNCOMPRESSED", "SNAPPY", "GZIP", "LZO", "BROTLI", "LZ4", "ZSTD", "LZ4_RAW")
_ENCODING_NAMES = (
    *("PLAIN", "GROUP_VAR_INT", "PLAIN_DICTIONARY", "RLE", "BIT_PACKED", "DELTA_BINARY_PACKED"),
    *("DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY", "RLE_DICTIONARY", "BYTE_STREAM_SPLIT"),
    "OTHER",
)
_OTHER = len(_ENCODING_NAMES) - 1
_DATA_PAGES, _DICTIONARY = (0, 3), (2, 8)
_NO_FALLBACK = sum(1 << number for number in (2, 3, 4, 8))


@dataclass(frozen=True)
class _Leaf:
    name: str
    logical: str
    type: LeafType


def footer_facts(tails: Sequence[bytes | str], stats: Sequence[str | None]) -> pa.StructArray:
    """The facts of files, in `footers.FOOTER`'s fields.

    Args:
        tails: each file's serialised footer with the 8 bytes behind it, or what is wrong with it.
        stats: each file's statistics in the log, which have bounds where a footer has none.
    """
    good = [
        (tail, known) for tail, known in zip(tails, stats, strict=True) if isinstance(tail, bytes)
    ]
    found = _parse(good)
    there = np.array([isinstance(tail, bytes) for tail in tails], bool)
    fields = {
        f.name: spread(child, there) for f, child in zip(found.type, found.flatten(), strict=True)
    }
    said = pa.array([tail if isinstance(tail, str) else None for tail in tails], pa.string())
    fields["problem"] = pc.coalesce(fields["problem"], said)
    return _struct(fields)


def _parse(files: Sequence[tuple[bytes, str | None]]) -> pa.StructArray:
    """All files together; if there is a bad one among them, half of them and the other half."""
    try:
        return _facts(files)
    except (MalformedError, pa.ArrowException) as error:
        if len(files) > 1:
            half = len(files) // 2
            return pa.concat_arrays([_parse(files[:half]), _parse(files[half:])])
        nothing = _facts([])
        fields = {f.name: pa.nulls(1, f.type) for f in nothing.type}
        return _struct(fields | {"problem": pa.array([f"unreadable: {error}"])})


def _facts(files: Sequence[tuple[bytes, str | None]]) -> pa.StructArray:
    bodies = [tail[:-8] for tail, _ in files]
    text = b"".join(bodies)
    ends = np.cumsum(np.array([len(body) for body in bodies], np.int64))
    starts = ends - np.array([len(body) for body in bodies], np.int64)
    top = Footers(text, starts, ends).read()
    data = np.frombuffer(text, np.uint8)
    leaves, first_leaf, width = _schemas(top, text, [tail for tail, _ in files])
    groups = top.list_of(_GROUPS)
    in_order, file_of = _ordered(groups.owners(), np.arange(top.count))
    place = np.empty(groups.count, np.int64)
    place[in_order] = np.arange(groups.count)
    per_file = _offsets(file_of, top.count)
    chunks = groups.list_of(_CHUNKS)
    chunk_order, group_of = _ordered(chunks.owners(), place)
    per_group = _offsets(group_of, groups.count)
    number = np.arange(chunks.count) - per_group[group_of]
    if (number >= width[file_of][group_of]).any():
        raise MalformedError("a row group has more columns than the schema")
    leaf = first_leaf[file_of][group_of] + number
    first = (group_of == per_file[file_of[group_of]]) if chunks.count else np.empty(0, bool)
    logged = [known for _, known in files]
    columns = _chunks(chunks, chunk_order, data, leaves, leaf, number)
    _fill_bounds(columns, leaves, leaf, first, file_of[group_of], logged)

    def total(field: str) -> Ints:
        sums = np.concatenate([[0], np.cumsum(columns[field].to_numpy())])
        found: Ints = sums[per_group[1:]] - sums[per_group[:-1]]
        return found

    group = {
        "id": pa.array((np.arange(groups.count) - per_file[file_of]).astype(np.int32)),
        "rows": pa.array(groups.values(_GROUP_ROWS)[in_order]),
        "compressed": pa.array(total("compressed")),
        "uncompressed": pa.array(total("uncompressed")),
        "chunks": _lists(per_group, _struct(columns)),
    }
    return _struct(
        {
            "rows": pa.array(top.values(_ROWS)),
            "created_by": _texts(cut(data, *top.spans(_WRITER))),
            "row_groups": pa.array(np.diff(per_file).astype(np.int32)),
            **_keys(top, data),
            "problem": pa.nulls(top.count, pa.string()),
            "groups": _lists(per_file, _struct(group)),
        }
    )


def _schemas(
    top: Level, text: bytes, tails: Sequence[bytes]
) -> tuple[list[_Leaf], Ints, Ints]:  # fmt: skip
    """The leaves of all schemas; for each file its first one among them, and how many it has."""
    leaves: list[_Leaf] = []
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


def _leaves(tail: bytes) -> list[_Leaf]:
    try:
        metadata = pq.read_metadata(pa.BufferReader(tail))
    except (OSError, pa.ArrowException) as error:
        raise MalformedError(str(error)) from error
    columns = [metadata.schema.column(i) for i in range(metadata.num_columns)]
    return [
        _Leaf(
            column.path,
            str(column.logical_type),
            LeafType(column.physical_type, column.logical_type.to_json()),
        )
        for column in columns
    ]


def _chunks(
    chunks: Level, order: Ints, data: npt.NDArray[np.uint8], leaves: Sequence[_Leaf], leaf: Ints,
    number: Ints,
) -> dict[str, pa.Array]:  # fmt: skip
    def values(field: tuple[int, ...]) -> Ints:
        found: Ints = chunks.values(field)[order]
        return found

    dictionary, pages = values(_DICT_PAGE), values(_DATA_PAGE)
    has_dict = dictionary >= 0
    masks, overflow, proven = (found[order] for found in _encodings(chunks))
    distinct, which = np.unique(masks, return_inverse=True)
    names = pa.array([_encoding_names(int(mask)) for mask in distinct], pa.string())
    low, high = (
        _bounds(chunks, order, data, leaves, leaf, fields)
        for fields in ((_MIN, _OLD_MIN), (_MAX, _OLD_MAX))
    )
    at = pa.array(leaf)
    return {
        "id": pa.array(number.astype(np.int32)),
        "name": pa.array([one.name for one in leaves], pa.string()).take(at),
        "physical": pa.array([one.type.physical for one in leaves], pa.string()).take(at),
        "logical": pa.array([one.logical for one in leaves], pa.string()).take(at),
        "codec": pa.array(_CODECS).take(pa.array(values(_CODEC))),
        "compressed": pa.array(values(_COMPRESSED)),
        "uncompressed": pa.array(values(_UNCOMPRESSED)),
        "has_dict": pa.array(has_dict),
        "dict_offset": pa.array(dictionary, mask=~has_dict),
        "dict_bytes": pa.array(pages - dictionary, mask=~has_dict),
        "value_count": pa.array(values(_VALUES)),
        "nulls": _or_null(values(_NULLS)),
        "encodings": names.take(pa.array(which)),
        "overflow": pa.array(overflow, mask=~(has_dict & proven)),
        "minimum": low[0],
        "maximum": high[0],
        "low": low[1],
        "high": high[1],
    }


def _encodings(chunks: Level) -> tuple[Ints, npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """By chunk: its encodings as bits, whether pages fell back from the dictionary, if proven.

    The statistics of a chunk's encodings count its pages. Without them only a chunk that has no
    other encoding is proven: a dictionary's own page may be plain too.
    """
    listed = chunks.list_of(_ENCODINGS)
    owners, kinds = listed.owners(), listed.values(())
    kinds = np.where((kinds >= 0) & (kinds < _OTHER), kinds, _OTHER)
    masks = np.zeros(chunks.count, np.int64)
    for kind in np.unique(kinds):
        masks[owners[kinds == kind]] |= 1 << int(kind)
    counted = chunks.list_of(_PAGES)
    page, encoding, count = (counted.values((number,)) for number in (1, 2, 3))
    fell_back = np.isin(page, _DATA_PAGES) & ~np.isin(encoding, _DICTIONARY) & (count > 0)
    known, overflow = (np.zeros(chunks.count, bool) for _ in range(2))
    known[counted.owners()] = True
    overflow[counted.owners()[fell_back]] = True
    return masks, overflow, known | (masks & ~_NO_FALLBACK == 0)


def _encoding_names(mask: int) -> str:
    return ", ".join(sorted(n for i, n in enumerate(_ENCODING_NAMES) if mask >> i & 1))


def _bounds(
    chunks: Level, order: Ints, data: npt.NDArray[np.uint8], leaves: Sequence[_Leaf], leaf: Ints,
    fields: tuple[tuple[int, ...], tuple[int, ...]],
) -> tuple[pa.Array, pa.Array]:  # fmt: skip
    """One side's texts and sort keys, for all chunks of one type at a time."""
    (starts, lengths), (old_starts, old_lengths) = (chunks.spans(field) for field in fields)
    kinds = list(dict.fromkeys(one.type for one in leaves))
    by_leaf = [kinds.index(one.type) for one in leaves]
    kind_of = np.array(by_leaf, np.int64)[leaf]
    found: list[tuple[pa.Array, pa.Array]] = []
    rows: list[Ints] = []
    for number, kind in enumerate(kinds):
        some = np.flatnonzero(kind_of == number)
        which = order[some]
        start, length = starts[which], lengths[which]
        if kind.signed:
            old = length < 0
            start = np.where(old, old_starts[which], start)
            length = np.where(old, old_lengths[which], length)
        found.append(read_bounds(data, start, length, kind))
        rows.append(some)
    back = pa.array(np.argsort(np.concatenate([np.empty(0, np.int64), *rows])))
    texts = pa.concat_arrays([pa.nulls(0, pa.string()), *(one[0] for one in found)])
    keys = pa.concat_arrays([pa.nulls(0, pa.binary()), *(one[1] for one in found)])
    return texts.take(back), keys.take(back)


def _fill_bounds(
    columns: dict[str, pa.Array], leaves: Sequence[_Leaf], leaf: Ints,
    first: npt.NDArray[np.bool_], file_of: Ints, logged: Sequence[str | None],
) -> None:  # fmt: skip
    """Takes the log's bounds where the footer has none, as for INT96 moments.

    They are texts that sort as the moments do, and they hold for the file, not for a row group.
    """
    empty = pc.equal(columns["nulls"], columns["value_count"]).fill_null(False)
    lacking = np.asarray(columns["low"].is_null()) & first & ~np.asarray(empty)
    known: dict[int, Mapping[str, Any]] = {}
    sides: dict[str, list[bytes | None]] = {"low": [], "high": []}
    for at in np.flatnonzero(lacking).tolist():
        file = int(file_of[at])
        if file not in known:
            known[file] = json.loads(logged[file] or "{}")
        for side, name in (("low", "minValues"), ("high", "maxValues")):
            value: Any = known[file].get(name)
            for part in leaves[leaf[at]].name.split("."):
                value = value.get(part) if isinstance(value, dict) else None
            sides[side].append(value.encode() if isinstance(value, str) else None)
    for side, values in sides.items():
        if values:
            filled = pa.array(values, pa.binary())
            columns[side] = pc.replace_with_mask(columns[side], pa.array(lacking), filled)


def _keys(top: Level, data: npt.NDArray[np.uint8]) -> dict[str, pa.Array]:
    """The footers' own signals of V-Order."""
    pairs = top.list_of(_KEYS)
    names = {MICROSOFT_ENABLED: "vorder", MICROSOFT_LEVEL: "vorder_level", OPEN_KEY: "open_vorder"}
    found: dict[str, list[str | None]] = {name: [None] * top.count for name in names.values()}
    keys = cut(data, *pairs.spans((1,))).to_pylist()
    starts, lengths = pairs.spans((2,))
    for owner, key, start, length in zip(pairs.owners(), keys, starts, lengths, strict=True):
        name = names.get(key.decode(errors="replace"))
        if name is not None and length >= 0:
            found[name][owner] = data[start : start + length].tobytes().decode(errors="replace")
    return {name: pa.array(values, pa.string()) for name, values in found.items()}


def _ordered(owners: Ints, place: Ints) -> tuple[Ints, Ints]:
    """Structs in the order of what they lie in, and the place of that for each."""
    above = place[owners]
    order = np.argsort(above, kind="stable")
    return order, above[order]


def _offsets(owner_of: Ints, count: int) -> Ints:
    return np.searchsorted(owner_of, np.arange(count + 1))


def _lists(offsets: Ints, values: pa.Array) -> pa.ListArray:
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), values)


def _struct(fields: Mapping[str, pa.Array]) -> pa.StructArray:
    return pa.StructArray.from_arrays(list(fields.values()), list(fields))


def _or_null(values: Ints) -> pa.Array:
    return pa.array(values, mask=values < 0)


def _texts(raw: pa.BinaryArray) -> pa.Array:
    return pa.array([v and v.decode(errors="replace") for v in raw.to_pylist()], pa.string())
