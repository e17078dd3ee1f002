"""What Parquet footers prove, for many files at once: columns of facts, not objects a file.

Field numbers are parquet.thrift's. A leaf's name and type come from the schema, which pyarrow reads
once for all files that have the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from mirrorlake.layout.bounds import LeafType, cut, read_bounds
from mirrorlake.layout.thrift import Footers, Ints, Level, MalformedError, Path

MICROSOFT_ENABLED = "com.microsoft.parquet.vorder.enabled"
MICROSOFT_LEVEL = "com.microsoft.parquet.vorder.level"
OPEN_KEY = "org.mirrorlake.vorder"
"""This project's own footer key; its value is the sort key that was chosen, as JSON."""

_SCHEMA, _ROWS, _GROUPS, _KEYS, _WRITER = (2,), (3,), (4,), (5,), (6,)
_CHUNKS, _GROUP_ROWS = (1,), (3,)
_ENCODINGS, _CODEC, _VALUES, _UNCOMPRESSED, _COMPRESSED = ((3, n) for n in (2, 4, 5, 6, 7))
_DATA_PAGE, _DICT_PAGE, _PAGES = (3, 9), (3, 11), (3, 13)
_OLD_MAX, _OLD_MIN, _NULLS, _MAX, _MIN = ((3, 12, n) for n in (1, 2, 3, 5, 6))
_CODECS = ("UNCOMPRESSED", "SNAPPY", "GZIP", "LZO", "BROTLI", "LZ4", "ZSTD", "LZ4_RAW", "OTHER")
_ENCODING_NAMES = (
    *("PLAIN", "GROUP_VAR_INT", "PLAIN_DICTIONARY", "RLE", "BIT_PACKED", "DELTA_BINARY_PACKED"),
    *("DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY", "RLE_DICTIONARY", "BYTE_STREAM_SPLIT"),
    "OTHER",
)
_DATA_PAGES, _DICTIONARY = (0, 3), (2, 8)
Leaf = tuple[str, LeafType]  # with its path
_NO_FALLBACK = sum(1 << number for number in (2, 3, 4, 8))


def footer_facts(tails: Sequence[bytes | str]) -> pa.StructArray:
    """The facts of files and of their row groups, in the fields that Spark's column gets.

    Args:
        tails: each file's serialised footer with the 8 bytes behind it, or what is wrong with it.
    """
    parsed, problems = parse_footers(tails)
    found = pa.concat_arrays([_file_facts(some) for some in parsed])
    # The files in the order in which they were given; NULL for those with a problem.
    places = np.full(len(tails), -1, np.int64)
    places[[file for some in parsed for file in some.files]] = np.arange(len(found))
    fields = {
        f.name: child.take(pa.array(places, mask=places < 0))
        for f, child in zip(found.type, found.flatten(), strict=True)
    }
    said = [problems.get(number) for number in range(len(tails))]
    return _struct(fields | {"problem": pa.array(said, pa.string())})


def chunk_facts(tails: Sequence[bytes | str], stats: Sequence[str | None]) -> pa.Table:
    """The facts of column chunks: `file`, by its number, `group`, `rows`, and the struct `c`.

    Args:
        tails: as for `footer_facts`; files with a problem have no chunks.
        stats: each file's statistics in the log, which have bounds where a footer has none.
    """
    parsed, _ = parse_footers(tails)
    return pa.concat_tables([_chunk_table(some, stats) for some in parsed])


class _Parsed:
    """Footers that were read in step, their row groups and chunks in the files' order.

    Attributes:
        files: the files' numbers.
        file_of: for each row group its file, counted within these.
        group_of: for each chunk its row group.
        per_file: where each file's row groups begin, and the last one's end.
        per_group: where each row group's chunks begin, and the last one's end.
        number: each chunk's place in its row group.
        leaf: each chunk's leaf, among all `leaves`.
    """

    def __init__(self, files: Sequence[int], tails: Sequence[bytes]) -> None:
        bodies = [tail[:-8] for tail in tails]
        text = b"".join(bodies)
        ends = np.cumsum(np.array([len(body) for body in bodies], np.int64))
        starts = ends - np.array([len(body) for body in bodies], np.int64)
        self.files = files
        self.data = np.frombuffer(text, np.uint8)
        self.top = top = Footers(text, starts, ends).read()
        self.leaves, first_leaf, width = _schemas(top, text, tails)
        self.groups = groups = top.list_of(_GROUPS)
        self.group_order, self.file_of = _ordered(groups.owners(), np.arange(top.count))
        self.per_file = _offsets(self.file_of, top.count)
        place = np.empty(groups.count, np.int64)
        place[self.group_order] = np.arange(groups.count)
        self.chunks = groups.list_of(_CHUNKS)
        self.chunk_order, self.group_of = _ordered(self.chunks.owners(), place)
        self.per_group = _offsets(self.group_of, groups.count)
        self.number = np.arange(self.chunks.count) - self.per_group[self.group_of]
        file_of_chunk = self.file_of[self.group_of]
        if (self.number >= width[file_of_chunk]).any():
            raise MalformedError("a row group has more columns than the schema")
        self.leaf = first_leaf[file_of_chunk] + self.number

    def of_groups(self, field: Path) -> Ints:
        """A field of all row groups."""
        found: Ints = self.groups.values(field)[self.group_order]
        return found

    def of_chunks(self, field: Path) -> Ints:
        """A field of all chunks."""
        found: Ints = self.chunks.values(field)[self.chunk_order]
        return found


