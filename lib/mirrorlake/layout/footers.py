"""Read the Parquet footers of many files on the executors; only the end of each file is read.

Each file costs one range request, or two for a large footer; every task has several requests in
flight. The result is columns of facts, not one object per file. Columns from the log are passed
through. Field numbers are those of parquet.thrift.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema, from_arrow_type, to_arrow_schema
from pyspark.sql.types import StructField, StructType

from mirrorlake.delta.actions import HADOOP_URI, Places
from mirrorlake.layout.thrift import (
    Bools,
    Bytes,
    Ints,
    Level,
    Parsed,
    Path,
    cut,
    parse_footers,
    read_bounds,
)
from mirrorlake.spark.executors import map_in_arrow, parallelism
from mirrorlake.storage.files import Storage

_TAIL = 64 * 1024
_AT_ONCE = 16
_READ = 256
_BATCH_ROWS = 10_000
_MOST_BYTES = 16 * 2**20
_MAGIC = b"PAR1"
MICROSOFT_ENABLED = "com.microsoft.parquet.vorder.enabled"
MICROSOFT_LEVEL = "com.microsoft.parquet.vorder.level"
OPEN_KEY = "org.mirrorlake.vorder"
"""This project's own footer key; its value is the chosen sort key, as JSON."""
_ROWS, _KEYS, _WRITER, _GROUP_ROWS = (3,), (5,), (6,), (3,)
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
_NO_FALLBACK = sum(1 << number for number in (2, 3, 4, 8))


def read_footers(files: DataFrame, storage: Storage, table_path: str) -> DataFrame:
    """Add a column `footer` to files: facts about the file and its row groups.

    Args:
        files: the columns `path`, decoded from the log, and `size`, in bytes.
        storage: the lake's files.
        table_path: the table's folder, to which the paths are relative.
    """
    footer = StructField("footer", from_arrow_type(footer_facts([]).type))
    schema = StructType([*files.schema.fields, footer])
    out = to_arrow_schema(schema)

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for part, tails in _in_parts(batches, Storages(storage, table_path)):
            found = footer_facts(tails).cast(out.field("footer").type)
            yield pa.RecordBatch.from_arrays([*part.columns, found], schema=out)

    return map_in_arrow(files.repartition(parallelism(files.sparkSession)), read, schema)


def read_chunks(files: DataFrame, storage: Storage, table_path: str) -> DataFrame:
    """Return one row per column chunk: `path`, `group` with its `rows`, and `c` with its facts.

    Args:
        files: as for `read_footers`, with `stats` as in the log. Each footer is read again, because
            most analyses need no chunks, and caching all chunks of large tables would cost more.
        storage: the lake's files.
        table_path: the table's folder.
    """
    out = chunk_facts([], []).schema.set(0, pa.field("path", pa.string()))

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for part, tails in _in_parts(batches, Storages(storage, table_path)):
            found = chunk_facts(tails, part.column("stats").to_pylist())
            paths = part.column("path").take(found["file"].combine_chunks())
            yield from found.set_column(0, "path", paths).cast(out).to_batches(_BATCH_ROWS)

    wanted = files.select("path", "size", "stats")
    spread = wanted.repartition(parallelism(files.sparkSession))
    return map_in_arrow(spread, read, from_arrow_schema(out))


