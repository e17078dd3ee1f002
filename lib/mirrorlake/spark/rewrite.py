"""Rewrites a chosen set of a table's files in one commit that changes no data.

The loop is the same for every layout: choose files, write better ones, prove that they hold the
same rows, commit; if another writer was quicker, start again. What "better" means is the writer's
business. Readers of changes and streams hear nothing of such a commit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.types import DataType

from mirrorlake.errors import ConflictError, RewriteError
from mirrorlake.spark.jvm import Add, DeltaTransaction, transaction
from mirrorlake.spark.older import VARIANTS
from mirrorlake.spark.sql import quote

Choose = Callable[[DataFrame], DataFrame]
_ATTEMPTS = 5
_HASH_PART = 0xFFFF_FFFF


@dataclass(frozen=True)
class Bounds:
    """How much one commit may rewrite: it stays short, so that others need not wait or fail.

    Attributes:
        files: most files.
        rows: most rows; files without statistics count as none.
        size: most bytes. At least one file is always taken.
    """

    files: int = 1_000
    rows: int = 50_000_000
    size: int = 8 * 2**30


@dataclass(frozen=True)
class Written:
    """What a writer did.

    Attributes:
        replaced: files that the new ones stand for.
        adds: the new files.
        kept: files that stay, with tags changed.
        proof: rows and checksum, from a writer that has compared both sides itself.
    """

    replaced: Sequence[Add]
    adds: Sequence[Add]
    kept: Sequence[Add] = ()
    proof: tuple[int, str] | None = None


Write = Callable[[DeltaTransaction, Sequence[Add]], Written]


@dataclass(frozen=True)
class Rewrite:
    """One rewrite that was committed.

    Attributes:
        version: the commit's version.
        files_in: files that were replaced.
        files_out: files in their place.
        bytes_in: bytes of the replaced files.
        bytes_out: bytes of the files in their place.
        rows: rows in, and as many out.
        checksum: of all rows with their ids, in any order.
        seconds: from the choice to the commit, of the attempt that won.
        attempts: how often it was tried.
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
    """Rewrites the files that are chosen.

    Args:
        spark: a classic session.
        path: the table's folder, full.
        choose: from the files of a version (the log's `add`s), those to rewrite, in order; asked
            again at each attempt.
        write: writes the new files.
        note: the commit's userMetadata.
        bounds: how much at most.
        confs: session settings while writing.

    Returns:
        What was committed, or None if nothing was chosen or the writer found nothing better.

    Raises:
        RewriteError: the new files do not hold the rows of the old ones; nothing was committed.
        ConflictError: other writers were quicker each time.
    """
    for attempt in range(1, _ATTEMPTS + 1):
        began = time.monotonic()
        with transaction(spark, path, note=note, confs=confs) as txn:
            paths = within(choose(txn.files()), bounds or Bounds())
            if not paths:
                return None
            written = write(txn, txn.take(paths))
            if not written.adds and not written.kept:
                return None
            rows, checksum = written.proof or check_rows(txn, written.replaced, written.adds)
            try:
                version = txn.commit_layout([*written.adds, *written.kept], written.replaced)
            except ConflictError:
                # What was written lies unreferenced in the folder; VACUUM takes it in time.
                if attempt == _ATTEMPTS:
                    raise
                continue
            return Rewrite(
                version,
                len(written.replaced),
                len(written.adds),
                sum(add["size"] for add in written.replaced),
                sum(add["size"] for add in written.adds),
                rows,
                checksum,
                time.monotonic() - began,
                attempt,
            )
    return None


def check_rows(
    txn: DeltaTransaction, before: Sequence[Add], after: Sequence[Add]
) -> tuple[int, str]:
    """Counts and sums up the rows of both sides, as Spark reads them, in one job.

    Returns:
        How many rows, and their checksum.

    Raises:
        RewriteError: they differ.
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
    """Refuses new files whose row count or checksum is not the old ones'.

    Raises:
        RewriteError: they differ.
    """
    if old != new:
        raise RewriteError(
            f"The new files have {new[0]:,} rows with checksum {new[1]}, the old ones {old[0]:,}"
            f" with {old[1]}.",
            hint="nothing was committed; please report the table's schema.",
        )


def checksum(low: int | None, high: int | None) -> str:
    """The sums of both halves of the rows' hashes as one text."""
    return f"{low or 0:x}-{high or 0:x}"


def uncommitted(adds: Sequence[Add]) -> list[Add]:
    """Files that are not committed have no first row id yet; their rows carry theirs."""
    return [{"baseRowId": 0, "defaultRowCommitVersion": 0} | add for add in adds]


def hash_sums(hashed: Column) -> list[Column]:
    """How many rows, and the sums of both halves of their hashes."""
    low, high = hashed.bitwiseAND(_HASH_PART), F.shiftrightunsigned(hashed, 32)
    return [F.count("*").alias("rows"), F.sum(low).alias("low"), F.sum(high).alias("high")]


def as_pair(sums: Sequence[int | None] | None) -> tuple[int, str]:
    """Rows and checksum, of what `hash_sums` found; none at all of None."""
    return (0, "") if sums is None else (sums[0] or 0, checksum(sums[1], sums[2]))


def whole_hash(rows: DataFrame, *, row_ids: bool, without: str | None = None) -> Column:
    """A row's hash; sums of both its halves tell a bag of rows.

    Args:
        rows: as a transaction reads them.
        row_ids: whether ids and commit versions count too.
        without: a column that does not count.
    """
    fields = [field for field in rows.schema.fields if field.name != without]
    parts = [part for f in fields for part in _parts(F.col(quote(f.name)), f.dataType)]
    ids = [F.col("_metadata.row_id"), F.col("_metadata.row_commit_version")] if row_ids else []
    return F.xxhash64(F.lit(len(parts)), *parts, *ids)


def _parts(column: Column, kind: DataType) -> list[Column]:
    """A column and whether it is NULL: side by side, for a struct would cost an object a value."""
    return [_hashable(column, kind)] if _is_odd(kind) else [column.isNull(), column]


def _hashable(column: Column, kind: DataType) -> Column:
    """A column that xxhash64 takes, and that tells NULL from a neighbour: no maps, no variants."""
    # xxhash64 skips NULLs, so (NULL, 1) and (1, NULL) would be alike.
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
    """Whether there is a type in it that xxhash64 refuses."""
    if isinstance(kind, T.ArrayType):
        return _is_odd(kind.elementType)
    if isinstance(kind, T.StructType):
        return any(_is_odd(field.dataType) for field in kind.fields)
    return isinstance(kind, (T.MapType, *VARIANTS))


def within(files: DataFrame, bounds: Bounds) -> list[str]:
    """The first files, as many as the bounds allow."""
    count = F.coalesce(F.get_json_object("stats", "$.numRecords").cast("long"), F.lit(0))
    first = files.select("path", "size", count.alias("rows")).limit(bounds.files).collect()
    paths: list[str] = []
    rows = size = 0
    for file in first:
        rows, size = rows + file["rows"], size + file["size"]
        if paths and (rows > bounds.rows or size > bounds.size):
            break
        paths.append(file["path"])
    return paths
