"""A manifest: how many rows the source has, and their checksums by key range, for a comparison.

Publisher and lake compute the checksums by the same code, over the same columns: those whose
values arrive in the table as they were published. Nested values become text on the way and are
left out.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
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
_NULL, _NEXT = "\ufdd0", "\ufdd1"  # noncharacters: no text has them


@dataclass(frozen=True)
class KeyRange:
    """The rows of the keys from `start` on, up to the next range's start.

    Attributes:
        start: the first key column's value, as text; None for the first range.
        checksum: the sum of the rows' digests, in hexadecimal; their order does not matter.
    """

    start: str | None
    rows: int
    checksum: str


@dataclass(frozen=True)
class Manifest:
    """What a source has.

    Attributes:
        after: the number of the last file that its rows were published in.
        key: the column that the ranges are of; None where the table has no keys.
        columns: the columns that take part, in order.
    """

    after: int
    key: str | None
    columns: tuple[str, ...]
    ranges: tuple[KeyRange, ...]


def make_manifest(
    batches: list[pa.RecordBatch], key: str | None, *, after: int, ranges: int
) -> Manifest:
    """The manifest of a source's rows, all of which are held.

    Args:
        batches: the rows, as they are published.
        key: the first key column.
        after: the number of the last file that the rows were published in.
        ranges: how many ranges to cut the keys into, at most.
    """
    fields = batches[0].schema if batches else ()
    # Only those whose values arrive in the table as they are.
    plain = [field.name for field in fields if column_type(field.type).convert == "{0}"]
    columns = sorted(plain, key=str.lower)
    starts: list[str] = []
    if key is not None and batches:
        keys = sorted({text for batch in batches for text in _texts(batch.column(key)).to_pylist()})
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
    """A sum of digests as a manifest has it."""
    return f"{total % 2**64:016x}"


def digest_batch(
    batch: pa.RecordBatch, columns: list[str], key: str | None, starts: list[str]
) -> Iterator[tuple[int, int, int]]:
    """Range, rows and sum of digests of one batch's rows, for the ranges that occur in it."""
    texts: Any = pa.array([""] * batch.num_rows)
    if columns:
        parts = [_texts(batch.column(column)) for column in columns]
        texts = pc.binary_join_element_wise(
            *parts, _NEXT, null_handling="replace", null_replacement=_NULL
        )
    places = [0] * batch.num_rows
    if key is not None and starts:
        places = [bisect_right(starts, text) for text in _texts(batch.column(key)).to_pylist()]
    sums: Counter[int] = Counter()
    for place, text in zip(places, texts.to_pylist(), strict=True):
        digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
        sums[place] += int.from_bytes(digest, "big")
    for place, rows in Counter(places).items():
        yield place, rows, sums[place]


def _texts(values: pa.Array) -> pa.Array:
    """Values as texts that are equal if, and only if, the values are; ranges are in their order."""
    kind = values.type
    if pt.is_dictionary(kind):
        return _texts(values.dictionary_decode())
    if pt.is_floating(kind):
        # By their bits: no two languages print a fraction alike. Zero has one sign only.
        wide = pc.add(values.cast(pa.float64()), pa.scalar(0.0))
        return wide.view(pa.int64()).cast(pa.string())
    if pt.is_timestamp(kind):
        return values.cast(pa.timestamp("us", kind.tz)).cast(pa.int64()).cast(pa.string())
    if pt.is_duration(kind):
        return values.cast(pa.duration("us")).cast(pa.int64()).cast(pa.string())
    if pt.is_binary(kind) or pt.is_large_binary(kind) or pt.is_fixed_size_binary(kind):
        return pa.array([None if v is None else v.hex() for v in values.to_pylist()], pa.string())
    return values.cast(pa.string())


def write_manifest(storage: Storage, table: TableName, manifest: Manifest) -> None:
    """Leaves the manifest in the table's folder, in place of an earlier one."""
    document = {"format": FORMAT, **asdict(manifest)}
    storage.write_json(f"{table.folder}/{MANIFEST}", document)


def read_manifest(storage: Storage, table: TableName) -> Manifest | None:
    """The manifest in a table's folder, or None if its publisher left none."""
    document = read_kept(storage, f"{table.folder}/{MANIFEST}", FORMAT)
    if document is None:
        return None
    ranges = tuple(KeyRange(**entry) for entry in document["ranges"])
    return Manifest(document["after"], document["key"], tuple(document["columns"]), ranges)