def _in_parts(
    batches: Iterable[pa.RecordBatch], stores: Storages
) -> Iterator[tuple[pa.RecordBatch, list[bytes | str]]]:
    """Yield files with their footers, as many at a time as fit into memory together."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for batch in batches:
            paths, sizes = (batch.column(name).to_pylist() for name in ("path", "size"))
            at_once = map if stores.all_local(paths) else pool.map
            tails: list[bytes | str] = []
            done = 0
            for start in range(0, batch.num_rows, _READ):
                end = start + _READ
                tails += at_once(stores.try_tail, paths[start:end], sizes[start:end])
                if sum(map(len, tails)) > _MOST_BYTES or end >= batch.num_rows:
                    yield batch.slice(done, len(tails)), tails
                    done, tails = done + len(tails), []


class Storages(Places):
    """Resolver of a table's file paths that also reads footers.

    Args:
        storage: the lake's files.
        table_path: the table's folder, relative to the lake's root.
    """

    def all_local(self, paths: Sequence[str]) -> bool:
        """Return whether all files are on local disks, where threads cost more than they save."""
        return self._own.local is not None and not any(
            match[0].lower() != "file:/" for match in map(HADOOP_URI.match, paths) if match
        )

    def try_tail(self, path: str, size: int) -> bytes | str:
        """Return a file's footer, or the problem with the file.

        One unreadable file must not hide the others.
        """
        try:
            return read_tail(*self.place(path), size)
        except FileNotFoundError:
            return "missing"
        except (ValueError, OSError) as error:
            return f"unreadable: {error}"


def read_tail(storage: Storage, path: str, size: int) -> bytes:
    """Return a Parquet file's serialised footer with the 8 bytes after it.

    Raises:
        ValueError: the file does not end as a Parquet file does.
    """
    tail = storage.read_range(path, max(0, size - _TAIL), size)
    if len(tail) < 12 or tail[-4:] != _MAGIC:
        raise ValueError("it does not end as a Parquet file does")
    length = struct.unpack("<I", tail[-8:-4])[0] + 8
    if length > size:
        raise ValueError("its footer is longer than the file")
    if length > len(tail):
        tail = storage.read_range(path, size - length, size)
    return tail[-length:]


def footer_facts(tails: Sequence[bytes | str]) -> pa.StructArray:
    """Return facts about files and their row groups, in the fields of Spark's column.

    Args:
        tails: each file's serialised footer with the 8 bytes after it, or the problem with the
            file.
    """
    parsed, problems = parse_footers(tails)
    found = pa.concat_arrays([_file_facts(some) for some in parsed])
    # The files in the order of `tails`; NULL for files with a problem.
    places = np.full(len(tails), -1, np.int64)
    places[[file for some in parsed for file in some.files]] = np.arange(len(found))
    fields = {
        f.name: child.take(pa.array(places, mask=places < 0))
        for f, child in zip(found.type, found.flatten(), strict=True)
    }
    texts = [problems.get(number) for number in range(len(tails))]
    return _struct(fields | {"problem": pa.array(texts, pa.string())})


def chunk_facts(tails: Sequence[bytes | str], stats: Sequence[str | None]) -> pa.Table:
    """Return facts about column chunks: the number of the `file`, `group`, `rows`, and `c`.

    Args:
        tails: as for `footer_facts`; files with a problem have no chunks.
        stats: each file's statistics in the log, whose bounds are used if a footer has none.
    """
    parsed, _ = parse_footers(tails)
    return pa.concat_tables([_chunk_table(some, stats) for some in parsed])


def _file_facts(some: Parsed) -> pa.StructArray:
    sums = {
        name: np.concatenate([[0], np.cumsum(some.chunks.values(field))])
        for name, field in (("compressed", _COMPRESSED), ("uncompressed", _UNCOMPRESSED))
    }
    starts, ends = some.per_group[:-1], some.per_group[1:]
    first = some.per_file[some.file_of]
    group = {
        "id": pa.array((np.arange(some.groups.count) - first).astype(np.int32)),
        "rows": pa.array(some.groups.values(_GROUP_ROWS)),
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


def _file_codecs(some: Parsed) -> pa.Array:
    """Return the codecs of each file; usually it is one."""
    codecs = _known(some.chunks.values(_CODEC), len(_CODECS) - 1)
    return _names(_as_bits(codecs, some.file_of_chunk, some.top.count), _CODECS)


def _chunk_table(some: Parsed, stats: Sequence[str | None]) -> pa.Table:
    file_of, columns = some.file_of_chunk, _chunks(some)
    _fill_bounds(columns, some, [stats[number] for number in some.files])
    return pa.table(
        {
            "file": np.array(some.files, np.int64)[file_of],
            "group": (some.group_of - some.per_file[file_of]).astype(np.int32),
            "rows": some.groups.values(_GROUP_ROWS)[some.group_of],
            "c": _struct(columns),
        }
    )


def _chunks(some: Parsed) -> dict[str, pa.Array]:
    dictionary, pages = some.chunks.values(_DICT_PAGE), some.chunks.values(_DATA_PAGE)
    has_dict = dictionary >= 0
    masks, overflow, proven = _encodings(some.chunks)
    low, high = (_bounds(some, *fields) for fields in ((_MIN, _OLD_MIN), (_MAX, _OLD_MAX)))
    nulls, at = some.chunks.values(_NULLS), pa.array(some.leaf)
    codecs = _known(some.chunks.values(_CODEC), len(_CODECS) - 1)
    names, kinds = [name for name, _ in some.leaves], [kind for _, kind in some.leaves]
    return {
        "id": pa.array(some.number.astype(np.int32)),
        "name": pa.array(names, pa.string()).take(at),
        "physical": pa.array([kind.physical for kind in kinds], pa.string()).take(at),
        "logical": pa.array([kind.shown for kind in kinds], pa.string()).take(at),
        "codec": pa.array(_CODECS).take(pa.array(codecs)),
        "compressed": pa.array(some.chunks.values(_COMPRESSED)),
        "uncompressed": pa.array(some.chunks.values(_UNCOMPRESSED)),
        "has_dict": pa.array(has_dict),
        "dict_offset": pa.array(dictionary, mask=~has_dict),
        "dict_bytes": pa.array(pages - dictionary, mask=~has_dict),
        "value_count": pa.array(some.chunks.values(_VALUES)),
        "nulls": pa.array(nulls, mask=nulls < 0),
        "encodings": _names(masks, _ENCODING_NAMES),
        "overflow": pa.array(overflow, mask=~(has_dict & proven)),
        "minimum": low[0],
        "maximum": high[0],
        "low": low[1],
        "high": high[1],
    }


def _encodings(chunks: Level) -> tuple[Ints, Bools, Bools]:
    """Return facts about the encodings of each chunk.

    The statistics of a chunk's encodings count its pages. Without them, only a chunk without other
    encodings is proven, because a dictionary's own page may be plain too.

    Returns:
        The encodings as bits, whether pages fell back from the dictionary, and whether that is
        proven.
    """
    listed = chunks.list_of(_ENCODINGS)
    kinds = _known(listed.values(()), len(_ENCODING_NAMES) - 1)
    masks = _as_bits(kinds, listed.owners, chunks.count)
    counted = chunks.list_of(_PAGES)
    page, encoding, count = (counted.values((number,)) for number in (1, 2, 3))
    fell_back = np.isin(page, _DATA_PAGES) & ~np.isin(encoding, _DICTIONARY) & (count > 0)
    known, overflow = (np.zeros(chunks.count, bool) for _ in range(2))
    known[counted.owners] = True
    overflow[counted.owners[fell_back]] = True
    proven = known | (masks & ~_NO_FALLBACK == 0)
    return masks, overflow, proven


def _known(kinds: Ints, other: int) -> Ints:
    """Replace unknown numbers of kinds by `other`."""
    return np.where((kinds >= 0) & (kinds < other), kinds, other)


def _as_bits(kinds: Ints, owners: Ints, count: int) -> Ints:
    """Return the kinds of each owner as bits."""
    masks = np.zeros(count, np.int64)
    np.bitwise_or.at(masks, owners, 1 << kinds)
    return masks


def _names(masks: Ints, names: Sequence[str]) -> pa.Array:
    """Return the names of kinds that are stored as bits."""
    distinct, which = np.unique(masks, return_inverse=True)
    texts = [
        ", ".join(sorted(n for i, n in enumerate(names) if mask >> i & 1)) for mask in distinct
    ]
    return pa.array(texts, pa.string()).take(pa.array(which))


def _bounds(some: Parsed, field: Path, old_field: Path) -> tuple[pa.Array, pa.Array]:
    """Return texts and sort keys of minima or maxima, for all chunks of one type at a time."""
    (starts, lengths), (old_starts, old_lengths) = map(some.chunks.spans, (field, old_field))
    kinds = list(dict.fromkeys(kind for _, kind in some.leaves))
    kind_of = np.array([kinds.index(kind) for _, kind in some.leaves], np.int64)[some.leaf]
    found: list[tuple[pa.Array, pa.Array]] = []
    rows: list[Ints] = []
    for number, kind in enumerate(kinds):
        places = np.flatnonzero(kind_of == number)
        start, length = starts[places], lengths[places]
        if kind.signed:
            old = length < 0
            start = np.where(old, old_starts[places], start)
            length = np.where(old, old_lengths[places], length)
        found.append(read_bounds(some.data, start, length, kind))
        rows.append(places)
    back = pa.array(np.argsort(np.concatenate([np.empty(0, np.int64), *rows])))
    texts = pa.concat_arrays([pa.nulls(0, pa.string()), *(one[0] for one in found)])
    keys = pa.concat_arrays([pa.nulls(0, pa.binary()), *(one[1] for one in found)])
    return texts.take(back), keys.take(back)


def _fill_bounds(columns: dict[str, pa.Array], some: Parsed, logged: Sequence[str | None]) -> None:
    """Use the bounds of the log if the footer has none, as for INT96 timestamps.

    They are texts that sort like the timestamps, and they apply to the file, not to a row group.
    """
    empty = pc.equal(columns["nulls"], columns["value_count"]).fill_null(False)
    first = some.group_of == some.per_file[some.file_of_chunk]
    lacking = np.asarray(columns["low"].is_null()) & first & ~np.asarray(empty)
    known: dict[int, Mapping[str, Any]] = {}
    sides: dict[str, list[bytes | None]] = {"low": [], "high": []}
    for at in np.flatnonzero(lacking).tolist():
        file = int(some.file_of_chunk[at])
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


def _keys(top: Level, data: Bytes) -> dict[str, pa.Array]:
    """Return the V-Order keys of the footers."""
    pairs = top.list_of(_KEYS)
    names = {MICROSOFT_ENABLED: "vorder", MICROSOFT_LEVEL: "vorder_level", OPEN_KEY: "open_vorder"}
    found: dict[str, list[str | None]] = {name: [None] * top.count for name in names.values()}
    keys = cut(data, *pairs.spans((1,))).to_pylist()
    starts, lengths = pairs.spans((2,))
    for owner, key, start, length in zip(pairs.owners, keys, starts, lengths, strict=True):
        name = names.get(key.decode(errors="replace"))
        if name is not None and length >= 0:
            found[name][owner] = data[start : start + length].tobytes().decode(errors="replace")
    return {name: pa.array(values, pa.string()) for name, values in found.items()}


def _struct(fields: Mapping[str, pa.Array]) -> pa.StructArray:
    return pa.StructArray.from_arrays(list(fields.values()), list(fields))


def _texts(raw: pa.BinaryArray) -> pa.Array:
    return pa.array([v and v.decode(errors="replace") for v in raw.to_pylist()], pa.string())
