"""One operation: some mixed files out, homogeneous ones in, proved and receipted before the commit.

`partition` takes the files of the tail that were created first, within the policy's bounds. `merge`
puts small files together that belong to one partition; files of different ones never meet. Both are
one commit that changes no data. If another writer was quicker with one of the files, the operation
starts again from what there is now.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timezone

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from mirrorlake.delta_log import physical_names, read_snapshot
from mirrorlake.errors import BusyError, TableNotFoundError
from mirrorlake.layout.partitioning import tags
from mirrorlake.layout.partitioning.encoding import CONFS, sort_columns
from mirrorlake.layout.partitioning.groups import (
    Groups,
    KeyColumns,
    is_outlier,
    look_at,
    numbered,
)
from mirrorlake.layout.partitioning.merging import groups_of_tags, small_files
from mirrorlake.layout.partitioning.policy import Policy
from mirrorlake.layout.partitioning.proof import file_name, logged_rows, prove_files, total
from mirrorlake.layout.partitioning.receipts import (
    MERGE,
    PARTITION,
    Receipt,
    commit_metadata,
    delete_files,
    new_id,
    recover,
    write_receipt,
)
from mirrorlake.layout.partitioning.steps import Step, StepListener
from mirrorlake.layout.partitioning.store import Setting, now_micros, read_setting
from mirrorlake.layout.partitioning.tagging import tagged
from mirrorlake.mirror.lock import only_one
from mirrorlake.mirror.options import noop
from mirrorlake.names import TableName
from mirrorlake.spark.gateway import Add, DeltaTransaction
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
from mirrorlake.storage import Storage

MOST_FILES = 1_000
_TASK, _HASH = "__mirrorlake_task", "__mirrorlake_hash"


@contextmanager
def table_lock(storage: Storage, name: TableName, patience: float = 1) -> Iterator[None]:
    """Lets one process at a time work on a table, on this machine.

    Raises:
        BusyError: another one is at it.
    """
    path = f"{name.partitioning_path}/lock"
    with only_one(storage, path, patience, f"partitioning of {name}"):
        yield


def is_at_work(storage: Storage, name: TableName) -> bool:
    """Whether a process of this machine is partitioning the table now."""
    try:
        with table_lock(storage, name, 0):
            return False
    except BusyError:
        return True


def run_operation(
    spark: SparkSession,
    storage: Storage,
    name: TableName,
    *,
    kind: str = PARTITION,
    on_step: StepListener = noop,
) -> Receipt | None:
    """Runs one operation on a table.

    Args:
        spark: a classic session.
        storage: the lake's files.
        name: which table.
        kind: `partition` or `merge`.
        on_step: hears of every step.

    Returns:
        What was committed, or None if there is no policy or nothing to do.

    Raises:
        BusyError: another process partitions this table.
        ConflictError: other writers were quicker each time.
        RewriteError: the new files are not what they should be; nothing was committed.
        UsageError: the policy no longer fits the table, or there is no JVM to commit through.
    """
    with table_lock(storage, name):
        recover(storage, name, locked=storage.local is not None)
        on_step(name, Step.RECOVERED)
        setting = read_setting(storage, name)
        if setting is None or setting.policy is None:
            return None
        job = _Job(storage, name, setting, setting.policy, kind, on_step)
        commit = rewrite_files(
            spark,
            storage.path(name.table_path),
            job.choose,
            job.write,
            note=commit_metadata(job.id),
            bounds=Bounds(MOST_FILES, setting.policy.row_limit, setting.policy.size_limit),
            confs=CONFS,
        )
        if commit is None or job.receipt is None:
            return None
        on_step(name, Step.COMMITTED)
        done = replace(job.receipt, version=commit.version)
        write_receipt(storage, name, done)
        on_step(name, Step.DONE)
        return done


class _Job:
    """One operation on one table: what to choose, and how to write it."""

    def __init__(
        self,
        storage: Storage,
        name: TableName,
        setting: Setting,
        policy: Policy,
        kind: str,
        on_step: StepListener,
    ) -> None:
        self.id = new_id()
        self._storage, self._name, self._setting, self._policy = storage, name, setting, policy
        self._kind = kind
        self._on_step = on_step
        self._began = time.monotonic()
        self._at = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        snapshot = read_snapshot(storage, name.table_path)
        if snapshot is None:
            raise TableNotFoundError(f"There is no table {name} in the lake.")
        self._table_id = snapshot.metadata["id"]
        with_zone = policy.range is None or snapshot.schema[policy.range.column] == "timestamp"
        self._keys = KeyColumns(policy, with_zone=with_zone)
        self._sorted = physical_names(snapshot.metadata)[policy.columns[0]]
        features = snapshot.protocol.get("writerFeatures") or []
        # On such a table it keeps a plain OPTIMIZE away; elsewhere it means nothing.
        self._provider = {"clusteringProvider": tags.PROVIDER} if "clustering" in features else {}
        self.receipt: Receipt | None = None

    def choose(self, files: DataFrame) -> DataFrame:
        """The files to rewrite; none while they have fewer rows than an operation is worth."""
        if self._kind == MERGE:
            return small_files(files, self._setting, self._policy)
        pending = tags.pending_files(files, self._setting, now_micros())
        if self._policy.min_rows:
            total = pending.agg(F.sum(tags.row_count())).first()
            if total is None or (total[0] or 0) < self._policy.min_rows:
                return pending.where("false")
        return pending

    def write(self, txn: DeltaTransaction, chosen: Sequence[Add]) -> Written:
        """Writes homogeneous files, proves them, and puts the receipt down."""
        self._on_step(self._name, Step.CHOSEN)
        if self.receipt is not None:
            # Another writer was quicker: what the attempt before this one wrote is nobody's.
            delete_files(self._storage, self._name, self.receipt)
        derived = self._setting.bucket_column
        sources = txn.rows(chosen)
        partition = self._kind == PARTITION
        groups = look_at(sources, self._keys) if partition else groups_of_tags(chosen)
        self._on_step(self._name, Step.COUNTED)
        hashed = whole_hash(sources, row_ids=txn.tracks_rows, without=derived)
        hashed_rows = txn.rows(chosen, keep_ids=True).withColumn(_HASH, hashed)
        rows_in, seen = txn.watched(hashed_rows, hash_sums(F.col(_HASH)))
        order = sort_columns(sources.schema, self._policy)
        written = txn.write(self._arrange(rows_in.drop(_HASH), groups, order), checked=True)
        self._on_step(self._name, Step.WRITTEN)
        proofs = prove_files(txn, written, self._keys, groups, derived=derived)
        rows, checksum = total(proofs.values())
        if as_pair(seen()) != (rows, checksum) or logged_rows(chosen) not in (None, rows):
            # Neither refutes anything: Spark sums up a repeated task's rows twice, and others'
            # statistics may be wrong. So the old files are asked, in a job of their own.
            compare_sides(as_pair(sources.agg(*hash_sums(hashed)).first()), (rows, checksum))
        adds = [
            tagged(
                add,
                proofs[file_name(add)],
                policy=self._policy,
                fingerprint=self._setting.fingerprint,
                groups=groups,
                sources=chosen,
                sorted_by=self._sorted,
                stored=derived,
            )
            | self._provider
            for add in written
        ]
        self._on_step(self._name, Step.PROVED)
        self.receipt = Receipt(
            id=self.id,
            kind=self._kind,
            at=self._at,
            table_id=self._table_id,
            fingerprint=self._setting.fingerprint,
            read_version=txn.version,
            rows=rows,
            checksum=checksum,
            files_in=tuple(add["path"] for add in chosen),
            files_out=tuple(add["path"] for add in adds),
            bytes_in=sum(add["size"] for add in chosen),
            bytes_out=sum(add["size"] for add in adds),
            partitions=len({(g.bucket, g.bin) for g in groups.groups}),
            outlier_rows=sum(p.rows for p in proofs.values() if is_outlier(p.task, groups)),
            seconds=round(time.monotonic() - self._began, 3),
        )
        write_receipt(self._storage, self._name, self.receipt)
        self._on_step(self._name, Step.RECORDED)
        return Written(chosen, adds, proof=(rows, checksum))

    def _arrange(self, rows: DataFrame, groups: Groups, order: Sequence[str]) -> DataFrame:
        """One task a group, and its rows in order."""
        if self._setting.bucket_column is not None:
            rows = rows.withColumn(self._setting.bucket_column, self._keys.bucket())
        placed = numbered(rows, self._keys, groups, _TASK).repartitionById(groups.count, _TASK)
        return placed.sortWithinPartitions(*map(quote, order)).drop(_TASK)
