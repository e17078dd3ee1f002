"""Digests of rows, and their sums by key range, to compare a table with its source.

Two digests are used:

- `digest_texts` for manifests: BLAKE2b of the texts of a row's values.
- `digest_values` for a comparison with PostgreSQL: a hash that is based on the server's function
  `hash_record_extended`, which is much faster than its cryptographic functions. The hash of a value
  is Bob Jenkins' lookup3 of its bytes (https://burtleburtle.net/bob/c/lookup3.c).
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

NULL, NEXT = "\ufdd0", "\ufdd1"  # noncharacters, which text does not contain
LONGEST = 240
"""Texts with more bytes are replaced by their MD5, which limits the memory that hashing needs."""
EPOCH_2000 = 946_684_800_000_000
"""The microseconds from 1970 to 2000, from which PostgreSQL counts."""
Sums = tuple[int, int]
"""The number of rows, and the sum of their digests modulo 2 to the power of 64."""
NO_ROWS: Sums = (0, 0)
Digests = npt.NDArray[np.int64]
Digest = Callable[[pa.RecordBatch, Sequence[str]], Digests]
"""A function that returns the digest of each row's values in the given columns."""
_Words = npt.NDArray[np.uint32]
_MIX = ((0, 2, 1, 4), (1, 0, 2, 6), (2, 1, 0, 8), (0, 2, 1, 16), (1, 0, 2, 19), (2, 1, 0, 4))
_FINAL = ((2, 1, 14), (0, 2, 11), (1, 0, 25), (2, 1, 16), (0, 2, 4), (1, 0, 14), (2, 1, 24))
_START = 0x9E3779B9 + 3_923_095  # of the state, before the length is added
_BLOCK = 12  # bytes that are mixed at once


@dataclass(frozen=True)
class Compared:
    """The compared columns of a table, and how its rows are identified and divided into ranges.

    Attributes:
        columns: the names of the columns, in the order in which both sides digest them.
        keys: the key columns; without keys, the digest of a row identifies it.
        by: the key column whose values are divided into ranges; None for the digests.
        starts: the first value of each range but the first, in order: integers, or canonical texts.
    """

    columns: tuple[str, ...]
    keys: tuple[str, ...]
    by: str | None
    starts: tuple[Any, ...]


def add_sums(one: Sums, other: Sequence[int]) -> Sums:
    """Return the sums of two sets of rows together."""
    return one[0] + other[0], (one[1] + other[1]) % 2**64


def sum_batch(
    batch: pa.RecordBatch,
    columns: Sequence[str],
    key: str | None,
    starts: Sequence[Any],
    digest: Digest,
) -> Iterator[tuple[int, int, int]]:
    """Yield range, number of rows and sum of digests for each range that occurs in a batch."""
    digests = digest(batch, columns)
    places = find_ranges(batch, key, starts, digests)
    rows = np.bincount(places, minlength=1)
    sums = np.zeros(len(rows), np.uint64)
    np.add.at(sums, places, digests.view(np.uint64))
    for place in np.flatnonzero(rows):
        yield int(place), int(rows[place]), int(sums[place])


def find_ranges(
    batch: pa.RecordBatch, key: str | None, starts: Sequence[Any], digests: Digests
) -> npt.NDArray[np.int64]:
    """Return the index of each row's range.

    Args:
        batch: the rows.
        key: the column of the ranges; None if the rows' digests are divided.
        starts: the first value of each range but the first, in order: integers, or canonical texts.
        digests: the digests of the rows.

    Returns:
        The indices; those of a wrong NULL key are any.
    """
    if not starts:
        return np.zeros(batch.num_rows, np.int64)
    if key is None or isinstance(starts[0], int):
        values = digests if key is None else batch.column(key).fill_null(0).to_numpy()
        places: npt.NDArray[np.int64] = np.searchsorted(np.array(starts, np.int64), values, "right")
        return places
    texts = canonical_texts(batch.column(key)).fill_null("").to_pylist()
    return np.array([bisect_right(starts, text) for text in texts], np.int64)


def digest_texts(batch: pa.RecordBatch, columns: Sequence[str]) -> Digests:
    """Return the BLAKE2b of each row's texts."""
    texts = join_columns(batch, columns)
    found = b"".join(hashlib.blake2b(text.encode(), digest_size=8).digest() for text in texts)
    return np.frombuffer(found, ">u8").astype(np.uint64).view(np.int64)


def digest_values(batch: pa.RecordBatch, columns: Sequence[str]) -> Digests:
    """Return the digest of each row that PostgreSQL computes from a record of bytes.

    It is `hashint4extended(0, hash_record_extended(ROW(…), 0) | 1)`. The bytes are those that
    `int8send`, `float8send` and `timestamp_send` return, or those of a canonical text.
    """
    record = np.zeros(batch.num_rows, np.uint64)
    for name in columns:
        values = batch.column(name)
        hashes = _hash(*_words(values))
        if values.null_count:
            hashes[values.is_null().to_numpy(zero_copy_only=False)] = 0
        record = record * np.uint64(31) + hashes
    # The sum alone would be equal if two rows exchanged the values of a column.
    zeros = np.zeros((batch.num_rows, 3), np.uint32)
    return _hash(zeros, 4, seeds=record | np.uint64(1)).view(np.int64)


