"""Manifests: the number of rows in a source, and checksums by key range, for a comparison.

Publisher and mirror compute the checksums with the same code over the same columns: those whose
values are the same in the table as they were published. Nested values become text and are left out.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import pyarrow as pa

from mirrorlake.landing.digests import (
    NO_ROWS,
    Sums,
    add_sums,
    canonical_texts,
    digest_texts,
    sum_batch,
)
from mirrorlake.landing.types import column_type
from mirrorlake.names import TableName
from mirrorlake.storage.files import Storage
from mirrorlake.storage.kept import read_kept

FORMAT = 1
MANIFEST = "_manifest.json"


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

    @classmethod
    def of(cls, start: str | None, sums: Sums) -> KeyRange:
        """Return a range with these sums."""
        return cls(start, sums[0], f"{sums[1]:016x}")


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
    sums: dict[int, Sums] = {}
    for batch in batches:
        for place, *found in sum_batch(batch, columns, key, starts, digest_texts):
            sums[place] = add_sums(sums.get(place, NO_ROWS), found)
    places = enumerate([None, *starts])
    made = (KeyRange.of(start, sums.get(place, NO_ROWS)) for place, start in places)
    return Manifest(after, key, tuple(columns), tuple(made))


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
