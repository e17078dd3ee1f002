"""What new files really hold, read back before they are committed: rows, checksum, partition."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import unquote

from pyspark.sql import Row
from pyspark.sql import functions as F

from mirrorlake.errors import RewriteError
from mirrorlake.layout.partitioning.groups import Groups, KeyColumns, numbered
from mirrorlake.spark.gateway import Add, DeltaTransaction
from mirrorlake.spark.rewrite import checksum, row_hash, uncommitted
from mirrorlake.spark.sql import quote

_TASK = "__mirrorlake_task"


@dataclass(frozen=True)
class FileProof:
    """One new file, as it was read back.

    Attributes:
        rows: how many.
        low, high: the sums of both halves of their hashes.
        task: the number of their group.
        least, most: of the range key, NULL as the reference; microseconds since 1970.
    """

    rows: int
    low: int
    high: int
    task: int
    least: int
    most: int


def prove_files(
    txn: DeltaTransaction,
    adds: Sequence[Add],
    keys: KeyColumns,
    groups: Groups,
    *,
    derived: str | None = None,
) -> dict[str, FileProof]:
    """Reads new files back, in one job.

    Args:
        txn: the transaction that wrote them.
        adds: the files.
        keys: the policy's.
        groups: of the operation.
        derived: the column that operations fill, which the proof leaves out.

    Returns:
        By the file's name, what it holds.

    Raises:
        RewriteError: a file has rows of two partitions, or none at all.
    """
    if not adds:
        return {}
    rows = txn.rows(uncommitted(adds))
    low, high = row_hash(rows, row_ids=txn.tracks_rows, without=derived)
    columns = [F.col(quote(column)) for column in keys.policy.columns]
    file, left, right = (f"{_TASK}_{part}" for part in ("file", "low", "high"))
    narrow = rows.select(
        *columns, F.col("_metadata.file_name").alias(file), low.alias(left), high.alias(right)
    )
    placed = numbered(narrow, keys, groups, _TASK)
    moment = keys.moment()
    found = placed.groupBy(file).agg(
        F.count("*").alias("rows"),
        F.sum(left).alias("low"),
        F.sum(right).alias("high"),
        *[end(_TASK).alias(f"{name}_task") for name, end in (("min", F.min), ("max", F.max))],
        F.min(moment).alias("least"),
        F.max(moment).alias("most"),
    )
    proofs = {unquote(line[file]): _proof(line, line[file]) for line in found.collect()}
    if missing := [add["path"] for add in adds if file_name(add) not in proofs]:
        raise RewriteError(f"{missing[0]} can't be read back.", hint="nothing was committed.")
    return proofs


def total(proofs: Iterable[FileProof]) -> tuple[int, str]:
    """Rows and checksum of all files together."""
    listed = list(proofs)
    low, high = sum(proof.low for proof in listed), sum(proof.high for proof in listed)
    return sum(proof.rows for proof in listed), checksum(low, high)


def logged_rows(adds: Sequence[Add]) -> int | None:
    """The rows of files as the log counts them; None if it does not of each."""
    counts = [json.loads(add.get("stats") or "{}").get("numRecords") for add in adds]
    masked = sum((add.get("deletionVector") or {}).get("cardinality", 0) for add in adds)
    return None if None in counts else sum(counts) - masked


def file_name(add: Add) -> str:
    """A file's own name, without the folders of Delta's partitions."""
    return unquote(add["path"]).rpartition("/")[2]


def _proof(line: Row, file: str) -> FileProof:
    if line["min_task"] != line["max_task"]:
        raise RewriteError(
            f"{file} has rows of more than one partition.",
            hint="nothing was committed; please report the table's schema.",
        )
    return FileProof(
        line["rows"], line["low"], line["high"], line["min_task"], line["least"], line["most"]
    )
