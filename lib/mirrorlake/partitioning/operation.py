"""Run one operation on a table: rewrite mixed files, prove that no row changed, write a receipt.

`partition` takes the unpartitioned files that were created first, within the policy's bounds.
`merge` combines small files of one partition; files of different partitions never meet. Both are
one commit that changes no data. If another writer has changed one of the files, the operation
starts again from the newest version.

The receipt is written before the commit, and the commit's metadata names it. After a crash, the
next process finds in the table's log whether the operation was committed. If not, no version
contains its files, and they are deleted. On an object store the operation may only be slow and
continue. A commit of no rows fences it off first, which Delta treats as a conflict.

Replaced files stay for as long as the table keeps removed files, for readers of older versions.
Then `vacuum` deletes them, except those that frames and feeds need.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta, timezone
from enum import Enum
from functools import partial
from typing import Any
from urllib.parse import unquote

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.types import StructType, TimestampNTZType, TimestampType

from mirrorlake.delta.commits import read_commit_info, versions
from mirrorlake.delta.snapshot import physical_names
from mirrorlake.delta.table import TableHandle
from mirrorlake.errors import BusyError, ConflictError, RewriteError
from mirrorlake.history.vacuum import vacuum_table
from mirrorlake.history.versions import FILE_RETENTION, retention
from mirrorlake.layout.vorder import SORTED_TAG
from mirrorlake.names import TableName
from mirrorlake.notices import noop
from mirrorlake.partitioning.groups import (
    ARRIVED,
    CREATED,
    PROVIDER,
    STORED,
    Groups,
    KeyColumns,
    arrival,
    groups_of_tags,
    is_left,
    look_at,
    numbered,
    partition_tags,
    partitioned_bins,
    pending_files,
    physical_row_count,
    row_count,
    small_files,
)
from mirrorlake.partitioning.policy import Policy, Setting, to_micros
from mirrorlake.partitioning.statistics import file_name, newest_files
from mirrorlake.partitioning.store import read_setting
from mirrorlake.spark.gateway import Add, DeltaTransaction, RowActions, transaction
from mirrorlake.spark.older import spread
from mirrorlake.spark.rewrite import (
    Bounds,
    Written,
    as_pair,
    compare_sides,
    hash_sums,
    rewrite_files,
    uncommitted,
    whole_hash,
)
from mirrorlake.spark.sql import quote
from mirrorlake.storage.files import Storage
from mirrorlake.storage.kept import read_kept
from mirrorlake.storage.lease import Lease, is_held, only_one

_FORMAT = 1
PARTITION, MERGE = "partition", "merge"
ABANDONED = -1
_KEEP = timedelta(days=30)
_TRIES = 5
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


@dataclass(frozen=True)
class Dropped:
    """What was, or would be, dropped.

    Attributes:
        table: which table.
        files, rows, size: what goes; bytes as stored.
        version: the commit; None for a dry run, or if nothing was old enough.
    """

    table: str
    files: int
    rows: int
    size: int
    version: int | None

    def __repr__(self) -> str:
        verb = "would drop" if self.version is None else "dropped"
        return f"{self.table}: {verb} {self.files} files with {self.rows:,} rows"


@dataclass(frozen=True)
class Receipt:
    """One operation.

    Attributes:
        id: the commit's note holds it.
        kind: `partition` makes homogeneous files, `merge` puts those of one partition together.
        at: when the operation began, ISO-8601 UTC.
        table_id: the table's own id, which a table made in its place does not have.
        fingerprint: the policy's, as in the files' tags.
        read_version: the version that was read.
        rows: rows in, and as many out.
        checksum: of all rows with their ids, in any order; the same for both sides.
        files_in, files_out: paths as the log has them.
        bytes_in, bytes_out: their sizes.
        partitions: how many partitions the new files make.
        outlier_rows: rows that went to files of their own.
        seconds: from the choice of files to the receipt.
        version: the commit; None while nobody knows, -1 if there was none.
    """

    id: str
    kind: str
    at: str
    table_id: str
    fingerprint: str
    read_version: int
    rows: int
    checksum: str
    files_in: tuple[str, ...]
    files_out: tuple[str, ...]
    bytes_in: int
    bytes_out: int
    partitions: int
    outlier_rows: int
    seconds: float
    version: int | None = None

    def __repr__(self) -> str:
        return (
            f"version {self.version}: {len(self.files_in)} files of {self.bytes_in:,} bytes became"
            f" {len(self.files_out)} of {self.bytes_out:,}, {self.rows:,} rows in"
            f" {self.partitions} partitions"
        )

    def as_dict(self) -> dict[str, Any]:
        """The receipt without the files' names."""
        found = asdict(self)
        return found | {"files_in": len(self.files_in), "files_out": len(self.files_out)}


def write_receipt(storage: Storage, table: TableName, receipt: Receipt) -> None:
    """Writes a receipt, in place of an earlier state of it."""
    storage.write_json(_path(table, receipt.id), {"format": _FORMAT, **asdict(receipt)})


