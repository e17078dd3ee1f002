"""Rewrites selected files of a table in one commit that changes no data.

The loop is the same for every layout: select files, write new ones, prove that they have the same
rows, and commit. After a conflict with another writer it starts again. The caller decides how the
new files differ. Readers of the change feed and streams skip such a commit.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.types import DataType

from mirrorlake.errors import RewriteError
from mirrorlake.names import quote
from mirrorlake.spark.jvm import Add, DeltaTransaction, transaction
from mirrorlake.spark.older import VARIANTS
from mirrorlake.spark.sql import retry_conflicts

Choose = Callable[[DataFrame], DataFrame]
# Files are written in the background and read more often than written, so ZSTD uses a slower level.
# Timestamps are the standard's microseconds; Spark's default, INT96, takes 50 % more bytes.
BACKGROUND_CONFS = {
    "spark.sql.parquet.compression.codec": "zstd",
    "parquet.compression.codec.zstd.level": "9",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}
_HASH_PART = 0xFFFF_FFFF


@dataclass(frozen=True)
class Bounds:
    """The limits of one commit, which keep it short, so that other writers do not wait or fail.

    Attributes:
        files: the most files.
        rows: the most rows. Files without statistics count as 0 rows.
        size: the most bytes. At least one file is always selected.
        measure: yields the sizes of files that count, given their paths; by default their stored
            bytes.
    """

    files: int = 1_000
    rows: int = 50_000_000
    size: int = 8 * 2**30
    measure: Callable[[Sequence[str]], Iterable[int]] | None = None

    def sizes(self, files: Sequence[Row]) -> Iterable[int]:
        """Return the size of each file that counts, from its `path` and `size`."""
        if self.measure is None:
            return (file["size"] for file in files)
        return self.measure([file["path"] for file in files])


@dataclass(frozen=True)
class Written:
    """The result of a function that writes new files.

    Attributes:
        replaced: the files that the new files replace.
        adds: the new files.
        kept: files that stay, with changed tags.
        proof: the number of rows and their checksum, if the function has compared both sides
            itself.
    """

    replaced: Sequence[Add]
    adds: Sequence[Add]
    kept: Sequence[Add] = ()
    proof: tuple[int, str] | None = None


Write = Callable[[DeltaTransaction, Sequence[Add]], Written]


@dataclass(frozen=True)
class Rewrite:
    """A committed rewrite.

    Attributes:
        version: the version of the commit.
        files_in: the number of replaced files.
        files_out: the number of new files.
        bytes_in: the size of the replaced files, in bytes.
        bytes_out: the size of the new files, in bytes.
        rows: the number of rows, which is the same before and after.
        checksum: the checksum of all rows with their ids, independent of their order.
        seconds: the duration of the successful attempt, from the selection to the commit.
        attempts: the number of attempts.
    """

    version: int
    files_in: int
    files_out: int
    bytes_in: int
    bytes_out: int
    rows: int
    checksum: str
    seconds: float
    attempts: int

    def __repr__(self) -> str:
        return (
            f"version {self.version}: {self.files_in} files of {self.bytes_in:,} bytes became"
            f" {self.files_out} of {self.bytes_out:,}, {self.rows:,} rows"
        )


def rewrite_files(
    spark: SparkSession,
    path: str,
    choose: Choose,
    write: Write,
    *,
    note: str,
    bounds: Bounds | None = None,
    confs: dict[str, str] | None = None,
) -> Rewrite | None:
    """Rewrite selected files.

    Args:
        spark: a classic session.
        path: the full path of the table's folder.
        choose: selects the files to rewrite, in order, from the files of a version (the log's `add`
            actions). It is called again for each attempt.
        write: writes the new files.
        note: the `userMetadata` of the commit.
        bounds: the limits of the commit.
        confs: settings of the session for writing.

    Returns:
        The committed rewrite, or None if no file was selected, or `write` wrote no file.

    Raises:
        RewriteError: the new files do not have the same rows as the old ones; nothing was
            committed.
        ConflictError: each attempt conflicted with another writer.
    """
    attempts = itertools.count(1)

    def attempt() -> Rewrite | None:
        number, began = next(attempts), time.monotonic()
        with transaction(spark, path, note=note, confs=confs) as txn:
            paths = within(choose(txn.files()), bounds or Bounds())
            if not paths:
                return None
            written = write(txn, txn.take(paths))
            if not written.adds and not written.kept:
                return None
            rows, checksum = written.proof or check_rows(txn, written.replaced, written.adds)
            # After a conflict the new files stay without a reference, until VACUUM deletes them.
            version = txn.commit_layout([*written.adds, *written.kept], written.replaced)
            return Rewrite(
                version,
                len(written.replaced),
                len(written.adds),
                sum(add["size"] for add in written.replaced),
                sum(add["size"] for add in written.adds),
                rows,
                checksum,
                time.monotonic() - began,
                number,
            )

    return retry_conflicts(attempt)


def check_rows(
    txn: DeltaTransaction, before: Sequence[Add], after: Sequence[Add]
) -> tuple[int, str]:
    """Count the rows of both sides and compute their checksums, as Spark reads them, in one job.

    Returns:
        The number of rows and their checksum.

    Raises:
        RewriteError: the two sides differ.
    """
    if not before and not after:
        return 0, ""
    old, new = (
        rows.agg(*hash_sums(whole_hash(rows, row_ids=txn.tracks_rows)))
        for rows in (txn.rows(before), txn.rows(uncommitted(after)))
    )
    found = [as_pair(sums) for sums in old.unionAll(new).collect()]
    compare_sides(*found)
    return found[0]


def compare_sides(old: tuple[int, str], new: tuple[int, str]) -> None:
    """Check that the new files have the row count and the checksum of the old files.

    Raises:
        RewriteError: they differ.
    """
    if old != new:
        raise RewriteError(
            "The new files do not have the rows of the old files, so nothing was committed: rows"
            f" {new[0]:,} and {old[0]:,}, checksums {new[1]} and {old[1]}.",
            hint="report this with the table's schema.",
        )


def logged_rows(adds: Sequence[Add]) -> int | None:
    """Return the number of rows of files according to the log; None if a file lacks statistics."""
    counts = [json.loads(add.get("stats") or "{}").get("numRecords") for add in adds]
    masked = sum((add.get("deletionVector") or {}).get("cardinality", 0) for add in adds)
    return None if None in counts else sum(counts) - masked


def checksum(low: int | None, high: int | None) -> str:
    """Return the sums of both halves of the rows' hashes as one text."""
    return f"{low or 0:x}-{high or 0:x}"