def _words(values: pa.Array) -> tuple[_Words, Any]:
    """Return each value's bytes as little-endian words, padded with zeros, and their number."""
    kind = values.type
    if pt.is_floating(kind):
        numbers = _plain_floats(values).view(pa.int64())
    elif pt.is_timestamp(kind):
        numbers = pc.subtract(values.cast(pa.timestamp("us", kind.tz)).cast(pa.int64()), EPOCH_2000)
    elif pt.is_integer(kind) or pt.is_boolean(kind):
        numbers = values.cast(pa.int64())
    else:
        return _words_of_texts(canonical_texts(values))
    found = numbers.fill_null(0).to_numpy(zero_copy_only=False).astype(">i8")
    words = np.zeros((len(values), 3), np.uint32)
    words[:, :2] = found.view("<u4").reshape(-1, 2)
    return words, 8


def _words_of_texts(texts: pa.Array) -> tuple[_Words, Any]:
    found = texts.fill_null("").cast(pa.binary()).to_pylist()
    found = [_md5(one) if len(one) > LONGEST else one for one in found]
    lengths = np.fromiter(map(len, found), np.uint32, len(found))
    width = (int(lengths.max(initial=0)) // _BLOCK + 1) * _BLOCK
    return np.array(found, f"S{width}").view("<u4").reshape(-1, width // 4), lengths


def _md5(text: bytes) -> bytes:
    return hashlib.md5(text, usedforsecurity=False).hexdigest().encode()


def _hash(words: _Words, lengths: Any, seeds: Any = None) -> npt.NDArray[np.uint64]:
    """Return the extended lookup3 hash of each row of words.

    Args:
        words: the bytes of each row as little-endian words, padded with zeros to one block more
            than the longest row fills.
        lengths: the numbers of bytes in the rows, or one number.
        seeds: one per row, not 0; None for 0.
    """
    rows = np.arange(len(words))
    lengths = np.broadcast_to(np.asarray(lengths, np.uint32), len(rows))
    state = [lengths + np.uint32(_START) for _ in range(3)]
    if seeds is not None:
        state[0] += (seeds >> np.uint64(32)).astype(np.uint32)
        state[1] += seeds.astype(np.uint32)
        _mix(state)
    whole = lengths // _BLOCK
    for block in range(int(whole.max(initial=0))):
        at = np.flatnonzero(whole > block)
        some = [part[at] + words[at, 3 * block + n] for n, part in enumerate(state)]
        _mix(some)
        for part, mixed in zip(state, some, strict=True):
            part[at] = mixed
    for n in range(3):  # the remaining bytes; the lowest byte of the third word is not used
        rest = words[rows, 3 * whole + n]
        state[n] += rest << np.uint32(8) if n == 2 else rest
    for x, y, turn in _FINAL:
        state[x] ^= state[y]
        state[x] -= _rotate(state[y], turn)
    found: npt.NDArray[np.uint64] = state[1].astype(np.uint64) << np.uint64(32) | state[2]
    return found


def _mix(state: list[_Words]) -> None:
    for x, y, z, turn in _MIX:
        state[x] -= state[y]
        state[x] ^= _rotate(state[y], turn)
        state[y] += state[z]


def _rotate(words: _Words, turn: int) -> _Words:
    return words << np.uint32(turn) | words >> np.uint32(32 - turn)


def identify_rows(batch: pa.RecordBatch, compared: Compared) -> tuple[list[str], Digests, Digests]:
    """Return the key as text, the index of the range, and the digest of the values of each row."""
    digests = digest_values(batch, compared.columns)
    places = find_ranges(batch, compared.by, compared.starts, digests)
    keys = join_columns(batch, compared.keys) if compared.keys else list(map(str, digests))
    return keys, places, digests


def join_columns(batch: pa.RecordBatch, columns: Sequence[str]) -> list[str]:
    """Return the canonical texts of each row's values in some columns as one text."""
    if not columns:
        return [""] * batch.num_rows
    parts = [canonical_texts(batch.column(column)) for column in columns]
    joined = pc.binary_join_element_wise(
        *parts, NEXT, null_handling="replace", null_replacement=NULL
    )
    return list(joined.to_pylist())


def canonical_texts(values: pa.Array) -> pa.Array:
    """Return values as strings that are equal exactly if the values are; ranges use their order."""
    kind = values.type
    if pt.is_dictionary(kind):
        return canonical_texts(values.dictionary_decode())
    if pt.is_floating(kind):  # by their bits, since languages print fractions differently
        return _plain_floats(values).view(pa.int64()).cast(pa.string())
    if pt.is_timestamp(kind):
        return values.cast(pa.timestamp("us", kind.tz)).cast(pa.int64()).cast(pa.string())
    if pt.is_duration(kind):
        return values.cast(pa.duration("us")).cast(pa.int64()).cast(pa.string())
    if pt.is_binary(kind) or pt.is_large_binary(kind) or pt.is_fixed_size_binary(kind):
        return pa.array([None if v is None else v.hex() for v in values.to_pylist()], pa.string())
    return values.cast(pa.string())


def _plain_floats(values: pa.Array) -> pa.Array:
    """Return values as doubles, with only positive zero and one NaN."""
    wide = pc.add(values.cast(pa.float64()), pa.scalar(0.0))
    return pc.if_else(pc.is_nan(wide), pa.scalar(float("nan")), wide)
