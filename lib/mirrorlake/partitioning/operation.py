"""One operation: some mixed files out, homogeneous ones in, proved and recorded before the commit.

`partition` takes the unpartitioned files that were created first, within the policy's bounds.
`merge` puts small files together that belong to one partition; files of different ones never meet.
Both are one commit that changes no data. If another writer was quicker with one of the files, the
operation starts again from what there is now.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from enum import Enum
from functools import partial

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType, TimestampNTZType, TimestampType

from mirrorlake.delta.snapshot import SORTED_TAG, physical_names
from mirrorlake.delta.table import TableHandle
from mirrorlake.names import TableName
from mirrorlake.notices import noop
from mirrorlake.partitioning import receipts, tags
from mirrorlake.partitioning.groups import KeyColumns, look_at, numbered
from mirrorlake.partitioning.policy import Policy
from mirrorlake.partitioning.receipts import MERGE, PARTITION, Receipt
from mirrorlake.partitioning.statistics import newest_files
from mirrorlake.partitioning.store import Setting, read_setting
from mirrorlake.spark.jvm import Add, DeltaTransaction
from mirrorlake.spark.older import spread
from mirrorlake.spark.rewrite import (
    Bounds,
    Written,
    as_pair,
    compare_sides,
    hash_sums,
    rewrite_files,
    whole_hash,
)
from mirrorlake.spark.sql import quote
from mirrorlake.storage.files import Storage
from mirrorlake.storage.lease import Lease, is_held, only_one

MOST_FILES = 1_000
_PATIENCE = 1.0  # seconds
_TASK, _HASH = "__mirrorlake_task", "__mirrorlake_hash"
# Files are read more often than written, and written in the background: ZSTD at a level that takes
# a little longer, and timestamps as the standard's microseconds where Spark's default is INT96,
# half as large again.
CONFS = {
    "spark.sql.parquet.compression.codec": "zstd",
    "parquet.compression.codec.zstd.level": "9",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}


class Step(Enum):
    """What an operation has just done; progress displays listen, and tests kill it in between."""

    RECOVERED = "settled"
    CHOSEN = "chosen"
    COUNTED = "counted"
    WRITTEN = "written"
    PROVED = "proved"
    RECORDED = "recorded"
    COMMITTED = "committed"
    DONE = "done"


StepListener = Callable[[TableName, Step], None]


@dataclass(frozen=True)
class PlannedOperation:
    """An operation that a dry run found to do.

    Attributes:
        kind: `partition` or `merge`.
        files, rows, size: what it would read; bytes as stored.
    """

    kind: str
    files: int
    rows: int
    size: int

    def __repr__(self) -> str:
        return (
            f"would {self.kind} {self.files} files of {self.size:,} bytes with {self.rows:,} rows"
        )


def table_lock(storage: Storage, name: TableName) -> AbstractContextManager[Lease]:
    """Lets one process at a time work on a table; raises as `only_one`."""
    return only_one(storage, _lock_path(name), _PATIENCE, f"partitioning of {name}")


def is_at_work(storage: Storage, name: TableName) -> bool:
    """Whether a process is partitioning the table now."""
    return is_held(storage, _lock_path(name))


def _lock_path(name: TableName) -> str:
    return f"{name.partitioning_path}/lock"


def run_operation(
    table: TableHandle, *, kind: str = PARTITION, on_step: StepListener = noop
) -> Receipt | None:
    """Runs one operation on a table.

    Args:
        table: which table; its session is a classic one.
        kind: `partition` or `merge`.
        on_step: called after every step.

    Returns:
        What was committed, or None if there is no policy or nothing to do.

    Raises:
        BusyError: another process partitions this table.
        ConflictError: other writers were quicker each time.
        RewriteError: the new files are not what they should be; nothing was committed.
        UsageError: the policy no longer fits the table, or there is no JVM to commit through.
    """
    storage, name = table.storage, table.name
    with table_lock(storage, name) as lease:
        receipts.recover(storage, name, partial(receipts.fence_off, table))
        on_step(name, Step.RECOVERED)
        setting = read_setting(storage, name)
        if setting is None:
            return None
        job = _Job(table, setting, kind, on_step, lease)
        commit = rewrite_files(
            table.spark,
            table.path,
            lambda files: _candidates(files, setting, kind),
            job.write,
            note=json.dumps({"mirrorlake": "partitioning", "operation": job.id}),
            bounds=_bounds(setting.policy),
            confs=CONFS,
        )
        if commit is None or job.receipt is None:
            return None
        on_step(name, Step.COMMITTED)
        done = replace(job.receipt, version=commit.version)
        receipts.write_receipt(storage, name, done)
        on_step(name, Step.DONE)
        return done


def plan_operations(table: TableHandle) -> tuple[PlannedOperation, ...]:
    """What operations would take of the files that are there now; nothing is written.

    Merges of files that these operations would make are not known yet, and so are not listed.

    Raises:
        UsageError: the policy no longer fits the table.
    """
    setting = read_setting(table.storage, table.name)
    if setting is None:
        return ()
    files, policy = newest_files(table), setting.policy
    bounds = _bounds(policy)
    found: dict[str, list[PlannedOperation]] = {PARTITION: [], MERGE: []}
    for kind, planned in found.items():
        listed = _candidates(files, setting, kind).select(
            "size", tags.logged_rows().alias("logged"), tags.row_count().alias("rows")
        )
        taken = Bounds(0, 0, 0)
        # One file after the other: the driver holds none of the list.
        for file in listed.toLocalIterator():
            more = Bounds(taken.files + 1, taken.rows + file["logged"], taken.size + file["size"])
            fits = more.rows <= bounds.rows and more.size <= bounds.size
            if planned and fits and more.files <= bounds.files:
                taken, last = more, planned.pop()
            else:
                taken = Bounds(1, file["logged"], file["size"])
                last = PlannedOperation(kind, 0, 0, 0)
            planned.append(
                PlannedOperation(kind, taken.files, last.rows + file["rows"], taken.size)
            )
    # The last ones wait where they have fewer rows than an operation is worth.
    waiting, planned = 0, found[PARTITION]
    while planned and (waiting := waiting + planned[-1].rows) < policy.min_rows:
        planned.pop()
    return (*found[PARTITION], *found[MERGE])


def _bounds(policy: Policy) -> Bounds:
    return Bounds(MOST_FILES, policy.row_limit, policy.size_limit)


def _candidates(files: DataFrame, setting: Setting, kind: str) -> DataFrame:
    return (tags.small_files if kind == MERGE else tags.pending_files)(files, setting)


def _sort_columns(schema: StructType, policy: Policy) -> tuple[str, ...]:
    """The columns to sort a file by: the keys, then the table's first timestamp.

    Rows of one key that lie in the order of time have most in common with their neighbours; a
    filter on the time then skips pages, too.
    """
    kinds = (TimestampType, TimestampNTZType)
    times = [field.name for field in schema.fields if isinstance(field.dataType, kinds)]
    return policy.columns if policy.range is not None else (*policy.columns, *times[:1])


class _Job:
    """One operation on one table: how to write the chosen files, each attempt from the start."""

    def __init__(
        self, table: TableHandle, setting: Setting, kind: str, on_step: StepListener, lease: Lease
    ) -> None:
        self.id = f"{datetime.now(timezone.utc):%Y%m%dT%H%M%S%f}-{uuid.uuid4().hex[:8]}"
        policy = self._policy = setting.policy
        self._table, self._setting, self._kind, self._on_step = table, setting, kind, on_step
        self._lease, self._began = lease, time.monotonic()
        self._at = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        snapshot = table.snapshot()
        self._table_id = snapshot.metadata["id"]
        with_zone = policy.range is None or snapshot.schema[policy.range.column] == "timestamp"
        self._keys = KeyColumns(policy, with_zone=with_zone)
        self._sorted = physical_names(snapshot.metadata)[policy.columns[0]]
        features = snapshot.writer_features
        # On such a table it keeps a plain OPTIMIZE away; elsewhere it means nothing.
        self._provider = {"clusteringProvider": tags.PROVIDER} if "clustering" in features else {}
        self.receipt: Receipt | None = None

    def write(self, txn: DeltaTransaction, chosen: Sequence[Add]) -> Written:
        """Writes homogeneous files, proves them, and writes the receipt."""
        storage, name = self._table.storage, self._table.name
        self._on_step(name, Step.CHOSEN)
        receipts.heed_fence(txn, storage, self.id, name)
        if self.receipt is not None:
            # Another writer was quicker: no version has what the attempt before this one wrote.
            receipts.delete_files(storage, name, self.receipt)
        column = self._setting.bucket_column
        sources = txn.rows(chosen)
        fingerprint = self._setting.fingerprint
        if self._kind == PARTITION:
            done = tags.partitioned_bins(txn.files(), fingerprint)
            are_left = all(map(tags.is_left, chosen))
            groups = look_at(sources, self._keys, done, are_left=are_left)
        else:
            groups = tags.groups_of_tags(chosen)
        self._on_step(name, Step.COUNTED)
        hashed = whole_hash(sources, row_ids=txn.tracks_rows, without=column)
        hashed_rows = txn.rows(chosen, keep_ids=True).withColumn(_HASH, hashed)
        rows_in, seen = txn.watched(hashed_rows, hash_sums(F.col(_HASH)))
        placed = rows_in.drop(_HASH)
        if column is not None:
            placed = placed.withColumn(column, self._keys.bucket())
        # One task per group, and its rows in order.
        placed = spread(numbered(placed, self._keys, groups, _TASK), groups.tasks, _TASK)
        order = map(quote, _sort_columns(sources.schema, self._policy))
        written = txn.write(placed.sortWithinPartitions(*order).drop(_TASK), checked=True)
        self._on_step(name, Step.WRITTEN)
        proofs = receipts.prove_files(txn, written, self._keys, groups, derived=column)
        sums = [sum(proof[what] for proof in proofs.values()) for what in ("rows", "low", "high")]
        rows, checksum = as_pair(sums)
        if as_pair(seen()) != (rows, checksum) or receipts.logged_rows(chosen) not in (None, rows):
            # Neither refutes anything: Spark sums up a repeated task's rows twice, and others'
            # statistics may be wrong. So the old files are asked, in a job of their own.
            compare_sides(as_pair(sources.agg(*hash_sums(hashed)).first()), (rows, checksum))
        adds = []
        for add in written:
            proof = proofs[receipts.file_name(add["path"])]
            found = tags.partition_tags(proof["task"], groups, self._policy, fingerprint)
            least, most = tags.arrival(chosen, found)
            # A file is as old as what it was made of: what goes by age must not take it for new.
            aged = add | {"modificationTime": most // 1000}
            arrived = {tags.ARRIVED: f"{least}/{most}"}
            if groups.is_rest(proof["task"]):  # as unpartitioned as the files that it was made of
                adds.append(aged | {"tags": arrived})
                continue
            found |= arrived | {SORTED_TAG: self._sorted}
            if column is not None:
                found[tags.STORED] = column
            if self._policy.range is not None and self._policy.range.override_creation_time:
                found[tags.CREATED] = f"{proof['least']}/{proof['most']}"
            adds.append(aged | {"tags": found} | self._provider)
        self._on_step(name, Step.PROVED)
        self.receipt = Receipt(
            id=self.id,
            kind=self._kind,
            at=self._at,
            table_id=self._table_id,
            fingerprint=fingerprint,
            read_version=txn.version,
            rows=rows,
            checksum=checksum,
            files_in=tuple(add["path"] for add in chosen),
            files_out=tuple(add["path"] for add in adds),
            bytes_in=sum(add["size"] for add in chosen),
            bytes_out=sum(add["size"] for add in adds),
            partitions=len({(g.bucket, g.bin) for g in groups.groups}),
            outlier_rows=sum(p["rows"] for p in proofs.values() if groups.is_outlier(p["task"])),
            seconds=round(time.monotonic() - self._began, 3),
        )
        receipts.write_receipt(storage, name, self.receipt)
        self._on_step(name, Step.RECORDED)
        self._lease.confirm()
        return Written(chosen, adds, proof=(rows, checksum))