def read_receipts(storage: Storage, table: TableName) -> tuple[Receipt, ...]:
    """The operations of the last 30 days, the oldest first.

    Raises:
        FormatError: a receipt is of a newer format.
    """
    names = [entry.name for entry in storage.list(_folder(table)).files]
    documents = (read_kept(storage, f"{_folder(table)}/{name}", _FORMAT) for name in names)
    return tuple(map(_receipt, filter(None, documents)))


def recover(
    storage: Storage, table: TableName, fence_off: Callable[[Receipt], None] = noop
) -> None:
    """Finds out what became of operations that were cut off, and cleans up after them.

    A receipt's version is then the commit, or -1 if the operation was never committed. The caller
    holds the table's lease.

    Args:
        storage: the lake's files.
        table: which table.
        fence_off: called on an object store, before anything is deleted; see `fence_off`.
    """
    for receipt in read_receipts(storage, table):
        age = datetime.now(timezone.utc) - datetime.fromisoformat(receipt.at)
        if receipt.version is None:
            if storage.local is None:
                fence_off(receipt)
            _settle(storage, table, receipt)
        elif age > _KEEP:
            storage.delete(_path(table, receipt.id))


def heed_fence(txn: DeltaTransaction, storage: Storage, operation: str, table: TableName) -> None:
    """Lets a transaction fail if its operation is fenced off before it commits; see `recover`.

    Args:
        txn: the operation's transaction.
        storage: the lake's files; on a local disk a lock says who is at work.
        operation: its id.
        table: which table, for the message.

    Raises:
        BusyError: it is fenced off already: another process has cleaned up after it.
    """
    if storage.local is None and txn.has_seen(operation, 1):
        raise BusyError(
            f"Another process has taken over the partitioning of {table}.",
            hint="nothing is lost: it goes on from there.",
        )


def fence_off(table: TableHandle, receipt: Receipt) -> None:
    """Makes sure that an operation which has not committed by now never will.

    Raises:
        BusyError: other writers of the table were quicker each time.
    """
    note = json.dumps({"mirrorlake": "partitioning", "fenced": receipt.id})
    for _ in range(_TRIES):
        with transaction(table.spark, table.path, note=note) as txn:
            if txn.has_seen(receipt.id, 1):
                return
            with suppress(ConflictError):
                none = RowActions()
                txn.commit_exchange(none, none, updated=0, app_id=receipt.id, number=1)
                return
    raise BusyError(
        f"Other writers of {table.name} were quicker {_TRIES} times.", hint="try again."
    )


def delete_files(storage: Storage, table: TableName, receipt: Receipt) -> None:
    """Deletes what an operation wrote that was never committed."""
    for path in receipt.files_out:
        storage.delete(f"{table.table_path}/{unquote(path)}")


def _settle(storage: Storage, table: TableName, receipt: Receipt) -> None:
    start = receipt.read_version + 1
    after = [version for version in versions(storage, table.table_path) if version >= start]
    for version in after:
        note = read_commit_info(storage, table.table_path, version).get("userMetadata") or ""
        if receipt.id in note and "fenced" not in note:
            write_receipt(storage, table, replace(receipt, version=version))
            return
    # With a gap in the log its commit may have been there.
    if after == list(range(start, start + len(after))):
        delete_files(storage, table, receipt)
        write_receipt(storage, table, replace(receipt, version=ABANDONED))


def _folder(table: TableName) -> str:
    return f"{table.partitioning_path}/receipts"


def _path(table: TableName, operation: str) -> str:
    return f"{_folder(table)}/{operation}.json"


def _receipt(document: dict[str, Any]) -> Receipt:
    found = {key: value for key, value in document.items() if key != "format"}
    for name in ("files_in", "files_out"):
        found[name] = tuple(found[name])
    return Receipt(**found)


def clean_up(table: TableHandle) -> int | None:
    """Vacuums a table if files that operations replaced are out of its retention.

    Returns:
        When it is to be done next, microseconds since 1970; None for never.

    Raises:
        FormatError: the receipts, or the note of the last time, are of a newer format.
    """
    path, now = f"{table.name.partitioning_path}/cleaned.json", datetime.now(timezone.utc)
    last = (read_kept(table.storage, path, _FORMAT) or {}).get("at", "")
    keep = retention(table.snapshot(), FILE_RETENTION) + timedelta(minutes=1)
    # The operations whose replaced files no vacuum has removed yet, and when each falls due.
    due = {
        one.at: datetime.fromisoformat(one.at) + keep
        for one in read_receipts(table.storage, table.name)
        if (one.version or ABANDONED) >= 0 and one.at > last
    }
    over = [at for at, when in due.items() if when < now]
    if over:
        vacuum_table(table, apply=True)
        table.storage.write_json(path, {"at": max(over)})
    return min((to_micros(when) for when in due.values() if when >= now), default=None)