def parse_footers(tails: Sequence[bytes | str]) -> tuple[list[_Parsed], dict[int, str]]:
    """Footers that were read together, and what is wrong with the others, by their numbers."""
    good = [number for number, tail in enumerate(tails) if isinstance(tail, bytes)]
    problems = {number: tail for number, tail in enumerate(tails) if isinstance(tail, str)}
    parsed = [_Parsed([], [])]  # it has nothing to say, but all the types
    waiting = [good] if good else []
    while waiting:
        files = waiting.pop()
        try:
            parsed.append(
                _Parsed(files, [tail for n in files if isinstance(tail := tails[n], bytes)])
            )
        except (MalformedError, pa.ArrowException) as error:
            # There is a bad one among them: half of them, and the other half.
            if len(files) == 1:
                problems[files[0]] = f"unreadable: {error}"
            else:
                half = len(files) // 2
                waiting += [files[half:], files[:half]]
    return parsed, problems


def _file_facts(some: _Parsed) -> pa.StructArray:
    sums = {
        name: np.concatenate([[0], np.cumsum(some.of_chunks(field))])
        for name, field in (("compressed", _COMPRESSED), ("uncompressed", _UNCOMPRESSED))
    }
    starts, ends = some.per_group[:-1], some.per_group[1:]
    first = some.per_file[some.file_of]
    group = {
        "id": pa.array((np.arange(some.groups.count) - first).astype(np.int32)),
        "rows": pa.array(some.of_groups(_GROUP_ROWS)),
        **{name: pa.array(total[ends] - total[starts]) for name, total in sums.items()},
    }
    offsets = pa.array(some.per_file.astype(np.int32))
    return _struct(
        {
            "rows": pa.array(some.top.values(_ROWS)),
            "created_by": _texts(cut(some.data, *some.top.spans(_WRITER))),
            "row_groups": pa.array(np.diff(some.per_file).astype(np.int32)),
            "codec": _file_codecs(some),
            **_keys(some.top, some.data),
            "groups": pa.ListArray.from_arrays(offsets, _struct(group)),
        }
    )


def _file_codecs(some: _Parsed) -> pa.Array:
    """The codecs in each file: most often it is one."""
    masks = np.zeros(some.top.count, np.int64)
    codecs = _known(some.of_chunks(_CODEC), len(_CODECS) - 1)
    for codec in np.unique(codecs):
        masks[some.file_of[some.group_of[codecs == codec]]] |= 1 << int(codec)
    return _names(masks, _CODECS)


def _chunk_table(some: _Parsed, stats: Sequence[str | None]) -> pa.Table:
    file_of = some.file_of[some.group_of]
    first = some.group_of == some.per_file[file_of]
    columns = _chunks(some)
    _fill_bounds(columns, some, first, file_of, [stats[number] for number in some.files])
    return pa.table(
        {
            "file": np.array(some.files, np.int64)[file_of],
            "group": (some.group_of - some.per_file[file_of]).astype(np.int32),
            "rows": some.of_groups(_GROUP_ROWS)[some.group_of],
            "c": _struct(columns),
        }
    )


def _schemas(
    top: Level, text: bytes, tails: Sequence[bytes]
) -> tuple[list[Leaf], Ints, Ints]:  # fmt: skip
    """The leaves of all schemas; for each file its first one among them, and how many it has."""
    leaves: list[Leaf] = []
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


def _leaves(tail: bytes) -> list[Leaf]:
    found: list[Leaf] = []
    try:
        metadata = pq.read_metadata(pa.BufferReader(tail))
        for i in range(metadata.num_columns):
            column = metadata.schema.column(i)
            logical = column.logical_type
            kind = LeafType(column.physical_type, logical.to_json(), str(logical))
            found.append((column.path, kind))
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:  # a name may be damaged, too
        raise MalformedError(str(error)) from error
    return found