def uncommitted(adds: Sequence[Add]) -> list[Add]:
    """Return uncommitted files with a first row id of 0; the rows themselves have their ids."""
    return [{"baseRowId": 0, "defaultRowCommitVersion": 0} | add for add in adds]


def hash_sums(hashed: Column) -> list[Column]:
    """Return aggregates: the number of rows, and the sums of both halves of their hashes."""
    low, high = hashed.bitwiseAND(_HASH_PART), F.shiftrightunsigned(hashed, 32)
    return [F.count("*").alias("rows"), F.sum(low).alias("low"), F.sum(high).alias("high")]


def as_pair(sums: Sequence[int | None] | None) -> tuple[int, str]:
    """Return the row count and the checksum for values of `hash_sums`; of None, no rows."""
    return (0, "") if sums is None else (sums[0] or 0, checksum(sums[1], sums[2]))


def whole_hash(rows: DataFrame, *, row_ids: bool, without: str | None = None) -> Column:
    """Return the hash of a row. The sums of both its halves identify a multiset of rows.

    Args:
        rows: the rows, as a transaction reads them.
        row_ids: whether the hash includes row ids and commit versions.
        without: a column that the hash leaves out.
    """
    fields = [field for field in rows.schema.fields if field.name != without]
    parts = [part for f in fields for part in _parts(F.col(quote(f.name)), f.dataType)]
    ids = [F.col("_metadata.row_id"), F.col("_metadata.row_commit_version")] if row_ids else []
    return F.xxhash64(F.lit(len(parts)), *parts, *ids)


def _parts(column: Column, kind: DataType) -> list[Column]:
    """Return a column and whether it is NULL, without a struct, which costs an object per value."""
    return [_hashable(column, kind)] if _is_odd(kind) else [column.isNull(), column]


def _hashable(column: Column, kind: DataType) -> Column:
    """Return a column that xxhash64 accepts and that distinguishes NULLs: no maps, no variants."""
    # xxhash64 skips NULLs, so (NULL, 1) and (1, NULL) would have the same hash.
    plain = column
    if isinstance(kind, T.MapType):
        entries = F.map_entries(column)
        pair = T.StructType().add("key", kind.keyType).add("value", kind.valueType)
        return _hashable(entries, T.ArrayType(pair))
    if isinstance(kind, VARIANTS):
        plain = F.to_json(column)
    elif isinstance(kind, T.ArrayType) and _is_odd(kind.elementType):
        plain = F.transform(column, lambda item: _hashable(item, kind.elementType))
    elif isinstance(kind, T.StructType) and _is_odd(kind):
        fields = [_hashable(column.getField(f.name), f.dataType) for f in kind.fields]
        plain = F.struct(*[field.alias(f"f{i}") for i, field in enumerate(fields)])
    return F.struct(column.isNull().alias("none"), plain.alias("value"))


def _is_odd(kind: DataType) -> bool:
    """Check whether a type is, or contains, a type that xxhash64 does not accept."""
    if isinstance(kind, T.ArrayType):
        return _is_odd(kind.elementType)
    if isinstance(kind, T.StructType):
        return any(_is_odd(field.dataType) for field in kind.fields)
    return isinstance(kind, (T.MapType, *VARIANTS))


def within(files: DataFrame, bounds: Bounds) -> list[str]:
    """Return the paths of the first files, as many as the bounds allow."""
    count = F.coalesce(F.get_json_object("stats", "$.numRecords").cast("long"), F.lit(0))
    first = files.select("path", "size", count.alias("rows")).limit(bounds.files).collect()
    paths: list[str] = []
    rows = size = 0
    for file, counting in zip(first, bounds.sizes(first), strict=True):
        rows, size = rows + file["rows"], size + counting
        if paths and (rows > bounds.rows or size > bounds.size):
            break
        paths.append(file["path"])
    return paths
