"""Compact a mirrored table in small steps, so that no cycle takes much longer than the others.

One step rewrites some small files, and the files with the largest share of deleted rows, see
`limit_compaction`. Several tasks rewrite the parts of a large file. Delta's OPTIMIZE uses one task
for it; it rewrites the files that `_is_supported` excludes.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from pyspark.sql import SparkSession

from mirrorlake.delta.actions import LiveFiles
from mirrorlake.delta.exchange import (
    INLINED,
    can_update,
    copied_rows,
    count_deleted,
    count_rows,
    know_files,
)
from mirrorlake.delta.log_files import Action
from mirrorlake.delta.snapshot import Snapshot, read_snapshot
from mirrorlake.errors import RewriteError
from mirrorlake.mirror.apply import writer_session
from mirrorlake.spark.jvm import DeltaTransaction, can_exchange, transaction
from mirrorlake.spark.rewrite import logged_rows
from mirrorlake.spark.sql import delta_name, is_conflict
from mirrorlake.storage.files import Storage

_MIB = 2**20
_LARGEST_FILE = 128 * _MIB
_TINY_FILE = _MIB  # merging these is always cheap
# One compaction rewrites at most this many bytes, this share of the table's bytes, or this share of
# its files: whichever is most.
_REWRITTEN_BYTES, _REWRITTEN_SHARE, _REWRITTEN_FILES = 8 * _MIB, 1 / 32, 1 / 8
_FEW_DELETED, _MOST_DELETED = 10_000, 0.2  # rows, and their share in the table's files
_FAR_TOO_MANY = 2 * _MOST_DELETED  # then all files with many deleted rows are rewritten


@dataclass(frozen=True)
class CompactionLimits:
    """Conditions on the files that one compaction rewrites: at least one of them is true.

    Attributes:
        below: the file has fewer bytes.
        deleted: the share of deleted rows in the file is larger.
        merged: the largest sum of the bytes of the files that are merged into one.
        complete: whether this compaction merges all small files that are due.
    """

    below: int
    deleted: float
    merged: int
    complete: bool


def limit_compaction(files: Sequence[Action], *, merges: bool) -> CompactionLimits | None:
    """Return the limits of the next compaction.

    Small files are merged if none of them is larger than twice the others together, or than 1 MiB.
    So a row is rewritten again only if its file is small compared with the newer ones, and the
    number of files grows with the logarithm of the number of commits. The sum of their sizes is at
    most the greatest of 8 MiB, 1/32 of the table's bytes, and the size of the smallest eighth of
    its files, and never more than 128 MiB.

    Files with deleted rows are rewritten if more than 20 % of the table's rows, and more than
    10,000 rows, are deleted. The files with the largest share are rewritten first. After the first
    file, the limit is 8 MiB or 1/32 of the table's bytes, whichever is greater. If the first file
    does not fit beside the small files, only the smallest of these is merged with it. If more than
    40 % of the rows are deleted, there is no limit.

    Args:
        files: the table's files, see `LiveFiles.of`.
        merges: whether small files are merged. If false, the smallest file is only rewritten
            together with one that has deleted rows.

    Returns:
        None if fewer than two files are due: OPTIMIZE does not rewrite a single file.
    """
    deleted = count_deleted(files)
    rows = deleted + count_rows(files)
    too_many = deleted > max(_FEW_DELETED, _MOST_DELETED * rows)
    if not files or not (merges or too_many):
        return None
    sizes = sorted(int(add["size"]) for add in files)
    limit = max(_REWRITTEN_BYTES, sum(sizes) * _REWRITTEN_SHARE)
    eighth = sum(sizes[: int(len(sizes) * _REWRITTEN_FILES)])
    most = min(max(limit, eighth), _LARGEST_FILE)
    all_small = small = _small_files(sizes, most, merges=merges)
    left = sys.maxsize if deleted > _FAR_TOO_MANY * rows else limit - sum(small)
    worst = _worst_files(files, left) if too_many else []
    if worst and int(worst[0]["size"]) > max(left, *small[-1:], 0):
        small = small[:1]  # the others are merged after the next commit
    below = small[-1] + 1 if small else 0
    if len(worst) == 1 and not small:
        others = [int(add["size"]) for add in files if add is not worst[0]]
        below = min(others, default=-1) + 1
    due = [size for size in sizes if size < below]
    due += [size for add in worst if (size := int(add["size"])) >= below]
    if len(due) < 2:
        return None
    # OPTIMIZE adds up files in the order of their sizes, and skips a file that has no partner.
    merged = max(_LARGEST_FILE, 2 * max(due))
    least = _deleted_share(worst[-1]) * (1 - 1e-9) if worst else 1.0
    complete = small == all_small and sum(small) < most / 2
    return CompactionLimits(below, least, merged, complete)


def _small_files(sizes: Sequence[int], limit: float, *, merges: bool) -> Sequence[int]:
    """Return the sizes of small files to merge.

    Args:
        sizes: the sizes of all files in bytes, ascending.
        limit: the largest sum of the result.
        merges: if false, return at most one file.
    """
    found = 0
    for number, (size, total) in enumerate(zip(sizes, accumulate(sizes), strict=True), 1):
        if total > limit or (number > 1 and not merges):
            break
        if size <= max(_TINY_FILE, 2 * (total - size)):
            found = number
    return sizes[:found]


def _worst_files(files: Sequence[Action], limit: float) -> list[Action]:
    """Return the files with the largest share of deleted rows, beginning with the largest.

    Args:
        files: the table's files.
        limit: the largest sum of the result's bytes, if it has more than one file.
    """
    worst: list[Action] = []
    for add in sorted(files, key=_deleted_share, reverse=True):
        limit -= int(add["size"])
        if _deleted_share(add) <= _MOST_DELETED / 2 or (limit < 0 and worst):
            break
        worst.append(add)
    return worst


def _deleted_share(add: Action) -> float:
    """Return the share of deleted rows in a file; 0 if its number of rows is unknown.

    OPTIMIZE always rewrites a file with a deletion vector and an unknown number of rows.
    """
    deleted = count_deleted([add])
    return deleted / (deleted + int(add["records"])) if int(add["records"]) >= 0 and deleted else 0


def compact(
    spark: SparkSession, storage: Storage, folder: str, files: LiveFiles, limits: CompactionLimits
) -> bool:
    """Rewrite files of a Delta table; rows do not change, and readers are not affected.

    Args:
        spark: a session.
        storage: the lake's files.
        folder: the folder of the table within the lake.
        files: the table's files.
        limits: the conditions on the files, see `limit_compaction`.

    Returns:
        False after a conflict with another writer; the next commit can try again.

    Raises:
        RewriteError: the new files have another number of rows; nothing was committed.
    """
    session, path = writer_session(spark), storage.path(folder)
    for name, value in {
        "spark.databricks.delta.optimize.maxDeletedRowsRatio": limits.deleted,
        "spark.databricks.delta.optimize.minFileSize": limits.below,
        "spark.databricks.delta.optimize.maxFileSize": limits.merged,
        **INLINED,
    }.items():
        session.conf.set(name, str(value))
    try:
        if can_exchange(session):
            with transaction(session, path, own=False) as txn:
                snapshot = read_snapshot(storage, folder, txn.version)
                due = _due_files(files.of(txn.version), limits)
                if snapshot and _is_supported(snapshot, due) and _rewrite(txn, due):
                    return True
        session.sql(f"OPTIMIZE {delta_name(path)}").collect()
    except Exception as error:
        if is_conflict(error):
            return False
        raise
    return True


def _due_files(files: Sequence[Action], limits: CompactionLimits) -> list[Action]:
    """Return the files that fulfil one of the conditions."""
    return [
        add
        for add in files
        if int(add["size"]) < limits.below or _deleted_share(add) > limits.deleted
    ]


def _is_supported(snapshot: Snapshot, due: Sequence[Action]) -> bool:
    """Check whether `_rewrite` supports a table and files; if not, use OPTIMIZE."""
    is_plain = not snapshot.partition_columns and "clustering" not in snapshot.writer_features
    is_limited = sum(int(add["size"]) for add in due) <= _LARGEST_FILE
    return is_plain and is_limited and can_update(snapshot)


def _rewrite(txn: DeltaTransaction, due: Sequence[Action]) -> bool:
    """Replace files by one new file, or by one for each part of a large file.

    Returns:
        False if the number of rows of a file is unknown; then nothing is done.
    """
    know_files(txn, due)  # otherwise `take` runs a job that reads the log
    taken = txn.take([add["path"] for add in due])
    expected = logged_rows(taken)
    if expected is None:
        return False
    rows, parts = copied_rows(txn, due)
    adds = txn.write(rows.coalesce(max(1, parts)), checked=True)
    written = logged_rows(adds)
    if written != expected:
        raise RewriteError(
            f"A compaction read {expected:,} rows, but the new files have {written}, so nothing"
            " was committed.",
            hint="try again.",
        )
    txn.commit_layout(adds, taken)
    return True