def _chunks(some: _Parsed) -> dict[str, pa.Array]:
    dictionary, pages = some.of_chunks(_DICT_PAGE), some.of_chunks(_DATA_PAGE)
    has_dict = dictionary >= 0
    masks, overflow, proven = _encodings(some.chunks, some.chunk_order)
    low, high = (_bounds(some, *fields) for fields in ((_MIN, _OLD_MIN), (_MAX, _OLD_MAX)))
    nulls, at = some.of_chunks(_NULLS), pa.array(some.leaf)
    codecs = _known(some.of_chunks(_CODEC), len(_CODECS) - 1)
    names, kinds = [name for name, _ in some.leaves], [kind for _, kind in some.leaves]
    return {
        "id": pa.array(some.number.astype(np.int32)),
        "name": pa.array(names, pa.string()).take(at),
        "physical": pa.array([kind.physical for kind in kinds], pa.string()).take(at),
        "logical": pa.array([kind.shown for kind in kinds], pa.string()).take(at),
        "codec": pa.array(_CODECS).take(pa.array(codecs)),
        "compressed": pa.array(some.of_chunks(_COMPRESSED)),
        "uncompressed": pa.array(some.of_chunks(_UNCOMPRESSED)),
        "has_dict": pa.array(has_dict),
        "dict_offset": pa.array(dictionary, mask=~has_dict),
        "dict_bytes": pa.array(pages - dictionary, mask=~has_dict),
        "value_count": pa.array(some.of_chunks(_VALUES)),
        "nulls": pa.array(nulls, mask=nulls < 0),
        "encodings": _names(masks, _ENCODING_NAMES),
        "overflow": pa.array(overflow, mask=~(has_dict & proven)),
        "minimum": low[0],
        "maximum": high[0],
        "low": low[1],
        "high": high[1],
    }


def _encodings(
    chunks: Level, order: Ints
) -> tuple[Ints, npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """By chunk: its encodings as bits, whether pages fell back from the dictionary, if proven.

    The statistics of a chunk's encodings count its pages. Without them only a chunk that has no
    other encoding is proven: a dictionary's own page may be plain too.
    """
    listed = chunks.list_of(_ENCODINGS)
    owners, kinds = listed.owners(), _known(listed.values(()), len(_ENCODING_NAMES) - 1)
    masks = np.zeros(chunks.count, np.int64)
    for kind in np.unique(kinds):
        masks[owners[kinds == kind]] |= 1 << int(kind)
    counted = chunks.list_of(_PAGES)
    page, encoding, count = (counted.values((number,)) for number in (1, 2, 3))
    fell_back = np.isin(page, _DATA_PAGES) & ~np.isin(encoding, _DICTIONARY) & (count > 0)
    known, overflow = (np.zeros(chunks.count, bool) for _ in range(2))
    known[counted.owners()] = True
    overflow[counted.owners()[fell_back]] = True
    proven = known | (masks & ~_NO_FALLBACK == 0)
    return masks[order], overflow[order], proven[order]


def _known(kinds: Ints, other: int) -> Ints:
    """Numbers of kinds, those that nobody knows yet as `other`."""
    return np.where((kinds >= 0) & (kinds < other), kinds, other)


def _names(masks: Ints, names: Sequence[str]) -> pa.Array:
    """Kinds that are kept as bits, by name."""
    distinct, which = np.unique(masks, return_inverse=True)
    texts = [
        ", ".join(sorted(n for i, n in enumerate(names) if mask >> i & 1)) for mask in distinct
    ]
    return pa.array(texts, pa.string()).take(pa.array(which))


def _bounds(some: _Parsed, field: Path, old_field: Path) -> tuple[pa.Array, pa.Array]:
    """One side's texts and sort keys, for all chunks of one type at a time."""
    (starts, lengths), (old_starts, old_lengths) = map(some.chunks.spans, (field, old_field))
    kinds = list(dict.fromkeys(kind for _, kind in some.leaves))
    kind_of = np.array([kinds.index(kind) for _, kind in some.leaves], np.int64)[some.leaf]
    found: list[tuple[pa.Array, pa.Array]] = []
    rows: list[Ints] = []
    for number, kind in enumerate(kinds):
        places = np.flatnonzero(kind_of == number)
        which = some.chunk_order[places]
        start, length = starts[which], lengths[which]
        if kind.signed:
            old = length < 0
            start = np.where(old, old_starts[which], start)
            length = np.where(old, old_lengths[which], length)
        found.append(read_bounds(some.data, start, length, kind))
        rows.append(places)
    back = pa.array(np.argsort(np.concatenate([np.empty(0, np.int64), *rows])))
    texts = pa.concat_arrays([pa.nulls(0, pa.string()), *(one[0] for one in found)])
    keys = pa.concat_arrays([pa.nulls(0, pa.binary()), *(one[1] for one in found)])
    return texts.take(back), keys.take(back)


def _fill_bounds(
    columns: dict[str, pa.Array], some: _Parsed, first: npt.NDArray[np.bool_], file_of: Ints,
    logged: Sequence[str | None],
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
            for part in some.leaves[some.leaf[at]][0].split("."):
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


def _struct(fields: Mapping[str, pa.Array]) -> pa.StructArray:
    return pa.StructArray.from_arrays(list(fields.values()), list(fields))


def _texts(raw: pa.BinaryArray) -> pa.Array:
    return pa.array([v and v.decode(errors="replace") for v in raw.to_pylist()], pa.string())