def prove_files(
    txn: DeltaTransaction,
    adds: Sequence[Add],
    keys: KeyColumns,
    groups: Groups,
    *,
    derived: str | None = None,
) -> dict[str, Row]:
    """Reads new files back, in one job.

    Args:
        txn: the transaction that wrote them.
        adds: the files.
        keys: the policy's.
        groups: of the operation.
        derived: the column that operations fill, which the proof leaves out.

    Returns:
        By the file's name what it holds: `rows`, `low` and `high` as the sums of both halves of
        their hashes, `task` as the number of their group, and `least` and `most` of the range key
        with NULL as the reference, in microseconds since 1970.

    Raises:
        RewriteError: a file has rows of two partitions, or none at all.
    """
    if not adds:
        return {}
    rows = txn.rows(uncommitted(adds))
    hashed = whole_hash(rows, row_ids=txn.tracks_rows, without=derived)
    columns = [F.col(quote(column)) for column in keys.policy.columns]
    file, whole = f"{_TASK}_file", f"{_TASK}_hash"
    narrow = rows.select(*columns, F.col("_metadata.file_name").alias(file), hashed.alias(whole))
    placed = numbered(narrow, keys, groups, _TASK)
    timestamp = keys.timestamp()
    found = placed.groupBy(file).agg(
        *hash_sums(F.col(whole)),
        F.min(_TASK).alias("task"),
        F.max(_TASK).alias("last_task"),
        F.min(timestamp).alias("least"),
        F.max(timestamp).alias("most"),
    )
    proofs = {unquote(line[file]): line for line in found.collect()}
    if mixed := [name for name, line in proofs.items() if line["task"] != line["last_task"]]:
        raise RewriteError(
            f"{mixed[0]} has rows of more than one partition.",
            hint="nothing was committed; please report the table's schema.",
        )
    if missing := [add["path"] for add in adds if file_name(add["path"]) not in proofs]:
        raise RewriteError(f"{missing[0]} can't be read back.", hint="nothing was committed.")
    return proofs


def logged_rows(adds: Sequence[Add]) -> int | None:
    """The rows of files as the log counts them; None if it does not of each."""
    counts = [json.loads(add.get("stats") or "{}").get("numRecords") for add in adds]
    masked = sum((add.get("deletionVector") or {}).get("cardinality", 0) for add in adds)
    return None if None in counts else sum(counts) - masked


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
        recover(storage, name, partial(fence_off, table))
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
        write_receipt(storage, name, done)
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
            "size", physical_row_count().alias("logged"), row_count().alias("rows")
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
    return (small_files if kind == MERGE else pending_files)(files, setting)


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
        self._provider = {"clusteringProvider": PROVIDER} if "clustering" in features else {}
        self.receipt: Receipt | None = None

    def write(self, txn: DeltaTransaction, chosen: Sequence[Add]) -> Written:
        """Writes homogeneous files, proves them, and writes the receipt."""
        storage, name = self._table.storage, self._table.name
        self._on_step(name, Step.CHOSEN)
        heed_fence(txn, storage, self.id, name)
        if self.receipt is not None:
            # Another writer was quicker: no version has what the attempt before this one wrote.
            delete_files(storage, name, self.receipt)
        column = self._setting.bucket_column
        sources = txn.rows(chosen)
        fingerprint = self._setting.fingerprint
        if self._kind == PARTITION:
            done = partitioned_bins(txn.files(), fingerprint)
            are_left = all(map(is_left, chosen))
            groups = look_at(sources, self._keys, done, are_left=are_left)
        else:
            groups = groups_of_tags(chosen)
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
        proofs = prove_files(txn, written, self._keys, groups, derived=column)
        sums = [sum(proof[what] for proof in proofs.values()) for what in ("rows", "low", "high")]
        rows, checksum = as_pair(sums)
        if as_pair(seen()) != (rows, checksum) or logged_rows(chosen) not in (None, rows):
            # Neither refutes anything: Spark sums up a repeated task's rows twice, and others'
            # statistics may be wrong. So the old files are asked, in a job of their own.
            compare_sides(as_pair(sources.agg(*hash_sums(hashed)).first()), (rows, checksum))
        adds = []
        for add in written:
            proof = proofs[file_name(add["path"])]
            found = partition_tags(proof["task"], groups, self._policy, fingerprint)
            least, most = arrival(chosen, found)
            # A file is as old as what it was made of: what goes by age must not take it for new.
            aged = add | {"modificationTime": most // 1000}
            arrived = {ARRIVED: f"{least}/{most}"}
            if groups.is_rest(proof["task"]):  # as unpartitioned as the files that it was made of
                adds.append(aged | {"tags": arrived})
                continue
            found |= arrived | {SORTED_TAG: self._sorted}
            if column is not None:
                found[STORED] = column
            if self._policy.range is not None and self._policy.range.override_creation_time:
                found[CREATED] = f"{proof['least']}/{proof['most']}"
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
        write_receipt(storage, name, self.receipt)
        self._on_step(name, Step.RECORDED)
        self._lease.confirm()
        return Written(chosen, adds, proof=(rows, checksum))
