"""Manifests: the number of rows in a source, and checksums by key range, for a comparison.

Publisher and mirror compute the checksums with the same code over the same columns: those whose
values are the same in the table as they were published. Nested values become text and are left out.
PostgreSQL has no BLAKE2b, so a comparison with a database uses MD5 digests of the same texts.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from mirrorlake.landing.types import column_type
from mirrorlake.names import TableName
from mirrorlake.storage.files import Storage
from mirrorlake.storage.kept import read_kept

FORMAT = 1
MANIFEST = "_manifest.json"
NULL, NEXT = "\ufdd0", "\ufdd1"  # noncharacters, which text does not contain
Sums = tuple[int, int]
"""The number of rows, and the sum of their digests."""
NO_ROWS: Sums = (0, 0)


@dataclass(frozen=True)
class KeyRange:
    """The rows whose keys are at least `start` and less than the next range's start.

    Attributes:
        start: the value of the first key column, as text; None for the first range.
        rows: the number of rows.
        checksum: the sum of the rows' digests, in hexadecimal; it does not depend on their order.
    """

    start: str | None
    rows: int
    checksum: str


@dataclass(frozen=True)
class Manifest:
    """A summary of the rows in a source.

    Attributes:
        after: the number of the last file that was published with these rows.
        key: the column of the ranges; None if the table has no keys.
        columns: the compared columns, in order.
        ranges: the ranges, in order.
    """

    after: int
    key: str | None
    columns: tuple[str, ...]
    ranges: tuple[KeyRange, ...]


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


def make_manifest(
    batches: list[pa.RecordBatch], key: str | None, *, after: int, ranges: int
) -> Manifest:
    """Return the manifest of a source's rows, which are all in memory.

    Args:
        batches: the rows, as they are published.
        key: the first key column.
        after: the number of the last file that was published with these rows.
        ranges: the largest number of key ranges.
    """
    fields = batches[0].schema if batches else ()
    # Only columns whose values are stored in the table unchanged.
    plain = [field.name for field in fields if column_type(field.type).convert == "{0}"]
    columns = sorted(plain, key=str.lower)
    starts: list[str] = []
    if key is not None and batches:
        keys = sorted(
            {text for batch in batches for text in canonical_texts(batch.column(key)).to_pylist()}
        )
        step = max(1, len(keys) // ranges)
        starts = keys[step::step][: ranges - 1]
    rows: Counter[int] = Counter()
    sums: Counter[int] = Counter()
    for batch in batches:
        for place, count, total in digest_batch(batch, columns, key, starts):
            rows[place] += count
            sums[place] += total
    found = (
        KeyRange(start, rows[place], as_checksum(sums[place]))
        for place, start in enumerate([None, *starts])
    )
    return Manifest(after, key, tuple(columns), tuple(found))


def as_checksum(total: int) -> str:
    """Return a sum of digests as it is written in a manifest."""
    return f"{total % 2**64:016x}"


def blake2b_digest(row: bytes) -> int:
    """Return the digest of a row in a manifest."""
    return int.from_bytes(hashlib.blake2b(row, digest_size=8).digest(), "big")


def md5_digest(row: bytes) -> int:
    """Return the digest of a row that a database can compute, too: a signed integer of 64 bits."""
    found = hashlib.md5(row, usedforsecurity=False).digest()
    return int.from_bytes(found[:8], "big", signed=True)


def digest_batch(
    batch: pa.RecordBatch,
    columns: Sequence[str],
    key: str | None,
    starts: Sequence[Any],
    digest: Callable[[bytes], int] = blake2b_digest,
) -> Iterator[tuple[int, int, int]]:
    """Yield range, number of rows and sum of digests for each range that occurs in a batch."""
    digests = digest_rows(batch, columns, digest)
    places = find_ranges(batch, key, starts, digests)
    sums: Counter[int] = Counter()
    for place, found in zip(places, digests, strict=True):
        sums[place] += found
    for place, rows in Counter(places).items():
        yield place, rows, sums[place]


def digest_rows(
    batch: pa.RecordBatch, columns: Sequence[str], digest: Callable[[bytes], int]
) -> list[int]:
    """Return the digest of each row."""
    return [digest(text.encode()) for text in join_columns(batch, columns)]


def identify_rows(
    batch: pa.RecordBatch, compared: Compared
) -> tuple[list[str], list[int], list[int]]:
    """Return the key as text, the index of the range, and the MD5 digest of each row."""
    digests = digest_rows(batch, compared.columns, md5_digest)
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


def find_ranges(
    batch: pa.RecordBatch, key: str | None, starts: Sequence[Any], digests: list[int]
) -> list[int]:
    """Return the index of each row's range.

    Args:
        batch: the rows.
        key: the column of the ranges; None if the rows' digests are divided.
        starts: the first value of each range but the first, in order: integers, or canonical texts.
        digests: the digests of the rows.
    """
    if not starts:
        return [0] * batch.num_rows
    values: list[Any] = digests
    if key is not None:
        column = batch.column(key)
        texts = not isinstance(starts[0], int)
        values = (canonical_texts(column) if texts else column).to_pylist()
    return [bisect_right(starts, value) for value in values]


def canonical_texts(values: pa.Array) -> pa.Array:
    """Return values as strings that are equal exactly if the values are; ranges use their order."""
    kind = values.type
    if pt.is_dictionary(kind):
        return canonical_texts(values.dictionary_decode())
    if pt.is_floating(kind):
        # By their bits, since languages print fractions differently. The sum gives zero one sign.
        wide = pc.add(values.cast(pa.float64()), pa.scalar(0.0))
        wide = pc.if_else(pc.is_nan(wide), pa.scalar(float("nan")), wide)  # a NaN can have a sign
        return wide.view(pa.int64()).cast(pa.string())
    if pt.is_timestamp(kind):
        return values.cast(pa.timestamp("us", kind.tz)).cast(pa.int64()).cast(pa.string())
    if pt.is_duration(kind):
        return values.cast(pa.duration("us")).cast(pa.int64()).cast(pa.string())
    if pt.is_binary(kind) or pt.is_large_binary(kind) or pt.is_fixed_size_binary(kind):
        return pa.array([None if v is None else v.hex() for v in values.to_pylist()], pa.string())
    return values.cast(pa.string())


def write_manifest(storage: Storage, table: TableName, manifest: Manifest) -> None:
    """Write the manifest into the table's folder, replacing an earlier one."""
    document = {"format": FORMAT, **asdict(manifest)}
    storage.write_json(f"{table.folder}/{MANIFEST}", document)


def read_manifest(storage: Storage, table: TableName) -> Manifest | None:
    """Return the manifest in a table's folder, or None if the publisher wrote none."""
    document = read_kept(storage, f"{table.folder}/{MANIFEST}", FORMAT)
    if document is None:
        return None
    ranges = tuple(KeyRange(**entry) for entry in document["ranges"])
    return Manifest(document["after"], document["key"], tuple(document["columns"]), ranges)
